"""The deployed policy over whole days of a market: whole with a full notice, the same twice."""

from dataclasses import replace

import pytest

from spotkeeper_lab.backtest import bounds
from spotkeeper_lab.backtest.deployed import run
from spotkeeper_lab.backtest.world import RunResult, World
from spotkeeper_lab.traces.market import generate

FULL_NOTICE = World(target=4, cold_start_s=120, notice_s=120, price_ratio=1 / 3)
UNWARNED = replace(FULL_NOTICE, notice_s=0)


def day(seed: int, world: World = FULL_NOTICE, **settings: int) -> RunResult:
    return run(generate(seed, hours=12, level=4), world, settings)


@pytest.mark.parametrize("seed", range(2))
def test_a_full_notice_keeps_every_tick_served_near_the_limit(seed: int) -> None:
    result = day(seed)
    limit = bounds.limit(generate(seed, hours=12, level=4), FULL_NOTICE)
    assert result.losses > 0
    assert result.served_share == 1.0
    assert result.cost <= 1.1 * limit.cost


def test_a_setting_changes_what_the_policy_does() -> None:
    assert day(0, UNWARNED, elevated_risk_s=14_400).cost > day(0, UNWARNED, elevated_risk_s=0).cost
