"""Laws of the peers, and of the optimum and the limit: against the program written out by ticks."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from spotkeeper_lab.backtest.bounds import limit, optimum
from spotkeeper_lab.backtest.peers import (
    RoundRobin,
    SpotGroup,
    SpotHedge,
    TickPolicy,
    TwoGroupLoop,
    run,
)
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market, Steps, market_of
from tests.laws import some

TICK = 30.0
LENGTH = 24


def written_out(window: Market, world: World) -> float:
    """The optimum's cost with unknowns for every tick: held and serving, per kind, as published."""
    ticks = world.length(window)
    cold, warm = world.ticks(world.cold_start_s), world.ticks(world.warm_start_s or 0)
    # The start, most and price per tick: of each pool, on demand, and from the warm pool.
    kinds: list[tuple[int, list[float], list[float]]] = [
        (cold, [float(window.capacity(pool, at * TICK)) for at in range(ticks)],
         [world.prices(steps)[steps.index(at * TICK)] for at in range(ticks)])
        for pool, steps in zip(window.pools, window.steps, strict=True)
    ] + [
        (cold, [np.inf] * ticks, [1.0] * ticks),
        (warm, [float(world.warm_pool)] * ticks, [1.0 - world.warm_disk_ratio] * ticks),
    ]  # fmt: skip
    size = len(kinds) * ticks
    rows: list[tuple[np.ndarray, float]] = []

    def add(terms: list[tuple[int, float]], bound: float) -> None:
        row = np.zeros(2 * size)
        for column, value in terms:
            row[column] = value
        rows.append((row, bound))

    for tick in range(ticks):
        serving = [size + index * ticks + tick for index in range(len(kinds))]
        if tick >= cold:
            add([(column, -1.0) for column in serving], -world.target)
        for index, (start, _, _) in enumerate(kinds):
            for back in range(start + 1):
                held = [(index * ticks + tick - back, -1.0)] if tick >= back else []
                add([(serving[index], 1.0), *held], 0.0)
    most, price = (np.concatenate([kind[part] for kind in kinds]) for part in (1, 2))
    cost = np.concatenate([price, np.zeros(size)])
    left, right = map(np.array, zip(*rows, strict=True))
    solved = milp(
        cost,
        bounds=Bounds(0, np.concatenate([most, np.full(size, np.inf)])),
        constraints=LinearConstraint(left, -np.inf, right),
    )
    disks = world.warm_pool * world.warm_disk_ratio * ticks
    assert solved.x is not None
    return (float(solved.x @ cost) + disks) / (world.target * ticks)


capacities = st.lists(
    st.tuples(st.integers(1, LENGTH - 1), st.integers(0, 3)), max_size=5, unique_by=lambda c: c[0]
).map(lambda changes: [(0.0, 2), *((tick * TICK, count) for tick, count in sorted(changes))])
windows = st.builds(
    lambda a, b: market_of("m", LENGTH * TICK, {"a": a, "b": b}), capacities, capacities
)
worlds = st.builds(
    lambda target, cold, warm, pool, price: World(
        target=target,
        tick_s=TICK,
        cold_start_s=cold * TICK,
        warm_start_s=min(warm, cold) * TICK,
        warm_pool=pool,
        price_ratio=price,
        warm_disk_ratio=0.02,
    ),
    st.integers(1, 3),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([0.1, 1 / 3, 0.8]),
)


@some(60)
@given(window=windows, world=worlds)
def test_stretches_lose_nothing_against_ticks(window: Market, world: World) -> None:
    assert optimum(window, world).cost == pytest.approx(written_out(window, world), abs=1e-6)


def test_prices_that_change_are_followed() -> None:
    steps = (
        Steps((0.0, 240.0, 480.0), (2, 2, 2), (0.2, 0.9, 0.3)),
        Steps((0.0, 300.0), (1, 1), (0.6, 0.1)),
    )
    window = Market(("a", "b"), LENGTH * TICK, "priced", steps)
    world = World(target=2, tick_s=TICK, cold_start_s=60)
    assert optimum(window, world).cost == pytest.approx(written_out(window, world), abs=1e-6)
    assert limit(window, world).cost == pytest.approx(
        (240 * (2 * 0.2) + 60 * (0.6 + 0.9) + 180 * (0.1 + 0.9) + 240 * (0.1 + 0.3)) / (2 * 720)
    )


@some(60)
@given(window=windows, world=worlds)
def test_the_limit_is_below_the_optimum_which_is_below_all_on_demand(
    window: Market, world: World
) -> None:
    least = optimum(window, world)
    lowest = limit(window, world)
    start = world.ticks(world.cold_start_s) / LENGTH * lowest.cost * 3
    assert lowest.cost - start <= least.cost + 1e-6
    assert least.cost <= run(TickPolicy(0, world.target), window, world).cost + 1e-6
    assert least.served_share == lowest.served_share == 1


def test_the_limit_buys_no_spot_that_is_dearer_than_on_demand() -> None:
    window = market_of("m", 100 * TICK, {"a": [(0.0, 1)]})
    assert limit(window, World(target=3, tick_s=TICK, price_ratio=2.0)).cost == 1


PEERS: tuple[Callable[[], TickPolicy], ...] = (
    lambda: SpotGroup(3),
    lambda: SpotGroup(3, 0.3),
    lambda: TickPolicy(4),
    lambda: RoundRobin(4),
    lambda: TwoGroupLoop(3, 2),
    lambda: SpotHedge(3, 2, 1, random.Random(1)),
)


@given(window=windows, make=st.sampled_from(PEERS))
def test_no_policy_holds_more_than_the_market_or_serves_more_than_it_holds(
    window: Market, make: Callable[[], TickPolicy]
) -> None:
    result = run(make(), window, World(target=3, tick_s=TICK))
    for tick, spot in enumerate(result.spot):
        assert spot <= sum(window.capacity(pool, tick * TICK) for pool in window.pools)
    assert (result.ready <= result.spot + result.on_demand).all()
    assert result.losses <= result.spot_launches


@pytest.mark.parametrize("extra", [0, 1])
def test_spothedge_with_one_pool_never_runs_out_of_pools(extra: int) -> None:
    window = market_of("m", 40 * TICK, {"a": [(0.0, 4), (10 * TICK, 0), (20 * TICK, 4)]})
    policy = SpotHedge(3, 1, extra, random.Random(0))
    result = run(policy, window, World(target=3, tick_s=TICK))
    assert result.spot[-1] == result.ready[-1] == 3 + extra
