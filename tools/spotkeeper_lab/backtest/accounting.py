"""One accounting for every policy: from the lives of its instances to what was served and paid."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market

type Counts = NDArray[np.float64]
"""One number per tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLife:
    """One instance, billed from ``launched_s`` to ``ended_s``, serving from ``ready_s`` on.

    ``pool`` is None for on-demand. ``quits_s`` is when it stops serving, where that is before its
    end (drained); ``lost`` says that the market took it. An instance that never got ready has a
    ``ready_s`` at or after its end. Instances alive at the end of the window end there.
    """

    pool: str | None
    launched_s: float
    ready_s: float
    ended_s: float
    quits_s: float | None = None
    lost: bool = False

    @property
    def serves_until_s(self) -> float:
        return self.ended_s if self.quits_s is None else min(self.quits_s, self.ended_s)


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
        """Instance-time delivered of asked, after the first cold start."""
        ready = self.ready[self.first :]
        return float(np.mean(np.minimum(ready, self.target)) / self.target) if ready.size else 1.0

    @property
    def cost(self) -> float:
        """What was paid over what the target costs on demand."""
        return self.paid / self.all_on_demand


def account(lives: Iterable[PaidLife], window: Market, world: World) -> RunResult:
    """Add up a policy's instances; the warm pool's stopped instances are paid for their disks."""
    lives = tuple(lives)
    spot = tuple(life for life in lives if life.pool is not None)
    on_demand = tuple(life for life in lives if life.pool is None)
    held = _counts(((life.launched_s, life.ended_s) for life in on_demand), window, world)
    stopped = np.maximum(world.warm_pool - held, 0) * world.tick_s * world.warm_disk_ratio
    return RunResult(
        target=world.target,
        first=world.ticks(world.cold_start_s),
        ready=_counts(((life.ready_s, life.serves_until_s) for life in lives), window, world),
        spot=_counts(((life.launched_s, life.ended_s) for life in spot), window, world),
        on_demand=held,
        paid=sum(
            spot_paid(life.pool or "", life.launched_s, life.ended_s, window, world)
            for life in spot
        )
        + sum(life.ended_s - life.launched_s for life in on_demand)
        + float(stopped.sum()),
        all_on_demand=world.target * window.end_s,
        spot_launches=len(spot),
        on_demand_launches=len(on_demand),
        losses=sum(life.lost for life in spot),
    )


def _counts(spans: Iterable[tuple[float, float]], window: Market, world: World) -> Counts:
    ticks = world.length(window)
    steps = np.zeros(ticks + 1)
    for start_s, end_s in spans:
        if end_s > start_s:
            steps[min(world.ticks(max(start_s, 0.0)), ticks)] += 1
            steps[min(world.ticks(end_s), ticks)] -= 1
    return np.cumsum(steps)[:ticks]


def spot_paid(pool: str, start_s: float, end_s: float, window: Market, world: World) -> float:
    """What one spot instance costs from one time to another, in on-demand instance-seconds."""
    steps = window.of(pool)
    if world.price_ratio is not None or steps.prices is None:
        return (end_s - start_s) * world.spot_price(window, pool, start_s)
    inside = steps.times[steps.index(start_s) + 1 : steps.index(end_s) + 1]
    return sum(
        (to_s - from_s) * world.spot_price(window, pool, from_s)
        for from_s, to_s in pairwise((start_s, *inside, end_s))
    )
