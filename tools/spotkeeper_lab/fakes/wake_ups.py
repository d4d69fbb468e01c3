"""Wake-ups in memory: the instants at which a turn was asked for."""

import heapq
from datetime import datetime, timedelta

from spotkeeper.adapters.wake_ups import delay_s
from spotkeeper_lab.fakes.faults import Faults
from spotkeeper_lab.fakes.virtual_time import seconds


class FakeWakeUps:
    """The wake-up port; `due_s` are the instants asked for, in the cloud's time, as a heap."""

    def __init__(self, faults: Faults | None = None) -> None:
        """Begin with nothing asked for."""
        self.due_s: list[float] = []
        self._faults = faults or Faults()

    def at(self, fleet: str, at: datetime, now: datetime, woken: int) -> None:
        """Have a turn happen at an instant, within a second after it."""
        with self._faults.call("wake_up"):
            delay = timedelta(seconds=delay_s(at, now))
            heapq.heappush(self.due_s, seconds(now + delay))

    def take(self, at_s: float) -> int:
        """Count the wake-ups that are due by now, and forget them."""
        taken = 0
        while self.due_s and self.due_s[0] <= at_s:
            heapq.heappop(self.due_s)
            taken += 1
        return taken
