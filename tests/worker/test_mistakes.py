"""Typical mistakes: each costs one line that says what to do."""

import os
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper.border.search_log import read
from spotkeeper_worker import NoAgent, Worker, __version__
from spotkeeper_worker.agent import cli
from spotkeeper_worker.agent.cli import main
from spotkeeper_worker.agent.settings import SettingsError, parse
from spotkeeper_worker.agent.web import connection_to_aws
from spotkeeper_worker.alone import Alone
from spotkeeper_worker.celery import install
from spotkeeper_worker.extras import region_of_queue
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs import files
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.worker.page import of

CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Alone(stak="s"), SettingsError, "SPOTKEEPER_STAK: is not a setting; did you mean"),
    (lambda: Worker("a", "/nowhere"), NoAgent, "Start `spotkeeper-agent run`, mount its folder"),
    (lambda: install("x"), TypeError, r"install takes the Celery app itself, and not 'x'"),
    (lambda: parse({"SPOTKEEPER_WORKERS": "two", "SPOTKEEPER_STACK": "s"}), SettingsError,
     "SPOTKEEPER_WORKERS: 'two' should be a whole number from 0 to 200"),
    (lambda: parse({"SPOTKEEPER_SEARCH_LOG_QUEUE_URL": "logs"}), SettingsError,
     "^SPOTKEEPER_SEARCH_LOG_QUEUE_URL: 'logs' should be the URL of a queue[^;]*$"),
    (lambda: parse({"SPOTKEEPER_LOGS": "/a.json", "SPOTKEEPER_STACK": "s"}), SettingsError,
     "should be {follow = "),
    (lambda: parse({"SPOTKEEPER_RUN_DIR": f"/{'x' * 99}", "SPOTKEEPER_STACK": "s"}), SettingsError,
     "should be an absolute path of at most 96"),
    (lambda: region_of_queue("requests"), ValueError, "'requests' should be a queue's URL: https"),
    (lambda: region_of_queue(None), ValueError, "None should be a queue's URL"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "why"), CALLS, ids=[why[:20] for *_, why in CALLS])
def test_a_mistake_is_explained(call: Callable[[], object], kind: Any, why: str) -> None:
    with pytest.raises(kind, match=why) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_who_may_not_join_or_begin_learns_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spotkeeper_worker.worker.Place", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError, match="add it to the group of that folder"):
        Worker("a", tmp_path)
    monkeypatch.setattr(cli, "_run", Mock(side_effect=PermissionError))
    assert main(["run"]) == 2
    assert "run it as root, or set SPOTKEEPER_RUN_DIR" in capsys.readouterr().err


def test_a_worker_that_waits_for_an_agent_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workers").mkdir()
    with Worker("gpu-0", tmp_path) as worker:
        assert not worker.may_take and "notice" not in caplog.text
        monkeypatch.setattr("spotkeeper_worker.worker._NOTICE_WITHIN_S", 0.0)
        assert not worker.may_take and not worker.may_take
    assert caplog.text.count("notice.json: start `spotkeeper-agent run`") == 1


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"AWS_CA_BUNDLE": "/nope.pem"}, "AWS_CA_BUNDLE: /nope.pem: No such file or directory"),
        ({"HTTPS_PROXY": "proxy:3128"}, "HTTPS_PROXY: should be http://HOST:PORT"),
    ],
)
def test_a_wrong_way_to_aws_is_named(
    environment: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(HTTPException, match=why):
        connection_to_aws("https://sqs.us-east-1.amazonaws.com/", 1.0)


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("sqs", "botocore", "sqs"),
        ("rabbitmq", "aio_pika", "rabbitmq"),
        ("celery", "celery", "celery"),
        ("aio.sqs", "botocore", "asyncio-sqs"),
        ("aio.rabbitmq", "aio_pika", "rabbitmq"),
    ],
)
def test_a_missing_extra_is_named(module: str, missing: str, extra: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None\nimport spotkeeper_worker.{module}"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith(f"pip install 'spotkeeper-worker[{extra}]'")


def test_the_agent_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(of("spotkeeper-agent --version")[0].split()[1:])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"spotkeeper-agent {__version__}\n"


def test_refused_files_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_REFUSED", 10_000)
    folder = tmp_path / files.FOLDER
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02d}.json").write_text("{" + "x" * 999)
        os.utime(folder / f"{number:02d}.json", (number, number))
        files.collect(tmp_path, lambda *_: [], Sometimes(get_logger("agent")))
    kept = sorted(path.name for path in (tmp_path / files.REFUSED).iterdir())
    assert kept == [f"{number:02d}.json" for number in range(20, 30)]


def checked(capsys: pytest.CaptureFixture[str], **settings: str) -> tuple[int, dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name[:4] in ("AWS_", "SPOT")]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        code = main(of("spotkeeper-agent check")[0].split()[1:])
    lines = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    return code, dict(lines)


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_check_names_what_is_wrong(
    machine: FakeMachine, server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = checked(capsys, SPOTKEEPER_STAK="s")
    assert (code, list(lines)) == (1, ["WRONG settings"])
    here = {**server.environment(), "SPOTKEEPER_RUN_DIR": str(tmp_path / "run")}
    machine.launch()
    code, lines = checked(capsys, **here)
    assert code == 1
    assert "systemctl start spotkeeper-agent" in lines["WRONG agent"]
    agent = start_agent(tmp_path, server, workers=0)
    try:
        until(lambda: (tmp_path / "run" / "agent.sock").exists(), "it runs")
        until(lambda: (tmp_path / "run" / "notice.json").exists(), "it has a notice")
        code, lines = checked(capsys, **here)
        names = ["settings", "agent", "metadata", "clock", "queue", "group", "permissions"]
        assert (code, list(lines)) == (0, [f"ok    {name}" for name in names])
        assert lines["ok    metadata"] == machine.instance_id
        assert {len(read(body).logs) for body in machine.bodies} == {0}
        machine.refuses = "AccessDenied"
        code, lines = checked(capsys, **here)
        assert "give the machine's role to the stack as WorkerRole (us-e" in lines["WRONG queue"]
    finally:
        agent.kill()
        agent.wait()
