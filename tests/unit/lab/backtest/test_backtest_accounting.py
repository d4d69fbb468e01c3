"""Accounting: from the lives of instances to what was served and paid."""

import pytest

from spotkeeper_lab.backtest.world import PaidLife, World, WorldError, account, spot_paid
from spotkeeper_lab.traces.market import Market, Steps, market_of

MARKET = market_of("m", 600.0, {"a/g": [(0.0, 9)], "b/g": [(0.0, 9)]})
PRICED = Market(
    ("a/g",), 600.0, "priced", (Steps((0.0, 100.0, 300.0), (9, 9, 9), (0.2, 0.5, 0.1)),)
)
WORLD = World(target=2, tick_s=60.0, cold_start_s=120.0, price_ratio=0.25)


def spot(start: float, end: float, *, lost: bool = False) -> PaidLife:
    return PaidLife(pool="a/g", launched_s=start, ready_s=start + 120, ended_s=end, lost=lost)


def on_demand(start: float, end: float) -> PaidLife:
    return PaidLife(pool=None, launched_s=start, ready_s=start + 120, ended_s=end)


def test_an_instance_is_billed_from_launch_and_ready_after_its_start() -> None:
    result = account([spot(0, 600), on_demand(60, 300)], MARKET, WORLD)
    assert result.spot.tolist() == [1] * 10
    assert result.on_demand.tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert result.ready.tolist() == [0, 0, 1, 2, 2, 1, 1, 1, 1, 1]
    assert result.paid == 600 * 0.25 + 240
    assert result.cost == (150 + 240) / 1200


def test_shares_leave_the_first_cold_start_out() -> None:
    result = account([spot(0, 600), spot(0, 360, lost=True)], MARKET, WORLD)
    assert result.served_share == 4 / 8
    assert result.capacity_share == (4 * 2 + 4) / 16
    assert (result.spot_launches, result.on_demand_launches, result.losses) == (2, 0, 1)


def test_the_warm_pool_pays_for_the_disks_of_what_is_stopped() -> None:
    world = World(target=2, tick_s=60.0, warm_start_s=60.0, warm_pool=3, warm_disk_ratio=0.01)
    result = account([on_demand(0, 300)], MARKET, world)
    assert result.paid == pytest.approx(300 + 0.01 * (2 * 300 + 3 * 300))


def test_the_price_is_as_set_else_the_markets_else_the_usual() -> None:
    assert spot_paid("a/g", 50, 350, PRICED, World(target=1)) == pytest.approx(
        50 * 0.2 + 200 * 0.5 + 50 * 0.1
    )
    assert spot_paid("a/g", 50, 350, PRICED, World(target=1, price_ratio=0.4)) == pytest.approx(120)
    assert spot_paid("a/g", 50, 350, MARKET, World(target=1)) == pytest.approx(90)


def test_a_world_settles_its_price() -> None:
    assert World(target=1).priced(MARKET).price_ratio == 0.3
    assert World(target=1).priced(PRICED).price_ratio is None
    assert World(target=1, price_ratio=0.5).priced(PRICED).price_ratio == 0.5


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"target": 0}, "target is 0; it must be from 1 to 10,000"),
        ({"target": 10_001}, "target is 10001; it must be from 1 to 10,000"),
        ({"warm_pool": 10_001, "warm_start_s": 60.0}, "warm_pool is 10001; it must be from 0"),
        ({"tick_s": 0.0}, "tick_s is 0.0; it must be more than 0 s"),
        ({"cold_start_s": -1.0}, "cold_start_s is -1.0"),
        ({"notice_lost": 1.5}, "notice_lost is 1.5; it must be a share"),
        ({"on_demand_failure": -0.1}, "on_demand_failure is -0.1"),
        ({"price_ratio": -1.0}, "price_ratio is -1.0"),
        ({"warm_start_s": -1.0}, "warm_start_s is -1.0"),
        ({"warm_pool": 2}, "warm_pool needs warm_start_s"),
        ({"turn_jitter_s": -1.0}, "turn_jitter_s"),
        ({"turn_jitter_s": 60.0}, "turn_jitter_s"),
    ],
)
def test_a_world_that_cannot_be_is_refused(changed: dict[str, float], problem: str) -> None:
    with pytest.raises(WorldError, match=problem):
        World(**{"target": 2, **changed})  # type: ignore[arg-type]
