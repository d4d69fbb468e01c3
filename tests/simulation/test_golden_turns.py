"""What can go wrong around a turn, and what the fleet makes of it: one scenario each."""

import pytest

from spotkeeper.domain.interruption import Interruption, InterruptionKind
from spotkeeper.ports import Throttled
from spotkeeper.turns.check_availability import check_availability, handle_interruption
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.fakes import Crash, instant
from tests.simulation.golden import ON_DEMAND, SPOT, A, B, Scenario

LOSS = ((0.0, 4), (1200.0, 3))


def warning(instance_id: str, at_s: float) -> Interruption:
    """An interruption warning."""
    return Interruption(
        kind=InterruptionKind.INTERRUPTION_WARNING, at=instant(at_s), instance_ids=(instance_id,)
    )


def test_the_same_event_five_times_and_out_of_order_changes_nothing_more() -> None:
    fleet = Scenario(a=LOSS)
    fleet.to(1080)
    (warned,) = [e.instance_id for e in fleet.cloud.spot_requests()]
    ended = Interruption(
        kind=InterruptionKind.TERMINATE_SUCCESSFUL,
        at=instant(1080),
        instance_ids=(warned,),
        group=SPOT,
    )
    for event in (ended, *[warning(warned, 1080)] * 5):
        handle_interruption(event, [fleet.fleet], fleet.ports, instant(1081))
    assert fleet.on_demand == 1
    assert fleet.total("Interruptions") == 1
    assert fleet.total("EarlyReplacements") == 1
    assert [asked for asked in fleet.asked() if asked.startswith("drain")] == [f"drain {warned}"]


def test_a_late_warning_of_an_instance_that_is_gone_changes_nothing() -> None:
    fleet = Scenario(a=LOSS)
    fleet.to(1200)
    (gone,) = [e.instance_id for e in fleet.cloud.spot_requests()]
    lines = fleet.table()
    handle_interruption(warning(gone, 1080), [fleet.fleet], fleet.ports, instant(1201))
    assert fleet.table() == lines


def test_throttled_calls_stop_the_turn_and_nothing_is_concluded() -> None:
    fleet = Scenario()
    fleet.to(300)
    fleet.faults.refusals["describe"] = Throttled("Rate exceeded")
    blind = check_availability([fleet.fleet], fleet.ports, instant(300))
    assert [str(error) for error in blind.errors] == ["fleet ocr: Rate exceeded"]
    fleet.faults.refusals.clear()
    fleet.faults.refusals["failures"] = Throttled("Rate exceeded")
    fleet.cloud.set_desired(SPOT, 6)
    (record,) = check_availability([fleet.fleet], fleet.ports, instant(301)).records
    assert record.unread == ("activities of ocr-spot: Throttled: Rate exceeded",)
    fleet.faults.refusals.clear()
    fleet.to(900)
    assert fleet.table() == []
    assert fleet.serving == 6


def test_desired_raised_by_hand_brings_no_burst_of_on_demand() -> None:
    fleet = Scenario()
    fleet.to(300)
    fleet.cloud.set_desired(SPOT, 12)
    fleet.to(900)
    assert fleet.table() == []
    assert fleet.serving == 12
    fleet.cloud.set_desired(SPOT, 2)
    fleet.to(1800)
    assert fleet.table() == []
    assert fleet.serving == 2
    fleet.cloud.set_desired(ON_DEMAND, 3)
    fleet.to(3000)
    assert (fleet.on_demand, fleet.serving) == (0, 2)


def test_desired_raised_by_hand_where_spot_has_none_is_filled_at_once() -> None:
    fleet = Scenario(a=((0.0, 4),))
    fleet.to(300)
    fleet.cloud.set_desired(SPOT, 7)
    fleet.to(301)
    assert fleet.on_demand == 3


def calls_before(fleet: Scenario, at_s: float) -> int:
    """Let time pass to just before an instant; how many calls there were."""
    fleet.to(at_s - 1)
    return len(fleet.faults.calls)


def test_a_warning_that_comes_during_a_turn_is_seen_by_another_round() -> None:
    fleet = Scenario(target=6, a=((0.0, 6), (1200.0, 4)))
    fleet.to(1019)
    fleet.faults.meanwhile["describe"] = lambda: handle_interruption(
        warning(fleet.spot_ids()[0], 1020), [fleet.fleet], fleet.ports, instant(1020)
    )
    rounds = len(fleet.states.records)
    check_availability([fleet.fleet], fleet.ports, instant(1020))
    assert len(fleet.states.records) == rounds + 2
    assert fleet.on_demand == 1


@pytest.mark.parametrize("calls", range(1, 25))
def test_a_crash_after_any_call_of_a_turn_is_mended(calls: int) -> None:
    fleet = Scenario(target=6, a=((0.0, 6), (1200.0, 3)), b=((0.0, 0), (2400.0, 9)))
    fleet.faults.crash_after = calls_before(fleet, 1080) + calls
    try:
        fleet.to(1080)
    except Crash:
        fleet.faults.crash_after = None
    fleet.to(1200)
    assert fleet.on_demand == 3
    fleet.to(1380)
    assert fleet.ready >= 6
    fleet.to(6000)
    assert fleet.on_demand == 0
    assert fleet.serving == 6
    assert len(fleet.cloud.instances()) == 6
    assert fleet.total("Interruptions") <= 3


@pytest.mark.parametrize("calls", range(1, 16))
def test_a_crash_while_releasing_loses_nothing(calls: int) -> None:
    fleet = Scenario(a=((0.0, 4), (1200.0, 0), (2400.0, 4)), physics=Physics(cold_start_s=120))
    fleet.to(2400)
    at_s = 2400.0
    while fleet.cloud.group(ON_DEMAND).desired == 4:
        before, at_s = len(fleet.faults.calls), fleet.replay.next_s()
        fleet.faults.crash_after = before + calls
        try:
            fleet.to(at_s)
        except Crash:
            break
    fleet.faults.crash_after = None
    for minute in range(60):
        fleet.to(at_s + 60 * minute)
        assert fleet.serving >= 4
    assert fleet.on_demand == 0
    assert fleet.serving == 4


@pytest.mark.parametrize(
    ("physics", "on_demand"),
    [
        # Events that never come are made up for by the minute, a lost notice by the loss.
        (Physics(event_delay_s=3600), {1140: 3}),
        (Physics(notice_lost=1.0), {1209: 0, 1210: 3}),
    ],
)
def test_what_is_not_told_is_made_up_for(physics: Physics, on_demand: dict[int, int]) -> None:
    fleet = Scenario(target=6, a=((0.0, 6), (1210.0, 3)), physics=physics)
    for at_s, desired in on_demand.items():
        fleet.to(at_s)
        assert fleet.on_demand == desired


def test_on_demand_stands_in_for_a_spot_group_that_was_deleted_and_it_wakes_as_large() -> None:
    fleet = Scenario(target=8)
    fleet.to(600)
    fleet.cloud.delete_group(SPOT)
    fleet.to(661)
    assert fleet.on_demand == 8
    fleet.to(1500)
    assert (fleet.on_demand, fleet.ready) == (8, 8)
    assert "group-missing" in fleet.alarms()
    assert "ocr-spot does not exist: create it" in fleet.states.records[-1].reason
    fleet.cloud.create_group(
        GroupSpec(name=SPOT, purchase=Purchase.SPOT, minimum=0, maximum=40, desired=0, pools=(A, B))
    )
    fleet.to(1561)
    assert fleet.cloud.group(SPOT).desired == 8
    for at_s in range(1570, 3600, 10):
        fleet.to(at_s)
        assert fleet.ready >= 8
    assert (fleet.on_demand, fleet.serving) == (0, 8)
    assert fleet.states.records[-1].alarms == ()
