"""The rules of availability by example, one situation after the other."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spotkeeper.domain.availability.memory import AvailabilityMemory, Level
from spotkeeper.domain.availability.risk import lost_warnings
from spotkeeper.domain.decision import Action, RequestKind
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Group, Instance, Phase
from spotkeeper.domain.interruption import SCHEDULED_LEAD
from spotkeeper.domain.settings.availability import AvailabilityPolicy, RebalanceMeaning
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.domain.spread import Share
from tests.builders import Turn, at, failure, fleet, group, ids, instances, turn

SPOT, BACK = ids("a", 40), ids("b", 12)
STEADY = AvailabilityMemory(need=4, spot_seen=4, seen_at=at(-60))
KEEP = fleet(availability=AvailabilityPolicy(early_replacement=False))
WARM = fleet(availability=AvailabilityPolicy(on_demand_warm=True))
DRY, BROKEN = FailureClass.CAPACITY, FailureClass.CONFIGURATION


def spot(serving: int = 4, *, desired: int = 4, launching: Sequence[str] = ()) -> Group:
    return group("spot", desired, instances(SPOT[:serving], launching))


def back(serving: int = 0, *, desired: int | None = None, launching: int = 0) -> Group:
    pending = BACK[serving : serving + launching]
    every = serving + launching if desired is None else desired
    return group("on-demand", every, instances(BACK[:serving], pending))


NONE = back()


class Turns:
    """Turns of one fleet; each starts with the memory of the one before."""

    def __init__(self, memory: AvailabilityMemory = STEADY, of: Fleet | None = None) -> None:
        self.memory, self.of = memory, of or fleet()

    def __call__(self, seconds: float, spot: Group, back: Group = NONE, **more: object) -> Turn:
        taken = turn(seconds, spot, back, self.memory, self.of, **more)
        self.memory = taken.memory
        return taken


def settled(of: Fleet | None = None) -> Turns:
    """The turns of a fleet whose four spot instances have served for an hour."""
    take = Turns(AvailabilityMemory(), of)
    take(-3600, spot())
    take(-60, spot())
    return take


# --- Backfill and its limits ---


@pytest.mark.parametrize("failure_class", FailureClass)
def test_a_failure_class_decides_how_far_the_backfill_goes(failure_class: FailureClass) -> None:
    wanted: dict[FailureClass, tuple[int, tuple[str, ...]]] = {
        FailureClass.CAPACITY: (4, ()),
        FailureClass.PRICE: (4, ()),
        FailureClass.QUOTA: (4, ("quota",)),
        FailureClass.CONFIGURATION: (2, ("configuration",)),
        FailureClass.PERMISSION: (2, ("permission",)),
        FailureClass.BOOTSTRAP: (2, ("bootstrap",)),
        # As without a failure.
        FailureClass.THROTTLE: (4, ()),
    }
    decision = Turns()(0, spot(0), spot_failures=(failure(failure_class),))
    assert (decision.on_demand_desired, decision.alarms) == wanted[failure_class]


def test_the_backfill_stays_within_the_operators_and_the_groups_maximum() -> None:
    tight = Turns(of=fleet(on_demand_max=3))
    decision = tight(0, spot(0, desired=8), spot_failures=(failure(DRY),))
    assert (decision.on_demand_desired, decision.rule) == (3, "on-demand maximum")
    small = replace(back(), maximum=1)
    assert Turns()(0, spot(0), small).on_demand_desired == 1


@pytest.mark.parametrize(("serving", "wanted"), [(2, 3), (3, 2), (4, 1)])
def test_on_demand_at_risk_stands_in_for_nobody(serving: int, wanted: int) -> None:
    """While spot is short, a warned on-demand instance is filled as well; and only then."""
    take = Turns(of=KEEP)
    here = back(4 - serving) if serving < 4 else back(1)
    take(0, spot(serving), here)
    warned = dict.fromkeys(BACK[:1], at(30))
    decision = take(60, spot(serving), here, warned=warned)
    assert decision.on_demand_desired == wanted


@pytest.mark.parametrize(
    ("times", "version", "early"),
    [("", "7", [1, 0]), ("11:59-13:00", "7", [0, 0]), ("", "8", [0, 1])],
)
def test_no_warned_instance_is_replaced_early_in_times_of_maintenance_or_as_a_canary_begins(
    times: str, version: str, early: list[int]
) -> None:
    take, (canary,) = Turns(STEADY, replace(fleet(), maintenance=times)), instances((), SPOT[4:5])
    old = (replace(one, template="7") for one in instances(SPOT[:4]))
    there = (*old, replace(canary, template=version))
    first = take(0, group("spot", 4, there), warned={SPOT[0]: at(-5)})
    left = tuple(i for i in there if i.instance_id not in first.detach)
    then = take(20, group("spot", 4, left))
    assert [len(one.detach) for one in (first, then)] == early


def test_silent_workers_leave_a_gap_like_a_lost_instance() -> None:
    assert Turns()(0, spot(), silent=frozenset(SPOT[:1])).on_demand_desired == 1


def test_backfill_goes_only_after_spot_has_settled_and_that_of_a_share_at_once() -> None:
    take, given = Turns(), {"share": Share(cover=4, written=at(0))}
    take(0, spot(3), back(1))
    for seconds in (60, 89):
        held = take(seconds, spot(), back(1))
        assert (held.action, held.rule) == (Action.HOLD, "make before break")
    assert Turns(take.memory)(89, spot(), back(1), **given).ends == (BACK[0],)
    released = take(90, spot(), back(1))
    assert (released.action, released.ends) == (Action.RELEASE, (BACK[0],))


def test_a_failure_of_an_earlier_gap_is_forgotten_and_does_not_lift_the_configuration_cap() -> None:
    take = Turns()
    take(0, spot())
    failures = (failure(DRY, 10), failure(BROKEN, 200))
    decision = take(200, spot(0), spot_failures=failures)
    assert (decision.on_demand_desired, decision.rule) == (2, "configuration cap")
    assert decision.memory.spot_failures == failures[1:]
    assert take(260, spot(), spot_failures=failures).memory.spot_failures == ()


def test_a_gap_does_not_forget_why_it_is_there() -> None:
    """AWS waits longer between its tries than failures are read back."""
    take = Turns()
    take(0, spot(0), spot_failures=(failure(BROKEN, 0),))
    later = take(1800, spot(0), back(2))
    assert (later.action, later.on_demand_desired) == (Action.HOLD, 2)
    assert "configuration" in later.alarms
    assert take(1860, spot(0), back(2), spot_failures=(failure(DRY, 1850),)).on_demand_desired == 4
    assert take(1920, spot(), back(2)).memory.spot_failures == ()


@pytest.mark.parametrize(
    ("failed_s", "now_s", "wanted"),
    [([0], 10, 4), ([0, 5], 10, 4), ([0, 5, 10], 10, 2), ([0], 590, 4), ([0], 600, 2)],
)
@pytest.mark.parametrize("dry", [False, True])
def test_an_unknown_text_rings_and_is_capped_after_three_launches_or_ten_minutes(
    failed_s: list[int], now_s: int, wanted: int, *, dry: bool
) -> None:
    """Beside a lack of capacity, which may explain the gap as well, it rings and caps nothing."""
    take, told = Turns(), "the moon is in the wrong house"
    unknown = [replace(failure(DRY, s, told), known=False) for s in failed_s]
    take(-60, spot())
    take(failed_s[-1], spot(3), spot_failures=tuple(unknown))
    known = (failure(DRY, now_s),) if dry else ()
    found = take(now_s, spot(0), spot_failures=(*unknown, *known))
    rings = wanted == 2
    assert found.on_demand_desired == (4 if dry else wanted)
    assert ("configuration" in found.alarms) is rings
    assert (f"unknown text, handled as configuration: {told}" in found.reason) is rings


def test_a_launch_that_succeeds_ends_the_count_of_unknown_texts() -> None:
    take = Turns()
    unknown = [replace(failure(DRY, s, "moon"), known=False) for s in (0, 5, 65)]
    take(10, spot(3), spot_failures=tuple(unknown[:2]))
    take(20, spot(2, launching=SPOT[4:5]))
    again = take(70, spot(2, launching=SPOT[4:5]), spot_failures=tuple(unknown))
    assert again.alarms == ("configuration",)
    served = group("spot", 4, instances((*SPOT[:2], SPOT[4])))
    assert take(80, served, spot_failures=tuple(unknown)).alarms == ()
    assert take(90, spot()).memory.unexplained == ()


def test_a_launch_that_failed_before_the_increase_was_seen_counts_against_it() -> None:
    take = Turns()
    take(0, spot())
    assert take(60, spot(desired=7), spot_failures=(failure(DRY, 55),)).on_demand_desired == 3


def test_an_instance_that_never_serves_hides_no_refusal_of_spot() -> None:
    """An increase counts as filling while instances arrive; one that never serves counts once."""
    take, wanted = Turns(), dict[int, int]()
    take(0, spot(desired=10))
    for minute in range(1, 15):
        seen = spot(desired=10, launching=SPOT[4:5])
        refused = (failure(DRY, 60 * minute),)
        wanted[minute] = take(60 * minute, seen, spot_failures=refused).on_demand_desired
    assert list(wanted.values()) == [0] * 2 + [5] * 8 + [6] * 4


def test_a_large_increase_is_not_waited_for_as_long_as_spot_trickles() -> None:
    """Each arrival within the grace shows that spot delivers; at this rate forty take an hour."""
    take, wanted = Turns(AvailabilityMemory(need=4)), dict[int, int]()
    take(0, spot(desired=40))
    for minute in range(1, 15):
        seen = spot(3 + minute, desired=40, launching=SPOT[3 + minute : 4 + minute])
        refused = (failure(DRY, 60 * minute),)
        wanted[minute] = take(60 * minute, seen, spot_failures=refused).on_demand_desired
    assert (wanted[9], wanted[10]) == (0, 40 - 14)


@pytest.mark.parametrize("state", ["silent", "warned", "taken"])
def test_an_instance_that_never_served_keeps_its_cap_in_every_other_state(state: str) -> None:
    """It waits for the replacement budget, is warned, or is gone while its group still lists it."""
    since, never = dict.fromkeys(SPOT[:6], at(-900)), frozenset(SPOT[:6])
    take = Turns(replace(settled().memory, need=10, launching_since=since), KEEP)
    also: dict[str, Any] = {state: dict.fromkeys(never, at(-60)) if state == "warned" else never}
    decision = take(0, spot(10, desired=10), unreported=since, **also)
    assert (decision.spot.late, decision.on_demand_desired) == (6, 2)


def test_a_loss_without_capacity_lifts_the_cap_of_no_instance_that_never_served() -> None:
    since = dict.fromkeys(SPOT[:6], at(-900))
    take = Turns(replace(settled().memory, need=10, launching_since=since))
    dry = (failure(DRY),)
    assert take(0, spot(9, desired=10), unreported=since, spot_failures=dry).on_demand_desired == 3


def test_an_instance_that_was_taken_before_it_served_caps_no_backfill_of_its_heir() -> None:
    old = dict.fromkeys(SPOT[:4], at(-900))
    take = Turns(replace(settled().memory, launching_since=old, spot_launching=tuple(SPOT[:4])))
    taken = take(0, spot(0, launching=SPOT[4:8]), spot_failures=(failure(DRY),))
    assert (taken.spot.late, taken.on_demand_desired) == (4, 4)
    assert Turns(take.memory)(900, spot(0, launching=SPOT[4:8])).on_demand_desired == 2


def test_idle_instances_end_first_and_busy_ones_get_time() -> None:
    take, busy = settled(), {BACK[0]: 0.9, BACK[1]: 0.0}
    assert settled()(0, spot(), back(2), busy_shares=busy).ends == (BACK[1],)
    for seconds in (60, 179):
        waiting = take(seconds, spot(), back(1), busy_shares=busy)
        assert (waiting.action, waiting.rule) == (Action.HOLD, "busy")
    assert take(180, spot(), back(1), busy_shares=busy).ends == (BACK[0],)


def test_a_backfill_that_is_lost_and_refused_is_both_short() -> None:
    """Nothing more is requested: AWS tries again to launch the one of two that was lost."""
    refusals = {
        "spot_failures": (failure(DRY),),
        "on_demand_failures": (failure(FailureClass.QUOTA),),
    }
    found = Turns()(0, spot(2), back(1, desired=2), **refusals)
    assert (found.action, found.rule) == (Action.HOLD, "both-short")
    assert "both groups are short: 1 on-demand instance is missing" in found.reason
    assert "(spot, capacity: refused; on-demand, quota: refused)" in found.reason
    assert "both-short" in found.alarms


def test_what_failed_before_on_demand_was_last_needed_does_not_make_both_short() -> None:
    take, failures = Turns(), (failure(FailureClass.BOOTSTRAP, -120),)
    take(0, spot(), on_demand_failures=failures)
    refused = {"spot_failures": (failure(DRY, 100),), "on_demand_failures": failures}
    again = take(120, spot(2), back(1, desired=2), **refused)
    assert "both-short" not in again.alarms
    assert again.memory.on_demand_failures == ()


def test_on_demand_is_tried_again_after_1_2_4_to_15_minutes_while_both_are_short() -> None:
    take, tries = Turns(), list[int]()
    for minute in range(40):
        dry = (failure(DRY, 60 * minute),)
        # The desired capacity is not raised, so each turn needs the request again.
        short = spot(0, desired=30), back(0, desired=1)
        found = take(60 * minute, *short, spot_failures=dry, on_demand_failures=dry)
        if found.action is Action.BACKFILL:
            tries.append(minute)
    assert tries == [1, 3, 7, 15, 30]


# --- A warned instance stops counting, drains, and is replaced ---


def test_an_instance_that_survives_its_warning_counts_again() -> None:
    take = Turns()
    take(0, spot(), warned={SPOT[0]: at(0)})
    later = take(900, spot(), back(1))
    assert later.of(RequestKind.STOP_DRAINING) == (SPOT[0],)
    assert (later.spot.serving, later.memory.at_risk) == (3, {})
    again = take(910, spot(), back(1))
    assert (again.spot.serving, again.of(RequestKind.STOP_DRAINING)) == (4, ())


def test_an_instance_does_not_count_again_when_its_scheduled_change_is_due() -> None:
    """AWS stops the instance at that time or soon after."""
    take = Turns(of=KEEP)
    take(0, spot(), warned={SPOT[0]: at(3600) - SCHEDULED_LEAD})
    for seconds in (3600, 3660, 3840):
        seen = take(seconds, spot(), back(1))
        assert (seen.spot.serving, seen.of(RequestKind.STOP_DRAINING)) == (3, ())


@pytest.mark.parametrize(
    ("first_s", "second_at_s", "second_s", "turn_at_s", "serving"),
    [
        pytest.param(3600, 60, 60, 61, 3, id="a change in an hour, and AWS takes it now"),
        pytest.param(0, 840, 840, 930, 3, id="a recommendation, and a warning 14 minutes later"),
        pytest.param(3600, 60, 36_000, 3600, 4, id="a change that was put off for nine hours"),
        pytest.param(3600, 60, 36_000, 36_060, 3, id="nine hours later"),
    ],
)
def test_the_latest_warning_of_an_instance_counts(
    first_s: int, second_at_s: int, second_s: int, turn_at_s: int, serving: int
) -> None:
    take = Turns(of=KEEP)
    take(0, spot(), warned={SPOT[0]: at(first_s)})
    take(second_at_s, spot(), warned={SPOT[0]: at(second_s)})
    assert take(turn_at_s, spot()).spot.serving == serving


@pytest.mark.parametrize("late_s", [0, 3600])
def test_a_delayed_event_changes_no_warning(late_s: int) -> None:
    take = Turns(of=KEEP)
    take(900, spot(), warned={SPOT[0]: at(890)})
    take(930, spot(), warned={SPOT[0]: at(late_s)})
    assert take.memory.at_risk == {SPOT[0]: at(890)}


def test_a_detached_instance_that_aws_took_is_looked_for_and_not_ended_again() -> None:
    take = Turns()
    take(0, spot(), warned={SPOT[0]: at(0)})
    after = group("spot", 4, instances(SPOT[1:4], SPOT[4:5]))
    unknown = take(600, after, back(0, desired=1))
    assert (unknown.terminate, set(unknown.memory.detached)) == ((), {SPOT[0]})
    ended = take(660, after, back(0, desired=1), running=frozenset())
    assert (ended.terminate, ended.memory.detached) == ((), {})


@pytest.mark.parametrize(("meaning", "early"), [("at_risk", 1), ("ignore", 4)])
def test_no_more_run_outside_of_the_group_than_it_has(meaning: str, early: int) -> None:
    """A recommended instance runs on for minutes, and its replacement is recommended next."""
    of = fleet(availability=AvailabilityPolicy(rebalance=RebalanceMeaning(meaning)))
    take = Turns(replace(STEADY, detached={i: at(-60) for i in ids("c", 3)}), of)
    decision = take(0, spot(), back(0, desired=4), warned=dict.fromkeys(SPOT[:4], at(0)))
    assert decision.detach == tuple(SPOT[:early])


@pytest.mark.parametrize(
    ("warned", "others", "allowance"), [(0, 9, 0), (1, 9, 1), (8, 9, 2), (8, 1, 1)]
)
def test_the_allowance_for_lost_warnings_is_a_share_of_the_warned_within_their_pool(
    warned: int, others: int, allowance: int
) -> None:
    gone = dict.fromkeys(SPOT[:warned], at(0))
    pool = spot(warned + others, desired=warned + others)
    bursts = Turns(AvailabilityMemory(), WARM)(0, pool, warned=gone).memory.risk.warning_bursts
    assert lost_warnings(bursts, pool, gone.keys(), 0.15) == allowance


# --- A fleet that is new, or whose memory was lost ---


def test_a_running_on_demand_fleet_is_adopted_and_not_ended() -> None:
    take = Turns(AvailabilityMemory())
    for minute in range(30):
        held = take(60 * minute, spot(0, desired=0), back(10))
        assert (held.action, held.rule, held.ends) == (Action.HOLD, "adopting", ())
        assert held.alarms == (("adopting",) if minute >= 10 else ())


@pytest.mark.parametrize(
    ("sizing", "logged", "seconds", "ended"),
    [
        pytest.param(True, True, 3600, 0, id="as many serve, which may not be enough"),
        pytest.param(True, False, 599, 0, id="search logs may still arrive"),
        pytest.param(True, False, 600, 4, id="no worker sends search logs: an operator sizes"),
        pytest.param(False, True, 60, 4, id="an operator sizes"),
    ],
)
def test_on_demand_that_an_unknown_load_may_need_stays(
    sizing: bool, logged: bool, seconds: float, ended: int
) -> None:
    """Four on spot and four on demand may serve a load of eight."""
    take = Turns(AvailabilityMemory(), fleet(sizing=SizingPolicy(enabled=sizing)))
    for second in (0, *range(60, 540, 60)):
        take(second, spot(), back(4), load_known=False, logged=logged)
    assert len(take(seconds, spot(), back(4), load_known=False, logged=logged).ends) == ended


@pytest.mark.parametrize(
    ("facts", "awaited"),
    [
        ({}, "until workers send their search logs, or lower on-demand"),
        ({"logged": True, "logs_missing": True}, "until workers send their search logs again"),
        ({"logged": True, "logs_known_for": timedelta(seconds=200)},
         "there are 5 minutes of logs without a gap (3 so far; 12:03:40 at the earliest)"),
        ({"logged": True}, "5 minutes of logs without a gap (0 so far; 12:07:00 at the"),
        ({"logged": True, "logs_known_for": timedelta(minutes=9)}, "the health controller's next"),
    ],
)  # fmt: skip
def test_a_fleet_that_waits_for_its_load_says_for_what_and_until_when(
    facts: dict[str, Any], awaited: str
) -> None:
    take = Turns(AvailabilityMemory(), fleet(sizing=SizingPolicy(enabled=True)))
    for second in (0, 60, 120):
        held = take(second, spot(), back(4), load_known=False, **facts)
    assert awaited in held.reason


def test_no_on_demand_is_released_while_the_health_memory_is_damaged() -> None:
    """Instances in service may never have served."""
    take = Turns()
    for minute in range(10):
        damaged = {"load_known": False, "logged": True, "health_lost": minute == 1}
        held = take(60 * minute, spot(), back(4), **damaged)
        assert held.ends == ()
        assert ("runs and can read its memory" in held.reason) == (minute == 1)
    few = Turns(take.memory)(600, spot(3, desired=3), back(4), size_limited=True)
    assert few.rule == "adopting"
    assert "until the spot group has grown to what the load needs" in few.reason
    assert len(take(600, spot(), back(4), size_limited=False).ends) == 4


@pytest.mark.parametrize(("spot_name", "back_name"), [("other", "on-demand"), ("spot", "other")])
def test_other_groups_in_the_document_are_adopted(spot_name: str, back_name: str) -> None:
    take = Turns()
    take(0, spot())
    take(3600, spot())
    others = group(spot_name, 0), replace(back(10), name=back_name)
    moved = take(3660, *others)
    assert (moved.rule, moved.ends) == ("adopting", ())


def test_an_instance_detached_from_a_previous_group_is_ended() -> None:
    take = Turns()
    take(0, spot(), warned={SPOT[0]: at(0)})
    take(60, group("other", 0))
    assert take(660, group("other", 0), running=frozenset(SPOT[:1])).terminate == (SPOT[0],)


@pytest.mark.parametrize(("paused_s", "rule"), [(120, "release"), (7200, "adopting")])
def test_a_fleet_without_turns_for_long_is_adopted_again(paused_s: int, rule: str) -> None:
    """Paused or observed meanwhile, others may have moved its groups."""
    take = Turns()
    take(0, spot())
    take(60, spot())
    assert take(60 + paused_s, spot(0, desired=0), back(10)).rule == rule


def test_adopted_on_demand_that_is_needed_raises_no_alarm() -> None:
    """After a pause on-demand may stand in as before: nobody has to raise or lower anything."""
    take = Turns(AvailabilityMemory())
    for minute in range(30):
        held = take(60 * minute, spot(1), back(3))
        assert (held.action, held.alarms) == (Action.HOLD, ())


# --- Groups and instances as AWS really shows them ---


def test_launches_that_aws_suspended_are_missing_and_are_resumed_once() -> None:
    stopped = frozenset({"AZRebalance", "Launch"})
    by_a_person = replace(spot(0), suspended=stopped)
    alone = Turns()(0, by_a_person)
    assert (alone.on_demand_desired, alone.alarms, alone.of(RequestKind.RESUME_LAUNCH)) == (
        2, ("configuration",), (),
    )  # fmt: skip
    take, by_aws = Turns(), replace(by_a_person, suspended_by_aws=frozenset({"Launch"}))
    first = take(0, by_aws)
    assert (first.on_demand_desired, first.alarms) == (4, ())
    assert first.of(RequestKind.RESUME_LAUNCH) == ("spot",)
    assert take(60, by_aws).of(RequestKind.RESUME_LAUNCH) == ()
    assert take(3660, by_aws).of(RequestKind.RESUME_LAUNCH)


def test_pending_instances_are_waited_for_and_not_ended() -> None:
    take = settled()
    held = take(0, spot(), replace(back(launching=2), minimum=1))
    assert (held.action, held.rule, held.ends) == (Action.HOLD, "launching", ())
    assert take(60, spot(), replace(back(2), minimum=1)).ends == (BACK[0],)


def test_pending_instances_are_given_up_together_if_none_is_needed() -> None:
    """Launches that fail again and again would be paid for until one succeeds."""
    decision = settled()(0, spot(), back(launching=2))
    assert (decision.rule, decision.on_demand_desired, decision.ends) == ("release", 0, ())
    # One that does not serve goes before one that launches, and before one that serves.
    dead = settled()(0, spot(), back(2, launching=1), silent=frozenset(BACK[1:2]))
    assert dead.ends == (BACK[1], BACK[0])
    # A serving instance is not ended in place of a pending one.
    mixed = settled()(0, spot(), back(1, launching=1, desired=3))
    assert (mixed.on_demand_desired, mixed.ends) == (2, (BACK[0],))


@pytest.mark.parametrize("period_s", [120, 300, 540])
def test_a_boot_loop_is_not_launching_for_ever(period_s: int) -> None:
    take, shortfalls = Turns(), list[int]()
    for minute in range(60):
        names = [f"i-{minute * 60 // period_s:04x}{n:013x}" for n in range(4)]
        shortfalls.append(take(60 * minute, spot(0, launching=names)).shortfall)
    short_at = shortfalls.index(4)
    assert short_at <= 10
    assert shortfalls == [0] * short_at + [4] * (60 - short_at)


def test_an_hour_without_capacity_is_no_time_of_launching() -> None:
    take = Turns()
    take(0, spot(0, launching=SPOT[:4]))
    for minute in range(1, 60):
        take(60 * minute, spot(0, desired=4), back(4), spot_failures=(failure(DRY),))
    heirs = take(3600, spot(0, launching=SPOT[4:8]), back(4))
    assert (heirs.spot.late, heirs.spot.launching, heirs.alarms) == (0, 4, ())
    assert take(4200, spot(0, launching=SPOT[4:8]), back(4)).alarms == ("bootstrap",)


def test_in_service_without_a_log_while_requests_flow_is_launching() -> None:
    take, unreported = Turns(), dict.fromkeys(SPOT[:4], at(0))
    first = take(0, spot(), back(4), unreported=unreported)
    assert (first.spot.serving, first.spot.launching) == (0, 4)
    later = take(540, spot(), back(4), unreported=unreported)
    assert (later.ends, later.shortfall) == ((), 0)
    alone = Turns(take.memory)(600, spot(), unreported=unreported)
    assert (alone.on_demand_desired, alone.rule) == (2, "configuration cap")
    late = take(600, spot(), back(4), unreported=unreported)
    assert (late.spot.late, late.ends) == (4, ())
    assert "bootstrap" in late.alarms


def test_a_warm_fleet_waits_for_its_growth_until_it_is_known_to_serve() -> None:
    """The new instance launches, is unproven in service, would have reported by now, and serves."""
    take, new = Turns(of=WARM), {SPOT[4]: at(70)}
    take(0, spot())
    take(60, spot(desired=5))
    story: tuple[tuple[float, Group, dict[str, Any]], ...] = (
        (120, spot(desired=5, launching=SPOT[4:5]), {}),
        (240, spot(5, desired=5), {"unproven": new}),
        (300, spot(5, desired=5), {"unproven": new, "unreported": new}),
        (360, spot(5, desired=5), {"unproven": new, "unreported": new}),
        (420, spot(5, desired=5), {}),
    )
    for seconds, seen, more in story:
        assert take(seconds, seen, **more).on_demand_desired == 0
    lost = take(480, spot(4, desired=5, launching=SPOT[5:6]))
    assert lost.on_demand_desired == 1


def test_a_warm_fleet_fills_a_loss_while_its_growth_is_unproven() -> None:
    take, new = Turns(of=WARM), {SPOT[4]: at(70)}
    take(0, spot())
    take(60, spot(desired=5))
    take(120, spot(desired=5, launching=SPOT[4:5]))
    lost = group("spot", 5, instances(SPOT[1:5], SPOT[5:6]))
    assert take(240, lost, unproven=new).on_demand_desired == 1


@pytest.mark.parametrize("of", [fleet(), WARM])
def test_the_place_of_a_canary_is_covered_until_it_serves(of: Fleet) -> None:
    """AWS ends another instance once the canary is in service, and it may never serve."""

    def beside(serving: int, phase: Phase, desired: int = 4, also: int = 0) -> Group:
        launching = SPOT[serving : serving + also]
        old = [replace(i, template="7") for i in instances(SPOT[:serving], launching)]
        new = Instance(instance_id=SPOT[9], pool="us-east-1a/g5", phase=phase, template="8")
        return group("spot", desired, (*old, new))

    since = {SPOT[9]: at(180)}
    story: tuple[tuple[float, Group, dict[str, Any], int], ...] = (
        (60, beside(4, Phase.LAUNCHING), {}, 1),
        # One is being lost, and AWS ends another one.
        (90, beside(4, Phase.LAUNCHING), {"warned": {SPOT[3]: at(85)}}, 2),
        (180, beside(3, Phase.IN_SERVICE), {"unproven": since}, 1),
        # Another one is lost meanwhile: both places are covered.
        (210, beside(2, Phase.IN_SERVICE), {"unproven": since}, 2),
        (240, beside(3, Phase.IN_SERVICE), {"unreported": since}, 1),
        (300, beside(3, Phase.IN_SERVICE), {}, 0),
        # A larger load is waited for, but not what it launches beside.
        (390, beside(4, Phase.LAUNCHING, desired=5, also=1), {}, 1),
        # Rolled back, a successor begins, and AWS ends the canary whether that one serves or not.
        *[(seconds, beside(3, Phase.IN_SERVICE, also=1), {}, 1) for seconds in (420, 480, 540)],
    )
    take = settled(of)
    for seconds, seen, more, short in story:
        taken = take(seconds, seen, back(1), **more)
        assert taken.shortfall - taken.plan.assessment.risk.extra == short, seconds
        assert seconds < 420 or not taken.ends


def test_the_place_of_a_canary_on_demand_is_covered_too() -> None:
    """Once, however many have another version: what covers it may have that one, too."""
    old, new = (
        tuple(replace(i, template=version) for i in instances(members))
        for version, members in (("7", BACK[:2]), ("8", BACK[2:4]))
    )
    take, of = settled(), group("on-demand", 4, (*old, *new))
    tried = take(60, spot(0), of, unproven=dict.fromkeys(BACK[2:4], at(0)))
    assert (tried.shortfall, tried.on_demand_desired) == (5, 5)
    assert take(120, spot(0), of).shortfall == 4
    alone = take(180, spot(0), group("on-demand", 2, new), unproven=dict.fromkeys(BACK, at(0)))
    assert alone.shortfall == 4


def test_instances_without_logs_yet_are_neither_short_nor_a_reason_to_release() -> None:
    take, unproven = Turns(), dict.fromkeys(SPOT[:4], at(0))
    for minute in range(60):
        held = take(60 * minute, spot(), back(4), unproven=unproven)
        assert (held.spot.serving, held.spot.unproven, held.shortfall) == (0, 4, 0)
        assert (held.rule, held.ends) == ("make before break", ())
    take(3600, spot(), back(4))
    assert len(take(3630, spot(), back(4)).ends) == 4
    alone = Turns()(0, spot(), unproven=unproven)
    assert (alone.on_demand_desired, alone.alarms) == (0, ())


def test_a_dead_instance_that_its_group_still_lists_is_replaced() -> None:
    lost = Turns()(0, spot(), taken=frozenset(SPOT[:1]))
    assert (lost.spot.serving, lost.on_demand_desired) == (3, 1)
    assert (lost.detach, lost.drain, lost.memory.detached) == ((SPOT[0],), (), {})


@pytest.mark.parametrize("desired", [3, 5, 0])
def test_what_the_spot_group_should_have_is_the_need_at_once(desired: int) -> None:
    """An operator, a schedule or the health controller owns it: no turn of this one changes it."""
    take = settled()
    for minute in range(5):
        decision = take(60 * minute, spot(min(desired, 4), desired=desired))
        assert (decision.spot.target, decision.spot_desired) == (desired, desired)


def test_nothing_that_may_serve_is_ended_while_fewer_serve_than_are_needed() -> None:
    """More was backfilled than is short now, and most of it has not served yet."""
    levels = (Level(at=at(-600), serving=2),)
    take = Turns(AvailabilityMemory(need=7, spot_seen=7, seen_at=at(-60), levels=levels))
    few = take(0, spot(2, desired=7), back(7), unreported=dict.fromkeys(BACK[:6], at(-30)))
    assert (few.rule, few.ends) == ("launching", ())
    assert len(take(60, spot(2, desired=7), back(7)).ends) == 2
