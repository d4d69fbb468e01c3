"""What no policy can beat: the optimum, which knows the future, and the limit, free of delays.

The optimum is a linear program. Between the moments at which anything can usefully change its
solution stays as it is, so its unknowns are per stretch and not per tick: what serves can usefully
change where a pool's capacity or price changes, or one cold start later, and an instance that is to
serve from then on is launched one start earlier. It holds nothing at the start of the window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from spotkeeper_lab.backtest.accounting import RunResult
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.market import Market

type Grid = NDArray[np.int64]
"""Ticks at which stretches begin, and the end of the window."""


class OptimumError(RuntimeError):
    """HiGHS did not solve the program."""


def limit(window: Market, world: World) -> RunResult:
    """min(target, spot capacity) on the cheapest spot, the rest on demand, no delays."""
    ticks = np.arange(world.length(window))
    capacity, price = _sampled(window, world, ticks)
    order = np.argsort(price, axis=0, kind="stable")
    cheapest = np.take_along_axis(np.where(price < 1, capacity, 0), order, axis=0)
    used = np.diff(np.minimum(np.cumsum(cheapest, axis=0), world.target), axis=0, prepend=0)
    spot = used.sum(axis=0)
    lengths = _seconds(np.append(ticks, ticks.size), window, world)
    paid = (used * np.take_along_axis(price, order, axis=0)).sum(axis=0) + world.target - spot
    return RunResult(
        target=world.target,
        first=0,
        ready=np.full(ticks.size, float(world.target)),
        spot=spot.astype(np.float64),
        on_demand=(world.target - spot).astype(np.float64),
        paid=float(paid @ lengths),
        all_on_demand=world.target * window.end_s,
    )


def optimum(window: Market, world: World) -> RunResult:
    """The least cost with the target ready from the end of the first cold start on."""
    return _Program(window, world).result()


def _sampled(
    window: Market, world: World, ticks: Grid
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Capacity and price per pool at ticks; both (pools, ticks)."""
    capacity, price = [], []
    for pool, steps in zip(window.pools, window.steps, strict=True):
        starts = [world.ticks(time) for time in steps.times]
        index = np.searchsorted(starts, ticks, side="right") - 1
        capacity.append(np.array(steps.capacities)[index])
        prices = [world.spot_price(window, pool, time) for time in steps.times]
        price.append(np.array(prices, dtype=np.float64)[index])
    return np.array(capacity), np.array(price)


def _seconds(edges: Grid, window: Market, world: World) -> NDArray[np.float64]:
    """How long each stretch between edges lasts; the last tick may be cut short."""
    return np.diff(np.minimum(edges * world.tick_s, window.end_s))


@dataclass(frozen=True, slots=True)
class _Kind:
    """One way to hold instances: its place among the unknowns, start-up time and price."""

    held: int
    serving: int
    start: int
    most: NDArray[np.float64]
    price: NDArray[np.float64]


class _Program:
    """The linear program of one window.

    Per kind of instance (each pool, on demand cold, on demand from the warm pool) the unknowns are
    how many are held in each stretch of ``edges`` and how many serve in each stretch of
    ``switches``; what serves is at most what was held over the whole start before and since.
    """

    def __init__(self, window: Market, world: World) -> None:
        self._window = window
        self._world = world
        self._ticks = world.length(window)
        self._cold = world.ticks(world.cold_start_s)
        self._warm = world.ticks(world.warm_start_s or 0.0)
        self._switches, self._edges = self._grids()
        self._lengths = _seconds(self._edges, window, world)
        self._kinds = tuple(self._all_kinds())

    def _grids(self) -> tuple[Grid, Grid]:
        changes = {self._world.ticks(time) for steps in self._window.steps for time in steps.times}
        switches = {0, self._cold, self._ticks, *changes, *(at + self._cold for at in changes)}
        edges = chain(
            switches,
            (at - self._cold for at in switches),
            (at - self._warm for at in switches if self._world.warm_pool),
        )
        return self._grid(switches), self._grid(edges)

    def _grid(self, ticks: Iterator[int] | set[int] | chain[int]) -> Grid:
        return np.array(sorted({at for at in ticks if 0 <= at <= self._ticks}), dtype=np.int64)

    def _all_kinds(self) -> Iterator[_Kind]:
        stretches, switches = len(self._edges) - 1, len(self._switches) - 1
        capacity, price = _sampled(self._window, self._world, self._edges[:-1])
        endless, one = np.full(stretches, np.inf), np.ones(stretches)
        pool, disk = float(self._world.warm_pool), self._world.warm_disk_ratio
        ways = [
            *(
                (self._cold, capacity[row].astype(np.float64), price[row])
                for row in range(len(price))
            ),
            (self._cold, endless, one),
            *([(self._warm, endless.clip(max=pool), one - disk)] if pool else []),
        ]
        for index, (start, most, paid) in enumerate(ways):
            held = index * stretches
            yield _Kind(held, len(ways) * stretches + index * switches, start, most, paid)

    def result(self) -> RunResult:
        """Solve, and account."""
        held = self._solved()
        pools = len(self._window.pools)
        spot, on_demand = held[:pools], held[pools:]
        cost = sum(
            (row * kind.price) @ self._lengths for row, kind in zip(held, self._kinds, strict=True)
        )
        disks = self._world.warm_pool * self._world.warm_disk_ratio * self._window.end_s
        return RunResult(
            target=self._world.target,
            first=self._cold,
            ready=self._ready(),
            spot=self._per_tick(spot),
            on_demand=self._per_tick(on_demand),
            paid=float(cost) + disks,
            all_on_demand=self._world.target * self._window.end_s,
            spot_launches=_launches(spot),
            on_demand_launches=_launches(on_demand),
        )

    def _ready(self) -> NDArray[np.float64]:
        ready = np.full(self._ticks, float(self._world.target))
        ready[: self._cold] = 0
        return ready

    def _per_tick(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        repeated: NDArray[np.float64] = np.repeat(rows.sum(axis=0), np.diff(self._edges))
        return repeated

    def _solved(self) -> NDArray[np.float64]:
        """Held per kind and stretch."""
        stretches = len(self._edges) - 1
        serving = len(self._kinds) * (len(self._switches) - 1)
        cost = np.concatenate(
            [*(kind.price * self._lengths for kind in self._kinds), np.zeros(serving)]
        )
        most = np.concatenate([*(kind.most for kind in self._kinds), np.full(serving, np.inf)])
        rows, columns, values, right = self._constraints()
        matrix = coo_array((values, (rows, columns)), shape=(len(right), cost.size)).tocsr()
        solved = milp(
            cost,
            bounds=Bounds(np.zeros(cost.size), most),
            constraints=LinearConstraint(matrix, -np.inf, np.array(right)),
        )
        if not solved.success:
            raise OptimumError(f"HiGHS found no optimum for {self._window.name}: {solved.message}")
        held: NDArray[np.float64] = solved.x[: len(self._kinds) * stretches]
        return held.reshape(len(self._kinds), stretches)

    def _constraints(self) -> tuple[list[int], list[int], list[float], list[float]]:
        """Rows of A x <= b: the target serves; what serves was held long enough."""
        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []
        right: list[float] = []

        def add(terms: Sequence[tuple[int, float]], bound: float) -> None:
            rows.extend([len(right)] * len(terms))
            columns.extend(column for column, _ in terms)
            values.extend(value for _, value in terms)
            right.append(bound)

        for index, (start, end) in enumerate(zip(self._switches, self._switches[1:], strict=False)):
            if start >= self._cold:
                add([(kind.serving + index, -1.0) for kind in self._kinds], -self._world.target)
            for kind in self._kinds:
                if start < kind.start:
                    add([(kind.serving + index, 1.0)], 0.0)
                    continue
                first, stop = np.searchsorted(self._edges, (start - kind.start, end))
                for stretch in range(int(first), int(stop)):
                    add([(kind.serving + index, 1.0), (kind.held + stretch, -1.0)], 0.0)
        return rows, columns, values, right


def _launches(held: NDArray[np.float64]) -> int:
    return round(float(np.clip(np.diff(held, axis=1, prepend=0), 0, None).sum()))
