"""What no policy can beat: the optimum, which knows the future, and the limit, free of delays.

The optimum is a linear program. Between the moments at which anything can usefully change its
solution stays as it is, so its unknowns are per stretch and not per tick: what serves can usefully
change where a pool's capacity or price changes, or one cold start later, and an instance that is to
serve from then on is launched one start earlier. It holds nothing at the start of the window.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, csc_array, csr_array, eye_array, hstack

from spotkeeper_lab.backtest.world import Grid, RunResult, World, sampled
from spotkeeper_lab.traces.market import Market


class OptimumError(RuntimeError):
    """HiGHS did not solve the program."""


def limit(window: Market, world: World) -> RunResult:
    """min(target, spot capacity) on the cheapest spot, the rest on demand, no delays."""
    ticks = np.arange(world.length(window))
    capacity, price = sampled(window, world, ticks)
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


def _seconds(edges: Grid, window: Market, world: World) -> NDArray[np.float64]:
    """How long each stretch between edges lasts; the last tick may be cut short."""
    return np.diff(np.minimum(edges * world.tick_s, window.end_s))


@dataclass(frozen=True, slots=True)
class _Kind:
    """One way to hold instances: its start in ticks; per stretch, the most there is and price."""

    start: int
    most: NDArray[np.float64]
    price: NDArray[np.float64]


class _Program:
    """The linear program of one window.

    Per kind of instance (each pool, on demand cold, on demand from the warm pool) the unknowns are
    how many are held in each stretch of ``edges`` and how many serve in each stretch of
    ``switches``; what serves is at most what was held over the whole start before and since.
    All that is held is laid out first, then all that serves, both kind by kind.
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
        changes = self._telling(sorted(changes))
        switches = {0, self._cold, self._ticks, *changes, *(at + self._cold for at in changes)}
        edges = chain(
            switches,
            (at - self._cold for at in switches),
            (at - self._warm for at in switches if self._world.warm_pool),
        )
        return self._grid(switches), self._grid(edges)

    def _telling(self, changes: Sequence[int]) -> set[int]:
        """The changes that can matter: of a price, or of capacity below the target."""
        ticks = np.array(changes, dtype=np.int64)
        capacity, price = sampled(self._window, self._world, ticks)
        seen = np.vstack([np.minimum(capacity, self._world.target), price])
        moved = (np.diff(seen, axis=1, prepend=np.nan) != 0).any(axis=0)
        return set(ticks[moved].tolist())

    def _grid(self, ticks: Iterable[int]) -> Grid:
        return np.array(sorted({at for at in ticks if 0 <= at <= self._ticks}), dtype=np.int64)

    def _all_kinds(self) -> Iterator[_Kind]:
        capacity, price = sampled(self._window, self._world, self._edges[:-1])
        target, pool = self._world.target, self._world.warm_pool
        for most, paid in zip(np.minimum(capacity, target).astype(np.float64), price, strict=True):
            yield _Kind(self._cold, most, paid)
        one = np.ones(len(self._edges) - 1)
        yield _Kind(self._cold, one * target, one)
        if pool:
            yield _Kind(self._warm, one * min(pool, target), one - self._world.warm_disk_ratio)

    def result(self) -> RunResult:
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
        rules = [self._held_long_enough(kind) for kind in self._kinds]
        most = [kind.most for kind in self._kinds] + [serving for serving, _, _ in rules]
        cost = np.concatenate([kind.price * self._lengths for kind in self._kinds])
        held = block_diag([rule for _, rule, _ in rules])
        serving = block_diag([rule for _, _, rule in rules])
        solved = milp(
            np.concatenate([cost, np.zeros(serving.shape[1])]),
            bounds=Bounds(0.0, np.concatenate(most)),
            constraints=[
                LinearConstraint(hstack([-held, serving], format="csc"), -np.inf, 0.0),
                LinearConstraint(self._enough(cost.size), self._world.target, np.inf),
            ],
        )
        if solved.x is None:
            raise OptimumError(f"HiGHS found no optimum for {self._window.name}: {solved.message}")
        found: NDArray[np.float64] = solved.x[: cost.size]
        return found.reshape(len(self._kinds), -1)

    def _enough(self, held: int) -> csc_array:
        """Rows that sum what serves, for every stretch after the first cold start."""
        stretches = len(self._switches) - 1
        needed = eye_array(stretches, format="csr")[self._switches[:-1] >= self._cold]
        nothing = csr_array((needed.shape[0], held))
        return hstack([nothing, *([needed] * len(self._kinds))], format="csc")

    def _held_long_enough(self, kind: _Kind) -> tuple[NDArray[np.float64], csr_array, csr_array]:
        """The most that can serve per stretch, and the rows "serving - held <= 0" as two halves.

        One row for every stretch of ``edges`` from one start before a stretch of ``switches`` to
        its end; none where nothing can serve anyway.
        """
        starts, ends = self._switches[:-1], self._switches[1:]
        first = np.searchsorted(self._edges, starts - kind.start)
        stop = np.searchsorted(self._edges, ends)
        most = np.array([kind.most[a:b].min() for a, b in zip(first, stop, strict=True)])
        most[starts < kind.start] = 0
        counts = np.where(most > 0, stop - first, 0)
        rows, total = np.arange(counts.sum()), int(counts.sum())
        held = rows - np.repeat(np.cumsum(counts) - counts - first, counts)
        serving = np.repeat(np.arange(counts.size), counts)
        ones = np.ones(total)
        return (
            most,
            csr_array((ones, (rows, held)), shape=(total, kind.most.size)),
            csr_array((ones, (rows, serving)), shape=(total, counts.size)),
        )


def _launches(held: NDArray[np.float64]) -> int:
    return round(float(np.clip(np.diff(held, axis=1, prepend=0), 0, None).sum()))
