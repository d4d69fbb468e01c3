"""A machine of pretence, and real agents beside it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from spotkeeper_worker.agent.metadata import Metadata
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent
from tests.worker.page import ROOT

type StartAgent = Callable[..., subprocess.Popen[bytes]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.make_e2e)


def program(path: Path, script: str) -> Path:
    """Write a shell script that stands in for a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def server(machine: FakeMachine) -> Iterator[FakeServer]:
    with FakeServer(machine) as serving:
        yield serving


@pytest.fixture
def metadata(server: FakeServer) -> Iterator[Metadata]:
    client = Metadata(server.endpoint, timeout_s=60.0)
    yield client
    client.close()


@pytest.fixture
def no_hang() -> Iterator[None]:
    """A test that hangs fails instead."""

    def hung(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd receives notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield channel


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """Where moto serves all of AWS."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def release(folder: Path) -> None:
    """What `make release` makes."""
    command = [sys.executable, ".ci/release.py", str(folder), "their-bucket"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    release(folder)
    return folder


@pytest.fixture
def agent(tmp_path: Path, server: FakeServer) -> Iterator[StartAgent]:
    """Start agents of one machine, with what settings a test needs."""
    with ExitStack() as ending, (tmp_path / "stderr").open("ab") as stderr:

        def start(**settings: object) -> subprocess.Popen[bytes]:
            known = {"hook_settles_s": 3, "stop_within_s": 1}
            process = start_agent(tmp_path, server, stderr, **(known | settings))
            ending.callback(process.wait)
            ending.callback(process.kill)
            return process

        yield start
