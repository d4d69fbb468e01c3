"""What policies play in, and how they are measured: one world, and one accounting for all."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spotkeeper_lab.traces.market import Market, Steps

type Value = bool | int | float | str
type Settings = Mapping[str, Value]
"""A policy's settings by name."""

DEFAULT_PRICE_RATIO = 0.30
"""Spot over on-demand where neither the market nor the user says (us-east-1 GPUs, 2021)."""
WARM_DISK_RATIO = 0.0036
"""A stopped instance's disk over a running instance: 100 GB of gp3 at $0.08 per GB-month
($0.011/h, us-east-1) beside p3.2xlarge at $3.06/h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world; all durations in seconds, all shares from 0 to 1, prices over on-demand's.

    An instance launched at t is billed from t and ready from t + start on. Where capacity falls at
    t, the newest instances of the pool are lost at t and were warned at t - ``notice_s`` (or not:
    ``notice_lost``); warnings arrive up to ``event_delay_s`` late. The turn of each minute starts
    up to ``turn_jitter_s`` after its beginning. An on-demand launch is refused with probability
    ``on_demand_failure``, and with ``on_demand_short`` while a region has no spot capacity. With
    ``warm_start_s``, as many on-demand instances as ``warm_pool`` are kept prepared: running ones
    are billed as such, stopped ones for their disk, and a released instance is stopped again (reuse
    on scale-in).
    """

    target: int
    tick_s: float = 30.0
    cold_start_s: float = 120.0
    warm_start_s: float | None = None
    warm_pool: int = 0
    notice_s: float = 0.0
    notice_lost: float = 0.0
    event_delay_s: float = 0.0
    turn_jitter_s: float = 0.0
    on_demand_failure: float = 0.0
    on_demand_short: bool = False
    price_ratio: float | None = None
    warm_disk_ratio: float = WARM_DISK_RATIO
    seed: int = 0

    def priced(self, market: Market) -> "World":
        """This world with its price settled: as set, else the market's own (None), else 0.30."""
        if self.price_ratio is not None or market.has_prices:
            return self
        return replace(self, price_ratio=DEFAULT_PRICE_RATIO)

    def ticks(self, seconds: float) -> int:
        """The number of ticks that last at least ``seconds``."""
        return math.ceil(seconds / self.tick_s - 1e-9)

    def length(self, market: Market) -> int:
        return math.ceil(market.end_s / self.tick_s - 1e-9)

    def prices(self, steps: Steps) -> tuple[float, ...]:
        """Spot over on-demand at each step: as set, else the market's own, else 0.30."""
        if self.price_ratio is None and steps.prices is not None:
            return steps.prices
        ratio = DEFAULT_PRICE_RATIO if self.price_ratio is None else self.price_ratio
        return (ratio,) * len(steps.times)


type Counts = NDArray[np.float64]
"""One number per tick."""
type Grid = NDArray[np.int64]
"""Ticks at which stretches begin, and the end of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLife:
    """One instance, billed from ``launched_s`` to ``ended_s``, serving from ``ready_s`` on.

    ``pool`` is None for on-demand; ``lost`` says that the market took it. An instance that never
    got ready has a ``ready_s`` at or after its end. Instances alive at the end of the window end
    there.
    """

    pool: str | None
    launched_s: float
    ready_s: float
    ended_s: float
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one policy did in one window.

    ``ready``, ``spot`` and ``on_demand`` are instances per tick: serving, held on spot, held on
    demand. ``paid`` is in on-demand instance-seconds, like ``all_on_demand``, what the target
    would have cost on demand. ``first`` is the first tick after the first cold start.
    """

    target: int
    first: int
    ready: Counts
    spot: Counts
    on_demand: Counts
    paid: float
    all_on_demand: float
    spot_launches: int = 0
    on_demand_launches: int = 0
    losses: int = 0

    @property
    def served_share(self) -> float:
        """Share of ticks after the first cold start with at least the target serving."""
        ready = self.ready[self.first :]
        return float(np.mean(ready >= self.target - 1e-6)) if ready.size else 1.0

    @property
    def capacity_share(self) -> float:
        """The share of the target's instance-time that was ready, after the first cold start."""
        ready = self.ready[self.first :]
        return float(np.mean(np.minimum(ready, self.target)) / self.target) if ready.size else 1.0

    @property
    def cost(self) -> float:
        """What was paid over what the target costs on demand."""
        return self.paid / self.all_on_demand


def account(lives: Iterable[PaidLife], window: Market, world: World) -> RunResult:
    """Add up a policy's instances; the warm pool's stopped instances are paid for their disks."""
    lives = tuple(lives)
    spot = [(life.pool, life.launched_s, life.ended_s) for life in lives if life.pool is not None]
    on_demand = [(life.launched_s, life.ended_s) for life in lives if life.pool is None]
    held = _counts(on_demand, window, world)
    stopped = np.maximum(world.warm_pool - held, 0) * world.tick_s * world.warm_disk_ratio
    return RunResult(
        target=world.target,
        first=world.ticks(world.cold_start_s),
        ready=_counts(((life.ready_s, life.ended_s) for life in lives), window, world),
        spot=_counts(((start_s, end_s) for _, start_s, end_s in spot), window, world),
        on_demand=held,
        paid=sum(spot_paid(*life, window, world) for life in spot)
        + sum(end_s - start_s for start_s, end_s in on_demand)
        + float(stopped.sum()),
        all_on_demand=world.target * window.end_s,
        spot_launches=len(spot),
        on_demand_launches=len(on_demand),
        losses=sum(life.lost for life in lives if life.pool is not None),
    )


def _counts(spans: Iterable[tuple[float, float]], window: Market, world: World) -> Counts:
    ticks = world.length(window)
    steps = np.zeros(ticks + 1)
    for start_s, end_s in spans:
        if end_s > start_s:
            steps[min(world.ticks(max(start_s, 0.0)), ticks)] += 1
            steps[min(world.ticks(end_s), ticks)] -= 1
    return np.cumsum(steps)[:ticks]


def sampled(
    window: Market, world: World, ticks: Grid
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Capacity and price per pool at ticks; both (pools, ticks)."""
    capacity, price = [], []
    for steps in window.steps:
        starts = [world.ticks(time) for time in steps.times]
        index = np.searchsorted(starts, ticks, side="right") - 1
        capacity.append(np.array(steps.capacities)[index])
        price.append(np.array(world.prices(steps))[index])
    return np.array(capacity), np.array(price)


def spot_paid(pool: str, start_s: float, end_s: float, window: Market, world: World) -> float:
    """What one spot instance costs from one time to another, in on-demand instance-seconds."""
    steps = window.of(pool)
    prices = world.prices(steps)
    if prices is not steps.prices:
        return (end_s - start_s) * prices[0]
    first, last = steps.index(start_s), steps.index(end_s)
    times = pairwise((start_s, *steps.times[first + 1 : last + 1], end_s))
    return sum(
        (to_s - from_s) * price
        for (from_s, to_s), price in zip(times, prices[first : last + 1], strict=True)
    )
