"""A fleet that observes or is paused: each minute decides, and requests nothing of AWS."""

from dataclasses import replace

import pytest

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Action, Answer, Controller, RequestKind
from spotkeeper.domain.permission import Control, Mode, Pause, Permission
from spotkeeper.turns.check_availability import check_availability
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.fakes import instant
from tests.builders import at
from tests.simulation.golden import ON_DEMAND, SPOT, FakeFleet
from tests.unit.turns.stage import Controls

PAUSE = Pause(until=at(7200), why="maintenance", by="arn:aws:iam::1:user/ops", at=at(0))


def scene(control: Control, mode: Mode = Mode.ACT) -> FakeFleet:
    """Four spot instances, two of which go after ten minutes."""
    told = FakeFleet(a=((0.0, 99), (600.0, 2)), physics=Physics(cold_start_s=120))
    told.fleet = replace(told.fleet, mode=mode)
    told.ports = replace(told.ports, controls=Controls(control))
    return told


def turns(told: FakeFleet, until_s: float = 1200.0) -> None:
    """Take a turn every minute."""
    while told.cloud.now_s < until_s:
        told.cloud.advance(told.cloud.now_s + 60)
        report = check_availability([told.fleet], told.ports, instant(told.cloud.now_s))
        assert not report.errors


@pytest.mark.parametrize(
    ("told", "permission"),
    [
        (scene(Control(mode=Mode.OBSERVE)), Permission.OBSERVE),
        (scene(Control(), Mode.OBSERVE), Permission.OBSERVE),
        (scene(Control(pause=replace(PAUSE, until=instant(7200)))), Permission.PAUSED),
    ],
)
def test_a_turn_that_only_observes_decides_and_requests_nothing(
    told: FakeFleet, permission: Permission
) -> None:
    turns(told)
    assert told.on_demand == 0
    assert told.cloud.group(SPOT).suspensions == {}
    records = told.states.records
    assert {r.permission for r in records} == {permission}
    backfills = [r for r in records if r.action is Action.BACKFILL]
    assert f"{ON_DEMAND}: desired 2" in [one.text() for one in backfills[-1].observed]
    asked = [o for r in records for o in r.outcomes if o.request.kind is not RequestKind.LOOK_AGAIN]
    assert asked
    assert all(o.answer is Answer.OBSERVED and not o.error for o in asked)
    # A batch stays one request: nothing in it was refused.
    drained = {o.request.instances for o in asked if o.request.kind is RequestKind.DRAIN}
    assert [*map(len, drained)] == [2]


def test_what_was_only_observed_is_not_remembered_by_turns_that_act() -> None:
    told = scene(Control(mode=Mode.OBSERVE))
    turns(told)
    lease = told.states.acquire("ocr", Controller.AVAILABILITY, instant(1201), None)
    assert lease
    assert lease.availability == AvailabilityMemory()
    told.states.release(lease)
    said = told.ports.controls
    assert isinstance(said, Controls)
    said.said = Control(mode=Mode.ACT)
    turns(told, 1260.0)
    assert told.on_demand == 2
    acting = told.states.records[-1]
    assert acting.permission is Permission.ACT
    assert f"{ON_DEMAND}: desired 2" in [one.text() for one in acting.done]
    assert told.cloud.group(SPOT).suspensions.keys() == {"AZRebalance"}
