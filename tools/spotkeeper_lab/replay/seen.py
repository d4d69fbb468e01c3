"""What a rule may look at: the meters of its platform, and the search logs that have arrived."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.history import (
    SETTLED_SLOTS,
    STEP_SLOTS,
    ArrivalLog,
    LoadSummary,
    OwnStarts,
    Sharing,
    learned,
    shared_by,
    slower_when_full,
)
from spotkeeper.domain.load.load import slot_of
from spotkeeper.domain.load.summarise import dispersion
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper_lab.traces.requests import Floats

SLOT_S = 10.0
WINDOW_SLOTS = 90
DAY_SLOTS = 8_640
HOUR_SLOTS = 360
STALE_S = SizingPolicy().stale_after_s
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that a replay calls 0."""


class SeenLogs:
    """Search logs of finished requests, summed per slot of ten seconds as they arrive."""

    def __init__(self, end_s: float, wait_s: float) -> None:
        slots = int(end_s / SLOT_S) + 2 * DAY_SLOTS
        self._wait_s = wait_s
        self.arrivals = np.zeros(slots, dtype=np.int64)
        self.work_s = np.zeros(slots)
        self._full_work_s = self.work_s
        self._busy_ms: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._sharing = Sharing()
        self._learned = 0
        self.finished_work_s = np.zeros(slots)
        self._work2_s2 = np.zeros(slots)
        self._late = np.zeros(slots, dtype=np.int64)
        self._newest_start = (-math.inf, 0.0)
        self.newest_log_s = -math.inf
        self._moments = (0.0, 0.0)

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
        self.newest_log_s = max(self.newest_log_s, float(finish_s.max()))

    def share(self, start_s: Floats, took_s: Floats, instances: Sequence[int]) -> None:
        """Take in which instance served requests: several at once share it."""
        for begin_s, each_s, name in zip(start_s.tolist(), took_s.tolist(), instances, strict=True):
            busy_ms, end_s = self._busy_ms[name], begin_s + each_s
            for slot in range(int(begin_s / SLOT_S), int(end_s / SLOT_S) + 1):
                busy_s = min((slot + 1) * SLOT_S, end_s) - max(begin_s, slot * SLOT_S)
                busy_ms[slot] = busy_ms.get(slot, 0) + round(1000 * busy_s)

    def as_if_full(self, now_s: float, slots: int) -> int:
        """Give `log` the work of workers whose slots are all taken, as the deployed rule does.

        Returns how many requests a worker serves at once, of `slots` that it should.
        """
        if slots == 1:
            return 1
        if self._full_work_s is self.work_s:
            self._full_work_s = self.work_s.copy()
        last = int(now_s / SLOT_S)
        stop = (last - SETTLED_SLOTS) // STEP_SLOTS * STEP_SLOTS
        # As in the table, a step is counted again for as long as all of it is seen.
        first = -(-max(0, last - WINDOW_SLOTS) // STEP_SLOTS) * STEP_SLOTS
        for busy_ms in self._busy_ms.values():
            for slot in [slot for slot in busy_ms if slot < first]:
                del busy_ms[slot]
        found = shared_by(self._busy_ms.values())
        shared = [found.get(slot, 1.0) for slot in range(first, last)]
        for begin in range(self._learned, stop, STEP_SLOTS):
            known = slice(begin, begin + STEP_SLOTS)
            self._sharing = learned(
                self._sharing,
                self.arrivals[known].tolist(),
                self.work_s[known].tolist(),
                shared[begin - first : begin - first + STEP_SLOTS],
                float(self._late[known].sum()) / max(1, int(self.arrivals[known].sum())),
                slots,
            )
        self._learned = max(stop, self._learned)
        self._full_work_s[first:last] = self.work_s[first:last] * np.array(
            slower_when_full(self._sharing, shared, self._sharing.at_once(slots))
        )
        return self._sharing.at_once(slots)

    def moments(self, now_s: float) -> tuple[float, float]:
        """Return mean and second moment of the service time over the window, or the last known."""
        last = int(now_s / SLOT_S)
        window = slice(max(0, last - WINDOW_SLOTS), last)
        count = int(self.arrivals[window].sum())
        if count:
            work_s, work2_s2 = self.work_s[window].sum(), self._work2_s2[window].sum()
            self._moments = (float(work_s) / count, float(work2_s2) / count)
        return self._moments

    def log(self, now_s: float) -> ArrivalLog:
        """Return what arrived by slot in a day, as far as logs were delivered."""
        last = int(now_s / SLOT_S)
        day = slice(max(0, last - DAY_SLOTS), last)
        return ArrivalLog(day.start, self.arrivals[day].tolist(), self._full_work_s[day].tolist())

    def are_missing(self, now_s: float) -> bool:
        """Tell whether no log arrived for longer than chance explains, by the deployed rule."""
        if now_s - self.newest_log_s <= STALE_S or math.isinf(self.newest_log_s):
            return False
        newest = EPOCH + timedelta(seconds=self.newest_log_s)
        last = int(self.newest_log_s / SLOT_S)
        window = self.arrivals[max(0, last - STEP_SLOTS) : last + 1]
        bursts = max(1.0, *dispersion(window.tolist(), SLOT_S).values(), 1.0)
        hour = self.arrivals[max(0, last - 5 * HOUR_SLOTS) : last + 1][::-1]
        faded = float((hour * np.exp(-np.arange(len(hour)) / HOUR_SLOTS)).sum())
        flow = LogFlow(
            newest=newest,
            rate=float(window.sum()) / (len(window) * SLOT_S) / bursts,
            lately=faded / -math.expm1(-(last + 1) / HOUR_SLOTS) / 3600,
            counted=slot_of(newest),
            watched_since=EPOCH,
        )
        return flow.is_missing(EPOCH + timedelta(seconds=now_s))

    def own(self, step: int) -> OwnStarts:
        """Count what arrived in a step, and what of it started late."""
        slots = slice(step * STEP_SLOTS, (step + 1) * STEP_SLOTS)
        return OwnStarts(int(self.arrivals[slots].sum()), int(self._late[slots].sum()))

    def variation(self, now_s: float) -> float:
        """Return the variance of the newest service times over their squared mean."""
        mean_s, second_s2 = self.moments(now_s)
        return max(0.0, second_s2 / mean_s**2 - 1.0) if mean_s else 1.0

    def summary(self, now_s: float) -> LoadSummary:
        """Return what the sizing rule is given."""
        started_s, waited_s = self._newest_start
        return LoadSummary(
            log=self.log(now_s),
            service_mean_s=self.moments(now_s)[0],
            newest_start_age_s=now_s - started_s,
            newest_wait_s=waited_s,
        )


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
    slots: int = 1

    @property
    def have(self) -> int:
        """Workers that serve or boot."""
        return self.live + self.booting
