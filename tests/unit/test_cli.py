"""The command line: what it answers, and mistakes in one sentence with exit code 2."""

import io
import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

# The commands import this when they run; urllib3 tries a socket then, which no test may.
import spotkeeper_lab.run.demo  # noqa: F401
from spotkeeper_cli import lab_commands
from spotkeeper_cli.main import app
from spotkeeper_cli.options import OutputError, check_outputs, seconds, write
from spotkeeper_lab.backtest.policies import POLICIES
from spotkeeper_lab.run.replay import RULE_NAMES
from spotkeeper_lab.traces.market import read_market
from spotkeeper_lab.traces.requests import read_requests

HEAD = "time_s,pool,capacity\n"
CONVERTED = f"{HEAD}0,us-east-1a/v100_1,0\n300,us-east-1a/v100_1,4\n"
FILES = {
    "market.csv": f"{HEAD}0,a/x,3\n7200,,\n",
    "regions.csv": f"{HEAD}0,us-east-1a/x,0\n0,us-west-2a/x,3\n7200,,\n",
    "short.csv": f"{HEAD}0,a/x,3\n400,,\n",
    "empty.csv": "",
    "requests.csv": "arrival_s,service_s\n1,2\n5000,2\n",
    "few.csv": "arrival_s,service_s\n1,2\n400,2\n",
    "broken.csv": "arrival_s,service_s\n5,1\nfive,1\n",
    "rates.csv": "time_s,rate_per_s\n0,5\n600,5\n",
    "flood.csv": "time_s,rate_per_s\n0,20000\n600,20000\n",
    "mon/trace.csv": f"{HEAD}0,a/x,3\n7200,,\n",
    "tue/trace.csv": f"{HEAD}0,a/x,3\n7200,,\n",
    "us-east-1a_v100_1.json": '{"metadata": {"gap_seconds": 300}, "data": [0, 4, 4, 1]}',
    "us-east-1a_v100_1.csv": "date,availability\n2023-02-15T00:00:00,1\nnever,1\n",
}
ZONE = "us-east-1a_v100_1.json"
RULE = "replay --rule load-rate --json - --requests"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of traces, in which the commands run."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "link.csv").symlink_to(tmp_path / "market.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def rows(line: str) -> list[dict[str, Any]]:
    """The rows that a command answers on standard output."""
    result = run(line)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def test_durations() -> None:
    texts = ("120", "120s", "2m", "1.5h", " .5d ", "0")
    assert [seconds()(text) for text in texts] == [120, 120, 120, 5400, 43200, 0]
    for text in ("", "2 minutes", "-1", "m", "1e9", "nan", "1h30m"):
        with pytest.raises(typer.BadParameter, match="no duration"):
            seconds()(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("demo --market market.csv --hours 1 --start 1.5", "error: market market lasts 2 h"),
        ("demo --market empty.csv", "error: empty.csv: is empty"),
        ("demo --market market.csv --requests broken.csv --hours 1",
         "error: broken.csv, line 3: expected two numbers"),
        ("demo --market market.csv --requests requests.csv --hours 1 --out market.csv/out",
         "error: market.csv/out: Not a directory; give another --out"),
        ("demo --market market.csv --seed -1", "Invalid value for '--seed'"),
        ("demo --market market.csv --mean-rate 5", "a mean rate is for files of rates"),
        ("backtest --market empty.csv", "error: empty.csv: is empty"),
        ("backtest --market market.csv --policy spothegde",
         "error: no policy is called 'spothegde'; did you mean spothedge"),
        ("backtest --market regions.csv --policy spot --region eu-west-1",
         "has no pool in 'eu-west-1'; its regions are us-east-1, us-west-2"),
        ("backtest --market market.csv --json market.csv/rows.json",
         "error: market.csv/rows.json: cannot make its folder: File exists"),
        ("backtest --market market.csv --report market.csv",
         "error: market.csv: is read too; name another file"),
        ("backtest --market market.csv --report link.csv",
         "error: link.csv: is read too; name another file"),
        ("backtest --market market.csv --json out --report out", "out: is given twice"),
        ("backtest --market market.csv --json - --report -", "-: is given twice"),
        ("backtest --market market.csv --window-hours 1",
         "without it the whole trace is one window"),
        ("backtest --market market.csv --seed -1", "Invalid value for '--seed'"),
        ("backtest --market market.csv --target 0", "Invalid value for '--target'"),
        ("backtest --market market.csv --notice-lost nan", "Invalid value for '--notice-lost'"),
        ("backtest --market market.csv --warm-pool 2", "give --warm-start, too"),
        ("backtest --market market.csv --windows 0", "Invalid value for '--windows'"),
        ("backtest --market market.csv --turn-jitter 60s", "too long: at most 59 s"),
        ("replay --requests requests.csv --min-workers 9 --max-workers 5", "more than the 5 of"),
        ("replay --requests requests.csv --market market.csv --slots 2", "have one slot with"),
        ("replay --requests requests.csv --onprem 2000", "at most 1,000 workers"),
        ("replay --requests requests.csv --share 95", "Invalid value for '--share'"),
        ("backtest --market market.csv --cold-start soon", "no duration"),
        (f"trace convert {ZONE} --out out --gap 0", "a step of 0 s has no length"),
        (f"trace convert {ZONE} --out {ZONE}", f"error: {ZONE}: is read too; name another file"),
        ("trace convert us-east-1a_v100_1.csv --out out",
         "error: us-east-1a_v100_1.csv, line 3: 'never' is not a date and time"),
        ("replay --requests requests.csv --rule spotkeper",
         "error: no rule is called 'spotkeper'; did you mean spotkeeper?"),
        (f"{RULE} rates.csv --mean-rate nan", "Invalid value for '--mean-rate'"),
        (f"{RULE} flood.csv --mean-rate 20000", "too many to draw"),
        (f"{RULE} rates.csv --max-workers 5",
         "more than 5 workers can serve; allow more with --max-workers"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_a_sentence_and_leaves_nothing_behind(
    folder: Path, line: str, said: str
) -> None:
    before = sorted(folder.rglob("*"))
    result = run(line)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    # Words may be broken over lines, and between them is the box.
    told = " ".join(result.stderr.split()).replace(" │ │ ", " ")
    assert said in told
    assert not said.startswith("error") or told.startswith(said)
    assert sorted(folder.rglob("*")) == before
    assert all((folder / name).read_text() == text for name, text in FILES.items())


@pytest.mark.usefixtures("folder")
def test_a_backtest_of_one_region_uses_its_pools_alone() -> None:
    line = "backtest --market regions.csv --policy spot --json -"
    whole, east = run(line), run(f"{line} --region us-east-1")
    shown = [json.loads(one.stdout)["rows"][0] for one in (whole, east)]
    assert [row["regions"] for row in shown] == [["us-east-1", "us-west-2"], ["us-east-1"]]
    assert [row["served_share"] > 0.99 for row in shown] == [True, False]
    assert "its pools are in 2 regions (us-east-1, us-west-2)" in " ".join(whole.stderr.split())
    assert not east.stderr


def test_a_story_of_a_job_prints_its_promises() -> None:
    shown = run("lab run job-dry")
    assert shown.exit_code == 0
    assert "the job ends once there is capacity" in " ".join(shown.stdout.split())
    assert "job-stuck-detach" in run("lab scenarios").stdout


@pytest.mark.usefixtures("folder")
def test_traces_of_one_name_have_rows_of_their_own() -> None:
    found = rows("backtest --policy spot --json - --market mon/trace.csv --market tue/trace.csv")
    assert [row["market"] for row in found] == ["mon/trace", "tue/trace"]


def test_convert_writes_a_market_into_a_missing_folder_or_to_standard_output(folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = run(f"trace convert {ZONE} --out -")
    assert result.stdout.startswith(CONVERTED)
    assert result.stderr == "-: pools us-east-1a/v100_1; us-east-1; 0.3 h\n"
    assert sorted(folder.iterdir()) == before
    out = folder / "not" / "there" / "market.csv"
    assert run(f"trace convert {ZONE} --out {out}").exit_code == 0
    assert out.read_text() == result.stdout
    assert out.read_text().splitlines()[-1] == "1200,,"


@pytest.mark.usefixtures("folder")
def test_replay_draws_as_many_requests_as_the_rates_say() -> None:
    assert [row["rule"] for row in rows(f"{RULE} requests.csv")] == ["load-rate"]
    assert rows(f"{RULE} rates.csv")[0]["requests"] == pytest.approx(6000, rel=0.1)
    assert rows(f"{RULE} rates.csv --mean-rate 1")[0]["requests"] == pytest.approx(1200, rel=0.1)
    assert rows(f"{RULE} rates.csv --max-workers 50")
    flood = run(f"{RULE} flood.csv")
    assert json.loads(flood.stdout)["rows"][0]["requests"] == pytest.approx(1200, rel=0.1)
    assert "24,000,000 requests are too many to draw: drawn at a mean of 1 a" in flood.stderr


@pytest.mark.usefixtures("folder")
def test_replay_on_a_market_has_instances_of_the_size_that_was_given() -> None:
    found = rows(f"{RULE} few.csv --market short.csv --workers-per-instance 3")
    assert found[-1]["workers_per_instance"] == 3


def test_results_keep_links_and_devices_and_make_folders(tmp_path: Path) -> None:
    target, link = tmp_path / "a" / "rows.json", tmp_path / "latest.json"
    check_outputs((target, None, Path("-")))
    link.symlink_to(target)
    write("[]", link)
    assert link.is_symlink()
    assert target.read_text() == "[]"
    write("[]", Path(os.devnull))
    assert Path(os.devnull).is_char_device()
    with pytest.raises(OutputError, match="cannot be written: No space left"):
        write("[]", Path("/dev/full"))


def command(*arguments: str, **more: Any) -> tuple[int, str | None, str]:
    """The command as a process: exit code, standard output, standard error."""
    line = [sys.executable, "-m", "spotkeeper_cli.main", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    done = subprocess.run(line, text=True, check=False, **pipes)
    return done.returncode, done.stdout, done.stderr


def test_a_full_disk_ends_with_a_sentence() -> None:
    told = "error: cannot write: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        assert command("--version", stdout=full) == (2, None, told)


def test_a_program_of_the_credentials_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "log-in"
    config = tmp_path / "config"
    config.write_text(f"[default]\nregion = us-east-1\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    code, out, error = command("status")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert str(program) in error
    assert "No such file or directory" in error


def test_the_version_and_help_that_names_every_choice_and_needs_neither_numpy_nor_boto3() -> None:
    assert run("--version").stdout == f"spotkeeper {version('spotkeeper')}\n"
    assert "--watch" in run("status -h").stdout
    assert ", ".join(POLICIES) == lab_commands.POLICY_NAMES
    assert ", ".join(RULE_NAMES) == lab_commands.RULE_NAMES
    code = (
        "import sys, spotkeeper_cli.main\n"
        "sys.exit(', '.join({'numpy', 'boto3', 'moto', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_market_and_requests_are_read_from_standard_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def says(name: str) -> None:
        text = SimpleNamespace(buffer=io.BytesIO(FILES[name].encode()))
        monkeypatch.setattr(sys, "stdin", text)

    says("market.csv")
    assert read_market(Path("-")).pools == ("a/x",)
    says("requests.csv")
    assert len(read_requests(Path("-"))) == 2
