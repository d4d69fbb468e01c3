"""The peers: policies that others publish or run, written from their descriptions.

They are tried in the published way, after SkyServe's micro-benchmark (EuroSys 2025): at every tick
a policy sees its fleet and asks. A launch is ready once held over the whole cold start, so at
tick k when launched at or before tick k - cold start; what the market cannot hold any more is lost
at the tick, newest first; a launch that the market cannot hold fails at once. No peer uses the
notice.
"""

import math
import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spotkeeper_lab.backtest.world import PaidLife, RunResult, World, account, sampled
from spotkeeper_lab.traces.market import Market

type Counts = Mapping[int, int]
"""Instances by pool."""


class Held(NamedTuple):
    """What a policy holds at a tick: spot instances, ready ones of them, and on-demand ones."""

    tick: int
    spot: int
    ready: int
    on_demand: int


class TickPolicy:
    """A policy that acts at every tick; this one spreads spot evenly, past failures ignored.

    ``spot`` is how much it holds if it can, ``on_demand`` how much it holds beside it.
    """

    def __init__(self, spot: int, on_demand: int = 0) -> None:
        self._spot = spot
        self._on_demand = on_demand

    def ask(self, held: Sequence[int]) -> Counts:
        """How many further spot instances to launch now, by pool; `held` is what each holds."""
        after, requested = list(held), Counter[int]()
        missing = self._spot - sum(held)
        if missing > 0:
            self.begin(len(after))
        for _ in range(missing):
            pool = self.next_pool(after)
            after[pool] += 1
            requested[pool] += 1
        return requested

    def begin(self, pools: int) -> None:
        """Prepare for asking; some are missing."""

    def next_pool(self, held: Sequence[int]) -> int:
        """The pool of the next launch, with those before it in `held`: one with the fewest."""
        return held.index(min(held))

    def told(self, requested: Counts, given: Counts) -> None:
        """Note how many instances were requested of each pool, and how many it launched."""

    def on_demand(self, held: Held) -> int:
        """How many on-demand instances to hold from now on."""
        return self._on_demand


class RoundRobin(TickPolicy):
    """Spot only: one pointer over the pools, advancing on every attempt."""

    _next = 0

    def next_pool(self, held: Sequence[int]) -> int:
        """Each missing one to the next pool."""
        pool, self._next = self._next, (self._next + 1) % len(held)
        return pool


class SpotHedge(TickPolicy):
    """SkyServe's policy: spread over pools that launched lately, with extra spot and a backup.

    Pools are active or preempting. A pool that launches fewer than requested moves to preempting.
    One that launches all of at least one requested moves back.
    """

    def __init__(self, target: int, pools: int, extra: int, rng: random.Random) -> None:
        super().__init__(target + extra)
        self._target = target
        self._rng = rng
        self._active = set(range(pools))

    def begin(self, pools: int) -> None:
        """Have all pools active where too few are."""
        if len(self._active) <= max(0, min(1, pools - 3)):
            self._active = set(range(pools))

    def next_pool(self, held: Sequence[int]) -> int:
        """Each missing one to a random active pool that holds none of ours, else any active one."""
        active = sorted(self._active)
        return self._rng.choice([pool for pool in active if not held[pool]] or active)

    def told(self, requested: Counts, given: Counts) -> None:
        """Move pools between active and preempting."""
        for pool, count in requested.items():
            move = self._active.discard if given[pool] < count else self._active.add
            move(pool)

    def on_demand(self, held: Held) -> int:
        """What ready spot lacks of target and extra, at most the target."""
        return max(0, min(self._target, self._spot - held.ready))


class SpotGroup(TickPolicy):
    """An Auto Scaling group of spot beside a fixed number on demand; no fallback.

    With no on-demand share this is spot only, with one it is AWS's mixed instances group. The group
    spreads over its zones, best effort: a zone that failed is passed over until all have failed.
    """

    def __init__(self, target: int, on_demand_share: float = 0.0) -> None:
        on_demand = math.ceil(target * on_demand_share - 1e-9)
        super().__init__(target - on_demand, on_demand)
        self._failed: set[int] = set()

    def begin(self, pools: int) -> None:
        """Forget the failures once all zones have failed."""
        if len(self._failed) == pools:
            self._failed.clear()

    def next_pool(self, held: Sequence[int]) -> int:
        """Each missing one to the zone with the fewest of ours."""
        return min(set(range(len(held))) - self._failed, key=lambda zone: (held[zone], zone))

    def told(self, requested: Counts, given: Counts) -> None:
        """Remember the zones that failed."""
        self._failed |= {zone for zone, count in requested.items() if given[zone] < count}


class TwoGroupLoop(SpotGroup):
    """convox/rack: now and then, on demand = target - spot running, ready or not."""

    def __init__(self, target: int, every_ticks: int) -> None:
        super().__init__(target)
        self._every = every_ticks

    def on_demand(self, held: Held) -> int:
        """What running spot lacks of the target, looked at every interval."""
        return held.on_demand if held.tick % self._every else max(0, self._spot - held.spot)


class Failover(TickPolicy):
    """All in one region until a launch fails there, then in the next; the rest on demand."""

    def __init__(self, target: int, regions: Sequence[str]) -> None:
        super().__init__(target)
        self._regions, self._left = regions, list(dict.fromkeys(regions))

    def next_pool(self, held: Sequence[int]) -> int:
        """The pool of the present region with the fewest of ours."""
        mine = [pool for pool, region in enumerate(self._regions) if region == self._left[0]]
        return min(mine, key=held.__getitem__)

    def told(self, requested: Counts, given: Counts) -> None:
        """Go on to the next region once one refuses."""
        if any(given[pool] < count for pool, count in requested.items()):
            self._left.append(self._left.pop(0))

    def on_demand(self, held: Held) -> int:
        """What ready spot lacks of the target."""
        return max(0, self._spot - held.ready)


def run(policy: TickPolicy, window: Market, world: World) -> RunResult:
    """Run every tick of a window, then account.

    An instance is the ticks at which it is ready and was launched. Those of a pool are in the order
    of their launch, and those on demand in the order in which they are ready.
    """
    spot: list[list[tuple[int, int]]] = [[] for _ in window.pools]
    on_demand: list[tuple[int, int]] = []
    lives: list[PaidLife] = []
    ticks, failure = world.length(window), world.on_demand_failure
    cold, warm = world.ticks(world.cold_start_s), world.ticks(world.warm_start_s or 0.0)
    rng = random.Random(f"on-demand/{world.seed}")

    def close(
        pool: str | None, instance: tuple[int, int], tick: int, *, lost: bool = False
    ) -> None:
        ready_s, launched_s = (at * world.tick_s for at in instance)
        ended_s = min(tick * world.tick_s, window.end_s)
        life = PaidLife(
            pool=pool, launched_s=launched_s, ready_s=ready_s, ended_s=ended_s, lost=lost
        )
        lives.append(life)

    capacities, _ = sampled(window, world, np.arange(ticks))
    for tick, capacity in enumerate(capacities.T.tolist()):
        for pool, most, instances in zip(window.pools, capacity, spot, strict=True):
            while len(instances) > most:
                close(pool, instances.pop(), tick, lost=True)
        requested, given = policy.ask([*map(len, spot)]), {}
        for number, count in requested.items():
            given[number] = max(0, min(count, capacity[number] - len(spot[number])))
            spot[number] += [(tick + cold, tick)] * given[number]
        policy.told(requested, given)
        ready = sum(bisect_right(instances, (tick, tick)) for instances in spot)
        wanted = policy.on_demand(Held(tick, sum(map(len, spot)), ready, len(on_demand)))
        for _ in range(wanted - len(on_demand)):
            if not (failure > 0 and rng.random() < failure):
                start = warm if len(on_demand) < world.warm_pool else cold
                insort(on_demand, (tick + start, tick))
        while len(on_demand) > wanted:
            close(None, on_demand.pop(), tick)
    for kind, instances in zip((*window.pools, None), (*spot, on_demand), strict=True):
        for instance in instances:
            close(kind, instance, ticks)
    return account(lives, window, world)
