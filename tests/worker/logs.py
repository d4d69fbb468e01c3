"""Search logs as workers write them, and a test in the place of the agent that takes them."""

import json
import time
from pathlib import Path
from typing import Any

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.logs.intake import Origin
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.server import SocketServer
from spotkeeper_worker.notice import Notice, write_notice
from spotkeeper_worker.states import State
from spotkeeper_worker.times import as_text, read_time

AWS = Origin("aws", "i-0123456789abcdef0", "ocr")
AT = read_time("2025-11-20T10:00:00.120Z")


def a_log(number: int = 0, **changed: object) -> dict[str, Any]:
    """A log as a worker writes it."""
    return {
        "request_id": f"r-{number}",
        "worker_id": "gpu-7",
        "enqueued_at": as_text(AT + number),
        "started_at": as_text(AT + number + 1),
        "finished_at": as_text(AT + number + 3.5),
        "status": "ok",
        **changed,
    }


def lines(first: int, count: int) -> list[str]:
    """Lines of a journal."""
    return [json.dumps({"request_id": f"r-{n}"}) for n in range(first, first + count)]


def kept(journal: Journal) -> list[str]:
    """What a journal would send, in order."""
    journal.seal()
    found: list[str] = []
    while segment := journal.oldest():
        found += segment.lines
        journal.done(segment)
    return found


def say(folder: Path, state: State, until_s: float | None = None) -> None:
    """Write the notice that an agent would, of a machine that goes in `until_s`."""
    (folder / "workers").mkdir(parents=True, exist_ok=True)
    now = time.time()
    at = None if until_s is None else now + until_s
    write_notice(folder, Notice(state, now, state is not State.SERVING, "a test", at, at))


class Accepted(list[dict[str, Any]]):
    """The logs that an agent has accepted."""

    def accept(self, logs: Any, *_: object) -> list[str]:
        self.extend(logs)
        return []


class Taken:
    """What workers hand over to an agent of this folder: logs, and how many they lost."""

    def __init__(self, folder: Path) -> None:
        self.logs = Accepted()
        self.lost = 0
        self._server = SocketServer(folder, self._accept, dict)
        self._server.start()
        self.close = self._server.close

    def _accept(self, logs: Any, session: str, batch: int, lost: int) -> list[str]:
        self.lost += lost
        return self.logs.accept(logs)

    @property
    def ids(self) -> list[str]:
        return [log["request_id"] for log in self.logs]


class Queue:
    """A queue that can refuse."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.tried: list[str] = []
        self.refuses = False
        self.breaks: list[Exception] = []

    def send(self, body: str) -> None:
        self.tried.append(body)
        if self.breaks:
            raise self.breaks.pop()
        if self.refuses:
            raise AwsError("SendMessage", "AccessDenied", "no")
        self.bodies.append(body)
