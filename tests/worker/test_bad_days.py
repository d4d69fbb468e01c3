"""Bad days, one after the other, on one machine: each is a clear line, and nothing is lost by it.

What needs a broker is in test_rabbitmq, what needs a full disk or a kill in test_search_logs and
test_agent.
"""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotkeeper_worker import Worker
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]


@dataclass
class Scene:
    """A machine in service with its agent and one worker, for a whole module."""

    machine: FakeMachine
    server: FakeServer
    worker: Worker
    folder: Path
    served: int = 0

    def serve(self) -> str:
        """Serve a request; gives its name."""
        self.served += 1
        name = f"r-{self.served}"
        with self.worker.request(name, time.time()):
            pass
        return name

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def logged(self) -> set[str]:
        return {str(log["request_id"]) for log in self.machine.logs()}

    def leave(self, name: str, text: str) -> None:
        """Leave a file for the agent, as a shell script does."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").replace(self.folder / "spool" / "in" / name)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, machine = tmp_path_factory.mktemp("bad"), FakeMachine()
    with FakeServer(machine) as server, (folder / "said").open("wb") as said:
        machine.launch()
        agent = start_agent(folder, server, said, hook_settles_s=3, send_at_most_s=0.2)
        with Worker("gpu-0", folder / "run", margin_s=0.0, send_every_s=0.02) as worker:
            worker.ready()
            until(lambda: worker.may_take and bool(machine.completed), "it serves")
            yield Scene(machine, server, worker, folder)
        agent.send_signal(signal.SIGKILL)
        agent.wait()


def fault(kind: str) -> Callable[[Scene], None]:
    return lambda scene: setattr(scene.machine, "fault", kind)


def sqs_refuses(scene: Scene) -> None:
    scene.machine.refuses = "ServiceUnavailable"
    scene.serve()


def clock_is_behind(scene: Scene) -> None:
    scene.machine.clock_ahead_s = 120.0


def a_log_of_300_kib(scene: Scene) -> None:
    scene.leave("large.json", json.dumps({"request_id": "x" * 300 * 1024, "worker_id": "w"}))


def a_file_that_is_no_log(scene: Scene) -> None:
    scene.leave("broken.json", '{"request_id": ')


def a_log_from_a_wrong_clock(scene: Scene) -> None:
    times = {"enqueued_at": "2025-11-20T11:00:00Z", "started_at": "2025-11-20T10:00:00Z"}
    log = {"request_id": "r", "worker_id": "w", **times, "finished_at": "2025-11-20T11:00:01Z"}
    scene.leave("clock.json", json.dumps(log))


def gone_in_the_past(scene: Scene) -> None:
    scene.machine.tag(-30.0)


def the_socket_is_gone(scene: Scene) -> None:
    (scene.folder / "run" / "agent.sock").unlink()
    scene.serve()


BAD_DAYS: dict[str, tuple[Callable[[Scene], None], str]] = {
    "metadata hangs": (fault("hang"), r"metadata: .*timed out; the state stays as it is"),
    "metadata is a page": (fault("html"), r"metadata: .*; the state stays as it is"),
    "metadata refuses tokens": (fault("401"), r"metadata: api/token: answered 401 and no token"),
    "metadata is ill": (fault("503"), r"metadata: .*answered 503"),
    "SQS refuses": (sqs_refuses, r"search logs wait: SendMessage: ServiceUnavailable: refused"),
    "a clock is behind": (clock_is_behind, r"EC2's clock is \+1\d\d s from this one; run chrony"),
    "a log of 300 KiB": (a_log_of_300_kib, r"a search log was refused: request_id: 'x+'; should"),
    "no log at all": (a_file_that_is_no_log, r"broken\.json could not be read and was moved to"),
    "a wrong clock": (a_log_from_a_wrong_clock, r"started_at: lies 3600\.000 s before enqueued_at"),
    "an end in the past": (gone_in_the_past, r"serving -> draining: tagged, until"),
    "the socket is gone": (the_socket_is_gone, r""),
}  # fmt: skip


@pytest.mark.parametrize("day", BAD_DAYS)
def test_a_bad_day_is_a_line_and_costs_nothing(scene: Scene, day: str) -> None:
    befalls, line = BAD_DAYS[day]
    known = len(scene.said)
    befalls(scene)
    until(lambda: re.search(line, scene.said[known:]) is not None, f"it says {line}")
    drains = befalls is gone_in_the_past
    assert (scene.worker.draining, scene.worker.may_take) == (drains, not drains)
    scene.machine.fault = scene.machine.refuses = ""
    scene.machine.clock_ahead_s = 0.0
    scene.machine.untag()
    until(lambda: scene.worker.may_take, "it serves again")
    last = scene.serve()
    until(lambda: last in scene.logged, "logs come again")
    assert scene.logged >= {f"r-{number + 1}" for number in range(scene.served)}


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b'{"notice": true}\n', '"state": "serving"'),
        (b"[]\n", '"error"'),
        (b"{\n", '"error"'),
        (b'{"logs": 1, "session": "a", "batch": 1}\n', "logs should be a list"),
        (b'{"logs": [], "session": "a b", "batch": 1}\n', "session should be"),
        (b'{"logs": [], "session": "a", "batch": 0}\n', "batch should be"),
        (b'{"logs": [], "session": "a", "batch": 1, "lost": "2"}\n', "lost should be"),
        (b"x" * (512 * 1024 + 2), "a line has at most"),
    ],
)
def test_the_socket_says_what_is_wrong(scene: Scene, line: bytes, answer: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(scene.folder / "run" / "agent.sock"))
        connection.sendall(line)
        assert answer in connection.makefile().readline()


def test_a_second_agent_says_who_is_there_and_goes(scene: Scene) -> None:
    second = start_agent(scene.folder, scene.server, subprocess.PIPE)
    _, said = second.communicate(timeout=60)
    assert (second.returncode, b"one is enough" in said) == (2, True)
