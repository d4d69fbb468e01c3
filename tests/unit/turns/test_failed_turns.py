"""What a turn that fails on its way leaves behind: what it had done, and why it failed."""

from spotkeeper.domain.decision import FAILED, Action, DecisionRecord, Outcome
from spotkeeper.ports import Unavailable
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.fakes import instant
from tests.simulation.golden import ON_DEMAND, FakeFleet
from tests.unit.turns.stage import Stage


def two_are_lost() -> FakeFleet:
    """A fleet of four whose next turn backfills two."""
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)))
    fleet.to(1070)
    fleet.cloud.advance(1330)
    return fleet


def turned(fleet: FakeFleet) -> TurnReport:
    return check_availability([fleet.fleet], fleet.ports, instant(1330))


def test_what_was_requested_before_the_table_failed_is_recorded() -> None:
    fleet = two_are_lost()
    fleet.faults.refusals["commit"] = Unavailable("503")
    (record,) = turned(fleet).records
    assert fleet.on_demand == 2
    assert (record.rule, record.error) == (FAILED, "Unavailable: 503")
    assert Outcome(asked=f"{ON_DEMAND}: desired 2") in record.outcomes


def test_a_sizing_that_the_table_did_not_keep_is_recorded() -> None:
    stage = Stage(4)
    stage.faults.meanwhile["set_desired"] = lambda: stage.faults.refusals.update(
        commit=Unavailable("503")
    )
    failed: list[DecisionRecord] = []
    minute = 0
    while not failed:
        stage.serve(minute, dict.fromkeys(stage.spot, 0.99))
        failed = [record for record in stage.turn(minute).records if record.rule == FAILED]
        minute += 1
    desired = stage.cloud.group("spot").desired
    assert desired > 4
    assert [outcome.asked for outcome in failed[0].outcomes] == [f"spot: desired {desired}"]


def test_a_record_that_is_refused_once_is_tried_again_and_not_lost() -> None:
    fleet = two_are_lost()
    fleet.faults.refusals["record"] = Unavailable("503")
    fleet.faults.meanwhile["release"] = fleet.faults.refusals.clear
    (record,) = turned(fleet).records
    assert (record.action, record.seen["Backfilled"]) == (Action.BACKFILL, 2)
    assert (record.error, record.seen["TurnsFailed"]) == ("Unavailable: 503", 1)
    assert fleet.states.records[-1] == record
