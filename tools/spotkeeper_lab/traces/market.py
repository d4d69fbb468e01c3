"""Spot markets: how many instances each pool can hold, piecewise constant over time."""

import heapq
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise


class MarketError(ValueError):
    """A question that a market cannot answer, such as a window longer than the trace."""


_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+|[a-z]+-[a-z]+\d+(?=-[a-z]$|$)")
"""AWS (``us-east-1``, also within ``us-west-2-lax-1a``) and Google Cloud (``us-central1``)."""


def region_of(pool: str) -> str:
    """The region of a pool ("zone/type"); the zone itself where its name holds no region."""
    zone = pool.partition("/")[0]
    found = _REGION.match(zone)
    return found[0] if found else zone


@dataclass(frozen=True, slots=True)
class Change:
    """From ``at_s`` on, ``pool`` can hold ``capacity`` instances."""

    at_s: float
    pool: str
    capacity: int


@dataclass(frozen=True, slots=True)
class Steps:
    """One pool's capacity over time; ``prices`` are spot over on-demand, or absent."""

    times: tuple[float, ...]
    capacities: tuple[int, ...]
    prices: tuple[float, ...] | None = None

    def index(self, at_s: float) -> int:
        """The step that holds at a time; times before the first step count as the first."""
        return max(bisect_right(self.times, at_s) - 1, 0)

    def window(self, start_s: float, end_s: float) -> "Steps":
        """The steps between two times, moved so that ``start_s`` is 0."""
        first, stop = self.index(start_s), max(bisect_left(self.times, end_s), 1)
        times = (0.0, *(time - start_s for time in self.times[first + 1 : stop]))
        prices = None if self.prices is None else self.prices[first:stop]
        return Steps(times, self.capacities[first:stop], prices)


@dataclass(frozen=True, slots=True)
class Market:
    """Spot capacity per pool ("zone/type") from 0 to ``end_s``.

    ``steps`` has one entry per pool, in the order of ``pools``, each starting at 0.
    """

    pools: tuple[str, ...]
    end_s: float
    name: str
    steps: tuple[Steps, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the pools; one Auto Scaling group can use the pools of one region."""
        return tuple(dict.fromkeys(map(region_of, self.pools)))

    def within(self, region: str) -> "Market":
        """The pools of one region; raises MarketError, naming the regions, where it has none."""
        kept = [n for n, pool in enumerate(self.pools) if region_of(pool) == region]
        if not kept:
            raise MarketError(
                f"market {self.name} has no pool in {region!r}; "
                f"its regions are {', '.join(self.regions)}"
            )
        return Market(
            tuple(self.pools[n] for n in kept),
            self.end_s,
            f"{self.name} ({region})",
            tuple(self.steps[n] for n in kept),
        )

    def of(self, pool: str) -> Steps:
        """One pool's steps; raises MarketError for a pool that the market does not have."""
        try:
            return self.steps[self.pools.index(pool)]
        except ValueError:
            raise MarketError(
                f"market {self.name} has no pool {pool!r}; it has {', '.join(self.pools)}"
            ) from None

    def capacity(self, pool: str, at_s: float) -> int:
        """How many instances a pool can hold at a time; the last step holds for ever."""
        steps = self.of(pool)
        return steps.capacities[steps.index(at_s)]

    def price(self, pool: str, at_s: float) -> float | None:
        """Spot price over on-demand price, or None where the market has no prices."""
        steps = self.of(pool)
        return None if steps.prices is None else steps.prices[steps.index(at_s)]

    @property
    def has_prices(self) -> bool:
        """Whether the market says what spot cost."""
        return all(steps.prices is not None for steps in self.steps)

    def changes(self, start_s: float = 0.0, end_s: float = math.inf) -> Iterator[Change]:
        """Every step with ``start_s <= at_s < end_s``, in time order, pools in their order."""
        streams = (
            _changes(pool, steps, start_s, min(end_s, self.end_s))
            for pool, steps in zip(self.pools, self.steps, strict=True)
        )
        return heapq.merge(*streams, key=lambda change: change.at_s)

    def window(self, start_s: float, length_s: float) -> "Market":
        """The part from ``start_s`` on, moved to 0; raises MarketError when it does not fit."""
        if start_s < 0 or length_s <= 0 or start_s + length_s > self.end_s:
            raise MarketError(
                f"market {self.name} lasts {self.end_s / 3600:g} h; {length_s / 3600:g} h "
                f"from {start_s / 3600:g} h on does not fit: ask for a shorter window"
            )
        steps = tuple(one.window(start_s, start_s + length_s) for one in self.steps)
        return Market(self.pools, length_s, self.name, steps)


def _changes(pool: str, steps: Steps, start_s: float, end_s: float) -> Iterator[Change]:
    first, stop = bisect_left(steps.times, start_s), bisect_left(steps.times, end_s)
    for index in range(first, stop):
        yield Change(steps.times[index], pool, steps.capacities[index])


def market_of(
    name: str, end_s: float, capacities: Mapping[str, Iterable[tuple[float, int]]]
) -> Market:
    """A market from (time, capacity) steps per pool; equal neighbours are merged."""
    steps = tuple(_steps(list(pairs)) for pairs in capacities.values())
    return Market(tuple(capacities), end_s, name, steps)


def _steps(pairs: list[tuple[float, int]]) -> Steps:
    if not pairs or pairs[0][0] != 0.0 or any(b[0] <= a[0] for a, b in pairwise(pairs)):
        raise MarketError("the steps of a pool start at 0 and go up in time")
    kept = [pairs[0], *(b for a, b in pairwise(pairs) if a[1] != b[1])]
    return Steps(tuple(time for time, _ in kept), tuple(capacity for _, capacity in kept))
