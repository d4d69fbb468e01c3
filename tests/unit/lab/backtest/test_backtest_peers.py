"""The peers, tick by tick, on small markets."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.backtest import peers as ticks
from spotkeeper_lab.backtest.peers import (
    EvenSpread,
    OnDemandOnly,
    RoundRobin,
    SpotGroup,
    SpotHedge,
    TickedFleet,
    TickPolicy,
    TwoGroupLoop,
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


def fleet(*held: int, ready: bool = True, tick: int = 10) -> TickedFleet:
    one = TickedFleet(len(held))
    one.tick = tick
    for pool, count in zip(one.spot, held, strict=True):
        pool.extend([0 if ready else tick + 1] * count)
    return one


def hedge(target: int = 2, pools: int = 3, extra: int = 1) -> SpotHedge:
    return SpotHedge(target, pools, extra, random.Random(0))


def test_on_demand_only_is_ready_after_the_cold_start_and_costs_all() -> None:
    result = ticks.run(OnDemandOnly(2), market(8, a=[(0, 0)]), WORLD)
    assert result.ready.tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    assert (result.cost, result.served_share) == (1, 1)


def test_what_the_market_takes_is_lost_newest_first_and_paid_until_then() -> None:
    result = ticks.run(
        EvenSpread(2), market(8, a=[(0, 1), (1, 2), (4, 1), (5, 0)], b=[(0, 0)]), WORLD
    )
    assert result.spot.tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert result.losses == 1
    assert result.paid == 5 * TICK * 0.5


def test_even_spread_asks_the_pools_with_the_fewest_again_and_again() -> None:
    assert EvenSpread(4).ask(fleet(0, 2, 0)) == [0, 2]
    assert EvenSpread(3).ask(fleet(0, 0, 0)) == [0, 1, 2]
    policy = EvenSpread(1)
    assert ticks.run(policy, market(5, a=[(0, 0)], b=[(0, 5)]), WORLD).spot.sum() == 0


def test_round_robin_goes_on_with_every_attempt() -> None:
    policy = RoundRobin(2)
    assert [list(policy.ask(fleet(0, 0, 0))) for _ in range(3)] == [[0, 1], [2, 0], [1, 2]]
    assert list(policy.ask(fleet(1, 1, 0))) == []


def test_a_spot_group_passes_over_the_zone_that_failed_until_all_have() -> None:
    policy = SpotGroup(2)
    policy.told({0: 1, 1: 1}, {0: 0, 1: 1})
    assert list(policy.ask(fleet(0, 1))) == [1]
    policy.told({1: 1}, {1: 0})
    assert list(policy.ask(fleet(0, 1))) == [0]


def test_a_static_split_rounds_the_on_demand_share_up() -> None:
    policy = SpotGroup(4, on_demand_share=0.3)
    assert policy.on_demand(fleet(0, 0)) == 2
    assert len(policy.ask(fleet(0, 0))) == 2


def test_the_two_group_loop_looks_now_and_then_and_counts_what_runs_not_what_is_ready() -> None:
    policy = TwoGroupLoop(3, every_ticks=2)
    assert policy.on_demand(fleet(1, 0, ready=False, tick=2)) == 2
    assert policy.on_demand(fleet(0, 0, tick=3)) == 0


def test_spothedge_goes_to_pools_that_hold_none_first() -> None:
    assert set(hedge().ask(fleet(1, 0, 0))) == {1, 2}
    assert len(hedge(target=5).ask(fleet(1, 1, 1))) == 3


def test_spothedge_leaves_a_pool_that_gave_less_until_it_is_the_last() -> None:
    policy = hedge()
    policy.told({0: 1, 1: 1}, {0: 0, 1: 0})
    assert set(policy.ask(fleet(0, 0, 0))) == {2}
    policy.told({2: 3}, {2: 2})
    assert len(set(policy.ask(fleet(0, 0, 0)))) == 3


def test_spothedge_takes_a_pool_back_that_gave_all() -> None:
    policy = hedge()
    policy.told({0: 1}, {0: 0})
    policy.told({0: 1}, {0: 1})
    assert set(policy.ask(fleet(0, 1, 1))) == {0}


def test_spothedge_backs_up_what_ready_spot_lacks_of_target_and_extra() -> None:
    policy = hedge(target=3)
    assert [policy.on_demand(fleet(count)) for count in range(6)] == [3, 3, 2, 1, 0, 0]
    assert policy.on_demand(fleet(4, ready=False)) == 3


def test_on_demand_is_given_back_latest_ready_first_and_refused_as_often_as_set() -> None:
    world = World(target=2, tick_s=TICK, on_demand_failure=1.0)
    result = ticks.run(OnDemandOnly(2), market(8, a=[(0, 0)]), world)
    assert (result.on_demand_launches, result.paid) == (0, 0)
    half = World(target=50, tick_s=TICK, on_demand_failure=0.5, cold_start_s=0)
    ready = ticks.run(OnDemandOnly(50), market(4, a=[(0, 0)]), half).ready
    assert 10 < ready[0] < 40
    assert ready[3] > 40


def test_the_warm_pool_starts_faster_as_far_as_it_goes() -> None:
    world = World(target=3, tick_s=TICK, cold_start_s=120, warm_start_s=60, warm_pool=2)
    ready = ticks.run(OnDemandOnly(3), market(8, a=[(0, 0)]), world).ready
    assert ready.tolist() == [0, 0, 2, 2, 3, 3, 3, 3]


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
        lambda: EvenSpread(4),
        lambda: RoundRobin(4),
        lambda: TwoGroupLoop(3, 2),
        lambda: SpotHedge(3, 2, 1, random.Random(1)),
    ]
)


@given(window=markets, make=makers)
def test_no_policy_holds_more_than_the_market_or_serves_more_than_it_holds(
    window: Market, make: Callable[[], TickPolicy]
) -> None:
    result = ticks.run(make(), window, World(target=3, tick_s=TICK))
    for tick, (spot, on_demand, ready) in enumerate(
        zip(result.spot, result.on_demand, result.ready, strict=True)
    ):
        assert spot <= sum(window.capacity(pool, tick * TICK) for pool in window.pools)
        assert ready <= spot + on_demand
    assert result.losses <= result.spot_launches


@pytest.mark.parametrize("extra", [0, 1])
def test_spothedge_with_one_pool_never_runs_out_of_pools(extra: int) -> None:
    window = market(40, a=[(0, 4), (10, 0), (20, 4)])
    result = ticks.run(hedge(target=3, pools=1, extra=extra), window, World(target=3, tick_s=TICK))
    assert result.spot[-1] == 3 + extra
    assert result.ready[-1] == 3 + extra
