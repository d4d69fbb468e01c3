"""The command line: durations, and errors in one sentence with exit code 2."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

# The commands import this when they run; urllib3 tries a socket then, which no test may.
import spotkeeper_lab.run.demo  # noqa: F401
from spotkeeper_cli.main import app
from spotkeeper_cli.options import seconds
from spotkeeper_cli.output import check_outputs, write

MARKET = "time_s,pool,capacity\n0,a/x,3\n7200,,\n"
REQUESTS = "arrival_s,service_s\n1,2\n5000,2\n"
RATED = "replay --rule load-rate --requests"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("120", 120), ("120s", 120), ("2m", 120), ("1.5h", 5400), (" .5d ", 43200), ("0", 0)],
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "2 minutes", "-1", "m", "1e9", "nan", "1h30m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        seconds(text)


@pytest.fixture
def market(tmp_path: Path) -> Path:
    path = tmp_path / "market.csv"
    path.write_text(MARKET)
    return path


def refused(*arguments: str) -> str:
    """What the command says when it refuses; it must be an exit with 2, not a traceback."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return " ".join(result.stderr.split())


def test_a_market_that_is_too_short_leaves_nothing_behind(market: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = refused(
        "demo", "--market", str(market), "--hours", "1", "--start", "1.5", "--out", str(out)
    )
    assert told.startswith("error: market market lasts 2 h")
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("time_s,pool,capacity\n0,a/x,3\n", "no end row"),
        ("time_s,pool,capacity\n5,a/x,3\n1,a/x,2\n9,,\n", "line 3: time_s goes back"),
        ("time_s,pool,capacity\n0,a/x,-3\n9,,\n", "line 2: capacity is '-3'"),
    ],
)
def test_a_broken_market_is_named_with_its_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "market.csv"
    path.write_text(content)
    for command in ("demo", "backtest"):
        said = refused(command, "--market", str(path))
        assert said.startswith(f"error: {path}"), said
        assert told in said


def test_broken_requests_are_named_with_their_line(market: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,service_s\n5,1\nfive,1\n")
    told = refused("demo", "--market", str(market), "--requests", str(path), "--hours", "1")
    assert told.startswith(f"error: {path}, line 3")


def test_a_folder_that_cannot_be_made(market: Path, tmp_path: Path) -> None:
    requests = tmp_path / "requests.csv"
    requests.write_text(REQUESTS)
    told = refused(
        "demo",
        *("--market", str(market), "--requests", str(requests)),
        *("--hours", "1", "--out", str(market / "out")),
    )
    assert "give another --out" in told


def test_an_unknown_policy_offers_the_nearest(market: Path) -> None:
    told = refused("backtest", "--market", str(market), "--policy", "spothegde")
    assert told.startswith("error: no policy is called 'spothegde'; did you mean spothedge")


def test_a_backtest_of_one_region_uses_its_pools_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("time_s,pool,capacity\n0,us-east-1a/x,0\n0,us-west-2a/x,3\n7200,,\n")
    line = ["backtest", "--market", str(path), "--policy", "spot", "--json", "-"]
    whole = CliRunner().invoke(app, line)
    east = CliRunner().invoke(app, [*line, "--region", "us-east-1"])
    shown = [json.loads(one.stdout)[0] for one in (whole, east)]
    assert [row["regions"] for row in shown] == [["us-east-1", "us-west-2"], ["us-east-1"]]
    assert [row["served_share"] > 0.99 for row in shown] == [True, False]
    assert "its pools are in 2 regions (us-east-1, us-west-2)" in " ".join(whole.stderr.split())
    assert not east.stderr
    told = refused(*line, "--region", "eu-west-1")
    assert told.endswith("has no pool in 'eu-west-1'; its regions are us-east-1, us-west-2")


def test_a_folder_that_is_a_file_is_told_before_the_work(market: Path) -> None:
    path = market / "rows.json"
    told = refused("backtest", "--market", str(market), "--json", str(path))
    assert told == f"error: {path}: cannot make its folder: File exists"


def test_a_result_never_takes_the_place_of_what_is_read(market: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(market)
    for path in (market, link):
        told = refused("backtest", "--market", str(market), "--report", str(path))
        assert told == f"error: {path}: is read too; name another file"
    assert market.read_text() == MARKET


IGNORED = (
    ("backtest --market {market} --json {out} --report {out}", "out.txt: is asked for twice"),
    ("backtest --market {market} --json - --report -", "-: is asked for twice"),
    ("backtest --market {market} --window-hours 1", "without it the whole trace is one window"),
    ("trace convert {json} --out {out} --gap 0", "a step of 0 s has no length"),
    ("trace convert {json} --out {out} --pool a,b", "the pool 'a,b' cannot stand in a file"),
    ("demo --market {market} --mean-rate 5", "a mean rate is for files of rates"),
)


@pytest.mark.parametrize(("line", "told"), IGNORED)
def test_an_option_without_an_effect_is_refused(
    market: Path, recorded: Path, tmp_path: Path, line: str, told: str
) -> None:
    out = tmp_path / "out.txt"
    words = line.format(market=market, json=recorded, out=out).split()
    # Words may be broken over lines, and between them is the box.
    assert told in refused(*words).replace(" │ │ ", " ")
    assert not out.exists()


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link = tmp_path / "rows.json", tmp_path / "latest.json"
    link.symlink_to(target)
    write("[]", link)
    assert link.is_symlink()
    assert target.read_text() == "[]"
    write("[]", Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "rows.json"
    check_outputs((path, None, Path("-")))
    write("[]", path)
    assert path.read_text() == "[]"


def test_a_negative_seed_is_a_wrong_argument(market: Path) -> None:
    for command in ("demo", "backtest"):
        assert "Invalid value for '--seed'" in refused(
            command, "--market", str(market), "--seed", "-1"
        )


def test_a_full_disk_is_told_in_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spotkeeper_cli.main", "--version"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


def test_the_version_and_short_help() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert told.stdout == f"spotkeeper {version('spotkeeper')}\n"
    assert "--watch" in CliRunner().invoke(app, ["status", "-h"]).stdout


@pytest.mark.parametrize("option", ["--cold-start", "--tick", "--notice"])
def test_a_wrong_duration_is_a_wrong_argument(market: Path, option: str) -> None:
    assert "no duration" in refused("backtest", "--market", str(market), option, "soon")


CONVERTIBLE = '{"metadata": {"gap_seconds": 300}, "data": [0, 4, 4, 1]}'
CONVERTED = "time_s,pool,capacity\n0,us-east-1a/v100_1,0\n300,us-east-1a/v100_1,4\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "us-east-1a_v100_1.json"
    path.write_text(CONVERTIBLE)
    return path


def test_convert_never_takes_the_place_of_what_it_reads(recorded: Path) -> None:
    told = refused("trace", "convert", str(recorded), "--out", str(recorded))
    assert told == f"error: {recorded}: is read too; name another file"
    assert recorded.read_text() == CONVERTIBLE


def test_convert_makes_a_missing_folder(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "not" / "there" / "market.csv"
    result = CliRunner().invoke(app, ["trace", "convert", str(recorded), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text().startswith(CONVERTED)


def test_convert_writes_to_standard_output(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["trace", "convert", str(recorded), "--out", "-"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(CONVERTED)
    assert result.stderr == "-: pools us-east-1a/v100_1; us-east-1; 0.3 h\n"
    assert list(tmp_path.iterdir()) == [recorded]


def test_convert_names_the_line_that_it_cannot_read(tmp_path: Path) -> None:
    path, out = tmp_path / "us-east-1a_v100_1.csv", tmp_path / "market.csv"
    path.write_text("date,availability\n2023-02-15T00:00:00,1\nnever,1\n")
    assert refused("trace", "convert", str(path), "--out", str(out)).startswith(
        f"error: {path}, line 3"
    )
    assert not out.exists()


def test_convert_writes_a_market(tmp_path: Path) -> None:
    path, out = tmp_path / "us-east-1a_v100_1.json", tmp_path / "market.csv"
    path.write_text('{"metadata": {"gap_seconds": 300}, "data": [0, 4, 4, 1]}')
    result = CliRunner().invoke(app, ["trace", "convert", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text().splitlines()[-1] == "1200,,"


def test_help_needs_neither_numpy_nor_boto3() -> None:
    code = (
        "import sys, spotkeeper_cli.main\n"
        "sys.exit(', '.join({'numpy', 'boto3', 'moto', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_an_unknown_rule_offers_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(REQUESTS)
    told = refused("replay", "--requests", str(path), "--rule", "spotkeper")
    assert told == "error: no rule is called 'spotkeper'; did you mean spotkeeper?"


def test_replay_answers_rows_on_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(REQUESTS)
    arguments = ["replay", "--requests", str(path), "--rule", "load-rate", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["rule"] for row in rows] == ["load-rate"]


def test_traces_that_are_called_alike_have_rows_of_their_own(tmp_path: Path) -> None:
    for content, command in ((MARKET, "backtest --policy spot --market"), (REQUESTS, RATED)):
        paths = [tmp_path / day / "trace.csv" for day in ("mon", "tue")]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        words = command.split()
        result = CliRunner().invoke(
            app, [*words, str(paths[0]), words[-1], str(paths[1]), "--json", "-"]
        )
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)
        assert [row["market" if "market" in row else "trace"] for row in rows] == [
            "mon/trace",
            "tue/trace",
        ]


def test_replay_draws_as_many_requests_as_the_rates_say(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rate_per_s\n0,5\n600,5\n")
    counts = []
    for more in ([], ["--mean-rate", "1"]):
        result = CliRunner().invoke(app, [*RATED.split(), str(path), "--json", "-", *more])
        assert result.exit_code == 0, result.output
        counts.append(json.loads(result.stdout)[0]["requests"])
    assert counts == [pytest.approx(6000, rel=0.1), pytest.approx(1200, rel=0.1)]


def test_more_requests_than_can_be_drawn_are_scaled_and_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rate_per_s\n0,20000\n600,20000\n")
    result = CliRunner().invoke(app, [*RATED.split(), str(path), "--json", "-"])
    assert json.loads(result.stdout)[0]["requests"] == pytest.approx(1200, rel=0.1)
    assert "24,000,000 requests are too many to draw: drawn at a mean of 1 a" in result.stderr
    assert "too many to draw" in refused(*RATED.split(), str(path), "--mean-rate", "20000")


def test_a_load_that_no_fleet_of_the_replay_can_serve_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rate_per_s\n0,4\n600,4\n")
    told = refused(*RATED.split(), str(path), "--max-workers", "5")
    assert "more than 5 workers can serve; allow more with --max-workers" in told
    result = CliRunner().invoke(app, [*RATED.split(), str(path), "--max-workers", "50"])
    assert result.exit_code == 0, result.output


def test_replay_on_a_market_has_instances_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    requests, market = tmp_path / "requests.csv", tmp_path / "market.csv"
    requests.write_text("arrival_s,service_s\n1,2\n400,2\n", encoding="utf-8")
    market.write_text("time_s,pool,capacity\n0,a/x,3\n400,,\n", encoding="utf-8")
    traces = ["--requests", str(requests), "--market", str(market)]
    options = ["--rule", "load-rate", "--workers-per-instance", "3", "--json", "-"]
    result = CliRunner().invoke(app, ["replay", *traces, *options])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[-1]["workers_per_instance"] == 3
