"""The published way to try a policy: at every tick it sees its fleet, asks, and is given.

After SkyServe's micro-benchmark (EuroSys 2025): a launch is ready once held over the whole cold
start, so at tick k when launched at or before tick k - cold start; what the market cannot hold any
more is lost at the tick, newest first; a launch that the market cannot hold fails at once.
"""

import random
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Protocol

from spotkeeper_lab.backtest.accounting import PaidLife, RunResult, account
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market, Steps


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
        """Spot instances, ready or not."""
        return sum(map(len, self.spot))

    @property
    def spot_ready(self) -> int:
        """Spot instances that serve."""
        return sum(bisect_right(pool, self.tick) for pool in self.spot)


class TickPolicy(Protocol):
    """A policy that acts at every tick."""

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """The pool of each further spot instance to launch now."""
        ...

    def told(self, held: Sequence[int], asked: Mapping[int, int], given: Mapping[int, int]) -> None:
        """What each pool gave; ``held`` is what it held before this tick's losses."""
        ...

    def on_demand(self, fleet: TickedFleet) -> int:
        """How many on-demand instances to hold from now on."""
        ...


def run(policy: TickPolicy, window: Market, world: World) -> RunResult:
    """Try a policy over one window."""
    return _Run(policy, window, world).result()


class _Run:
    """One policy in one window."""

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
        capacities = [_per_tick(steps, self._world, ticks) for steps in self._window.steps]
        for tick, capacity in enumerate(zip(*capacities, strict=True)):
            self._fleet.tick = tick
            self._turn(capacity)
        self._end(ticks)
        return account(self._lives, self._window, self._world)

    def _turn(self, capacity: Sequence[int]) -> None:
        fleet = self._fleet
        before = fleet.held
        if any(map(int.__gt__, before, capacity)):
            self._lose(capacity)
        asked: dict[int, int] = {}
        for pool in self._policy.ask(fleet):
            asked[pool] = asked.get(pool, 0) + 1
        given = {pool: self._launch(pool, count, capacity) for pool, count in asked.items()}
        self._policy.told(before, asked, given)
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


def _per_tick(steps: Steps, world: World, ticks: int) -> list[int]:
    """One pool's capacity at every tick."""
    starts = [min(world.ticks(time), ticks) for time in steps.times]
    counts: list[int] = []
    for start, end, capacity in zip(starts, [*starts[1:], ticks], steps.capacities, strict=True):
        counts.extend([capacity] * (end - start))
    return counts
