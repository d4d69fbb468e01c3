"""The worker's end of the socket: logs leave a request's path at once, and are sent by a thread.

A batch is kept until the agent confirms it. Where an agent was killed, the next one receives the
batch again under the same number, so none is lost and none counts twice.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs.server import NAME
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from pathlib import Path

_LOG = get_logger("worker")
MOST_LOGS = 10_000
MOST_IN_A_BATCH = 200
# Half of what the agent reads of a line.
MOST_BYTES = 256 * 1024
TIMEOUT_S = 5.0
EVERY_S = 0.2

# request_id, enqueued, started, finished, status
Measured = tuple[str, float, float, float, str]


class Emitter:
    """Sends what a worker measured; `emit` does nothing but remember it."""

    def __init__(self, run_dir: Path, worker_id: str, every_s: float = EVERY_S) -> None:
        self._run_dir = run_dir
        self._worker_id = json.dumps(worker_id)
        self._every_s = every_s
        self._waiting: deque[Measured] = deque(maxlen=MOST_LOGS)
        # The first is counted where requests run, the others by the thread that sends.
        self._overflowed = self._given_up = self._reported = 0
        self._batch: list[str] = []
        self._telling = 0
        self._number = 1
        self._session = os.urandom(16).hex()
        self._connection: socket.socket | None = None
        self._say = Sometimes(_LOG)
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search-logs", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def emit(self, measured: Measured) -> None:
        """Remember a log; the oldest is lost where nobody takes them."""
        if len(self._waiting) == MOST_LOGS:
            self._overflowed += 1
        self._waiting.append(measured)

    @property
    def waiting(self) -> int:
        """Logs that the agent does not have yet."""
        return len(self._waiting) + len(self._batch)

    def close(self, timeout_s: float = 2.0) -> None:
        """Hand over what is left, for at most `timeout_s`."""
        if self._pid == os.getpid():
            self._closed.set()
            self._thread.join(timeout_s)

    @property
    def _lost(self) -> int:
        return self._overflowed + self._given_up

    def _run(self) -> None:
        """Send every `every_s`, and once closed until all is sent (or the process ends)."""
        while not self._closed.wait(self._every_s):
            self._send_all()
        ends = time.monotonic() + TIMEOUT_S
        while not self._send_all() and time.monotonic() < ends:
            time.sleep(0.05)
        self._disconnect()

    def _send_all(self) -> bool:
        """Hand over what waits; answers whether the agent knows of every log."""
        try:
            while self._hand_over():
                pass
            self._say.over("agent", f"search logs are taken again; {self._lost} were lost")
        except (OSError, ValueError) as error:
            self._disconnect()
            self._say.warn("agent", f"search logs wait for the agent ({self._run_dir}): {error}")
        return not self.waiting and self._lost == self._reported

    def _hand_over(self) -> bool:
        """Send a batch, and how many logs were lost; answers whether it was taken.

        The last one is sent again if it was not answered. Raises OSError or ValueError.
        """
        if not self._batch and not self._telling:
            size = 0
            while self._waiting and len(self._batch) < MOST_IN_A_BATCH and size < MOST_BYTES:
                request_id, enqueued, started, finished, status = self._waiting.popleft()
                self._batch.append(
                    f'{{"request_id":{json.dumps(request_id)},"worker_id":{self._worker_id},'
                    f'"enqueued_at":"{as_text(enqueued)}","started_at":"{as_text(started)}",'
                    f'"finished_at":"{as_text(finished)}","status":{json.dumps(status)}}}'
                )
                size += len(self._batch[-1])
            self._telling = self._lost - self._reported
            if not self._batch and not self._telling:
                return False
        about = {"session": self._session, "batch": self._number, "lost": self._telling}
        line = f'{{"logs": [{", ".join(self._batch)}], {json.dumps(about)[1:]}\n'
        answer = json.loads(self._answered(line.encode()))
        took = bool(answer.get("took") == self._number)
        if took:
            self._reported += self._telling
        else:
            self._given_up += len(self._batch)
            why = answer.get("error")
            self._say.warn("batch", f"search logs are lost: the agent refuses them: {why}")
        for why in answer.get("refused", ())[:1]:
            self._say.warn("refused", f"the agent refuses a search log: {why}")
        self._batch, self._telling = [], 0
        self._number += 1
        return took

    def _answered(self, line: bytes) -> bytes:
        """Ask the agent; one that was started again meanwhile is connected to again."""
        is_new = self._connection is None
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.settimeout(TIMEOUT_S)
            self._connection.connect(str(self._run_dir / NAME))
        try:
            self._connection.sendall(line)
            with self._connection.makefile("rb") as answers:
                received = answers.readline()
            if not received.endswith(b"\n"):
                raise ConnectionResetError("the agent went away")
        except OSError:
            self._disconnect()
            if is_new:
                raise
            return self._answered(line)
        return received

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None
