"""Turns whose table throttles or is away: what is missing is backfilled, and nothing else is done.

Each story covers what the process knew before, and what it must not guess; and what a turn leaves
behind that fails on its way.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from spotkeeper.domain.decision import FAILED, Action, DecisionRecord
from spotkeeper.domain.permission import Control, Mode, Pause
from spotkeeper.ports import KNOWN_FOR, FleetError, Throttled, TimedOut, Unavailable
from spotkeeper.turns.check_availability import NO_STATE, check_availability, handle_interruption
from spotkeeper_lab.fakes import instant
from tests.builders import counted
from tests.simulation.golden import ON_DEMAND, FakeFleet, warning
from tests.unit.turns.stage import Controls

AWAY: Sequence[FleetError] = [Throttled("slow down"), Unavailable("503"), TimedOut("no answer")]


def turned(fleet: FakeFleet, at_s: float) -> DecisionRecord:
    fleet.cloud.advance(at_s)
    report = check_availability([fleet.fleet], fleet.ports, instant(at_s))
    assert not report.defects
    assert len(report.records) == len(report.errors) == 1
    return report.records[0]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_spot_that_is_lost_meanwhile_is_backfilled(error: FleetError) -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    fleet.to(1070)
    fleet.faults.refusals["acquire"] = error
    records = [turned(fleet, at_s) for at_s in range(1080, 1500, 60)]
    (done,) = [record for record in records if record.action is Action.BACKFILL]
    assert (done.rule, counted(done).backfilled, fleet.on_demand) == (NO_STATE, 2, 2)
    assert str(done.error) == f"{type(error).__name__}: {error}"
    assert "cannot take the fleet's state, so it only backfills" in done.reason
    interruptions = sum(counted(record).interruptions for record in records)
    assert interruptions == 2, "the process remembers from turn to turn"


def test_nothing_is_released_ended_or_marked() -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2), (2400.0, 4)))
    fleet.to(2399)
    assert fleet.on_demand == 2
    fleet.faults.refusals["acquire"] = Throttled("slow down")
    fleet.faults.calls.clear()
    records = [turned(fleet, at_s) for at_s in range(2400, 6000, 60)]
    assert {record.action for record in records} == {Action.HOLD}
    assert fleet.on_demand == 2
    reads = {"describe", "failures", "marked", "running", "troubled_spot_requests"}
    assert set(fleet.faults.calls) - reads == {"acquire", "record"}
    fleet.faults.refusals.clear()
    fleet.to(8000)
    assert fleet.on_demand == 0


def test_a_warning_counts_although_its_note_cannot_be_left() -> None:
    fleet = FakeFleet()
    fleet.to(1190)
    fleet.faults.refusals["acquire"] = Throttled("slow down")
    warned = tuple(fleet.spot_ids()[:2])
    event = warning(*warned, at_s=1190)
    report = handle_interruption(event, [fleet.fleet], fleet.ports, instant(1191))
    assert report.errors, "Lambda delivers the event again"
    assert fleet.on_demand == 2
    assert counted(turned(fleet, 1200)).spot_at_risk == 2
    assert set(warned) < set(fleet.spot_ids())


@pytest.mark.parametrize("raced", [True, False])
def test_another_turns_request_meanwhile_is_not_lowered(raced: bool) -> None:
    """Of warnings at once each reaches another process; perhaps the group cannot be read again."""
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    fleet.to(1250)
    fleet.cloud.set_desired(fleet.fleet.on_demand_group, 0)
    fleet.faults.refusals["acquire"] = refused = Throttled("Rate exceeded")

    def after_the_first_look() -> None:
        if raced:
            fleet.cloud.set_desired(fleet.fleet.on_demand_group, 4)
        else:
            fleet.faults.refusals["describe"] = refused

    fleet.faults.meanwhile["describe"] = after_the_first_look
    done = turned(fleet, 1320)
    assert fleet.on_demand == (4 if raced else 2)
    assert any("Rate exceeded" in why for why in done.unread) is not raced


PAUSE = Pause(until=instant(9000), why="a repair", by="ann", at=instant(600))


@pytest.mark.parametrize(
    "said", [Control(mode=Mode.OBSERVE), Control(pause=PAUSE), None], ids=["observe", "pause", ""]
)
def test_a_fleet_that_may_not_act_or_is_unknown_is_left_alone(said: Control | None) -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    controls = Controls(said or Control())
    fleet.ports = replace(fleet.ports, controls=controls)
    if said:
        check_availability([fleet.fleet], fleet.ports, instant(1190))
    controls.error = Throttled("slow down")
    assert turned(fleet, 1320).rule == "failed"
    assert fleet.on_demand == 0


def test_operators_control_is_cached_for_hours_and_not_longer() -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    controls = Controls(Control())
    fleet.ports = replace(fleet.ports, controls=controls)
    check_availability([fleet.fleet], fleet.ports, instant(1190))
    controls.error = Unavailable("503")
    late_s = 1190 + KNOWN_FOR / timedelta(seconds=1)
    assert turned(fleet, late_s - 60).rule == NO_STATE
    assert turned(fleet, late_s).rule == "failed"


# --- a table that fails on the way of a turn ----------------------------------------------------


def two_are_lost() -> FakeFleet:
    """A fleet of four whose next turn backfills two."""
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    fleet.to(1070)
    return fleet


def test_what_was_requested_before_the_table_failed_is_recorded() -> None:
    fleet = two_are_lost()
    fleet.faults.refusals["commit"] = Unavailable("503")
    record = turned(fleet, 1330)
    assert fleet.on_demand == 2
    assert (record.rule, str(record.error)) == (FAILED, "Unavailable: 503")
    assert f"{ON_DEMAND}: desired 2" in [one.text() for one in record.done]


def test_a_record_that_is_refused_once_is_tried_again_and_not_lost() -> None:
    fleet = two_are_lost()
    fleet.faults.refusals["record"] = Unavailable("503")
    fleet.faults.meanwhile["release"] = fleet.faults.refusals.clear
    record = turned(fleet, 1330)
    assert (record.action, counted(record).backfilled) == (Action.BACKFILL, 2)
    assert (str(record.error), record.failed) == ("Unavailable: 503", True)
    assert fleet.states.records[-1] == record
