"""What no policy can beat: the optimum, which knows the future, and the limit, free of delays.

The optimum is a linear program. Between the moments at which anything can usefully change its
solution stays as it is, so its unknowns are per stretch and not per tick: what serves can usefully
change where a pool's capacity or price changes, or one cold start later, and an instance that is to
serve from then on is launched one start earlier. It holds nothing at the start of the window.
"""

from collections.abc import Iterable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, csr_array, eye_array, hstack

from spotkeeper_lab.backtest.world import Counts, Grid, RunResult, World, sampled
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


def _seconds(edges: Grid, window: Market, world: World) -> Counts:
    """How long each stretch between edges lasts; the last tick may be cut short."""
    return np.diff(np.minimum(edges * world.tick_s, window.end_s))


def optimum(window: Market, world: World) -> RunResult:
    """The least cost with the target ready from the end of the first cold start on.

    Per kind of instance (each pool, on demand cold, on demand from the warm pool) the unknowns are
    how many are held in each stretch of ``edges`` and how many serve in each stretch of
    ``switches``; what serves is at most what was held over the whole start before and since.
    All that is held is laid out first, then all that serves, both kind by kind.
    """
    ticks, target, pools = world.length(window), world.target, len(window.pools)
    cold, warm = world.ticks(world.cold_start_s), world.ticks(world.warm_start_s or 0.0)
    switches, edges = _grids(window, world)
    lengths = _seconds(edges, window, world)
    capacity, spot_price = sampled(window, world, edges[:-1])
    one = np.ones(len(lengths))
    # Of each kind: its start; per stretch, the most there is and the price.
    starts = [cold] * (pools + 1)
    most = [*(np.minimum(capacity, target) * 1.0), one * target]
    price = [*spot_price, one]
    if world.warm_pool:
        starts.append(warm)
        most.append(one * min(world.warm_pool, target))
        price.append(one - world.warm_disk_ratio)
    rules = [
        _held_long_enough(start, each, switches, edges)
        for start, each in zip(starts, most, strict=True)
    ]
    # Rows that sum what serves, for every stretch after the first cold start.
    needed = eye_array(len(switches) - 1, format="csr")[switches[:-1] >= cold]
    cost = np.concatenate([each * lengths for each in price])
    nothing = csr_array((needed.shape[0], cost.size))
    enough = hstack([nothing, *([needed] * len(starts))], format="csc")
    held_rows = block_diag([rule for _, rule, _ in rules])
    serving = block_diag([rule for _, _, rule in rules])
    solved = milp(
        np.concatenate([cost, np.zeros(serving.shape[1])]),
        bounds=Bounds(0.0, np.concatenate([*most, *(serves for serves, _, _ in rules)])),
        constraints=[
            LinearConstraint(hstack([-held_rows, serving], format="csc"), -np.inf, 0.0),
            LinearConstraint(enough, target, np.inf),
        ],
    )
    if solved.x is None:
        raise OptimumError(f"HiGHS found no optimum for {window.name}: {solved.message}")
    held: Counts = solved.x[: cost.size].reshape(len(starts), -1)
    ready = np.full(ticks, float(target))
    ready[:cold] = 0
    paid = sum((row * each) @ lengths for row, each in zip(held, price, strict=True))
    spot, on_demand = held[:pools], held[pools:]
    launches = [
        round(float(np.clip(np.diff(rows, axis=1, prepend=0), 0, None).sum()))
        for rows in (spot, on_demand)
    ]
    return RunResult(
        target=target,
        first=cold,
        ready=ready,
        spot=np.repeat(spot.sum(axis=0), np.diff(edges)),
        on_demand=np.repeat(on_demand.sum(axis=0), np.diff(edges)),
        paid=float(paid) + world.warm_pool * world.warm_disk_ratio * window.end_s,
        all_on_demand=target * window.end_s,
        spot_launches=launches[0],
        on_demand_launches=launches[1],
    )


def _grids(window: Market, world: World) -> tuple[Grid, Grid]:
    """The ticks at which what serves may change, and those at which what is held may."""
    end = world.length(window)
    cold, warm = world.ticks(world.cold_start_s), world.ticks(world.warm_start_s or 0.0)

    def grid(ticks: Iterable[int]) -> Grid:
        return np.array(sorted({at for at in ticks if 0 <= at <= end}), dtype=np.int64)

    changes = np.unique([world.ticks(time) for steps in window.steps for time in steps.times])
    # Only changes of a price, or of capacity below the target, can matter.
    capacity, price = sampled(window, world, changes)
    columns = np.vstack([np.minimum(capacity, world.target), price])
    moved = changes[(np.diff(columns, axis=1, prepend=np.nan) != 0).any(axis=0)].tolist()
    switches = {0, cold, end, *moved, *(at + cold for at in moved)}
    starts = (cold, warm) if world.warm_pool else (cold,)
    edges = switches | {at - start for at in switches for start in starts}
    return grid(switches), grid(edges)


def _held_long_enough(
    start: int, most_held: Counts, switches: Grid, edges: Grid
) -> tuple[Counts, csr_array, csr_array]:
    """The most that can serve per stretch, and the rows "serving - held <= 0" as two halves.

    One row for every stretch of ``edges`` from one start before a stretch of ``switches`` to
    its end; none where nothing can serve anyway.
    """
    starts, ends = switches[:-1], switches[1:]
    first, stop = np.searchsorted(edges, starts - start), np.searchsorted(edges, ends)
    most = np.array([most_held[a:b].min() for a, b in zip(first, stop, strict=True)])
    most[starts < start] = 0
    counts = np.where(most > 0, stop - first, 0)
    rows, total = np.arange(counts.sum()), int(counts.sum())
    held = rows - np.repeat(np.cumsum(counts) - counts - first, counts)
    serving = np.repeat(np.arange(counts.size), counts)
    ones = np.ones(total)
    return (
        most,
        csr_array((ones, (rows, held)), shape=(total, most_held.size)),
        csr_array((ones, (rows, serving)), shape=(total, counts.size)),
    )
