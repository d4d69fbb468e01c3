"""What a rule may look at: the meters of its platform, and the search logs that have arrived."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spotkeeper_lab.traces.requests import Floats

SLOT_S = 10.0
WINDOW_SLOTS = 90
DAY_SLOTS = 8_640


class Finished(NamedTuple):
    """A search log of a replay; `slot` is the instance that served it, and the worker on it."""

    request: int
    arrival_s: float
    start_s: float
    end_s: float
    sent_s: float
    slot: tuple[int, int]


class SeenLogs:
    """Search logs of finished requests, summed per slot of ten seconds as they arrive."""

    def __init__(self, end_s: float) -> None:
        slots = int(end_s / SLOT_S) + 2 * DAY_SLOTS
        self.arrivals = np.zeros(slots, dtype=np.int64)
        self.work_s = np.zeros(slots)
        self.finished_work_s = np.zeros(slots)
        self._mean_s = 0.0

    def add(self, finished: Sequence[Finished]) -> None:
        """Take in the logs of requests."""
        arrival_s, start_s, end_s = np.array([one[1:4] for one in finished]).T
        slots = (arrival_s / SLOT_S).astype(np.int64)
        np.add.at(self.arrivals, slots, 1)
        np.add.at(self.work_s, slots, end_s - start_s)
        np.add.at(self.finished_work_s, (end_s / SLOT_S).astype(np.int64), end_s - start_s)

    def mean_s(self, now_s: float) -> float:
        """Return the mean service time over the window, or the last known; 0 of nothing."""
        last = int(now_s / SLOT_S)
        window = slice(max(0, last - WINDOW_SLOTS), last)
        if count := int(self.arrivals[window].sum()):
            self._mean_s = float(self.work_s[window].sum()) / count
        return self._mean_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at the fleet: workers, the queue and the logs.

    `queue` and `running` are the true meters of now, which the peers' platforms have and search
    logs have not. `arrived_s` are the arrivals up to now, `finished` the logs that arrived since
    the last look.
    """

    now_s: float
    live: int
    booting: int
    queue: int
    running: int
    arrived_s: Floats
    logs: SeenLogs
    finished: Sequence[Finished] = ()
    slots: int = 1

    @property
    def have(self) -> int:
        """Workers that serve or boot."""
        return self.live + self.booting
