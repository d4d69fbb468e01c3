"""The rule that knows the arrivals: few worker-hours that keep the promise, same start-up time.

A dynamic program over minutes: for every count of serving workers the best way there, with the
exact times at which its workers are free. A launch is billed from its start-up on, so raising the
count costs the start-up too. A price per late request is raised or lowered until the promise is
just kept. The schedule is then served by the same engine as every rule.

It is near a lower bound, not one: only one history per count is kept, the count changes by few
different numbers of instances a minute, and the price finds only the corners of the trade-off. What
no rule can go below is the trace's own work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from spotkeeper_lab.replay.engine import replay
from spotkeeper_lab.replay.fleet import slower

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper_lab.replay.seen import Seen
    from spotkeeper_lab.replay.values import Floats, ReplaySettings, Run
    from spotkeeper_lab.traces.requests import RequestTrace

type Path = tuple[Path | None, int]

MINUTE_S = 60.0
LOAD_S = 600.0  # slots of the load
REACH = (0, 1, 2, 3, 6, 12, 24, 48, 96, 192)  # instances that start or end at once
PRICES = 9
# Of workers with slots: how full they are as the schedule is made. The engine knows better.
FULL = (0.5, 0.75, 1.0)
SLACK = 1.0  # worker-minutes by which a way may look worse and still be followed
CHEAPEST_PRICE, DEAREST_PRICE = 0.005, 20.0  # worker-minutes for a late request


@dataclass(slots=True)
class Schedule:
    """A rule that follows counts of serving workers per minute, asking a start-up ahead."""

    serving: Sequence[int]
    ahead: int
    name: str = "clairvoyant"
    every_s: float = MINUTE_S
    grace_s: float = math.inf
    reason: str = "knows the arrivals"

    def workers(self, seen: Seen) -> int:
        """Return the most workers that serve between now and the end of a start-up."""
        minute = round(seen.now_s / MINUTE_S)
        coming = self.serving[minute : minute + self.ahead + 1]
        return max(coming, default=self.serving[-1])


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
            serving = [count // slots for count in best_schedule(slowed, each, math.exp(price))]
            run = follow(trace, settings, serving)
            runs.append(run)
            low, high = (low, price) if run.row.objective_met else (price, high)
    met = [run for run in runs if run.row.objective_met]
    if met:
        return min(met, key=lambda run: run.row.worker_hours)
    return max(runs, key=lambda run: run.row.share_in_time)


def follow(trace: RequestTrace, settings: ReplaySettings, serving: Sequence[int]) -> Run:
    start = replace(settings, initial_workers=serving[0])
    ahead = math.ceil(settings.cold_start_s / MINUTE_S)
    run = replay(trace, Schedule(serving, ahead), start)
    return replace(run, row=replace(run.row, settings=settings))


def best_schedule(trace: RequestTrace, settings: ReplaySettings, price: float) -> list[int]:
    """Return workers per minute that cost least, a late request costing `price` worker-minutes."""
    minutes = math.ceil(trace.end_s / MINUTE_S)
    edges = np.searchsorted(trace.arrival_s, np.arange(minutes + 1) * MINUTE_S).tolist()
    requests = list(zip(trace.arrival_s.tolist(), trace.service_s.tolist(), strict=True))
    counts = _counts(trace, settings)
    ways = {count: _Way(0.0, 0.0, 0, [0.0] * count, None) for count in counts}
    for minute in range(minutes):
        part = requests[edges[minute] : edges[minute + 1]]
        ways = _minute(ways, counts, part, minute, price, settings)
    best = min(ways.values(), key=lambda way: way.worth)
    return _path(best)


def _counts(trace: RequestTrace, settings: ReplaySettings) -> range:
    """Return the counts worth trying: whole instances from the lowest to above the highest load.

    What arrives within the promised wait may be the highest: it has that time again to start.
    """
    loads = _work_s(trace, LOAD_S) / LOAD_S
    burst_s = max(settings.wait_s, 1.0)
    burst = float(_work_s(trace, burst_s).max()) / (burst_s + settings.wait_s)
    step = settings.workers_per_instance
    low = max(settings.onprem, math.floor(0.7 * float(loads.min())), 1)
    low = settings.onprem + (low - settings.onprem) // step * step
    high = math.ceil(1.6 * max(float(loads.max()), burst)) + 2 * step
    return range(max(low, 1), max(min(high, settings.max_workers), low + step) + 1, step)


def _work_s(trace: RequestTrace, slot_s: float) -> Floats:
    """Return the service time of the requests that arrive in each slot."""
    return np.bincount((trace.arrival_s // slot_s).astype(np.int64), weights=trace.service_s)


def _minute(
    ways: dict[int, _Way],
    counts: range,
    part: Sequence[tuple[float, float]],
    minute: int,
    price: float,
    settings: ReplaySettings,
) -> dict[int, _Way]:
    """Return the best way to every count at the end of a minute."""
    reached: dict[int, _Way] = {}
    start_s = minute * MINUTE_S
    for count, way in ways.items():
        for to in _reached(count, counts):
            free = _change(way.free, to, start_s)
            late = _serve(free, part, settings.wait_s)
            launched = max(0, to - count) * settings.cold_start_s / MINUTE_S if minute else 0.0
            cost = way.cost + to - settings.onprem + launched
            lates = way.late + late
            owed_s = sum(
                time_s - start_s - MINUTE_S for time_s in free if time_s > start_s + MINUTE_S
            )
            worth = cost + price * lates + owed_s / MINUTE_S
            if to not in reached or worth < reached[to].worth:
                reached[to] = _Way(worth, cost, lates, free, (way.path, to))
    launch = settings.cold_start_s / MINUTE_S
    return {count: way for count, way in reached.items() if _useful(count, way, reached, launch)}


def _reached(count: int, counts: range) -> list[int]:
    """Return the counts that the next minute may have."""
    steps = sorted({sign * reach * counts.step for reach in REACH for sign in (-1, 1)})
    return [count + step for step in steps if count + step in counts]


def _useful(count: int, way: _Way, ways: dict[int, _Way], launch: float) -> bool:
    """Tell whether no other way would be as good after launching or releasing to this count."""
    return all(
        way.worth < other.worth + launch * max(0, count - at) + SLACK
        for at, other in ways.items()
        if at != count
    )


def _change(free: list[float], to: int, now_s: float) -> list[float]:
    """Return when each worker is free, after some started (free now) or the soonest free ended."""
    kept = sorted(free)[max(0, len(free) - to) :] + [now_s] * (to - len(free))
    heapify(kept)
    return kept


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


def _path(way: _Way) -> list[int]:
    counts: list[int] = []
    step = way.path
    while step is not None:
        before, count = step
        counts.append(count)
        step = before
    return counts[::-1]
