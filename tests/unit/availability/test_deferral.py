"""A warned instance serves on: warm on-demand is requested just in time, and never too late."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability.memory import (
    AvailabilityMemory,
    DeferralMemory,
    RiskMemory,
    Start,
)
from spotkeeper.domain.availability.risk import watch_starts
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import Turn, at, failure, fleet, group, ids, instances, turn

POOL, BACK = ids("a", 8), ids("b", 16)
WARNED = POOL[0]
NONE = group("on-demand", 0)
LEFT = instances(POOL[1:4])
"""What is left of four when the first is detached, or gone."""


def warm(**settings: object) -> Fleet:
    """A fleet with a warm pool that trusts every notice; the margin is half a minute."""
    policy = AvailabilityPolicy(on_demand_warm=True, lost_notice_share=0, deferral_margin_s=30)
    return fleet(availability=replace(policy, **settings))  # type: ignore[arg-type]


def measured(*took_s: float) -> AvailabilityMemory:
    """A memory of four spot instances, and of warm starts that took this long."""
    starts = tuple(
        Start(instance_id=BACK[n], began=at(-600), served=at(took - 600))
        for n, took in enumerate(took_s)
    )
    return AvailabilityMemory(
        need=4, risk=RiskMemory(deferral=DeferralMemory(seen_at=at(-60), starts=starts))
    )


def spot(members: object = None) -> Group:
    found = instances(POOL[:4]) if members is None else members
    return group("spot", 4, found)  # type: ignore[arg-type]


def warned(
    of: Fleet | None = None,
    memory: AvailabilityMemory | None = None,
    risk: Mapping[str, datetime] | None = None,
    **more: object,
) -> Turn:
    """The turn at noon, in which one instance of four is warned."""
    known = {WARNED: at(0)} if risk is None else risk
    return turn(0, spot(), NONE, memory or measured(60), of or warm(), warned=known, **more)


@pytest.mark.parametrize(
    ("of", "memory", "more"),
    [
        pytest.param(warm(), measured(), {}, id="no start was measured"),
        pytest.param(warm(), measured(90), {}, id="a start takes as long as the notice"),
        pytest.param(warm(), measured(60, 95, 60), {}, id="one of the last starts did"),
        pytest.param(warm(deferral_margin_s=120), measured(1), {}, id="switched off"),
        pytest.param(warm(on_demand_warm=False), measured(60), {}, id="on-demand is cold"),
        pytest.param(warm(), measured(60), {"can_defer": False}, id="nobody would look again"),
        pytest.param(warm(), measured(60), {"silent": frozenset({WARNED})}, id="it is silent"),
        pytest.param(warm(), measured(60), {"risk": {WARNED: at(-90)}}, id="the event came late"),
        pytest.param(
            warm(), measured(60), {"risk": {WARNED: at(-300)}}, id="the notice is over already"
        ),
        pytest.param(
            warm(),
            measured(60),
            {"on_demand_failures": (failure(FailureClass.CAPACITY, -60),)},
            id="on-demand was refused lately",
        ),
    ],
)
def test_what_cannot_wait_is_backfilled_at_once(
    of: Fleet, memory: AvailabilityMemory, more: dict[str, object]
) -> None:
    first = warned(of, memory, **more)  # type: ignore[arg-type]
    assert (first.action, first.on_demand_desired, first.look_again_at) == (
        Action.BACKFILL,
        1,
        None,
    )


def test_throttling_is_no_reason_to_hurry() -> None:
    slowed = (failure(FailureClass.THROTTLE, -60),)
    assert warned(on_demand_failures=slowed).action is Action.HOLD


def on_demand(serving: str = "", launching: str = "") -> Group:
    """The on-demand group with instances named by one letter each."""
    return group("on-demand", 9, instances(list(serving), list(launching)))


@pytest.mark.parametrize(
    ("turns", "took_s"),
    [
        pytest.param([(0, "", ""), (20, "", "x"), (60, "", "x"), (75, "x", "")], [75], id="turns"),
        pytest.param([(0, "", ""), (55, "x", "")], [55], id="never seen launching"),
        pytest.param([(0, "x", ""), (60, "x", "")], [], id="there before the first turn"),
        pytest.param([(0, "", "x"), (60, "x", "")], [], id="launching before the first turn"),
        pytest.param([(0, "", ""), (30, "", "x"), (60, "", "")], [], id="gone before it served"),
        pytest.param(
            [(0, "", ""), (30, "", "xy"), (60, "x", "y"), (90, "xy", "")], [60, 90], id="two"
        ),
        pytest.param(
            [(0, "", ""), (60, "x", ""), (120, "", ""), (150, "x", "")], [60, 30], id="twice"
        ),
    ],
)
def test_a_start_is_measured_from_the_last_turn_without_it(
    turns: list[tuple[int, str, str]], took_s: list[int]
) -> None:
    memory = DeferralMemory()
    for seconds, serving, launching in turns:
        memory = watch_starts(memory, on_demand(serving, launching), {}, at(seconds))
    found = [start.served - start.began for start in memory.starts if start.served]
    assert [took.total_seconds() for took in found] == took_s


@pytest.mark.parametrize(
    ("seen_s", "told_s"), [(75, 62), (60, 62)], ids=["event after a turn", "event first"]
)
def test_an_event_tells_when_it_served_whatever_turn_saw_it(seen_s: int, told_s: int) -> None:
    memory = watch_starts(DeferralMemory(), on_demand(), {}, at(0))
    memory = watch_starts(memory, on_demand(launching="x"), {}, at(20))
    memory = watch_starts(memory, on_demand(serving="x"), {}, at(seen_s))
    memory = watch_starts(memory, on_demand(serving="x"), {"x": at(told_s)}, at(80))
    assert [start.served for start in memory.starts] == [at(min(seen_s, told_s))]


# --- What holds of just-in-time backfill whatever is warned, and whenever turns happen ---


LEAD_S = 90
"""A start of 60 s, and the margin."""

warnings = st.dictionaries(st.sampled_from(POOL), st.integers(-150, 0), max_size=6)
policies = st.builds(
    AvailabilityPolicy,
    on_demand_warm=st.just(True),
    deferral_margin_s=st.just(30),
    early_replacement=st.booleans(),
    lost_notice_share=st.sampled_from((0.0, 0.15, 1.0)),
)


def a_minute(**known: Any) -> AvailabilityMemory:
    """A memory of warm starts that took a minute."""
    start = Start(instance_id=BACK[0], began=at(-7200), served=at(60 - 7200))
    deferral = DeferralMemory(seen_at=at(-200), starts=(start,))
    return AvailabilityMemory(need=8, risk=RiskMemory(deferral=deferral), **known)


def backfill(serving: int) -> Group:
    return group("on-demand", serving, instances(BACK[:serving]))


def after(decision: Turn) -> int:
    """The on-demand capacity that a decision leaves."""
    return decision.on_demand_desired - len(decision.ends)


@given(warnings, policies, st.integers(0, 3))
def test_a_turn_at_each_requested_instant_is_never_too_late(
    warned: dict[str, int], policy: AvailabilityPolicy, there: int
) -> None:
    """On-demand has what is gone within the lead, however the turns are spread."""
    memory, of, members = a_minute(), fleet(availability=policy), instances(POOL)
    risk = {i: at(seconds) for i, seconds in warned.items()}
    now, desired = 0.0, there
    while True:
        spot = group("spot", 8, members)
        launching = group("on-demand", desired, instances((), BACK[:desired]))
        decision = turn(now, spot, launching, memory, of, warned=risk)
        desired, memory = after(decision), decision.memory
        soon = sum(seconds + 120 - LEAD_S <= now for seconds in warned.values())
        assert desired >= soon
        members = tuple(i for i in members if i.instance_id not in decision.detach)
        if decision.look_again_at is None:
            break
        risk, now = {}, (decision.look_again_at - at(0)).total_seconds()
    assert desired >= len(warned)
