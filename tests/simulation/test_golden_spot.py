"""What spot does to a fleet, and how the fleet stays whole: one scenario each."""

import pytest

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.cloud.words import ON_DEMAND_DRY
from tests.simulation.golden import NOTHING, ON_DEMAND, PLENTY, SPOT, A, B, Scenario

QUOTA = "Max spot instance count exceeded. Launching EC2 instance failed."
NO_KEY = "The key pair ocr does not exist. Launching EC2 instance failed."
THROTTLED = "RequestLimitExceeded - Request limit exceeded. Launching EC2 instance failed."
DRY = ON_DEMAND_DRY.format(type="g5.xlarge", zone="us-east-1a")


def test_spot_refuses_from_the_start_and_comes_later() -> None:
    fleet = Scenario(a=((0.0, 0), (1807.0, 9)))
    fleet.to(1800)
    assert fleet.table() == ["0 backfill (backfill) on-demand 4"]
    assert fleet.serving == 4
    fleet.to(3600)
    assert fleet.table()[-1].endswith("release (release) on-demand 0")
    assert fleet.spot_ids()
    assert fleet.serving == 4


def test_a_mass_interruption_in_one_second_is_filled_before_it_happens() -> None:
    fleet = Scenario(target=10, a=((0.0, 10), (1200.0, 0)), b=((0.0, 0), (3000.0, 10)))
    fleet.to(1080)
    assert fleet.table() == ["1080 backfill (backfill) on-demand 10"]
    fleet.to(1200)
    assert fleet.ready == 10
    assert fleet.total("Interruptions") == 10
    assert fleet.total("EarlyReplacements") == 10
    fleet.to(2999)
    assert fleet.on_demand == 10
    fleet.to(4500)
    assert fleet.on_demand == 0
    assert fleet.serving == 10


@pytest.mark.parametrize(("target", "hours"), [(1, 8), (2, 4)])
def test_without_warnings_a_spare_stays_the_longer_the_more_pools_it_covers(
    target: int, hours: int
) -> None:
    unwarned = AvailabilityPolicy(notice_s=0, elevated_risk_s=1800)
    fleet = Scenario(target=target, b=PLENTY, physics=Physics(notice_s=0), policy=unwarned)
    # Of three instances in two pools, one pool takes two with it: half of the pools are covered.
    fleet.to(3600 * hours - 600)
    assert len(fleet.spot_ids()) == target + 1
    fleet.to(3600 * hours + 600)
    assert len(fleet.spot_ids()) == target
    assert fleet.table() == []


def test_flapping_spot_keeps_the_backfill() -> None:
    flapping = [(0.0, 4)] + [(600.0 + 300 * i, 4 * (i % 2)) for i in range(25)]
    fleet = Scenario(a=flapping)
    fleet.to(480)
    settled = False
    for at_s in range(600, 8100, 60):
        fleet.to(at_s)
        settled = settled or fleet.ready >= 4
        assert fleet.ready >= 4 or not settled
    assert len(fleet.table()) <= 3


def test_slow_flapping_is_followed_and_never_leaves_the_fleet_short() -> None:
    """Each swing of the market costs one backfill and one release, and no more."""
    flapping = [(0.0, 4)] + [(600.0 + 400 * i, 4 * (i % 2)) for i in range(12)]
    fleet = Scenario(a=flapping)
    fleet.to(480)
    for at_s in range(600, 5000, 60):
        fleet.to(at_s)
        assert fleet.ready >= 4
    assert len(fleet.table()) <= 12
    fleet.to(12_000)
    assert (fleet.on_demand, fleet.serving) == (0, 4)


def test_both_groups_empty_is_alarmed_and_not_hammered() -> None:
    fleet = Scenario(a=NOTHING)
    fleet.cloud.fail_launches(ON_DEMAND, 0.0, 3600.0, DRY)
    fleet.to(3599)
    assert "both-short" in fleet.alarms()
    assert fleet.faults.calls.count("set_desired") <= 10
    assert fleet.on_demand == 4
    fleet.to(3900)
    assert fleet.serving == 4


def test_one_empty_zone_logs_failures_while_the_group_fills() -> None:
    fleet = Scenario(a=PLENTY, b=NOTHING)
    assert fleet.cloud.failures(SPOT, 0.0)
    fleet.to(3600)
    assert fleet.table() == []
    assert {i.pool for i in fleet.cloud.group(SPOT).instances} == {A}


def test_zones_out_of_balance_are_left_so() -> None:
    fleet = Scenario(a=PLENTY, b=((0.0, 0), (900.0, 9)))
    fleet.to(0)
    assert fleet.cloud.group(SPOT).suspensions.keys() == {"AZRebalance"}
    assert fleet.cloud.group(ON_DEMAND).suspensions.keys() == {"AZRebalance"}
    before = fleet.spot_ids()
    fleet.to(3600)
    assert fleet.spot_ids() == before
    fleet.cloud.set_desired(SPOT, 6)
    assert [i.pool for i in fleet.cloud.group(SPOT).instances][4:] == [B, B]


def test_an_instance_that_never_starts_is_a_failed_start() -> None:
    fleet = Scenario(physics=Physics(cold_start_s=10_000))
    fleet.to(1200)
    assert "bootstrap" in fleet.alarms()
    assert fleet.on_demand == fleet.fleet.availability.configuration_cap


CAP = AvailabilityPolicy().configuration_cap


@pytest.mark.parametrize(
    ("text", "on_demand", "alarms"),
    [(QUOTA, 4, {"quota"}), (NO_KEY, CAP, {"configuration"}), (THROTTLED, 0, set())],
)
def test_what_refuses_launches_decides_how_many_are_backfilled(
    text: str, on_demand: int, alarms: set[str]
) -> None:
    fleet = Scenario()
    fleet.to(300)
    fleet.cloud.fail_launches(SPOT, 300.0, 380.0, text)
    fleet.cloud.set_desired(SPOT, 8)
    fleet.to(379)
    assert fleet.on_demand == on_demand
    assert fleet.alarms() == alarms
    fleet.to(4500)
    assert (fleet.on_demand, fleet.serving) == (0, 8)
