"""The stories that the availability rules tell, one situation after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from spotkeeper.domain.availability.actions import ReplaceEarly, ResumeLaunch, Unmark
from spotkeeper.domain.availability.elevated import (
    heavy_losses,
)
from spotkeeper.domain.availability.memory import AvailabilityMemory, Loss
from spotkeeper.domain.availability.risk import lost_warnings
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Group, Observation
from spotkeeper.domain.interruption import Interruption, InterruptionKind, risk_begins
from spotkeeper.domain.settings.availability import AvailabilityPolicy, RebalanceMeaning
from spotkeeper.domain.settings.sizing import SizingPolicy
from tests import builders
from tests.builders import Turn, at, failure, fleet, group, ids, instances, turn

SPOT, BACK = ids("a", 12), ids("b", 12)
NONE = group("on-demand", 0)
STEADY = AvailabilityMemory(need=4)


def whole(serving: int = 4, desired: int = 4) -> tuple[int, AvailabilityMemory]:
    """A memory in which `serving` of `desired` spot instances have settled."""
    spot, back = group("spot", desired, instances(SPOT[:serving])), group("on-demand", 0)
    first = turn(-3600, spot, back)
    return desired, turn(-60, spot, back, first.memory).memory


# --- The stories that the availability rules tell, one situation after the other ---


@pytest.mark.parametrize(
    ("failure_class", "wanted", "alarms"),
    [
        (FailureClass.CAPACITY, 4, ()),
        (FailureClass.PRICE, 4, ()),
        (FailureClass.QUOTA, 4, ("quota",)),
        (FailureClass.CONFIGURATION, 2, ("configuration",)),
        (FailureClass.PERMISSION, 2, ("permission",)),
        (FailureClass.BOOTSTRAP, 2, ("bootstrap",)),
    ],
)
def test_a_failure_class_decides_how_far_the_backfill_goes(
    failure_class: FailureClass, wanted: int, alarms: tuple[str, ...]
) -> None:
    failures = (failure(failure_class),)
    decision = turn(0, group("spot", 4), group("on-demand", 0), STEADY, spot_failures=failures)
    assert (decision.on_demand_desired, decision.alarms) == (wanted, alarms)


def test_the_backfill_stays_within_the_operators_and_the_groups_maximum() -> None:
    tight = fleet(on_demand_max=3)
    decision = turn(
        0,
        group("spot", 8),
        group("on-demand", 0),
        STEADY,
        tight,
        spot_failures=(failure(FailureClass.CAPACITY),),
    )
    assert (decision.on_demand_desired, decision.rule) == (3, "on-demand maximum")
    small = turn(0, group("spot", 4), group("on-demand", 0, maximum=1), STEADY)
    assert small.on_demand_desired == 1


def test_silent_workers_leave_a_gap_like_a_lost_instance() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    decision = turn(0, spot, group("on-demand", 0), STEADY, silent=frozenset(SPOT[:1]))
    assert decision.on_demand_desired == 1


def test_backfill_goes_only_after_spot_has_settled() -> None:
    on_demand = group("on-demand", 1, instances(BACK[:1]))
    short = turn(0, group("spot", 4, instances(SPOT[:3])), on_demand, STEADY)
    spot = group("spot", 4, instances(SPOT[:4]))
    served = turn(60, spot, on_demand, short.memory)
    assert (served.action, served.rule) == (Action.HOLD, "make before break")
    assert turn(89, spot, on_demand, served.memory).action is Action.HOLD
    settled = turn(90, spot, on_demand, served.memory)
    assert (settled.action, settled.ends) == (Action.RELEASE, (BACK[0],))


def test_a_failure_of_an_earlier_gap_does_not_lift_the_configuration_cap() -> None:
    whole_again = turn(0, group("spot", 4, instances(SPOT[:4])), group("on-demand", 0), STEADY)
    failures = (failure(FailureClass.CAPACITY, 10), failure(FailureClass.CONFIGURATION, 200))
    gap = group("spot", 4)
    decision = turn(200, gap, group("on-demand", 0), whole_again.memory, spot_failures=failures)
    assert (decision.on_demand_desired, decision.rule) == (2, "configuration cap")


def test_one_that_launches_for_ever_does_not_hide_what_spot_refuses() -> None:
    """An increase counts as filling while instances arrive; one that never serves counts once."""
    asked = turn(0, group("spot", 10, instances(SPOT[:4])), group("on-demand", 0), STEADY)
    spot, memory = group("spot", 10, instances(SPOT[:4], SPOT[4:5])), asked.memory
    wanted: dict[int, int] = {}
    for minute in range(1, 15):
        refused = (failure(FailureClass.CAPACITY, 60 * minute),)
        decided = turn(60 * minute, spot, group("on-demand", 0), memory, spot_failures=refused)
        wanted[minute], memory = decided.on_demand_desired, decided.memory
    assert wanted == dict.fromkeys(range(1, 3), 0) | dict.fromkeys(range(3, 11), 5) | dict.fromkeys(
        range(11, 15), 6
    )


def test_a_large_increase_is_not_waited_for_as_long_as_spot_trickles() -> None:
    """Each arrival within the grace shows that spot delivers; at this rate forty take an hour."""
    many = ids("a", 40)
    decided = turn(0, group("spot", 40, instances(many[:4])), group("on-demand", 0), STEADY)
    wanted: dict[int, int] = {}
    for minute in range(1, 15):
        spot = group(
            "spot", 40, instances(many[: 4 + minute - 1], many[4 + minute - 1 : 4 + minute])
        )
        refused = (failure(FailureClass.CAPACITY, 60 * minute),)
        decided = turn(
            60 * minute, spot, group("on-demand", 0), decided.memory, spot_failures=refused
        )
        wanted[minute] = decided.on_demand_desired
    assert wanted[9] == 0
    assert wanted[10] == 40 - 14


@pytest.mark.parametrize(
    ("late", "serving", "wanted"),
    [
        pytest.param(1, 4, 6, id="one late and five lost"),
        pytest.param(2, 8, 2, id="two late"),
        pytest.param(6, 4, 2, id="six late"),
        pytest.param(6, 0, 6, id="six late and four lost"),
    ],
)
def test_late_instances_cap_only_their_own_backfill(late: int, serving: int, wanted: int) -> None:
    _, memory = whole()
    memory = replace(memory, need=10, launching_since={i: at(-900) for i in ids("z", late)})
    spot = group("spot", 10, instances(SPOT[:serving], ids("z", late)))
    assert turn(0, spot, group("on-demand", 0), memory).on_demand_desired == wanted


def test_the_idle_go_first_and_the_busy_are_waited_for() -> None:
    _, memory = whole()
    spot = group("spot", 4, instances(SPOT[:4]))
    on_demand = group("on-demand", 2, instances(BACK[:2]))
    busy = {BACK[0]: 0.9, BACK[1]: 0.0}
    assert turn(0, spot, on_demand, memory, busy_shares=busy).ends == (BACK[1],)
    one = group("on-demand", 1, instances(BACK[:1]))
    waiting = turn(60, spot, one, memory, busy_shares={BACK[0]: 0.9})
    assert (waiting.action, waiting.rule) == (Action.HOLD, "busy")
    assert turn(179, spot, one, waiting.memory, busy_shares={BACK[0]: 0.9}).rule == "busy"
    assert turn(180, spot, one, waiting.memory, busy_shares={BACK[0]: 0.9}).ends == (BACK[0],)


def test_a_backfill_that_is_lost_and_refused_is_both_short() -> None:
    """Nothing more is requested: AWS tries again to launch the one of two that was lost."""
    dry, over_quota = (failure(FailureClass.CAPACITY),), (failure(FailureClass.QUOTA),)
    spot, on_demand = (
        group("spot", 4, instances(SPOT[:2])),
        group("on-demand", 2, instances(BACK[:1])),
    )
    found = turn(0, spot, on_demand, STEADY, spot_failures=dry, on_demand_failures=over_quota)
    assert (found.action, found.rule) == (Action.HOLD, "both-short")
    assert "both groups are short: 1 on-demand instance is missing" in found.reason
    assert "(spot, capacity: refused; on-demand, quota: refused)" in found.reason
    assert "both-short" in found.alarms


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        Observation(
            seen_at=at(0).replace(tzinfo=None), spot=group("spot", 0), on_demand=group("back", 0)
        )


# --- Who is warned stops counting, drains, is replaced and, where AWS leaves it running, ended ---


KEEP = fleet(availability=AvailabilityPolicy(early_replacement=False))


def test_an_instance_that_survives_its_warning_counts_again() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    on_demand = group("on-demand", 1, instances(BACK[:1]))
    later = turn(900, spot, on_demand, warned.memory)
    assert [unmark.instance_id for unmark in later.of(Unmark)] == [SPOT[0]]
    assert (later.spot.serving, later.memory.at_risk) == (3, {})
    again = turn(910, spot, on_demand, later.memory)
    assert (again.spot.serving, again.of(Unmark)) == (4, [])


def test_a_scheduled_change_still_counts_at_its_time() -> None:
    """AWS stops the instance at that time or soon after: it must not count again just then."""
    spot = group("spot", 4, instances(SPOT[:4]))
    due = at(3600)
    change = Interruption(
        kind=InterruptionKind.SCHEDULED_CHANGE, at=at(0), instance_ids=(SPOT[0],), due=due
    )
    told = {SPOT[0]: risk_begins(change, at(0))}
    seen = turn(0, spot, group("on-demand", 0), STEADY, KEEP, warned=told)
    for seconds in (3600, 3660, 3840):
        seen = turn(seconds, spot, group("on-demand", 1, instances(BACK[:1])), seen.memory, KEEP)
        assert (seen.spot.serving, seen.of(Unmark)) == (3, [])


@pytest.mark.parametrize(
    ("first_s", "told_at_s", "then_s", "turns_at_s"),
    [
        (3600, 60, 60, 61),  # a change in an hour, and AWS takes it now
        (0, 840, 840, 930),  # a recommendation, and the warning a quarter of an hour later
        (3600, 60, 36_000, 36_060),  # a change that was put off for nine hours
    ],
)
def test_later_news_of_an_instance_overrides_earlier_news(
    first_s: int, told_at_s: int, then_s: int, turns_at_s: int
) -> None:
    spot, back = group("spot", 4, instances(SPOT[:4])), group("on-demand", 0)
    first = turn(0, spot, back, STEADY, KEEP, warned={SPOT[0]: at(first_s)})
    then = turn(told_at_s, spot, back, first.memory, KEEP, warned={SPOT[0]: at(then_s)})
    assert turn(turns_at_s, spot, back, then.memory, KEEP).spot.serving == 3


def test_a_change_that_was_put_off_leaves_the_instance_alone_until_then() -> None:
    spot, back = group("spot", 4, instances(SPOT[:4])), group("on-demand", 0)
    first = turn(0, spot, back, STEADY, KEEP, warned={SPOT[0]: at(3600)})
    then = turn(60, spot, back, first.memory, KEEP, warned={SPOT[0]: at(36_000)})
    assert turn(3600, spot, back, then.memory, KEEP).spot.serving == 4


def test_a_late_event_withdraws_nothing() -> None:
    spot, back = group("spot", 4, instances(SPOT[:4])), group("on-demand", 0)
    first = turn(900, spot, back, STEADY, KEEP, warned={SPOT[0]: at(890)})
    for late_s in (0, 3600):
        late = turn(930, spot, back, first.memory, KEEP, warned={SPOT[0]: at(late_s)})
        assert late.memory.at_risk == {SPOT[0]: at(890)}


def test_a_detached_instance_that_aws_took_is_looked_for_and_not_ended_again() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    after = group("spot", 4, instances(SPOT[1:4], SPOT[4:5]))
    unknown = turn(600, after, group("on-demand", 1), warned.memory)
    assert (unknown.terminate, set(unknown.memory.detached)) == ((), {SPOT[0]})
    ended = turn(660, after, group("on-demand", 1), unknown.memory, running=frozenset())
    assert (ended.terminate, ended.memory.detached) == ((), {})


@pytest.mark.parametrize(("meaning", "early"), [("at_risk", 1), ("ignore", 4)])
def test_no_more_run_outside_of_the_group_than_it_has(meaning: str, early: int) -> None:
    """A recommended instance runs on for minutes, and its replacement is recommended next."""
    spot, on_demand = group("spot", 4, instances(SPOT[:4])), group("on-demand", 4)
    memory = replace(STEADY, detached={i: at(-60) for i in ids("c", 3)})
    of = fleet(availability=AvailabilityPolicy(rebalance=RebalanceMeaning(meaning)))
    decision = turn(0, spot, on_demand, memory, of, warned=dict.fromkeys(SPOT[:4], at(0)))
    assert decision.detach == tuple(SPOT[:early])


# --- a fleet that is new, or whose memory was lost ---


TEN = group("on-demand", 10, instances(BACK[:10]))


def test_a_running_on_demand_fleet_is_adopted_and_not_ended() -> None:
    memory = AvailabilityMemory()
    for minute in range(30):
        held = turn(60 * minute, group("spot", 0), TEN, memory)
        assert (held.action, held.rule, held.ends) == (Action.HOLD, "adopting", ())
        assert held.alarms == (("adopting",) if minute >= 10 else ())
        memory = held.memory


@pytest.mark.parametrize(
    ("sizing", "logged", "seconds", "ended"),
    [
        (True, True, 3600, 0),  # As many serve, and who knows whether that is enough?
        (True, False, 599, 0),
        (True, False, 600, 4),  # Nobody sends search logs: an operator sizes.
        (False, True, 60, 4),
    ],
)
def test_while_the_load_is_not_known_nothing_goes_that_it_may_need(
    sizing: bool, logged: bool, seconds: float, ended: int
) -> None:
    """Four on spot and four on demand may serve a load of eight."""
    four = group("on-demand", 4, instances(BACK[:4]))
    of, memory = fleet(sizing=SizingPolicy(enabled=sizing)), AvailabilityMemory()
    ends: list[int] = []
    for second in (0, *range(60, 540, 60), seconds):
        met = turn(second, members(*SPOT[:4]), four, memory, of, load_known=False, logged=logged)
        memory, ends = met.memory, [*ends, len(met.ends)]
    assert ends[-1] == ended


def test_while_nobody_knows_what_serves_no_on_demand_is_released() -> None:
    """The health controller's memory is damaged: those in service may never have served."""
    four, memory = group("on-demand", 4, instances(BACK[:4])), SETTLED
    for minute in range(10):
        held = turn(
            60 * minute,
            members(*SPOT[:4]),
            four,
            memory,
            load_known=False,
            logged=True,
            health_lost=minute == 1,
        )
        assert held.ends == ()
        assert ("runs and can read its memory" in held.reason) == (minute == 1)
        memory = held.memory
    limited = CapacityRequest(at=at(590), need=4, spare=0, limited=True)
    few = turn(600, members(*SPOT[:3], desired=3), four, memory, sized=limited)
    assert few.rule == "adopting"
    assert "until the spot group has grown to what the load needs" in few.reason
    sized = replace(limited, limited=False)
    assert len(turn(600, members(*SPOT[:4]), four, memory, sized=sized).ends) == 4


@pytest.mark.parametrize(("spot_name", "back_name"), [("other", "on-demand"), ("spot", "other")])
def test_other_groups_in_the_document_are_adopted_anew(spot_name: str, back_name: str) -> None:
    whole = turn(0, members(*SPOT[:4]), NONE, SETTLED)
    still = turn(3600, members(*SPOT[:4]), NONE, whole.memory)
    ten = group(back_name, 10, instances(BACK[:10]))
    moved = turn(3660, group(spot_name, 0), ten, still.memory)
    assert (moved.rule, moved.ends) == ("adopting", ())
    assert moved.reason.endswith("its previous groups spot and on-demand are left as they are")
    assert moved.memory.risk.losses == ()
    assert "left as they are" not in turn(3720, group(spot_name, 0), ten, moved.memory).reason


def test_a_detached_instance_is_ended_although_the_fleet_has_another_group() -> None:
    warned = turn(0, members(*SPOT[:4]), NONE, SETTLED, warned={SPOT[0]: at(0)})
    assert set(warned.memory.detached) == {SPOT[0]}
    moved = turn(60, group("other", 0), NONE, warned.memory)
    over = turn(660, group("other", 0), NONE, moved.memory, running=frozenset(SPOT[:1]))
    assert over.terminate == (SPOT[0],)


@pytest.mark.parametrize(("paused_s", "rule"), [(120, "release"), (7200, "adopting")])
def test_a_fleet_that_nobody_turned_for_long_is_adopted_again(paused_s: int, rule: str) -> None:
    """Paused or observed meanwhile, others may have moved its groups."""
    whole = turn(0, members(*SPOT[:4]), NONE, SETTLED)
    still = turn(60, members(*SPOT[:4]), NONE, whole.memory)
    resumed = turn(60 + paused_s, group("spot", 0), TEN, still.memory)
    assert resumed.rule == rule


def test_what_is_adopted_and_needed_is_nothing_to_adopt() -> None:
    """After a pause on-demand may stand in as before: nobody has to raise or lower anything."""
    memory = AvailabilityMemory()
    three = group("on-demand", 3, instances(BACK[:3]))
    for minute in range(30):
        held = turn(60 * minute, members(SPOT[0]), three, memory)
        assert (held.action, held.alarms) == (Action.HOLD, ())
        memory = held.memory


# --- What AWS really does, and what a turn makes of it: one story each ---


ELEVATED = fleet(availability=AvailabilityPolicy(elevated_risk_s=1800))
SETTLED = AvailabilityMemory(need=4, spot_seen=4, seen_at=at(-60), in_service=4)


def members(*serving: str, launching: tuple[str, ...] = (), desired: int = 4) -> Group:
    return group("spot", desired, instances(serving, launching))


# --- suspended by AWS -------------------------------------------------------------------------


def suspended(by_aws: bool) -> Group:
    launch = frozenset({"Launch"})
    return replace(
        members(),
        suspended=frozenset({"AZRebalance", "Launch"}),
        suspended_by_aws=launch if by_aws else frozenset(),
    )


def test_what_aws_suspended_is_missing_capacity_and_is_resumed_once() -> None:
    first = turn(0, suspended(by_aws=True), NONE, SETTLED)
    assert (first.on_demand_desired, first.alarms) == (4, ())
    assert [resume.group for resume in first.of(ResumeLaunch)] == ["spot"]
    again = turn(60, suspended(by_aws=True), NONE, first.memory)
    assert again.of(ResumeLaunch) == []
    assert turn(3660, suspended(by_aws=True), NONE, again.memory).of(ResumeLaunch)


def test_what_a_person_suspended_is_left_alone() -> None:
    first = turn(0, suspended(by_aws=False), NONE, SETTLED)
    assert (first.on_demand_desired, first.alarms) == (2, ("configuration",))
    assert first.of(ResumeLaunch) == []


# --- pending instances ------------------------------------------------------------------------


def test_pending_instances_are_waited_for_and_not_ended() -> None:
    whole = members(*SPOT[:4])
    settled = turn(-300, whole, NONE, SETTLED).memory
    launching = replace(group("on-demand", 2, instances((), BACK[:2])), minimum=1)
    held = turn(0, whole, launching, settled)
    assert (held.action, held.rule, held.ends) == (Action.HOLD, "launching", ())
    served = turn(60, whole, replace(launching, instances=instances(BACK[:2])), held.memory)
    assert served.ends == (BACK[0],)


def test_pending_instances_of_which_nobody_is_needed_are_given_up_together() -> None:
    """Launches that fail again and again would be paid for until one succeeds."""
    whole = members(*SPOT[:4])
    settled = turn(-300, whole, NONE, SETTLED).memory
    decision = turn(0, whole, group("on-demand", 2, instances((), BACK[:2])), settled)
    assert (decision.rule, decision.on_demand_desired, decision.ends) == ("release", 0, ())


def test_what_is_pending_is_not_made_up_for_by_ending_what_serves() -> None:
    whole = members(*SPOT[:4])
    settled = turn(-300, whole, NONE, SETTLED).memory
    mixed = group("on-demand", 3, instances(BACK[:1], BACK[1:2]))
    decision = turn(0, whole, mixed, settled)
    assert (decision.on_demand_desired, decision.ends) == (2, (BACK[0],))


# --- failures that explain a gap --------------------------------------------------------------


def test_a_gap_does_not_forget_why_it_is_there() -> None:
    """AWS waits longer between its tries than failures are read back."""
    broken = (failure(FailureClass.CONFIGURATION, 0),)
    first = turn(0, members(), NONE, SETTLED, spot_failures=broken)
    filled = group("on-demand", 2, instances(BACK[:2]))
    later = turn(1800, members(), filled, first.memory)
    assert (later.action, later.on_demand_desired) == (Action.HOLD, 2)
    assert "configuration" in later.alarms
    told = turn(
        1860, members(), filled, later.memory, spot_failures=(failure(FailureClass.CAPACITY, 1850),)
    )
    assert told.on_demand_desired == 4
    whole = turn(1920, members(*SPOT[:4]), filled, told.memory)
    assert whole.memory.spot_failures == ()


# --- launched is not serving ------------------------------------------------------------------


@pytest.mark.parametrize("period_s", [120, 300, 540])
def test_a_boot_loop_is_not_launching_for_ever(period_s: int) -> None:
    memory, short_at = SETTLED, None
    for minute in range(60):
        names = tuple(f"i-{minute * 60 // period_s:04x}{n:013x}" for n in range(4))
        decision = turn(60 * minute, members(launching=names), NONE, memory)
        if decision.shortfall == 4 and short_at is None:
            short_at = 60 * minute
        assert decision.shortfall == (0 if short_at is None else 4)
        memory = decision.memory
    assert short_at is not None
    assert short_at <= 600
    assert memory.in_service == 0


def unreported(*who: str, since: float = 0) -> Mapping[str, datetime]:
    return dict.fromkeys(who, at(since))


def test_in_service_without_a_log_while_requests_flow_is_launching() -> None:
    on_demand = group("on-demand", 4, instances(BACK[:4]))
    back = members(*SPOT[:4])
    first = turn(0, back, on_demand, SETTLED, unreported=unreported(*SPOT[:4]))
    assert (first.spot.serving, first.spot.launching) == (0, 4)
    later = turn(540, back, on_demand, first.memory, unreported=unreported(*SPOT[:4]))
    assert (later.ends, later.shortfall) == ((), 0)
    late = turn(600, back, on_demand, later.memory, unreported=unreported(*SPOT[:4]))
    assert (late.spot.late, late.ends) == (4, ())
    assert "bootstrap" in late.alarms


def test_an_unproven_instance_is_neither_a_gap_nor_a_reason_to_release() -> None:
    on_demand = group("on-demand", 4, instances(BACK[:4]))
    memory = SETTLED
    for minute in range(60):
        held = turn(60 * minute, members(*SPOT[:4]), on_demand, memory, unheard=frozenset(SPOT[:4]))
        assert (held.spot.serving, held.spot.unheard, held.shortfall) == (0, 4, 0)
        assert (held.rule, held.ends) == ("make before break", ())
        memory = held.memory
    heard = turn(3600, members(*SPOT[:4]), on_demand, memory)
    assert len(turn(3630, members(*SPOT[:4]), on_demand, heard.memory).ends) == 4
    alone = turn(0, members(*SPOT[:4]), NONE, SETTLED, unheard=frozenset(SPOT[:4]))
    assert (alone.on_demand_desired, alone.alarms) == (0, ())


def test_instances_that_never_report_are_backfilled_up_to_the_cap() -> None:
    first = turn(0, members(*SPOT[:4]), NONE, SETTLED, unreported=unreported(*SPOT[:4]))
    late = turn(660, members(*SPOT[:4]), NONE, first.memory, unreported=unreported(*SPOT[:4]))
    assert (late.on_demand_desired, late.rule) == (2, "configuration cap")


# --- a loss without a warning -----------------------------------------------------------------


def test_a_dead_instance_that_its_group_still_lists_is_a_surprise() -> None:
    listed = members(*SPOT[:4])
    lost = turn(0, listed, NONE, SETTLED, ELEVATED, taken=frozenset(SPOT[:1]))
    assert (lost.spot.serving, lost.on_demand_desired) == (3, 1)
    assert lost.memory.risk.last_surprise == at(0)
    assert [(r.instance_id, r.taken) for r in lost.of(ReplaceEarly)] == [(SPOT[0], True)]
    assert (lost.drain, lost.memory.detached) == ((), {})
    back = group("on-demand", 1)
    again = turn(10, listed, back, lost.memory, ELEVATED, taken=frozenset(SPOT[:1]))
    assert sum(loss.count for loss in again.memory.risk.losses) == 1


# --- an operator's desired capacity -----------------------------------------------------------


def test_an_operators_desired_is_not_undone_after_elevated_risk() -> None:
    unsized = replace(ELEVATED, sizing=SizingPolicy(enabled=False))
    memory = _after_elevated_risk(unsized)
    stale = CapacityRequest(at=at(-7200), need=4, spare=1)
    raised = members(*SPOT[:5], desired=5)
    for minute in range(5):
        decision = turn(9000 + 60 * minute, raised, NONE, memory, unsized, sized=stale)
        assert (decision.spot.target, decision.spot_desired, decision.spot_ends) == (5, 5, ())
        memory = decision.memory


def _after_elevated_risk(of: Fleet) -> AvailabilityMemory:
    lost = turn(0, members(*SPOT[:3]), NONE, SETTLED, of)
    assert lost.spot_desired == 5
    held = turn(120, members(*SPOT[:5], desired=5), NONE, lost.memory, of)
    over = turn(3600, members(*SPOT[:5], desired=5), NONE, held.memory, of)
    assert len(over.spot_ends) == 1
    return turn(3700, members(*SPOT[:4]), NONE, over.memory, of).memory


@pytest.mark.parametrize("need", [3, 4, 5])
def test_no_request_to_the_spot_group_exceeds_its_bound(need: int) -> None:
    bounded = replace(fleet(spot_max=4), availability=ELEVATED.availability)
    before = AvailabilityMemory(need=need, spot_seen=need, seen_at=at(-60), in_service=need)
    lost = turn(0, members(*SPOT[: need - 1], desired=need), NONE, before, bounded)
    assert lost.spot_desired <= max(need, 4)


# --- both short -------------------------------------------------------------------------------


def test_on_demand_is_tried_again_after_1_2_4_to_15_minutes_while_both_are_short() -> None:
    dry = (failure(FailureClass.CAPACITY),)
    memory, desired, tries = SETTLED, 1, list[int]()
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
        # The desired capacity is not raised, so each turn needs the request again.
        memory = found.memory
    assert tries == [1, 3, 7, 15, 30]


# --- a need that grows while spot is dry ------------------------------------------------------


def test_a_launch_that_failed_before_the_increase_was_seen_counts_against_it() -> None:
    before = turn(0, members(*SPOT[:4]), NONE, SETTLED).memory
    refused = (failure(FailureClass.CAPACITY, 55),)
    grown = turn(60, members(*SPOT[:4], desired=7), NONE, before, spot_failures=refused)
    assert grown.on_demand_desired == 3


# --- A warning may be lost in a burst of them: a few more of the pool are taken for warned ---


POOL = ids("a", 20)
WARM = fleet(availability=AvailabilityPolicy(on_demand_warm=True))


def one_pool(serving: int) -> Group:
    return group("spot", serving, instances(POOL[:serving]))


@pytest.mark.parametrize(
    ("warned", "others", "allowance"), [(0, 9, 0), (1, 9, 1), (8, 9, 2), (8, 1, 1)]
)
def test_the_allowance_is_a_share_of_the_warned_and_no_more_than_the_others(
    warned: int, others: int, allowance: int
) -> None:
    gone, spot_group = dict.fromkeys(POOL[:warned], at(0)), one_pool(warned + others)
    bursts = turn(0, spot_group, NONE, of=WARM, warned=gone).memory.risk.warning_bursts
    assert lost_warnings(bursts, spot_group, gone.keys(), 0.15) == allowance


# --- the optional policy of elevated risk ---


POLICY = AvailabilityPolicy(elevated_risk_s=1800)


def risky_turn(
    seconds: float,
    spot: Group,
    on_demand: Group,
    memory: AvailabilityMemory | None = None,
    policy: AvailabilityPolicy = POLICY,
    **more: object,
) -> Turn:
    return builders.turn(seconds, spot, on_demand, memory, fleet(availability=policy), **more)


def test_without_the_policy_nothing_is_held_and_spares_of_before_are_released() -> None:
    _, memory = whole()
    spot = group("spot", 4, instances(SPOT[:3]))
    lost = risky_turn(0, spot, NONE, memory, AvailabilityPolicy())
    assert (lost.spot_desired, lost.on_demand_desired) == (4, 1)
    held = risky_turn(120, group("spot", 5, instances(SPOT[:5])), NONE, lost_one())
    off = risky_turn(
        180, group("spot", 5, instances(SPOT[:5])), NONE, held.memory, AvailabilityPolicy()
    )
    assert (off.spot.target, len(off.spot_ends)) == (4, 1)


def lost_one() -> AvailabilityMemory:
    """A memory in which one of four spot instances has just been lost without a warning."""
    _, memory = whole()
    return risky_turn(
        0, group("spot", 4, instances(SPOT[:3])), group("on-demand", 0), memory
    ).memory


def test_after_a_loss_without_warning_a_spare_is_requested_of_spot_then_of_on_demand() -> None:
    _, memory = whole()
    three = instances(SPOT[:3])
    lost = risky_turn(0, group("spot", 4, three), NONE, memory)
    assert (lost.spot_desired, lost.on_demand_desired) == (5, 1)
    refused = risky_turn(60, group("spot", 5, three), group("on-demand", 1), lost.memory)
    assert (refused.spot.target, refused.spot_desired, refused.on_demand_desired) == (4, 5, 2)


@pytest.mark.parametrize(
    ("count", "need", "spares", "heavy"),
    [(1, 3, 1, 0), (2, 3, 1, 1), (1, 2, 1, 0), (1, 1, 0, 1), (7, 16, 1, 0), (8, 16, 1, 1)],
)
def test_a_loss_of_half_the_need_that_no_spare_covers_is_heavy(
    count: int, need: int, spares: int, heavy: int
) -> None:
    assert heavy_losses((Loss(at=at(0), count=count),), need, spares) == heavy


@pytest.mark.parametrize(("let_go", "losses"), [(SPOT[3:4], 0), ((), 1)])
def test_a_requested_end_makes_no_elevated_risk(let_go: Sequence[str], losses: int) -> None:
    """An instance refresh, or somebody who ended it in the group."""
    _, memory = whole()
    three = group("spot", 4, instances(SPOT[:3], (), SPOT[3:4]))
    gone = risky_turn(0, three, group("on-demand", 0), memory, let_go=frozenset(let_go))
    assert sum(loss.count for loss in gone.memory.risk.losses) == losses
    assert gone.on_demand_desired == 1


def test_backfill_stays_longer_in_elevated_risk_unless_on_demand_is_warm() -> None:
    spot = group("spot", 5, instances(SPOT[:5]))
    on_demand = group("on-demand", 2, instances(BACK[:2]))
    served = risky_turn(120, spot, on_demand, lost_one())
    still = risky_turn(420, spot, on_demand, served.memory)
    assert risky_turn(719, spot, on_demand, still.memory).action is Action.HOLD
    assert risky_turn(720, spot, on_demand, still.memory).action is Action.RELEASE
    warm = replace(POLICY, on_demand_warm=True)
    assert risky_turn(150, spot, on_demand, served.memory, warm).action is Action.RELEASE
