"""The peers: policies that others publish or run, written from their descriptions.

The tick is the moment of every decision, as published; none of them uses the notice.
"""

import math
import random
from collections.abc import Mapping, Sequence

from spotkeeper_lab.backtest.policies.ticks import TickedFleet


class OnDemandOnly:
    """Every instance on demand."""

    def __init__(self, target: int) -> None:
        self._target = target

    def ask(self, fleet: TickedFleet) -> Sequence[int]:
        """No spot."""
        return ()

    def told(self, held: Sequence[int], asked: Mapping[int, int], given: Mapping[int, int]) -> None:
        """Nothing to learn."""

    def on_demand(self, fleet: TickedFleet) -> int:
        """The target."""
        return self._target


class EvenSpread:
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

    def told(self, held: Sequence[int], asked: Mapping[int, int], given: Mapping[int, int]) -> None:
        """Past failures are ignored."""

    def on_demand(self, fleet: TickedFleet) -> int:
        """None."""
        return 0


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


class SpotHedge:
    """SkyServe's policy: spread over pools that gave lately, with extra spot and on-demand backup.

    Pools are active or preempting. A pool that gave less than it was asked moves to preempting; one
    that gave all it was asked (more than none) moves back.
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

    def told(self, held: Sequence[int], asked: Mapping[int, int], given: Mapping[int, int]) -> None:
        """Move pools between active and preempting."""
        for pool, count in asked.items():
            if given[pool] < count:
                self._active.discard(pool)
            else:
                self._active.add(pool)

    def on_demand(self, fleet: TickedFleet) -> int:
        """What ready spot lacks of target and extra, at most the target."""
        return max(0, min(self._target, self._target + self._extra - fleet.spot_ready))


class SpotGroup:
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

    def told(self, held: Sequence[int], asked: Mapping[int, int], given: Mapping[int, int]) -> None:
        """Remember the zones that failed."""
        self._failed |= {zone for zone, count in asked.items() if given[zone] < count}

    def on_demand(self, fleet: TickedFleet) -> int:
        """The fixed share."""
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
