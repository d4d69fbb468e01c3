"""A machine of pretence, and real agents beside it."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotkeeper_worker import Worker
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent

type StartAgent = Callable[..., subprocess.Popen[bytes]]
type Join = Callable[[str], Worker]


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
def agent(tmp_path: Path, server: FakeServer) -> Iterator[StartAgent]:
    """Start agents of one machine, with what settings a test needs."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> subprocess.Popen[bytes]:
        with (tmp_path / "stderr").open("ab") as stderr:
            known = {"hook_settles_s": 3, "stop_within_s": 1}
            process = start_agent(tmp_path, server, stderr, **(known | settings))
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Have workers join the machine."""
    workers: list[Worker] = []

    def made(name: str) -> Worker:
        workers.append(Worker(name, tmp_path / "run", margin_s=1.0, send_every_s=0.02))
        return workers[-1]

    yield made
    for worker in workers:
        worker.close()
