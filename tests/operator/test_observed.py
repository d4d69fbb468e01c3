"""What turns in observe mode would have done, beside what ran."""

import json
from dataclasses import replace
from datetime import timedelta

from functions.check_availability.app import handler as check_availability
from spotkeeper.domain.decision import Controller, DecisionRecord, Outcome
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.observed import Running, observed
from tests.builders import NOON, fleet, held
from tests.functions.conftest import Stage
from tests.operator.command import answered

LOOK = held(
    controller=Controller.AVAILABILITY,
    permission=Permission.OBSERVE,
    seen={"SpotServing": 3, "SpotLaunching": 1, "OnDemandServing": 0, "ShortfallUnfilled": 2},
    outcomes=(Outcome(asked="on-demand: desired 2", would=True),),
)
SIZE = held(permission=Permission.OBSERVE, outcomes=(Outcome(asked="spot: desired 6", would=True),))


def later(record: DecisionRecord, minutes: float) -> DecisionRecord:
    return replace(record, at=NOON + timedelta(minutes=minutes))


def test_wishes_hold_until_the_next_turn() -> None:
    """Three minutes with a backfill wished for, then three with more spot, too."""
    told = observed(fleet(), [LOOK, later(SIZE, 3), later(LOOK, 6)])
    assert told.turns == 3
    assert told.ran == Running(spot=4 * 0.1, on_demand=0, unfilled=2 * 0.1)
    assert told.would == Running(spot=4 * 0.05 + 6 * 0.05, on_demand=2 * 0.1, unfilled=0)
    assert dict(told.wishes) == {"on-demand: desired 2": 2, "spot: desired 6": 1}


def test_the_command(deployed: Stage) -> None:
    assert answered("observe", "report") == "main: no turn in observe mode in this time\n"
    answered("mode", "main", "observe")
    deployed.cloud.set_desired("main-spot", 6)
    for _ in range(6):
        deployed.at(deployed.cloud.now_s + 60)
        deployed.call(check_availability)
    out = answered("observe", "report", "--since", "1h")
    assert "6 turns in observe mode" in out
    assert "main-on-demand: desired" in out
    (found,) = json.loads(answered("observe", "report", "--json"))
    assert found["would_cost_h"] > found["ran_cost_h"] > 0
