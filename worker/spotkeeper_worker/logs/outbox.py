"""From accepted logs to messages that SQS has: the journal, its pace, and the thread that sends."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs.intake import LogRefused, Origin, Taken, parts, take
from spotkeeper_worker.logs.journal import LOOK, Segment
from spotkeeper_worker.logs.pace import Pace, PaceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spotkeeper_worker.logs.journal import Journal

_LOG = get_logger("agent")
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class NotSent(Exception):
    """A message that SQS did not take, or not that we know of."""


class OutboxSettings(NamedTuple):
    """How logs are checked, paced and kept."""

    origin: Origin
    pace: PaceSettings = PaceSettings()
    clamp_s: float = 5.0
    first_retry_s: float = FIRST_RETRY_S


class Outbox:
    """Takes batches of logs from any thread, and sends them from its own."""

    def __init__(
        self, journal: Journal, send: Callable[[str], None], settings: OutboxSettings
    ) -> None:
        self._journal = journal
        self._send = send
        self._settings = settings
        self._pace = Pace(settings.pace, time.monotonic())
        # What an agent before this one left is a message of its own: nobody knows its workers.
        journal.seal()
        self._look: Mapping[str, object] | None = None
        self._changed = threading.Condition()
        self._flushing = False
        self._closed = False
        self.hurried = False
        """Whether the machine leaves: logs are sent as they arrive."""
        self._say = Sometimes(_LOG)
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it sends."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Logs that SQS does not have yet."""
        with self._changed:
            return self._journal.waiting

    def last_of(self, session: str) -> int:
        """Return the number of the last batch that was accepted from a sender; 0 for none."""
        with self._changed:
            return self._journal.last_of(session)

    def tell(self, look: Mapping[str, object]) -> None:
        """Send a look at a request queue with the next logs, or alone where there are none."""
        with self._changed:
            self._look = look
            self._changed.notify_all()

    def accept(self, logs: Sequence[object], session: str, batch: int, lost: int = 0) -> list[str]:
        """Accept a batch once, however often it arrives; return why logs of it were refused.

        `lost` is how many logs its sender has lost before. Raises OSError once closed: the sender
        keeps the batch.
        """
        with self._changed:
            if self._closed:
                raise ConnectionAbortedError("the agent ends")
            if batch <= self._journal.last_of(session):
                return []
            taken, refused = self._checked(logs)
            self._journal.counts.lost += lost
            self._keep(taken, session, batch)
            if self._pace.due(time.monotonic()):
                self._changed.notify_all()
        self._tell(refused)
        return refused

    def _keep(self, taken: Sequence[Taken], session: str, batch: int) -> None:
        """Put a batch into the journal, as parts where it is too much for one message.

        Each part has a sender's name of its own, so that a kill between two of them is noticed.
        """
        *first, last = parts(taken)
        for number, part in enumerate(first):
            name = f"{session}/{number}"
            if batch > self._journal.last_of(name):
                self._keep_part(part, name, batch)
        self._keep_part(last, session, batch)

    def _keep_part(self, part: Sequence[Taken], session: str, batch: int) -> None:
        if self._pace.full(sum(len(each.line) for each in part), {each.worker_id for each in part}):
            self._seal()
        self._journal.append([each.line for each in part], session, batch)
        now = time.monotonic()
        for each in part:
            self._pace.add(len(each.line), each.wait_s, now, each.worker_id)

    def _checked(self, logs: Sequence[object]) -> tuple[list[Taken], list[str]]:
        taken: list[Taken] = []
        refused: list[str] = []
        settings, now = self._settings, time.time()
        for log in logs:
            try:
                taken.append(take(log, settings.origin, settings.clamp_s, now))
            except LogRefused as error:
                refused.append(str(error))
        self._journal.counts.refused += len(refused)
        self._journal.counts.clamped += sum(each.clamped for each in taken)
        return taken, refused

    def _tell(self, refused: list[str]) -> None:
        if refused:
            self._say.warn("refused", f"a search log was refused: {refused[0]}")
        if self._journal.disk_trouble:
            self._say.warn("disk", self._journal.disk_trouble)
        else:
            self._say.over("disk", "the journal is on disk again")

    def flush(self, timeout_s: float) -> bool:
        """Send everything now; answers whether SQS has it all before the time is over.

        Where no thread sends, the caller's does.
        """
        ends = time.monotonic() + timeout_s
        self._flushing = True
        try:
            if not self.alive:
                with contextlib.suppress(NotSent):
                    while time.monotonic() < ends and self.step():
                        pass
            with self._changed:
                self._changed.notify_all()
                while self.alive and self._journal.waiting and time.monotonic() < ends:
                    self._changed.wait(max(0.0, ends - time.monotonic()))
                return not self._journal.waiting
        finally:
            self._flushing = False

    def close(self) -> None:
        """Stop sending; what is left waits in the journal for the next agent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.alive:
            self._thread.join(timeout=10)
        self._journal.close()

    def _run(self) -> None:
        retry_s = self._settings.first_retry_s
        while True:
            try:
                if not self._turn():
                    return
                retry_s = self._settings.first_retry_s
                continue
            except NotSent as error:
                lost = self._journal.counts.lost
                told = f"; {lost} logs were lost" if lost else ""
                self._say.warn("send", f"search logs wait: {error}{told}")
            except Exception:  # noqa: BLE001 - a machine that sends no log looks like a dead one
                _LOG.exception("search logs wait after an unexpected error; trying again")
            self._pause(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def step(self) -> bool:
        """Send the next message if one is due; answers whether. Raises NotSent."""
        with self._changed:
            segment = self._due_segment()
        return segment is not None and self._delivered(segment)

    def _turn(self) -> bool:
        """Send, or wait for something to send; False once the outbox is closed."""
        with self._changed:
            if self._closed:
                return False
            segment = self._due_segment()
            if segment is None:
                self._changed.wait(min(1.0, self._settings.pace.soonest_s))
                return True
        return self._delivered(segment)

    def _delivered(self, segment: Segment) -> bool:
        self._send(segment.body())
        self._say.over("send", "search logs are sent again")
        with self._changed:
            self._journal.done(segment)
            self._changed.notify_all()
        return True

    def _due_segment(self) -> Segment | None:
        if self._pace.due(time.monotonic()) or (self._at_once and self._pace.logs):
            self._seal()
        return self._journal.oldest() or self._alone()

    def _alone(self) -> Segment | None:
        """Give a message of a look that no log will carry; what is old by then is not repeated."""
        if self._look is None or self._pace.logs:
            return None
        look, self._look = self._look, None
        return Segment(None, (), json.dumps({LOOK: look}, separators=(",", ":")))

    @property
    def _at_once(self) -> bool:
        return self._flushing or self.hurried

    def _seal(self) -> None:
        look, self._look = self._look, None
        self._journal.seal(look)
        self._pace.sent(time.monotonic())

    def _pause(self, seconds: float) -> None:
        """Wait before the next try; a flush does not wait for it."""
        with self._changed:
            ends = time.monotonic() + seconds
            while not self._closed and time.monotonic() < ends:
                if self._flushing:
                    self._changed.wait(min(seconds, 0.5))
                    return
                self._changed.wait(ends - time.monotonic())
