"""Who is warned stops counting, drains, is replaced and, where AWS leaves it running, ended."""

from dataclasses import replace

import pytest

from spotkeeper.domain.availability.actions import Unmark
from spotkeeper.domain.interruption import Interruption, InterruptionKind, risk_begins
from spotkeeper.domain.settings.availability import AvailabilityPolicy, RebalanceMeaning
from tests.builders import at, fleet, group, ids, instances, turn
from tests.unit.availability.wholes import BACK, SPOT, STEADY

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


def test_a_scheduled_change_still_counts_when_it_comes() -> None:
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
def test_what_is_told_later_of_an_instance_goes_before_what_was_told(
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


def test_an_event_that_comes_late_takes_nothing_back() -> None:
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


def test_an_instance_whose_detaching_failed_is_not_ended() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    survived = turn(960, spot, group("on-demand", 1, instances(BACK[:1])), warned.memory)
    assert (survived.terminate, survived.memory.detached) == ((), {})


@pytest.mark.parametrize(("meaning", "early"), [("at_risk", 1), ("ignore", 4)])
def test_no_more_run_outside_of_the_group_than_it_has(meaning: str, early: int) -> None:
    """A recommended instance runs on for minutes, and its replacement is recommended next."""
    spot, on_demand = group("spot", 4, instances(SPOT[:4])), group("on-demand", 4)
    memory = replace(STEADY, detached={i: at(-60) for i in ids("c", 3)})
    of = fleet(availability=AvailabilityPolicy(rebalance=RebalanceMeaning(meaning)))
    decision = turn(0, spot, on_demand, memory, of, warned=dict.fromkeys(SPOT[:4], at(0)))
    assert decision.detach == tuple(SPOT[:early])
