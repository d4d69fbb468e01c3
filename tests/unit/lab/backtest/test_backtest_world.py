"""The world of a backtest: when turns are, and what instances cost."""

from itertools import pairwise

import pytest

from spotkeeper_lab.backtest.deployed import replay_of
from spotkeeper_lab.backtest.world import PaidLife, World, account, spot_paid
from spotkeeper_lab.fakes import FakeStates, seconds
from spotkeeper_lab.traces.market import Market, Steps, market_of

MARKET = market_of("m", 600.0, {"a/g": [(0.0, 9)], "b/g": [(0.0, 9)]})
PRICED = Market(
    ("a/g",), 600.0, "priced", (Steps((0.0, 100.0, 300.0), (9, 9, 9), (0.2, 0.5, 0.1)),)
)


def test_the_warm_pool_pays_for_the_disks_of_what_is_stopped() -> None:
    world = World(target=2, tick_s=60.0, warm_start_s=60.0, warm_pool=3, warm_disk_ratio=0.01)
    life = PaidLife(pool=None, launched_s=0.0, ready_s=60.0, ended_s=300.0)
    result = account([life], MARKET, world)
    assert result.paid == pytest.approx(300 + 0.01 * (2 * 300 + 3 * 300))


@pytest.mark.parametrize(
    ("market", "ratio", "settled", "paid"),
    [
        (PRICED, None, None, 50 * 0.2 + 200 * 0.5 + 50 * 0.1),
        (PRICED, 0.4, 0.4, 120),
        (MARKET, None, 0.3, 90),
    ],
)
def test_the_price_is_as_set_else_the_markets_else_the_usual(
    market: Market, ratio: float | None, settled: float | None, paid: float
) -> None:
    world = World(target=1, price_ratio=ratio)
    assert world.priced(market).price_ratio == settled
    assert spot_paid("a/g", 50, 350, market, world) == pytest.approx(paid)


def test_a_turn_runs_every_minute_and_two_are_up_to_two_minutes_apart() -> None:
    """A schedule's minute is 60 s give or take 59; nothing happens after the first launch."""
    quiet, states = market_of("quiet", 7200.0, {"a/x": [(0.0, 9)]}), FakeStates()
    replay_of(quiet, World(target=1, turn_jitter_s=59.0), {}, states=states).run(quiet.end_s)
    turns = sorted({seconds(record.at) for record in states.records})
    assert turns[0] == 0.0
    by_minute = {at_s // 60: at_s for at_s in reversed(turns)}
    assert by_minute.keys() >= set(range(1, 120))
    gaps = [after - before for before, after in pairwise(by_minute[n] for n in sorted(by_minute))]
    assert 90 < max(gaps) <= 119
