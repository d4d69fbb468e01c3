"""A machine of a job: a real agent and a real training, over AWS by moto."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer

from spotkeeper_lab.run.job_machines import processes
from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.jobs_account import BUCKET

LAST_WORD_S = 120.0


class OneAtATime(DomainDispatcherApplication):
    """moto looks at a condition and writes in two steps, and fails to list what is deleted."""

    alone = threading.Lock()

    def __call__(self, *request: Any) -> Any:
        with self.alone:
            return super().__call__(*request)


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Serve AWS."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    with patch(f"{ThreadedMotoServer.__module__}.DomainDispatcherApplication", OneAtATime):
        server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@dataclass
class Host:
    """A machine: its metadata, its folder and disks, and its agent, which systemd would start."""

    endpoint: str
    folder: Path
    disks: Path
    instance_id: str
    machine: FakeMachine = field(default_factory=FakeMachine)
    sent: int = 0
    _agent: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.machine.instance_id = self.instance_id
        for folder in (self.folder, self.disks):
            folder.mkdir(exist_ok=True)
        # A root that is kept was the disk of a machine that is off.
        (self.folder / "off").unlink(missing_ok=True)
        self._server = FakeServer(self.machine)
        self._server.__enter__()

    def tag(self, tags: dict[str, str]) -> None:
        """Show the machine its tags."""
        assert self.machine.tags is not None
        self.machine.tags |= tags

    def start(self) -> None:
        """Start the agent."""
        kept = {name: text for name, text in os.environ.items() if name[:4] != "AWS_"}
        environment = {
            **kept, **self._server.environment(), "AWS_ENDPOINT_URL_S3": self.endpoint,
            "MALLOC_ARENA_MAX": "1",
            "SPOTKEEPER_JOB_BUCKET": BUCKET, "SPOTKEEPER_JOB_QUEUE_URL": self._server.queue_url,
            "SPOTKEEPER_JOB_FOLDER": str(self.folder), "SPOTKEEPER_JOB_TICK_S": "0.05",
            "SPOTKEEPER_JOB_SHUTDOWN": json.dumps(["touch", str(self.folder / "off")]),
        }  # fmt: skip
        environment.pop("SPOTKEEPER_SEARCH_LOG_QUEUE_URL")
        with (self.folder / "agent.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.worker.disks", str(self.disks)]
            self._agent = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    def kill(self) -> None:
        """Kill the agent and its control group."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        for pid in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes, "its processes ended", LAST_WORD_S)

    @property
    def processes(self) -> list[int]:
        """Those that run the job's command: they work in its folder."""
        return [*processes(self.folder / "work")]

    @property
    def is_off(self) -> bool:
        """Whether it shut itself down."""
        return (self.folder / "off").exists()

    def until_off(self) -> None:
        """Wait for a machine that another one has replaced: its next commit is refused."""
        until(lambda: self.is_off, "it shuts itself down", LAST_WORD_S)

    def reports(self) -> list[str]:
        """What its agents reported since the last time."""
        with self.machine.changed:
            new = self.machine.bodies[self.sent :]
            self.sent += len(new)
        return new

    def close(self) -> None:
        """End everything of it."""
        self.kill()
        self._server.__exit__()
