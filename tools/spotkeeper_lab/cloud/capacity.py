"""A market as a cloud uses it: what a pool can hold, and what it will soon lose.

A drop is known to AWS before it happens: the notice is how long. From then on a pool gives out no
more than what it will hold after the drop, since AWS has nothing to give that it is taking back.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from spotkeeper_lab.traces.market import Market, Steps


@dataclass(frozen=True, slots=True, order=True)
class MarketMove:
    """At `at_s` a pool's capacity becomes `capacity`; an `announced` one does so at `due_s`."""

    at_s: float
    announced: bool
    pool: str
    capacity: int
    due_s: float


class Offer:
    """How many instances one pool gives out over time: the least capacity within the notice."""

    __slots__ = ("_least", "_times")

    def __init__(self, steps: Steps, notice_s: float) -> None:
        edges = {*steps.times, *(max(0.0, time - notice_s) for time in steps.times)}
        self._times = sorted(edges)
        self._least = [_least(steps, time, time + notice_s) for time in self._times]

    def at(self, now_s: float) -> int:
        """The most instances that the pool may hold by launching now."""
        return self._least[bisect_right(self._times, now_s) - 1]


def _least(steps: Steps, start_s: float, end_s: float) -> int:
    first, last = steps.index(start_s), steps.index(end_s)
    return min(steps.capacities[first : last + 1])


def moves(market: Market, start_s: float, notice_s: float) -> Iterator[MarketMove]:
    """All announcements of drops and all changes from `start_s` on, in time order."""
    return heapq.merge(
        *(_of_pool(pool, market.of(pool), start_s, notice_s) for pool in market.pools)
    )


def _of_pool(pool: str, steps: Steps, start_s: float, notice_s: float) -> Iterator[MarketMove]:
    found: list[MarketMove] = []
    before = steps.capacities[0]
    for due_s, capacity in zip(steps.times, steps.capacities, strict=True):
        if due_s >= start_s:
            found.append(MarketMove(due_s, False, pool, capacity, due_s))
            if capacity < before and notice_s > 0:
                told_s = max(start_s, due_s - notice_s)
                found.append(MarketMove(told_s, True, pool, capacity, due_s))
        before = capacity
    return iter(sorted(found))
