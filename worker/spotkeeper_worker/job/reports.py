"""Reports to the control plane: one message each, sent until the queue has it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from pathlib import Path

_AGAIN_S = 2.0
_MOST = 1000
_LONGEST_STEP = 200
_LONGEST_TEXT = 1000


class Reporter:
    """Numbers reports and sends them in order from a thread of its own."""

    def __init__(
        self, send: Callable[[str], None], job: str, attempt: int, instance_id: str, seq_file: Path
    ) -> None:
        self._send = send
        self._fixed = {"version": 1, "job": job, "attempt": attempt, "instance_id": instance_id}
        self._seq_file = seq_file
        self._seq = 0
        with contextlib.suppress(OSError, ValueError):
            self._seq = int(seq_file.read_text())
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self._changed = threading.Condition()
        self._say = Sometimes(get_logger("agent"))
        self.generation = 0
        self.volume: str | None = None
        self.answered_at = time.monotonic()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def __call__(
        self, event: str, *, step: str | None = None, gpu: int | None = None,
        exit_code: int | None = None, reason: str | None = None, ignored: str = "",
        uncommitted_s: float | None = None, ran_s: float | None = None, final: bool = False,
        doing: str = "",
    ) -> None:  # fmt: skip
        """Report an event. Of several `running` that wait, the queue gets the newest."""
        self._seq += 1
        # The next agent goes on counting: reports that count from 1 again are ignored. A full disk
        # is the command's matter, which goes on.
        with contextlib.suppress(OSError):
            draft = self._seq_file.with_suffix(".new")
            draft.write_text(str(self._seq))
            draft.replace(self._seq_file)
        body = {
            **self._fixed, "generation": self.generation, "seq": self._seq, "event": event,
            "at": as_text(time.time()), "volume": self.volume, "gpu": gpu,
            "step": step and step[:_LONGEST_STEP], "exit_code": exit_code,
        }  # fmt: skip
        more = {
            "reason": reason,
            "ignored": ignored[:_LONGEST_TEXT],
            "uncommitted_s": uncommitted_s,
            "ran_s": ran_s,
            "final": final or None,
            "doing": doing[:_LONGEST_TEXT],
        }
        body.update((name, value) for name, value in more.items() if value not in (None, ""))
        with self._changed:
            if self._waiting and self._waiting[-1]["event"] == event == "running":
                self._waiting.pop()
            self._waiting.append(body)
            self._changed.notify_all()

    def flush(self, within_s: float) -> bool:
        """Wait until everything is sent; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, within_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                body = self._waiting[0]
            try:
                self._send(json.dumps(body))
            except AwsError as error:
                if error.code:
                    self.answered_at = time.monotonic()
                self._say.warn("report", f"reports wait: {error}")
                time.sleep(_AGAIN_S)
                continue
            self.answered_at = time.monotonic()
            self._say.over("report", "reports are sent again")
            with self._changed:
                if self._waiting and self._waiting[0] is body:
                    self._waiting.popleft()
                self._changed.notify_all()
