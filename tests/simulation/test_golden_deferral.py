"""Two interruptions of a fleet with a warm pool: the second is backfilled just in time."""

from contextlib import suppress
from dataclasses import replace

import pytest

from spotkeeper.domain.decision import Controller
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.ports import Unavailable
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.fakes import Crash, instant
from tests.simulation.golden import Scenario

WARM = Physics(cold_start_s=300, warm_start_s=60, warm_pool=4)
# Warned at 1080 and at 3580, each a notice before its loss.
LOSSES = ((0.0, 4), (1200.0, 3), (1500.0, 4), (3700.0, 3), (4000.0, 4))
POLICY = AvailabilityPolicy(on_demand_warm=True, lost_notice_share=0, deferral_margin_s=30)


@pytest.fixture
def fleet() -> Scenario:
    """Four instances, and the market that takes one twice."""
    return Scenario(a=LOSSES, physics=WARM, policy=POLICY)


def whole_to(fleet: Scenario, at_s: float) -> None:
    """Let time pass; four instances serve all the time."""
    fleet.to(600)
    for second in range(600, int(at_s), 5):
        fleet.to(second)
        assert fleet.ready >= 4


def test_the_first_loss_is_backfilled_at_once_and_the_second_just_in_time(fleet: Scenario) -> None:
    whole_to(fleet, 6000)
    backfills = [line for line in fleet.table() if "backfill" in line]
    assert [line.split()[0] for line in backfills] == ["1080", "3610"]
    assert fleet.asked().count("look again at 01:00:10") == 1
    assert fleet.faults.calls.count("wake_up") == 1
    assert fleet.on_demand == 0


def test_a_wake_up_that_cannot_be_sent_puts_nothing_off(fleet: Scenario) -> None:
    fleet.faults.refusals["wake_up"] = Unavailable("no answer")
    whole_to(fleet, 6000)
    backfills = [line for line in fleet.table() if "backfill" in line]
    assert [line.split()[0] for line in backfills] == ["1080", "3580"]
    (record,) = [r for r in fleet.states.records if r.outcomes and r.outcomes[0].error]
    assert record.outcomes[0].asked == "look again at 01:00:10"
    assert record.outcomes[0].error == "Unavailable: no answer"
    assert record.outcomes[1].asked == "ocr-on-demand: desired 1"


def test_a_wake_up_that_never_comes_is_made_good_by_the_minute(fleet: Scenario) -> None:
    fleet.to(3590)
    assert fleet.wake_ups.take(4000.0) == 1
    fleet.to(3700)
    assert [line.split()[0] for line in fleet.table() if "backfill" in line] == ["1080", "3660"]


def test_late_events_do_not_make_a_start_look_longer() -> None:
    late = Scenario(a=LOSSES, physics=replace(WARM, event_delay_s=25), policy=POLICY)
    late.to(1300)
    lease = late.states.acquire("ocr", Controller.AVAILABILITY, instant(1300), None)
    assert lease is not None
    (start,) = lease.availability.risk.deferral.starts
    assert start.served is not None
    # From the turn that asked to the launch event's own time.
    assert (start.served - start.began).total_seconds() == pytest.approx(60, abs=1)


@pytest.mark.parametrize("calls", range(1, 12))
def test_a_crash_after_any_call_of_the_turn_that_puts_off_is_mended(
    fleet: Scenario, calls: int
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
