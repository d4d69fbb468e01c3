"""The peers, tick by tick, on small markets."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.backtest.peers import (
    RoundRobin,
    SpotGroup,
    SpotHedge,
    TickPolicy,
    TwoGroupLoop,
    run,
)
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market, market_of

TICK = 30.0
WORLD = World(target=2, tick_s=TICK, cold_start_s=60.0, price_ratio=0.5)


def market(ticks: int, **capacities: list[tuple[int, int]]) -> Market:
    """A market of a number of ticks, with steps per pool in ticks."""
    steps = {
        pool: [(tick * TICK, capacity) for tick, capacity in changes]
        for pool, changes in capacities.items()
    }
    return market_of("m", ticks * TICK, steps)


def test_on_demand_only_is_ready_after_the_cold_start_and_costs_all() -> None:
    result = run(TickPolicy(0, on_demand=2), market(8, a=[(0, 0)]), WORLD)
    assert result.ready.tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    assert (result.cost, result.served_share) == (1, 1)


def test_what_the_market_takes_is_lost_newest_first_and_paid_until_then() -> None:
    window = market(8, a=[(0, 1), (1, 2), (4, 1), (5, 0)], b=[(0, 0)])
    result = run(TickPolicy(2), window, WORLD)
    assert result.spot.tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert result.losses == 1
    assert result.paid == 5 * TICK * 0.5


changes = st.lists(
    st.tuples(st.integers(1, 39), st.integers(0, 4)), max_size=8, unique_by=lambda c: c[0]
)
markets = st.builds(
    lambda a, b, first: market(40, a=[(0, first), *sorted(a)], b=[(0, 1), *sorted(b)]),
    changes,
    changes,
    st.integers(0, 4),
)
makers = st.sampled_from(
    [
        lambda: SpotGroup(3),
        lambda: SpotGroup(3, 0.3),
        lambda: TickPolicy(4),
        lambda: RoundRobin(4),
        lambda: TwoGroupLoop(3, 2),
        lambda: SpotHedge(3, 2, 1, random.Random(1)),
    ]
)


@given(window=markets, make=makers)
def test_no_policy_holds_more_than_the_market_or_serves_more_than_it_holds(
    window: Market, make: Callable[[], TickPolicy]
) -> None:
    result = run(make(), window, World(target=3, tick_s=TICK))
    for tick, (spot, on_demand, ready) in enumerate(
        zip(result.spot, result.on_demand, result.ready, strict=True)
    ):
        assert spot <= sum(window.capacity(pool, tick * TICK) for pool in window.pools)
        assert ready <= spot + on_demand
    assert result.losses <= result.spot_launches


@pytest.mark.parametrize("extra", [0, 1])
def test_spothedge_with_one_pool_never_runs_out_of_pools(extra: int) -> None:
    window = market(40, a=[(0, 4), (10, 0), (20, 4)])
    policy = SpotHedge(3, 1, extra, random.Random(0))
    result = run(policy, window, World(target=3, tick_s=TICK))
    assert result.spot[-1] == result.ready[-1] == 3 + extra
