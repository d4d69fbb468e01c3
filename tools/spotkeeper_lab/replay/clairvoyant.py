"""The rule that knows the arrivals: few worker-hours that keep the promise, same start-up time.

A dynamic program over minutes: for every count of serving workers the best way there, with the
exact times at which its workers are free. A launch is billed from its start-up on, so raising the
count costs the start-up too. A price per late request is raised or lowered until the promise is
just kept. The schedule is then served by the same engine as every rule.

It is near a lower bound, not one: only one history per count is kept, the count changes by few
different numbers of instances a minute, and the price finds only the corners of the trade-off. What
no rule can go below is the trace's own work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np

from spotkeeper_lab.replay.engine import Rule, replay, slower
from spotkeeper_lab.replay.seen import Seen
from spotkeeper_lab.replay.values import ReplaySettings, Run
from spotkeeper_lab.traces.requests import Floats, RequestTrace

type Path = tuple[Path | None, int]

MINUTE_S = 60.0
LOAD_S = 600.0  # slots of the load
REACH = (0, 1, 2, 3, 6, 12, 24, 48, 96, 192)  # instances that start or end at once
STEPS = sorted({sign * reach for reach in REACH for sign in (-1, 1)})
PRICES = 9
# Of workers with slots: how full they are as the schedule is made. The engine knows better.
FULL = (0.5, 0.75, 1.0)
SLACK = 1.0  # worker-minutes by which a way may look worse and still be followed
CHEAPEST_PRICE, DEAREST_PRICE = 0.005, 20.0  # worker-minutes for a late request


class Schedule(Rule):
    """A rule that follows counts of serving workers per minute, asking a start-up ahead."""

    name = "clairvoyant"
    reason = "knows the arrivals"

    def __init__(self, settings: ReplaySettings, serving: Sequence[int]) -> None:
        super().__init__(settings)
        self.start = serving[0]
        self._serving = serving
        self._ahead = math.ceil(settings.cold_start_s / MINUTE_S)

    def workers(self, seen: Seen) -> int:
        """Return the most workers that serve between now and the end of a start-up."""
        minute = round(seen.now_s / MINUTE_S)
        coming = self._serving[minute : minute + self._ahead + 1]
        return max(coming, default=self._serving[-1])


@dataclass(slots=True)
class _Way:
    """The best way found to a count of workers."""

    worth: float
    cost: float
    late: int
    free: list[float]
    path: Path | None


def clairvoyant(trace: RequestTrace, settings: ReplaySettings) -> Run:
    """Return the cheapest run found that keeps the promise, else the one that is most in time."""
    slots, runs = settings.slots, []
    each = replace(
        settings,
        slots=1,
        workers_per_instance=settings.workers_per_instance * slots,
        onprem=settings.onprem * slots,
        max_workers=settings.max_workers * slots,
    )
    for full in FULL if slots > 1 else (1.0,):
        slowed = replace(trace, service_s=trace.service_s * slower(full * slots))
        low, high = math.log(CHEAPEST_PRICE * slots), math.log(DEAREST_PRICE * slots)
        for _ in range(PRICES):
            price = (low + high) / 2
            serving = [count // slots for count in _best_schedule(slowed, each, math.exp(price))]
            run = replay(trace, Schedule(settings, serving), settings)
            runs.append(run)
            low, high = (low, price) if run.row.objective_met else (price, high)
    met = [run for run in runs if run.row.objective_met]
    if met:
        return min(met, key=lambda run: run.row.worker_hours)
    return max(runs, key=lambda run: run.row.share_in_time)


def _best_schedule(trace: RequestTrace, settings: ReplaySettings, price: float) -> list[int]:
    """Return workers per minute that cost least, a late request costing `price` worker-minutes."""
    minutes = math.ceil(trace.end_s / MINUTE_S)
    edges = np.searchsorted(trace.arrival_s, np.arange(minutes + 1) * MINUTE_S).tolist()
    requests = list(zip(trace.arrival_s.tolist(), trace.service_s.tolist(), strict=True))
    counts = _counts(trace, settings)
    ways = {count: _Way(0.0, 0.0, 0, [0.0] * count, None) for count in counts}
    for minute in range(minutes):
        part = requests[edges[minute] : edges[minute + 1]]
        ways = _minute(ways, counts, part, minute, price, settings)
    step = min(ways.values(), key=lambda way: way.worth).path
    schedule: list[int] = []
    while step is not None:
        step, count = step
        schedule.append(count)
    return schedule[::-1]


def _counts(trace: RequestTrace, settings: ReplaySettings) -> range:
    """Return the counts worth trying: whole instances from the lowest to above the highest load.

    What arrives within the promised wait may be the highest: it has that time again to start.
    """

    def work_s(slot_s: float) -> Floats:
        """The service time of the requests that arrive in each slot."""
        return np.bincount((trace.arrival_s // slot_s).astype(np.int64), weights=trace.service_s)

    loads = work_s(LOAD_S) / LOAD_S
    burst_s = max(settings.wait_s, 1.0)
    burst = float(work_s(burst_s).max()) / (burst_s + settings.wait_s)
    step = settings.workers_per_instance
    low = max(settings.onprem, math.floor(0.7 * float(loads.min())), 1)
    low = settings.onprem + (low - settings.onprem) // step * step
    high = math.ceil(1.6 * max(float(loads.max()), burst)) + 2 * step
    return range(max(low, 1), max(min(high, settings.max_workers), low + step) + 1, step)


def _minute(
    ways: dict[int, _Way],
    counts: range,
    part: Sequence[tuple[float, float]],
    minute: int,
    price: float,
    settings: ReplaySettings,
) -> dict[int, _Way]:
    """Return the best way to every count at the end of a minute.

    A count is left out where another way would be as good after launching or releasing to it.
    """
    reached: dict[int, _Way] = {}
    start_s, end_s = minute * MINUTE_S, (minute + 1) * MINUTE_S
    launch = settings.cold_start_s / MINUTE_S
    for count, way in ways.items():
        for to in (count + step * counts.step for step in STEPS):
            if to not in counts:
                continue
            # Some workers started, and are free now, or the soonest free ended.
            free = sorted(way.free)[max(0, count - to) :] + [start_s] * (to - count)
            heapify(free)
            late = way.late + _serve(free, part, settings.wait_s)
            launched = max(0, to - count) * settings.cold_start_s / MINUTE_S if minute else 0.0
            cost = way.cost + to - settings.onprem + launched
            owed_s = sum(time_s - start_s - MINUTE_S for time_s in free if time_s > end_s)
            worth = cost + price * late + owed_s / MINUTE_S
            if to not in reached or worth < reached[to].worth:
                reached[to] = _Way(worth, cost, late, free, (way.path, to))
    return {
        count: way
        for count, way in reached.items()
        if all(
            way.worth < other.worth + launch * max(0, count - at) + SLACK
            for at, other in reached.items()
            if at != count
        )
    }


def _serve(free: list[float], part: Sequence[tuple[float, float]], wait_s: float) -> int:
    """Serve a minute's requests in place; return how many waited longer than `wait_s`."""
    late = 0
    for arrival_s, service_s in part:
        begin_s = free[0]
        if begin_s > arrival_s:
            late += begin_s - arrival_s > wait_s
            heapreplace(free, begin_s + service_s)
        else:
            heapreplace(free, arrival_s + service_s)
    return late
