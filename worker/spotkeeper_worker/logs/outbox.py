"""From accepted logs to messages that SQS has: the journal, its pace, and the thread that sends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs.intake import LogRefused, Origin, as_fields, parts, take
from spotkeeper_worker.logs.journal import LOOK, Segment
from spotkeeper_worker.logs.pace import Pace, PaceSettings
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper_worker.logs.journal import Journal

_LOG = get_logger("agent")
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
# Between two messages that tell nothing but how many logs were lost or refused.
_COUNTS_EVERY_S = 60.0
_PACE = PaceSettings()


class NotSent(Exception):
    """A message that SQS did not take, or not that we know of."""


class Outbox:
    """Takes batches of logs from any thread, and sends them from its own."""

    def __init__(
        self,
        journal: Journal,
        send: Callable[[str], None],
        origin: Origin,
        pace: PaceSettings = _PACE,
        clamp_s: float = 5.0,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._journal = journal
        self._send = send
        self._origin = origin
        self._clamp_s = clamp_s
        self._first_retry_s = first_retry_s
        self._look_again_s = min(1.0, pace.soonest_s)
        self._pace = Pace(pace, time.monotonic())
        # What an agent before this one left is a message of its own: nobody knows its workers.
        journal.seal()
        self._news: dict[str, object] = {}
        self._counts_due_at = 0.0
        self._changed = threading.Condition()
        self._flushing = False
        self._closed = False
        self.hurried = False
        """Whether the machine leaves: logs are sent as they arrive."""
        self._say = Sometimes(_LOG)
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self.start = self._thread.start

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

    def tell(self, **news: object) -> None:
        """Send a look at a queue, or a trouble, with the next logs, or alone without any."""
        with self._changed:
            self._news.update(news)
            self._changed.notify_all()

    def accept(self, logs: Sequence[object], session: str, batch: int, lost: int = 0) -> list[str]:
        """Accept a batch once, however often it arrives; return why logs of it were refused.

        `lost` is how many logs its sender has lost before. Raises OSError once closed: the sender
        keeps the batch.
        """
        refused: list[str] = []
        with self._changed:
            if self._closed:
                raise ConnectionAbortedError("the agent ends")
            journal, taken, now = self._journal, [], time.time()
            if batch <= journal.last_of(session):
                return []
            for log in logs:
                try:
                    taken.append(take(log, self._origin, self._clamp_s, now))
                except LogRefused as error:
                    refused.append(str(error))
            journal.counts["lost"] += lost
            journal.counts["refused"] += len(refused)
            journal.counts["clamped"] += sum(each.clamped for each in taken)
            # Each part that is a message has a sender's name of its own, so that a kill between two
            # of them is noticed.
            *first, last = parts(taken)
            names = (*(f"{session}/{number}" for number in range(len(first))), session)
            for name, part in zip(names, (*first, last)):
                if batch <= journal.last_of(name):
                    continue
                if self._pace.full(
                    sum(len(one.line) for one in part), {one.worker_id for one in part}
                ):
                    self._seal()
                journal.append([each.line for each in part], name, batch)
                for each in part:
                    now = time.monotonic()
                    self._pace.add(len(each.line), each.wait_s, now, each.worker_id, each.failed)
            if self._pace.due(time.monotonic()):
                self._changed.notify_all()
        if refused:
            self._say.warn("refused", f"a search log was refused: {refused[0]}")
        if journal.disk_trouble:
            self._say.warn("disk", journal.disk_trouble)
        else:
            self._say.over("disk", "the journal is on disk again")
        return refused

    def lose(self, logs: int) -> None:
        """Count logs that nobody will send; the next message has the number."""
        with self._changed:
            self._journal.counts["lost"] += logs

    def flush(self, timeout_s: float) -> bool:
        """Send everything now; answers whether SQS has it all before the time is over."""
        ends = time.monotonic() + timeout_s
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            while self._journal.waiting and time.monotonic() < ends:
                self._changed.wait(max(0.0, ends - time.monotonic()))
            self._flushing = False
            return not self._journal.waiting

    def close(self) -> None:
        """Stop sending; what is left waits in the journal for the next agent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.alive:
            self._thread.join(timeout=10)
        self._journal.close()

    def _run(self) -> None:
        retry_s = self._first_retry_s
        while not self._closed:
            try:
                self.step(self._look_again_s)
                retry_s = self._first_retry_s
                continue
            except NotSent as error:
                lost = self._journal.counts["lost"]
                loss = f"; {lost} logs were lost" if lost else ""
                self._say.warn("send", f"search logs wait: {error}{loss}")
            except Exception:  # noqa: BLE001 - a machine that sends no log looks like a dead one
                _LOG.exception("search logs wait after an unexpected error; trying again")
            with self._changed:
                ends = time.monotonic() + retry_s
                while not self._closed and not self._flushing and time.monotonic() < ends:
                    self._changed.wait(ends - time.monotonic())
                if self._flushing:
                    # A flush does not wait for the next try.
                    self._changed.wait(min(retry_s, 0.5))
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def step(self, wait_s: float = 0.0) -> bool:
        """Send the next message if one is due, or wait for one; answers whether. Raises NotSent."""
        with self._changed:
            at_once = self._flushing or self.hurried
            if self._pace.due(time.monotonic()) or (at_once and self._pace.logs):
                self._seal()
            segment, now = self._journal.oldest(), time.monotonic()
            news: dict[str, object] = {}
            counts = ""
            counted = any(self._journal.counts.values()) and now >= self._counts_due_at
            if segment is None and not self._pace.logs and (self._news or counted):
                # No log will carry them. Its time tells it from an equal one.
                news, self._news = self._news, {}
                counts = self._journal.counts_text(news)
                at = f'"version":1,"at":"{as_text(time.time())}"'
                segment = Segment(None, (f"{{{as_fields(self._origin)}{at}}}",), counts)
            if segment is None:
                if wait_s and not self._closed:
                    self._changed.wait(wait_s)
                return False
        try:
            self._send(segment.body())
        except NotSent:
            # A look is old by the next try.
            with self._changed:
                self._journal.count_again(counts)
                self._news = {**{name: news[name] for name in news if name != LOOK}, **self._news}
            raise
        self._say.over("send", "search logs are sent again")
        with self._changed:
            if counts:
                self._counts_due_at = now + _COUNTS_EVERY_S
            self._journal.done(segment)
            self._changed.notify_all()
        return True

    def _seal(self) -> None:
        self._journal.seal(self._news)
        self._news = {}
        self._pace.sent(time.monotonic())
