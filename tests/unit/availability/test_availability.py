"""The stories that the availability rules tell, one situation after the other."""

from dataclasses import replace

import pytest

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Group, Observation
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import at, failure, fleet, group, ids, instances, turn
from tests.unit.availability.wholes import BACK, SPOT, STEADY, whole


def test_an_increase_that_spot_refuses_is_backfilled_at_once() -> None:
    spot = group("spot", 8, instances(SPOT[:4]))
    asked = turn(0, spot, group("on-demand", 0), STEADY)
    refused = (failure(FailureClass.CAPACITY, 10),)
    decision = turn(60, spot, group("on-demand", 0), asked.memory, spot_failures=refused)
    assert decision.on_demand_desired == 4
    assert "capacity: refused" in decision.reason


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


def test_capacity_among_the_failures_lifts_the_configuration_cap() -> None:
    failures = (failure(FailureClass.CONFIGURATION), failure(FailureClass.CAPACITY))
    decision = turn(0, group("spot", 4), group("on-demand", 0), STEADY, spot_failures=failures)
    assert decision.on_demand_desired == 4


def test_a_configuration_failure_does_not_take_away_what_is_backfilled() -> None:
    on_demand = group("on-demand", 4, instances(BACK[:4]))
    failures = (failure(FailureClass.CONFIGURATION),)
    decision = turn(0, group("spot", 4), on_demand, STEADY, spot_failures=failures)
    assert (decision.action, decision.on_demand_desired) == (Action.HOLD, 4)


def test_a_suspended_launch_process_is_a_configuration_failure() -> None:
    spot = group("spot", 4)
    suspended = replace(spot, suspended=frozenset({"Launch", "AZRebalance"}))
    decision = turn(0, suspended, group("on-demand", 0), AvailabilityMemory())
    assert (decision.on_demand_desired, decision.alarms) == (2, ("configuration",))


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


def test_a_warned_loss_during_the_settle_time_starts_it_again() -> None:
    on_demand = group("on-demand", 1, instances(BACK[:1]))
    spot = group("spot", 4, instances(SPOT[:4]))
    served = turn(60, spot, on_demand, STEADY)
    warned = turn(80, spot, on_demand, served.memory, warned={SPOT[3]: at(80)})
    back = turn(100, group("spot", 4, instances([*SPOT[:3], SPOT[4]])), on_demand, warned.memory)
    replaced = group("spot", 4, instances([*SPOT[:3], SPOT[4]]))
    assert turn(129, replaced, on_demand, back.memory).action is Action.HOLD
    assert turn(130, replaced, on_demand, back.memory).action is Action.RELEASE


def test_a_warm_group_stands_in_for_what_is_only_launching() -> None:
    warm = fleet(availability=AvailabilityPolicy(on_demand_warm=True))
    _, memory = whole()
    replacing = group("spot", 4, instances(SPOT[:3], SPOT[4:5]))
    decision = turn(0, replacing, group("on-demand", 0), memory, warm)
    assert decision.on_demand_desired == 1
    growing = group("spot", 5, instances(SPOT[:4], SPOT[4:5]))
    assert turn(0, growing, group("on-demand", 0), memory, warm).action is Action.HOLD


def test_a_failure_of_an_earlier_gap_does_not_lift_the_configuration_cap() -> None:
    whole_again = turn(0, group("spot", 4, instances(SPOT[:4])), group("on-demand", 0), STEADY)
    failures = (failure(FailureClass.CAPACITY, 10), failure(FailureClass.CONFIGURATION, 200))
    gap = group("spot", 4)
    decision = turn(200, gap, group("on-demand", 0), whole_again.memory, spot_failures=failures)
    assert (decision.on_demand_desired, decision.rule) == (2, "configuration cap")


def test_one_that_launches_for_ever_does_not_hide_what_spot_refuses() -> None:
    """An increase is filled for as long as instances come; one that never serves is one."""
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
    """Each instance that comes within the grace shows that spot gives; forty take an hour so."""
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
def test_who_is_late_caps_what_is_filled_in_for_the_late_alone(
    late: int, serving: int, wanted: int
) -> None:
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
    """Nothing more is asked for: AWS tries again to launch the one of two that was killed."""
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


def test_az_rebalance_is_suspended_where_the_policy_says_so() -> None:
    bare = Group(name="spot", desired=0, minimum=0, maximum=9)
    assert turn(0, bare, group("on-demand", 0)).suspend == ("spot",)
    off = fleet(availability=AvailabilityPolicy(suspend_az_rebalance=False))
    assert turn(0, bare, group("on-demand", 0), None, off).suspend == ()


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        Observation(
            seen_at=at(0).replace(tzinfo=None), spot=group("spot", 0), on_demand=group("back", 0)
        )
