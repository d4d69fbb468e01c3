"""The optimum and the limit: against the program written out tick by tick, and each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from spotkeeper_lab.backtest import peers as ticks
from spotkeeper_lab.backtest.bounds import limit, optimum
from spotkeeper_lab.backtest.peers import OnDemandOnly
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market, Steps, market_of
from tests.laws import some

TICK = 30.0
LENGTH = 24


def written_out(window: Market, world: World) -> float:
    """The optimum's cost with unknowns for every tick: held and serving, per kind, as published."""
    ticks = world.length(window)
    cold, warm = world.ticks(world.cold_start_s), world.ticks(world.warm_start_s or 0)
    kinds = [*window.pools, None, "warm"]
    starts = [cold] * (len(window.pools) + 1) + [warm]
    rows: list[np.ndarray] = []
    right: list[float] = []
    most, price = [], []
    size = 2 * len(kinds) * ticks
    for kind in kinds:
        for tick in range(ticks):
            if kind is None or kind == "warm":
                most.append(np.inf if kind is None else float(world.warm_pool))
                price.append(1.0 if kind is None else 1.0 - world.warm_disk_ratio)
            else:
                most.append(float(window.capacity(kind, tick * TICK)))
                price.append(world.spot_price(window, kind, tick * TICK))

    def add(terms: list[tuple[int, float]], bound: float) -> None:
        row = np.zeros(size)
        for column, value in terms:
            row[column] = value
        rows.append(row)
        right.append(bound)

    for tick in range(ticks):
        serving = [(len(kinds) + index) * ticks + tick for index in range(len(kinds))]
        if tick >= cold:
            add([(column, -1.0) for column in serving], -world.target)
        for index, start in enumerate(starts):
            for back in range(start + 1):
                held = [(index * ticks + tick - back, -1.0)] if tick >= back else []
                add([(serving[index], 1.0), *held], 0.0)
    cost = np.concatenate([price, np.zeros(size // 2)])
    solved = milp(
        cost,
        bounds=Bounds(0, np.concatenate([most, np.full(size // 2, np.inf)])),
        constraints=LinearConstraint(np.array(rows), -np.inf, np.array(right)),
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
    assert least.cost <= ticks.run(OnDemandOnly(world.target), window, world).cost + 1e-6
    assert least.served_share == lowest.served_share == 1


def test_the_limit_is_spot_as_far_as_it_goes() -> None:
    window = market_of("m", 100 * TICK, {"a": [(0.0, 1), (50 * TICK, 0)], "b": [(0.0, 1)]})
    result = limit(window, World(target=3, tick_s=TICK, price_ratio=0.25))
    assert result.cost == pytest.approx((50 * (2 * 0.25 + 1) + 50 * (0.25 + 2)) / 300)
    assert limit(window, World(target=3, tick_s=TICK, price_ratio=2.0)).cost == 1


def test_the_optimum_gives_back_before_a_loss_and_starts_before_it() -> None:
    window = market_of("m", 40 * TICK, {"a": [(0.0, 1), (20 * TICK, 0), (30 * TICK, 1)]})
    result = optimum(window, World(target=1, tick_s=TICK, cold_start_s=60, price_ratio=0.5))
    assert result.spot.tolist() == [1] * 20 + [0] * 10 + [1] * 10
    assert result.on_demand.tolist() == [0] * 18 + [1] * 14 + [0] * 8
    assert (result.spot_launches, result.on_demand_launches, result.losses) == (2, 1, 0)
