"""What a worker uses: it measures requests, and says when to take no more.

docs/own-loop.md shows the loop to write around it.
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import time
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Literal, Union

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs.emitter import Emitter
from spotkeeper_worker.logs.intake import LONGEST_ID, STATUSES
from spotkeeper_worker.notice import NAME, Notice, NoticeReader
from spotkeeper_worker.roster import Place
from spotkeeper_worker.states import State
from spotkeeper_worker.stop import Stop, on_signals
from spotkeeper_worker.times import read_time

_LOG = get_logger("worker")
_SAY = Sometimes(_LOG)
RUN_DIR = Path("/run/spotkeeper")
# Beside the longest of the last requests: what a request may take longer, and a look at the clock.
MARGIN_S = 5.0
LAST_REQUESTS = 100
# An agent that starts has written its notice by then.
_NOTICE_WITHIN_S = 5.0
# The years 1 to 9999, which a search log can name.
_FIRST_S, _END_S = -62_135_596_800, 253_402_300_799

When = Union[datetime, float, str]
Status = Literal["ok", "error", "timeout"]


class NoAgent(FileNotFoundError):
    """There is no folder of an agent."""


class Forked(RuntimeError):
    """A `Worker` is used in a child of the process that made it."""


class Worker:
    """One process that serves requests on a machine that has an agent."""

    def __init__(
        self,
        worker_id: str = "",
        run_dir: str | Path | None = None,
        margin_s: float = MARGIN_S,
        send_every_s: float = 0.2,
        slots: int = 0,
    ) -> None:
        """Join the machine's roster.

        `worker_id` (or SPOTKEEPER_WORKER_ID) tells the workers of a machine apart; without one it
        is host and process. `slots` (or SPOTKEEPER_SLOTS) is how many requests it serves at once;
        without it, `may_take` does not count them. Raises NameTaken if another has the id,
        ValueError for slots that are no whole number, NoAgent without the agent's folder.
        """
        self.run_dir = run_folder(run_dir)
        host = "".join(c if c.isalnum() or c in "_.-" else "-" for c in socket.gethostname())
        own_name = f"{host or 'worker'}-{os.getpid()}"[:128].lstrip("-_.")
        self.worker_id = worker_id or os.environ.get("SPOTKEEPER_WORKER_ID", "") or own_name
        self._margin_s = margin_s
        self._reader = NoticeReader(self.run_dir)
        given = str(slots or os.environ.get("SPOTKEEPER_SLOTS", "") or 0)
        if not given.isdecimal():
            shown = repr(slots or given)
            raise ValueError(
                f"slots (SPOTKEEPER_SLOTS) is {shown}: give a whole number of requests"
            )
        self.slots = int(given)
        try:
            self._place = Place(self.run_dir, self.worker_id, self.slots)
        except FileNotFoundError:
            raise NoAgent(
                f"there is no agent: {self.run_dir} has no folder of workers. Start"
                f" `spotkeeper-agent run`, mount its folder (docker run --volume"
                f" {self.run_dir}:{self.run_dir}), name it with SPOTKEEPER_RUN_DIR, or use"
                " spotkeeper_worker.alone.Alone"
            ) from None
        except PermissionError:
            raise PermissionError(
                f"this user may not join {self.run_dir}: add it to the group of that folder"
                " (usermod --append --groups spotkeeper USER)"
            ) from None
        self._emitter = Emitter(self.run_dir, self.worker_id, send_every_s)
        self._made_in, self._joined_at = os.getpid(), time.monotonic()
        self._took: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._stop = Stop()

    def ready(self) -> None:
        """Say that the model is loaded: the machine serves once all of its workers have."""
        self._must_be_own()
        self._place.ready()

    @property
    def notice(self) -> Notice | None:
        """The agent's last notice; None until there is one."""
        notice = self._reader.read()
        if notice is None and time.monotonic() - self._joined_at > _NOTICE_WITHIN_S:
            where = self.run_dir / NAME
            _SAY.warn("notice", f"no request is taken before {where}: start `spotkeeper-agent run`")
        return notice

    @property
    def draining(self) -> bool:
        """Whether the machine is to go, or is warm and waits: see `stop_taking_at`."""
        notice = self.notice
        return self._stop.is_set() or (notice is not None and notice.draining)

    @property
    def stop_taking_at(self) -> float | None:
        """When to begin no request any more, in seconds since the epoch; None: not in sight.

        A machine that leaves at a known time serves what will be done by then, going by the longest
        of the last requests.
        """
        notice = self.notice
        if self._stop.is_set() or notice is None:
            return 0.0
        return notice.last_start(list(self._took), self._margin_s)

    @property
    def may_take(self) -> bool:
        """Whether to begin a request now: the machine may serve, and a slot is free."""
        return not self.is_full and self.is_in_time

    @property
    def is_in_time(self) -> bool:
        """Whether the machine may serve a request that begins now."""
        stop_at = self.stop_taking_at
        return stop_at is None or time.time() < stop_at

    @property
    def is_full(self) -> bool:
        """Whether as many requests run as it has `slots`."""
        self._must_be_own()
        return 0 < self.slots <= self._place.busy

    @property
    def is_serving(self) -> bool:
        """Whether the machine serves, and no end of it is in sight: what a load balancer asks."""
        self._must_be_own()
        notice = self.notice
        return notice is not None and notice.state is State.SERVING and not self.draining

    @property
    def longest_s(self) -> float:
        """How long the longest of the last requests took."""
        return max(list(self._took), default=0.0)

    @property
    def must_end_at(self) -> float | None:
        """When the machine will be gone, in seconds since the epoch; None: not in sight."""
        notice = self.notice
        return notice.until if notice is not None and notice.draining else None

    @property
    def must_hand_back(self) -> bool:
        """Whether what runs now will not be done: it goes back while the machine can hand it."""
        notice = self.notice
        return notice is not None and notice.must_hand_back(time.time())

    @property
    def stopping(self) -> bool:
        """Whether this process is to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Take no more requests; loops end once theirs is served."""
        self._stop.set()

    def stop_on_signals(self) -> None:
        """Have SIGTERM and SIGINT do what `stop` does; call it from the main thread."""
        on_signals(self.stop)

    def wait(self, seconds: float) -> None:
        """Wait, at most until `stop`."""
        self._stop.wait(seconds)

    def request(self, request_id: str, enqueued_at: When) -> Request:
        """Measure a request: `with worker.request(id, enqueued_at) as log:`, or `async with`.

        `enqueued_at` is a datetime with a zone, seconds since the epoch, or RFC 3339. What the
        request raises goes on; what is wrong with the measuring never stops a request. Raises
        Forked in a child: nothing there would be logged, and the machine would not wait for it.
        """
        self._must_be_own()
        return Request(self, request_id, enqueued_at)

    def _must_be_own(self) -> None:
        if self._place.is_forked:
            raise Forked(
                f"process {self._made_in} made this Worker before a fork: make it in the process"
                " that serves (gunicorn: without --preload, or in post_fork)"
            )

    def took(self, seconds: float) -> None:
        """Learn how long a request took, for `stop_taking_at`."""
        self._took.append(seconds)

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the roster, and hand over the last logs within `timeout_s`."""
        self._stop.set()
        self._place.close()
        self._emitter.close(timeout_s)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_folder(run_dir: str | Path | None = None) -> Path:
    """Return the folder that the agent shares with its workers."""
    return Path(run_dir or os.environ.get("SPOTKEEPER_RUN_DIR") or RUN_DIR)


class Request:
    """One request; its status is `ok`, or `error` or `timeout` by what it raised or was set to."""

    __slots__ = ("_enqueued_at", "_place", "_request_id", "_started_at", "_worker", "status")

    def __init__(self, worker: Worker, request_id: str, enqueued_at: When) -> None:
        self.status: Status = "ok"
        self._worker, self._place = worker, worker._place
        self._request_id = request_id
        self._enqueued_at = enqueued_at
        self._started_at = 0.0

    def __enter__(self) -> Request:
        self._place.begin()
        self._started_at = time.time()
        return self

    async def __aenter__(self) -> Request:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)

    def drop(self) -> None:
        """End without a search log, in place of leaving the `with` block."""
        self._place.end()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        finished_at = time.time()
        self._place.end()
        if kind is not None and self.status == "ok":
            self.status = "timeout" if is_timeout(kind) else "error"
        self._worker.took(finished_at - self._started_at)
        enqueued_at = _seconds(self._enqueued_at, self._started_at)
        request_id, status = str(self._request_id), self.status
        if status not in STATUSES:
            text = f"status {status!r} is none of ok, error, timeout; it counts as error"
            _SAY.warn("status", text)
            status = "error"
        if len(request_id) > LONGEST_ID:
            # Of a length that the collector takes; two long ones stay two.
            digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            request_id = f"{request_id[: LONGEST_ID - len(digest) - 1]}~{digest}"
        self._worker._emitter.emit((request_id, enqueued_at, self._started_at, finished_at, status))


def is_timeout(kind: type[BaseException]) -> bool:
    """Celery's time-outs are no TimeoutError, nor asyncio's and a socket's before Python 3.11."""
    ends = ("timeout", "timeouterror", "timelimitexceeded")
    return any(base.__name__.lower().endswith(ends) for base in kind.__mro__)


def _seconds(when: When, otherwise: float) -> float:
    """Give a time as seconds since the epoch; what is no time is as good as none.

    Nor is what cannot be written as one: milliseconds, say, as SQS tells them.
    """
    try:
        if isinstance(when, datetime):
            # Without a zone it would count as local time, which utcnow() is not.
            seconds = when.timestamp() if when.tzinfo else math.nan
        else:
            seconds = float(when) if isinstance(when, (int, float)) else read_time(when)
        if _FIRST_S <= seconds < _END_S:
            return seconds
    except (ValueError, TypeError, OverflowError):
        pass
    _SAY.warn(
        "enqueued_at",
        "an enqueued_at is not seconds since the epoch (SQS has milliseconds),"
        " RFC 3339, or a datetime with a zone: its wait counts as 0",
    )
    return otherwise
