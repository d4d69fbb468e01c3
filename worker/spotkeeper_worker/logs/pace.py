"""When a message of search logs is due: soon while load moves, later while it stands still.

A message is complete when it holds as many logs as usually arrive in `latest_s`. It goes with the
log that completes it, so that this log does not wait; by a clock each log would wait for the next
stroke.
While no request waits and none fails, three times as many logs make a message, and a log may wait
three times as long.
It is news when what it holds surprises: more or fewer logs than the usual rate lets chance bring,
or waits that differ from the usual ones by more than those among themselves. Both go no sooner
than `soonest_s` after the message before, and no log waits for longer than `latest_s`. Pure: the
time is an argument.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Set

MOST_LOGS = 500
MOST_BYTES = 200 * 1024
# The collector refuses a message with more.
MOST_WORKERS = 200
# Standard deviations, of a Poisson count and of a mean wait, as on a control chart: chance alone
# sends one in hundreds.
_SURPRISE = 3.0
# While waits are shorter than this and nothing fails, nothing is missed by sending seldom.
_CALM_WAIT_S, _CALM_TIMES = 0.5, 3.0
# The usual rate and wait are those of the last five minutes.
_MEMORY_S = 300.0
# Waits that are less than a second off are the usual ones.
_OTHER_WAIT_S = 1.0


class PaceSettings(NamedTuple):
    """Seconds between two messages, and that a log may wait while requests wait or fail."""

    soonest_s: float = 5.0
    latest_s: float = 10.0


class Pace:
    """Counts what waits to be sent, and says when it is due."""

    def __init__(self, settings: PaceSettings, now: float) -> None:
        self._settings = settings
        # What is usual, and since when that is known.
        self._rate = self._usual_wait = self._usual_square = self._known_s = 0.0
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Begin to count what waits since the last message."""
        self._since = self._first_at = now
        self.logs = self._bytes = 0
        self._workers: set[str] = set()
        self._wait_s = self._squares = 0.0
        self._failed = False

    def add(
        self, size: int, wait_s: float, now: float, worker_id: str = "", failed: bool = False
    ) -> None:
        """Count a worker's log of `size` bytes whose request waited `wait_s`, or `failed`."""
        self._failed = self._failed or failed
        if not self.logs:
            self._first_at = now
        self.logs += 1
        self._bytes += size
        self._workers.add(worker_id)
        self._wait_s += wait_s
        self._squares += wait_s * wait_s

    def due(self, now: float) -> bool:
        """Whether what waits is to be sent now."""
        if not self.logs:
            return False
        latest_s, age = self._latest_s(), now - self._since
        if self.logs >= MOST_LOGS or self._bytes >= MOST_BYTES or now - self._first_at >= latest_s:
            return True
        if age < self._settings.soonest_s:
            return False
        usual = self._rate * age
        surprises = abs(self.logs - usual) > _SURPRISE * math.sqrt(max(usual, 1.0))
        if surprises or self._failed or self.logs >= self._rate * latest_s:
            return True
        off = abs(self._wait_s / self.logs - self._usual_wait)
        variance = max(0.0, self._usual_square - self._usual_wait**2)
        return off > max(_OTHER_WAIT_S, _SURPRISE * math.sqrt(variance / self.logs))

    def _latest_s(self) -> float:
        wait_s = max(self._wait_s / self.logs, self._usual_wait)
        calm = wait_s < _CALM_WAIT_S and not self._failed
        return self._settings.latest_s * (_CALM_TIMES if calm else 1.0)

    def full(self, size: int, workers: Set[str]) -> bool:
        """Whether further logs, of `size` bytes and these workers, belong into the next message."""
        more = self.logs >= MOST_LOGS or self._bytes + size > MOST_BYTES
        return more or len(self._workers | workers) > MOST_WORKERS

    def sent(self, now: float) -> None:
        """Begin the next message: what was counted becomes part of what is usual."""
        age = max(now - self._since, 1e-3)
        weight = 1.0 - math.exp(-age / min(_MEMORY_S, self._known_s + age))
        self._rate += weight * (self.logs / age - self._rate)
        if self.logs:
            self._usual_wait += weight * (self._wait_s / self.logs - self._usual_wait)
            self._usual_square += weight * (self._squares / self.logs - self._usual_square)
        self._known_s += age
        self._begin(now)
