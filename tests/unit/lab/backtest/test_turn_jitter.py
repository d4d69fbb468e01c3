"""A schedule's minute is 60 s give or take 59: once in every minute, at any second of it."""

from itertools import pairwise

from spotkeeper_lab.backtest.deployed import replay_of
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.fakes import FakeStates, seconds
from spotkeeper_lab.traces.market import market_of

QUIET = market_of("quiet", 7200.0, {"a/x": [(0.0, 9)]})


def turns(jitter_s: float) -> list[float]:
    """When the turns of two hours were, in which nothing happens after the first launch."""
    states = FakeStates()
    world = World(target=1, turn_jitter_s=jitter_s)
    replay_of(QUIET, world, {}, states=states).run(QUIET.end_s)
    return sorted({seconds(record.at) for record in states.records})


def test_a_turn_comes_in_every_minute_and_two_are_up_to_two_minutes_apart() -> None:
    first, *later = turns(59.0)
    assert first == 0.0
    assert {round(at_s // 60) for at_s in later} >= set(range(1, 120))
    by_minute = {at_s // 60: at_s for at_s in reversed([first, *later])}
    gaps = [after - before for before, after in pairwise(by_minute[n] for n in sorted(by_minute))]
    assert max(gaps) > 90
    assert max(gaps) <= 119
