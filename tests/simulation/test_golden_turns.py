"""What AWS, the market and crashes do to a fleet, and what its turns make of it: one story each."""

from contextlib import suppress

import pytest

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.ports import Unavailable
from spotkeeper_lab.cloud.values import ON_DEMAND_DRY, GroupSpec, Physics, Purchase
from spotkeeper_lab.fakes import Crash
from tests.simulation.golden import NOTHING, ON_DEMAND, PLENTY, SPOT, A, B, FakeFleet

# --- what spot does -------------------------------------------------------------------------------


DRY = ON_DEMAND_DRY.format(type="g5.xlarge", zone="us-east-1a")


def test_spot_refuses_at_first_and_delivers_later() -> None:
    fleet = FakeFleet(a=((0.0, 0), (1807.0, 9)))
    fleet.to(1800)
    assert fleet.table() == ["0 backfill (backfill) on-demand 4"]
    assert fleet.serving == 4
    fleet.to(3600)
    assert fleet.table()[-1].endswith("release (release) on-demand 0")
    assert fleet.spot_ids()
    assert fleet.serving == 4


def test_a_mass_interruption_in_one_second_is_filled_before_it_happens() -> None:
    fleet = FakeFleet(target=10, a=((0.0, 10), (1200.0, 0)), b=((0.0, 0), (3000.0, 10)))
    fleet.to(1080)
    assert fleet.table() == ["1080 backfill (backfill) on-demand 10"]
    fleet.to(1200)
    assert fleet.ready == 10
    assert fleet.total(lambda seen: seen.interruptions) == 10
    assert fleet.total(lambda seen: seen.early_replacements) == 10
    fleet.to(2999)
    assert fleet.on_demand == 10
    fleet.to(4500)
    assert fleet.on_demand == 0
    assert fleet.serving == 10


def test_flapping_spot_keeps_the_backfill() -> None:
    flapping = [(0.0, 4)] + [(600.0 + 300 * i, 4 * (i % 2)) for i in range(25)]
    fleet = FakeFleet(a=flapping)
    fleet.to(480)
    settled = False
    for at_s in range(600, 8100, 60):
        fleet.to(at_s)
        settled = settled or fleet.ready >= 4
        assert fleet.ready >= 4 or not settled
    assert len(fleet.table()) <= 3


def test_both_groups_empty_is_alarmed_and_not_hammered() -> None:
    fleet = FakeFleet(a=NOTHING)
    fleet.cloud.fail_launches(ON_DEMAND, 0.0, 3600.0, DRY)
    fleet.to(3599)
    assert "both-short" in fleet.alarms()
    assert fleet.faults.calls.count("set_desired") <= 10
    assert fleet.on_demand == 4
    fleet.to(3900)
    assert fleet.serving == 4


def test_zones_out_of_balance_are_left_so() -> None:
    fleet = FakeFleet(a=PLENTY, b=((0.0, 0), (900.0, 9)))
    fleet.to(0)
    assert fleet.cloud.group(SPOT).suspensions.keys() == {"AZRebalance"}
    assert fleet.cloud.group(ON_DEMAND).suspensions.keys() == {"AZRebalance"}
    before = fleet.spot_ids()
    fleet.to(3600)
    assert fleet.spot_ids() == before
    fleet.cloud.set_desired(SPOT, 6)
    assert [i.pool for i in fleet.cloud.group(SPOT).instances][4:] == [B, B]


# --- what else goes wrong -------------------------------------------------------------------------


def calls_before(fleet: FakeFleet, at_s: float) -> int:
    """Let time pass to just before an instant; how many calls there were."""
    fleet.to(at_s - 1)
    return len(fleet.faults.calls)


@pytest.mark.parametrize("calls", range(1, 25))
def test_a_crash_after_any_call_of_a_turn_is_repaired(calls: int) -> None:
    fleet = FakeFleet(target=6, a=((0.0, 6), (1200.0, 3)), b=((0.0, 0), (2400.0, 9)))
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
    assert fleet.total(lambda seen: seen.interruptions) <= 3


@pytest.mark.parametrize("calls", range(1, 16))
def test_a_crash_while_releasing_loses_nothing(calls: int) -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 0), (2400.0, 4)), physics=Physics(cold_start_s=120))
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
        # The turn of each minute replaces late events; the loss itself replaces a lost notice.
        (Physics(event_delay_s=3600), {1140: 3}),
        (Physics(notice_lost=1.0), {1209: 0, 1210: 3}),
    ],
)
def test_missing_fields_have_defaults(physics: Physics, on_demand: dict[int, int]) -> None:
    fleet = FakeFleet(target=6, a=((0.0, 6), (1210.0, 3)), physics=physics)
    for at_s, desired in on_demand.items():
        fleet.to(at_s)
        assert fleet.on_demand == desired


def test_on_demand_stands_in_for_a_spot_group_that_was_deleted_and_it_wakes_as_large() -> None:
    fleet = FakeFleet(target=8)
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


# --- two interruptions of a fleet with a warm pool ------------------------------------------------


WARM = Physics(cold_start_s=300, warm_start_s=60, warm_pool=4)
# Warned at 1080 and at 3580, each a notice before its loss.
LOSSES = ((0.0, 4), (1200.0, 3), (1500.0, 4), (3700.0, 3), (4000.0, 4))
POLICY = AvailabilityPolicy(on_demand_warm=True, lost_notice_share=0, deferral_margin_s=30)


@pytest.fixture
def fleet() -> FakeFleet:
    """Four instances, and the market that takes one twice."""
    return FakeFleet(a=LOSSES, physics=WARM, policy=POLICY)


def whole_to(fleet: FakeFleet, at_s: float) -> None:
    """Let time pass; four instances serve all the time."""
    fleet.to(600)
    for second in range(600, int(at_s), 5):
        fleet.to(second)
        assert fleet.ready >= 4


def test_the_first_loss_is_backfilled_at_once_and_the_second_just_in_time(fleet: FakeFleet) -> None:
    whole_to(fleet, 6000)
    backfills = [line for line in fleet.table() if "backfill" in line]
    assert [line.split()[0] for line in backfills] == ["1080", "3610"]
    assert fleet.asked().count("look again at 01:00:10") == 1
    assert fleet.faults.calls.count("wake_up") == 1
    assert fleet.on_demand == 0


def test_without_a_wake_up_nothing_is_deferred(fleet: FakeFleet) -> None:
    fleet.faults.refusals["wake_up"] = Unavailable("no answer")
    whole_to(fleet, 6000)
    backfills = [line for line in fleet.table() if "backfill" in line]
    assert [line.split()[0] for line in backfills] == ["1080", "3580"]
    (record,) = [r for r in fleet.states.records if r.refused]
    assert record.outcomes[0].text == "look again at 01:00:10: Unavailable: no answer"
    assert record.outcomes[1].request.text() == "ocr-on-demand: desired 1"


def test_the_next_minute_makes_up_for_a_lost_wake_up(fleet: FakeFleet) -> None:
    fleet.to(3590)
    assert fleet.wake_ups.take(4000.0) == 1
    fleet.to(3700)
    assert [line.split()[0] for line in fleet.table() if "backfill" in line] == ["1080", "3660"]


@pytest.mark.parametrize("calls", range(1, 12))
def test_a_crash_after_any_call_of_a_deferring_turn_is_repaired(
    fleet: FakeFleet, calls: int
) -> None:
    fleet.to(3579)
    fleet.faults.crash_after = len(fleet.faults.calls) + calls
    with suppress(Crash):
        fleet.to(3580)
    fleet.faults.crash_after = None
    fleet.to(3720)
    assert fleet.ready >= 4
    fleet.to(6000)
    assert (fleet.serving, fleet.on_demand, len(fleet.cloud.instances())) == (4, 0, 4)
