"""What a rule may look at: the meters of its platform, and the search logs that have arrived."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spotkeeper.domain.load.summary import LoadSummary

if TYPE_CHECKING:
    from spotkeeper_lab.replay.values import Floats

SLOT_S = 10.0
WINDOW_SLOTS = 90
STEP_S = 300.0
STEP_SLOTS = int(STEP_S / SLOT_S)
DAY_SLOTS = 8_640
MINUTE_SLOTS = 6
STEP_MINUTES = STEP_SLOTS // MINUTE_SLOTS
SETTLED_SLOTS = 6  # after a step's end, until the logs of its requests are in
UNSETTLED_SLOTS = 3
ENOUGH_SLOTS = 30
LARGEST_PEAKEDNESS = 1_000.0


class SeenLogs:
    """Search logs of finished requests, summed per slot of ten seconds as they arrive."""

    def __init__(self, end_s: float, wait_s: float) -> None:
        slots = int(end_s / SLOT_S) + 2 * DAY_SLOTS
        self._wait_s = wait_s
        self.arrivals = np.zeros(slots, dtype=np.int64)
        self.work_s = np.zeros(slots)
        self.finished_work_s = np.zeros(slots)
        self._work2_s2 = np.zeros(slots)
        self._late = np.zeros(slots, dtype=np.int64)
        self._newest_start = (-math.inf, 0.0)
        self._newest_log_s = -math.inf
        self._moments = (0.0, 0.0)
        self._past_loads: list[float] = []
        self._minutes: tuple[float, ...] = ()

    def add(self, arrival_s: Floats, start_s: Floats, service_s: Floats) -> None:
        """Take in the logs of requests, one entry each per array."""
        slots = (arrival_s / SLOT_S).astype(np.int64)
        np.add.at(self.arrivals, slots, 1)
        np.add.at(self.work_s, slots, service_s)
        np.add.at(self._work2_s2, slots, service_s**2)
        np.add.at(self._late, slots, start_s - arrival_s > self._wait_s)
        finish_s = start_s + service_s
        np.add.at(self.finished_work_s, (finish_s / SLOT_S).astype(np.int64), service_s)
        newest = int(start_s.argmax())
        self._newest_start = max(
            self._newest_start, (float(start_s[newest]), float(start_s[newest] - arrival_s[newest]))
        )
        self._newest_log_s = max(self._newest_log_s, float(finish_s.max()))

    def moments(self, now_s: float) -> tuple[float, float]:
        """Return mean and second moment of the service time over the window, or the last known."""
        last = int(now_s / SLOT_S)
        window = slice(max(0, last - WINDOW_SLOTS), last)
        count = int(self.arrivals[window].sum())
        if count:
            work_s, work2_s2 = self.work_s[window].sum(), self._work2_s2[window].sum()
            self._moments = (float(work_s) / count, float(work2_s2) / count)
        return self._moments

    def summary(self, now_s: float) -> LoadSummary:
        """Return what the sizing rule is given."""
        last = int(now_s / SLOT_S)
        window = slice(max(0, last - WINDOW_SLOTS), last)
        day = slice(max(0, last - DAY_SLOTS), last)
        mean_s, second_s2 = self.moments(now_s)
        running_s = self._running_s(day)
        past_loads = self._steps(last)
        started_s, waited_s = self._newest_start
        return LoadSummary(
            arrivals=tuple(self.arrivals[window].tolist()),
            work_s=tuple(self.work_s[window].tolist()),
            service_mean_s=mean_s,
            service_second_moment_s2=second_s2,
            newest_start_age_s=now_s - started_s,
            newest_wait_s=waited_s,
            newest_log_age_s=now_s - self._newest_log_s,
            peakedness=peakedness(self.work_s[day][:-UNSETTLED_SLOTS], running_s),
            requests_last_day=int(self.arrivals[day].sum()),
            late_last_day=int(self._late[day].sum()),
            late_error=self._late_error(day),
            running_last_day_s=running_s,
            past_loads=past_loads,
            past_step_s=STEP_S,
            recent_loads=self._minutes,
            slot_s=SLOT_S,
        )

    def _late_error(self, slots: slice) -> float:
        steps = np.add.reduceat(
            self._late[slots], np.arange(0, slots.stop - slots.start, STEP_SLOTS)
        )
        return math.sqrt(float((steps**2).sum()))

    def _running_s(self, slots: slice) -> float:
        work_s = float(self.work_s[slots].sum())
        return float(self._work2_s2[slots].sum()) / work_s if work_s else 0.0

    def _steps(self, last_slot: int) -> tuple[float, ...]:
        full = (last_slot - SETTLED_SLOTS) // STEP_SLOTS
        for step in range(len(self._past_loads), max(0, full)):
            part = self.work_s[step * STEP_SLOTS : (step + 1) * STEP_SLOTS]
            self._past_loads.append(float(part.sum()) / STEP_S)
            self._minutes = self._minutes_before(step + 1, last_slot)
        return tuple(self._past_loads)

    def _minutes_before(self, step: int, last_slot: int) -> tuple[float, ...]:
        """Loads of the minutes before a step, those of the window as they are seen now."""
        oldest = max(0, math.ceil((last_slot - WINDOW_SLOTS) / STEP_SLOTS))
        first = min(oldest, step - 1)
        seen = self.work_s[first * STEP_SLOTS : step * STEP_SLOTS].reshape(-1, MINUTE_SLOTS)
        known = self._minutes[: len(self._minutes) - (step - 1 - first) * STEP_MINUTES]
        return (*known, *(seen.sum(axis=1) / 60.0).tolist())[-DAY_SLOTS // MINUTE_SLOTS :]


def peakedness(work_s: Floats, running_s: float) -> float:
    """Return how much burstier than Poisson the work of slots is; 1 when too few are known.

    From successive differences, which a trend does not inflate (von Neumann 1941): the index of
    dispersion of the work over that of Poisson arrivals with the same service times.
    """
    if len(work_s) < ENOUGH_SLOTS or work_s.sum() <= 0 or running_s <= 0:
        return 1.0
    variance = float(np.mean(np.diff(work_s) ** 2)) / 2
    return min(max(variance / (float(work_s.mean()) * running_s), 1.0), LARGEST_PEAKEDNESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at the fleet: workers, the queue and the logs.

    `queue` and `running` are the true meters of now, which the peers' platforms have and search
    logs have not. `arrived_s` are the arrivals up to now.
    """

    now_s: float
    live: int
    booting: int
    queue: int
    running: int
    arrived_s: Floats
    logs: SeenLogs

    @property
    def have(self) -> int:
        """Workers that serve or boot."""
        return self.live + self.booting

    def rate_per_s(self, window_s: float) -> float:
        """Return the arrivals per second of the last `window_s`."""
        first = int(np.searchsorted(self.arrived_s, self.now_s - window_s))
        return (len(self.arrived_s) - first) / min(window_s, max(self.now_s, 1.0))
