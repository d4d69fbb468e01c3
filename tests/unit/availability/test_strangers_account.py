"""What AWS really does, and what a turn makes of it: one story each."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import pytest

from spotkeeper.domain.availability.actions import ReplaceEarly, ResumeLaunch
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import SizingPolicy
from tests.builders import at, failure, fleet, group, ids, instances, turn

SPOT, BACK = ids("a", 12), ids("b", 12)
NONE = group("on-demand", 0)
ELEVATED = fleet(availability=AvailabilityPolicy(elevated_risk_s=1800))
STEADY = AvailabilityMemory(need=4, spot_seen=4, seen_at=at(-60), in_service=4)


def spot(*serving: str, launching: tuple[str, ...] = (), desired: int = 4) -> Group:
    return group("spot", desired, instances(serving, launching))


# --- suspended by AWS -------------------------------------------------------------------------


def suspended(by_aws: bool) -> Group:
    launch = frozenset({"Launch"})
    return replace(
        spot(),
        suspended=frozenset({"AZRebalance", "Launch"}),
        suspended_by_aws=launch if by_aws else frozenset(),
    )


def test_what_aws_suspended_is_missing_capacity_and_is_resumed_once() -> None:
    first = turn(0, suspended(by_aws=True), NONE, STEADY)
    assert (first.on_demand_desired, first.alarms) == (4, ())
    assert [resume.group for resume in first.of(ResumeLaunch)] == ["spot"]
    again = turn(60, suspended(by_aws=True), NONE, first.memory)
    assert again.of(ResumeLaunch) == []
    assert turn(3660, suspended(by_aws=True), NONE, again.memory).of(ResumeLaunch)


def test_what_a_person_suspended_is_left_alone() -> None:
    first = turn(0, suspended(by_aws=False), NONE, STEADY)
    assert (first.on_demand_desired, first.alarms) == (2, ("configuration",))
    assert first.of(ResumeLaunch) == []


# --- pending instances ------------------------------------------------------------------------


def test_pending_instances_are_waited_for_and_not_ended() -> None:
    whole = spot(*SPOT[:4])
    settled = turn(-300, whole, NONE, STEADY).memory
    launching = replace(group("on-demand", 2, instances((), BACK[:2])), minimum=1)
    held = turn(0, whole, launching, settled)
    assert (held.action, held.rule, held.ends) == (Action.HOLD, "launching", ())
    served = turn(60, whole, replace(launching, instances=instances(BACK[:2])), held.memory)
    assert served.ends == (BACK[0],)


def test_pending_instances_of_which_nobody_is_needed_are_given_up_together() -> None:
    """Launches that fail again and again would be paid for until one succeeds."""
    whole = spot(*SPOT[:4])
    settled = turn(-300, whole, NONE, STEADY).memory
    decision = turn(0, whole, group("on-demand", 2, instances((), BACK[:2])), settled)
    assert (decision.rule, decision.on_demand_desired, decision.ends) == ("release", 0, ())


def test_what_is_pending_is_not_made_up_for_by_ending_what_serves() -> None:
    whole = spot(*SPOT[:4])
    settled = turn(-300, whole, NONE, STEADY).memory
    mixed = group("on-demand", 3, instances(BACK[:1], BACK[1:2]))
    decision = turn(0, whole, mixed, settled)
    assert (decision.on_demand_desired, decision.ends) == (2, (BACK[0],))


# --- failures that explain a gap --------------------------------------------------------------


def test_a_gap_does_not_forget_why_it_is_there() -> None:
    """AWS waits longer between its tries than failures are read back."""
    broken = (failure(FailureClass.CONFIGURATION, 0),)
    first = turn(0, spot(), NONE, STEADY, spot_failures=broken)
    filled = group("on-demand", 2, instances(BACK[:2]))
    later = turn(1800, spot(), filled, first.memory)
    assert (later.action, later.on_demand_desired) == (Action.HOLD, 2)
    assert "configuration" in later.alarms
    told = turn(
        1860, spot(), filled, later.memory, spot_failures=(failure(FailureClass.CAPACITY, 1850),)
    )
    assert told.on_demand_desired == 4
    whole = turn(1920, spot(*SPOT[:4]), filled, told.memory)
    assert whole.memory.spot_failures == ()


# --- launched is not serving ------------------------------------------------------------------


@pytest.mark.parametrize("period_s", [120, 300, 540])
def test_a_boot_loop_is_not_launching_for_ever(period_s: int) -> None:
    memory, short_at = STEADY, None
    for minute in range(60):
        names = tuple(f"i-{minute * 60 // period_s:04x}{n:013x}" for n in range(4))
        decision = turn(60 * minute, spot(launching=names), NONE, memory)
        if decision.shortfall == 4 and short_at is None:
            short_at = 60 * minute
        assert decision.shortfall == (0 if short_at is None else 4)
        memory = decision.memory
    assert short_at is not None
    assert short_at <= 600
    assert memory.in_service == 0


def test_a_launch_that_was_let_go_leaves_no_heir() -> None:
    first = turn(0, spot(*SPOT[:3], launching=(SPOT[3],)), NONE, STEADY)
    smaller = turn(300, spot(*SPOT[:3], desired=3), NONE, first.memory)
    again = turn(600, spot(*SPOT[:3], launching=(SPOT[5],)), NONE, smaller.memory)
    assert again.spot.launching == 1


def unreported(*who: str, since: float = 0) -> Mapping[str, datetime]:
    return dict.fromkeys(who, at(since))


def test_in_service_without_a_log_while_requests_flow_is_launching() -> None:
    on_demand = group("on-demand", 4, instances(BACK[:4]))
    back = spot(*SPOT[:4])
    first = turn(0, back, on_demand, STEADY, unreported=unreported(*SPOT[:4]))
    assert (first.spot.serving, first.spot.launching) == (0, 4)
    later = turn(540, back, on_demand, first.memory, unreported=unreported(*SPOT[:4]))
    assert (later.ends, later.shortfall) == ((), 0)
    late = turn(600, back, on_demand, later.memory, unreported=unreported(*SPOT[:4]))
    assert (late.spot.late, late.ends) == (4, ())
    assert "bootstrap" in late.alarms


def test_who_was_not_heard_of_yet_is_neither_short_nor_makes_on_demand_needless() -> None:
    on_demand = group("on-demand", 4, instances(BACK[:4]))
    memory = STEADY
    for minute in range(60):
        held = turn(60 * minute, spot(*SPOT[:4]), on_demand, memory, unheard=frozenset(SPOT[:4]))
        assert (held.spot.serving, held.spot.unheard, held.shortfall) == (0, 4, 0)
        assert (held.rule, held.ends) == ("make before break", ())
        memory = held.memory
    heard = turn(3600, spot(*SPOT[:4]), on_demand, memory)
    assert len(turn(3630, spot(*SPOT[:4]), on_demand, heard.memory).ends) == 4
    alone = turn(0, spot(*SPOT[:4]), NONE, STEADY, unheard=frozenset(SPOT[:4]))
    assert (alone.on_demand_desired, alone.alarms) == (0, ())


def test_who_never_reports_is_backfilled_up_to_the_cap() -> None:
    first = turn(0, spot(*SPOT[:4]), NONE, STEADY, unreported=unreported(*SPOT[:4]))
    late = turn(660, spot(*SPOT[:4]), NONE, first.memory, unreported=unreported(*SPOT[:4]))
    assert (late.on_demand_desired, late.rule) == (2, "configuration cap")


# --- a loss without a warning -----------------------------------------------------------------


def test_a_dead_instance_that_its_group_still_lists_is_a_surprise() -> None:
    listed = spot(*SPOT[:4])
    lost = turn(0, listed, NONE, STEADY, ELEVATED, taken=frozenset(SPOT[:1]))
    assert (lost.spot.serving, lost.on_demand_desired) == (3, 1)
    assert lost.memory.risk.last_surprise == at(0)
    assert [(r.instance_id, r.taken) for r in lost.of(ReplaceEarly)] == [(SPOT[0], True)]
    assert (lost.drain, lost.memory.detached) == ((), {})
    back = group("on-demand", 1)
    again = turn(10, listed, back, lost.memory, ELEVATED, taken=frozenset(SPOT[:1]))
    assert sum(loss.count for loss in again.memory.risk.losses) == 1


def test_a_dead_instance_that_was_warned_is_none() -> None:
    kept = fleet(availability=AvailabilityPolicy(early_replacement=False))
    warned = turn(0, spot(*SPOT[:4]), NONE, STEADY, kept, warned={SPOT[0]: at(0)})
    dead = turn(120, spot(*SPOT[:4]), NONE, warned.memory, kept, taken=frozenset(SPOT[:1]))
    assert dead.memory.risk.losses == ()


# --- an operator's desired capacity -----------------------------------------------------------


def test_an_operators_desired_is_not_undone_after_elevated_risk() -> None:
    unsized = replace(ELEVATED, sizing=SizingPolicy(enabled=False))
    memory = _after_elevated_risk(unsized)
    stale = CapacityRequest(at=at(-7200), need=4, spare=1)
    raised = spot(*SPOT[:5], desired=5)
    for minute in range(5):
        decision = turn(9000 + 60 * minute, raised, NONE, memory, unsized, sized=stale)
        assert (decision.spot.target, decision.spot_desired, decision.spot_ends) == (5, 5, ())
        memory = decision.memory


def _after_elevated_risk(of: Fleet) -> AvailabilityMemory:
    lost = turn(0, spot(*SPOT[:3]), NONE, STEADY, of)
    assert lost.spot_desired == 5
    held = turn(120, spot(*SPOT[:5], desired=5), NONE, lost.memory, of)
    over = turn(3600, spot(*SPOT[:5], desired=5), NONE, held.memory, of)
    assert len(over.spot_ends) == 1
    return turn(3700, spot(*SPOT[:4]), NONE, over.memory, of).memory


@pytest.mark.parametrize("need", [3, 4, 5])
def test_the_spot_group_is_never_asked_for_more_than_its_bound(need: int) -> None:
    bounded = replace(fleet(spot_max=4), availability=ELEVATED.availability)
    before = AvailabilityMemory(need=need, spot_seen=need, seen_at=at(-60), in_service=need)
    lost = turn(0, spot(*SPOT[: need - 1], desired=need), NONE, before, bounded)
    assert lost.spot_desired <= max(need, 4)


# --- both short -------------------------------------------------------------------------------


def test_on_demand_is_tried_again_after_1_2_4_to_15_minutes_while_both_are_short() -> None:
    dry = (failure(FailureClass.CAPACITY),)
    memory, desired, tries = STEADY, 1, list[int]()
    for minute in range(40):
        late = tuple(replace(f, at=at(60 * minute)) for f in dry)
        found = turn(
            60 * minute,
            group("spot", 30),
            group("on-demand", desired),
            memory,
            spot_failures=late,
            on_demand_failures=late,
        )
        if found.action is Action.BACKFILL:
            tries.append(minute)
        # What was asked for is taken back by hand: the need to ask comes again.
        memory = found.memory
    assert tries == [1, 3, 7, 15, 30]


# --- a need that grows while spot is dry ------------------------------------------------------


def test_a_launch_that_failed_before_the_increase_was_seen_counts_against_it() -> None:
    before = turn(0, spot(*SPOT[:4]), NONE, STEADY).memory
    refused = (failure(FailureClass.CAPACITY, 55),)
    grown = turn(60, spot(*SPOT[:4], desired=7), NONE, before, spot_failures=refused)
    assert grown.on_demand_desired == 3
