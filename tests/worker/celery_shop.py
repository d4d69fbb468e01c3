"""Celery's workers on machines whose agent is the test, and the queue that they serve."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kombu.connection import Connection

from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.logs import Taken, say

ROOT = Path(__file__).parents[2]


class Machine:
    """A machine with workers of Celery's; the test is its agent."""

    command = (sys.executable, "-m", "celery", "-A", "tests.worker.celery_app", "worker")

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.say = partial(say, folder)
        self.say(State.SERVING)
        self._taken = Taken(folder)
        self.logs = self._taken.logs
        self._environment = {**environment, "SPOTKEEPER_RUN_DIR": str(folder)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        more = ["-c", "2", "-n", f"{self.folder.name}@test", "--without-gossip", "-l", "INFO"]
        with (self.folder / "said").open("ab") as said:
            before = self.said
            self.process = subprocess.Popen(
                [*self.command, *more, *options], cwd=ROOT, env=self._environment,
                stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        until(lambda: " ready." in self.said[len(before) :], f"{self.folder.name} is ready")

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def roster(self) -> str:
        """What its workers say of themselves."""
        places = (self.folder / "workers").iterdir()
        return "".join(it.read_text() for it in places if not it.name.startswith("."))

    @property
    def cpu_s(self) -> float:
        """What its processes have spent."""
        assert self.process is not None
        pid = self.process.pid
        pids = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(each[11]) + int(each[12]) for each in fields) / 100

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def close(self) -> None:
        self.kill()
        self._taken.close()


class Shop:
    """A queue of tasks, and machines that work on it."""

    def __init__(self, folder: Path, url: str, **more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.done_at = folder / "done"
        self.done_at.touch()
        self._folder = folder
        own = {"PATH", "HOME", "LANG", "COVERAGE_FILE"}
        self._environment = {name: text for name, text in os.environ.items() if name in own} | {
            "BROKER": url,
            "QUEUE": f"shop-{uuid.uuid4().hex[:8]}",
            "DONE": str(self.done_at),
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            **more,
        }
        self.machines: list[Machine] = []

    def machine(self) -> Machine:
        name = f"m{len(self.machines)}"
        self.machines.append(Machine(self._folder / name, self._environment))
        return self.machines[-1]

    def publish(self, code: str) -> None:
        """Publish from a process of its own, as a producer does."""
        with self.program(f"from tests.worker.celery_app import *\n{code}") as producer:
            assert producer.wait(60) == 0

    def program(self, text: str) -> subprocess.Popen[str]:
        """Start a program in the environment of the shop."""
        return subprocess.Popen(
            [sys.executable, "-c", text], cwd=ROOT, env=self._environment,
            stdin=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def waiting(self) -> int:
        """Tasks that the broker has for any worker; those that a worker holds are not."""
        name, options = self._environment["QUEUE"], {"region": "us-east-1", "is_secure": False}
        made: Any = Connection
        with made(self._environment["BROKER"], transport_options=options) as broker:
            try:
                return int(broker.default_channel.queue_declare(name, passive=True).message_count)
            except broker.channel_errors:
                # Redis has no key for a list that is empty.
                return 0

    def keeps(self, count: int) -> bool:
        """Tell whether `count` tasks wait for 3 s: a poll that began before has ended by then."""
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            if self.waiting != count:
                return False
            time.sleep(0.2)
        return True

    @property
    def done(self) -> Counter[str]:
        return Counter(self.done_at.read_text().split())
