"""What turns in observe mode would have done, beside what ran."""

from dataclasses import replace
from datetime import timedelta

from spotkeeper.domain.decision import FAILED, Controller, DecisionRecord, Outcome
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.observed import Running, observed
from tests.builders import NOON, fleet, held

LOOK = held(
    controller=Controller.AVAILABILITY,
    permission=Permission.OBSERVE,
    seen={"SpotServing": 3, "SpotLaunching": 1, "OnDemandServing": 0, "ShortfallUnfilled": 2},
    outcomes=(Outcome(asked="on-demand: desired 2", would=True),),
)
SIZE = held(
    permission=Permission.OBSERVE,
    seen={"WorkersNeeded": 6},
    outcomes=(Outcome(asked="spot: desired 6", would=True),),
)


def later(record: DecisionRecord, minutes: float) -> DecisionRecord:
    return replace(record, at=NOON + timedelta(minutes=minutes))


def test_wishes_hold_until_the_next_turn() -> None:
    """Three minutes with a backfill wished for, then three with more spot, too.

    A turn that failed ends no wish.
    """
    failed = replace(LOOK, rule=FAILED, seen={"TurnsFailed": 1}, outcomes=())
    told = observed(fleet(), [LOOK, later(failed, 2), later(SIZE, 3), later(LOOK, 6)])
    assert told.turns == 4
    assert told.ran == Running(spot=4 * 0.1, on_demand=0, unfilled=2 * 0.1)
    assert told.would == Running(spot=4 * 0.05 + 6 * 0.05, on_demand=2 * 0.1, unfilled=0)
    assert dict(told.wishes) == {"on-demand: desired 2": 2, "spot: desired 6": 1}
