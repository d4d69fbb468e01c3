"""The deployed policy over whole days of a market: whole with a full notice, near the limit."""

from dataclasses import replace

import pytest

from spotkeeper_lab.backtest import bounds
from spotkeeper_lab.backtest.deployed import run
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import generate

FULL_NOTICE = World(target=4, cold_start_s=120, notice_s=120, price_ratio=1 / 3)


@pytest.mark.parametrize("seed", range(2))
def test_a_full_notice_keeps_every_tick_served_near_the_limit(seed: int) -> None:
    market = generate(seed, hours=12, level=4)
    result = run(market, FULL_NOTICE, {})
    assert result.losses > 0
    assert result.served_share == 1.0
    assert result.cost <= 1.1 * bounds.limit(market, FULL_NOTICE).cost


def test_a_setting_changes_what_the_policy_does() -> None:
    market, unwarned = generate(0, hours=12, level=4), replace(FULL_NOTICE, notice_s=0)
    long, short = (run(market, unwarned, {"launch_deadline_s": s}).cost for s in (600, 60))
    assert short > long
