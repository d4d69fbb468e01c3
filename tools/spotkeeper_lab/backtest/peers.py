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
from collections.abc import Mapping, Sequence

import numpy as np

from spotkeeper_lab.backtest.world import PaidLife, RunResult, World, account, sampled
from spotkeeper_lab.traces.market import Market

type Counts = Mapping[int, int]
"""Instances by pool."""


class TickedFleet:
    """What a policy holds at a tick; pools are numbered in the market's order.

    ``spot`` has, per pool, the tick at which each instance is ready, oldest first; ``on_demand``
    pairs of ready tick and launch tick, readiest first.
    """

    __slots__ = ("on_demand", "spot", "tick")

    def __init__(self, pools: int) -> None:
        self.tick = 0
        self.spot: list[list[int]] = [[] for _ in range(pools)]
        self.on_demand: list[tuple[int, int]] = []

    @property
    def held(self) -> list[int]:
        """Spot instances per pool, ready or not."""
        return [len(pool) for pool in self.spot]

    @property
    def spot_held(self) -> int:
        return sum(map(len, self.spot))

    @property
    def spot_ready(self) -> int:
        return sum(bisect_right(pool, self.tick) for pool in self.spot)


class TickPolicy:
    """A policy that acts at every tick; this one holds nothing."""

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """The pool of each further spot instance to launch now."""
        return ()

    def told(self, asked: Counts, given: Counts) -> None:
        """Note how many instances were requested of each pool, and how many it launched."""

    def on_demand(self, fleet: TickedFleet) -> int:
        """How many on-demand instances to hold from now on."""
        return 0


class OnDemandOnly(TickPolicy):
    def __init__(self, target: int) -> None:
        self._target = target

    def on_demand(self, fleet: TickedFleet) -> int:
        return self._target


class EvenSpread(TickPolicy):
    """Spot only: missing replicas to the pools that hold the fewest, past failures ignored."""

    def __init__(self, target: int) -> None:
        self._target = target

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """Each missing one to the pool with the fewest, ties in the market's order."""
        held, asked = fleet.held, []
        for _ in range(self._target - sum(held)):
            pool = held.index(min(held))
            held[pool] += 1
            asked.append(pool)
        return asked


class RoundRobin(EvenSpread):
    """Spot only: one pointer over the pools, advancing on every attempt."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._next = 0

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """Each missing one to the next pool."""
        missing = self._target - fleet.spot_held
        if missing <= 0:
            return ()
        pools = len(fleet.spot)
        asked = [(self._next + step) % pools for step in range(missing)]
        self._next = (self._next + missing) % pools
        return asked


class SpotHedge(TickPolicy):
    """SkyServe's policy: spread over pools that launched lately, with extra spot and a backup.

    Pools are active or preempting. A pool that launches fewer than requested moves to preempting.
    One that launches all of at least one requested moves back.
    """

    def __init__(self, target: int, pools: int, extra: int, rng: random.Random) -> None:
        self._target = target
        self._extra = extra
        self._rng = rng
        self._pools = pools
        self._active = set(range(pools))

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """Each missing one to a random active pool that holds none of ours, else any active one."""
        held, asked = fleet.held, []
        missing = self._target + self._extra - sum(held)
        if missing <= 0:
            return ()
        if len(self._active) <= max(0, min(1, self._pools - 3)):
            self._active = set(range(self._pools))
        active = sorted(self._active)
        for _ in range(missing):
            empty = [pool for pool in active if not held[pool]]
            pool = self._rng.choice(empty or active)
            held[pool] += 1
            asked.append(pool)
        return asked

    def told(self, asked: Counts, given: Counts) -> None:
        """Move pools between active and preempting."""
        for pool, count in asked.items():
            if given[pool] < count:
                self._active.discard(pool)
            else:
                self._active.add(pool)

    def on_demand(self, fleet: TickedFleet) -> int:
        """What ready spot lacks of target and extra, at most the target."""
        return max(0, min(self._target, self._target + self._extra - fleet.spot_ready))


class SpotGroup(TickPolicy):
    """An Auto Scaling group of spot beside a fixed number on demand; no fallback.

    With no on-demand share this is spot only, with one it is AWS's mixed instances group. The group
    spreads over its zones, best effort: a zone that failed is passed over until all have failed.
    """

    def __init__(self, target: int, on_demand_share: float = 0.0) -> None:
        self._on_demand = math.ceil(target * on_demand_share - 1e-9)
        self._spot = target - self._on_demand
        self._failed: set[int] = set()

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """Each missing one to the zone with the fewest of ours."""
        held, asked = fleet.held, []
        missing = self._spot - sum(held)
        if missing <= 0:
            return ()
        if len(self._failed) == len(held):
            self._failed.clear()
        zones = [zone for zone in range(len(held)) if zone not in self._failed]
        for _ in range(missing):
            zone = min(zones, key=held.__getitem__)
            held[zone] += 1
            asked.append(zone)
        return asked

    def told(self, asked: Counts, given: Counts) -> None:
        """Remember the zones that failed."""
        self._failed |= {zone for zone, count in asked.items() if given[zone] < count}

    def on_demand(self, fleet: TickedFleet) -> int:
        return self._on_demand


class TwoGroupLoop(SpotGroup):
    """convox/rack: now and then, on demand = target - spot running, ready or not."""

    def __init__(self, target: int, every_ticks: int) -> None:
        super().__init__(target)
        self._target = target
        self._every = every_ticks

    def on_demand(self, fleet: TickedFleet) -> int:
        """What running spot lacks of the target, looked at every interval."""
        if fleet.tick % self._every:
            return len(fleet.on_demand)
        return max(0, self._target - fleet.spot_held)


def run(policy: TickPolicy, window: Market, world: World) -> RunResult:
    return _Run(policy, window, world).result()


class _Run:
    def __init__(self, policy: TickPolicy, window: Market, world: World) -> None:
        self._policy = policy
        self._window = window
        self._world = world
        self._fleet = TickedFleet(len(window.pools))
        self._lives: list[PaidLife] = []
        self._cold = world.ticks(world.cold_start_s)
        self._warm = world.ticks(world.warm_start_s or 0.0)
        self._rng = random.Random(f"on-demand/{world.seed}")

    def result(self) -> RunResult:
        """Run every tick, then account."""
        ticks = self._world.length(self._window)
        capacities, _ = sampled(self._window, self._world, np.arange(ticks))
        for tick, capacity in enumerate(capacities.T.tolist()):
            self._fleet.tick = tick
            self._turn(capacity)
        self._end(ticks)
        return account(self._lives, self._window, self._world)

    def _turn(self, capacity: Sequence[int]) -> None:
        fleet = self._fleet
        if any(map(int.__gt__, fleet.held, capacity)):
            self._lose(capacity)
        asked: dict[int, int] = {}
        for pool in self._policy.ask(fleet):
            asked[pool] = asked.get(pool, 0) + 1
        given = {pool: self._launch(pool, count, capacity) for pool, count in asked.items()}
        self._policy.told(asked, given)
        wanted = self._policy.on_demand(fleet)
        if wanted != len(fleet.on_demand):
            self._resize(wanted)

    def _lose(self, capacity: Sequence[int]) -> None:
        for pool, instances in enumerate(self._fleet.spot):
            while len(instances) > capacity[pool]:
                self._close(self._window.pools[pool], instances.pop(), lost=True)

    def _launch(self, pool: int, count: int, capacity: Sequence[int]) -> int:
        instances = self._fleet.spot[pool]
        given = max(0, min(count, capacity[pool] - len(instances)))
        instances.extend([self._fleet.tick + self._cold] * given)
        return given

    def _resize(self, wanted: int) -> None:
        instances, now = self._fleet.on_demand, self._fleet.tick
        for _ in range(wanted - len(instances)):
            if not self._refused():
                start = self._warm if len(instances) < self._world.warm_pool else self._cold
                insort(instances, (now + start, now))
        while len(instances) > wanted:
            ready, launched = instances.pop()
            self._close(None, ready, launched=launched)

    def _refused(self) -> bool:
        share = self._world.on_demand_failure
        return share > 0 and self._rng.random() < share

    def _close(
        self, pool: str | None, ready: int, *, launched: int | None = None, lost: bool = False
    ) -> None:
        tick_s, now = self._world.tick_s, self._fleet.tick
        self._lives.append(
            PaidLife(
                pool=pool,
                launched_s=(ready - self._cold if launched is None else launched) * tick_s,
                ready_s=ready * tick_s,
                ended_s=min(now * tick_s, self._window.end_s),
                lost=lost,
            )
        )

    def _end(self, ticks: int) -> None:
        self._fleet.tick = ticks
        for pool, instances in zip(self._window.pools, self._fleet.spot, strict=True):
            for ready in instances:
                self._close(pool, ready)
        for ready, launched in self._fleet.on_demand:
            self._close(None, ready, launched=launched)
