"""A warned instance serves on: warm on-demand is requested just in time, and never too late."""

from dataclasses import replace

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
from tests.builders import at, failure, fleet, group, ids, instances, turn

POOL, BACK = ids("a", 8), ids("b", 16)
WARNED = POOL[0]


def warm(**settings: object) -> Fleet:
    """A fleet with a warm pool that trusts every notice; the margin is half a minute."""
    policy = AvailabilityPolicy(on_demand_warm=True, lost_notice_share=0, deferral_margin_s=30)
    return fleet(availability=replace(policy, **settings))  # type: ignore[arg-type]


def measured(*took_s: float, need: int = 4) -> AvailabilityMemory:
    """A memory of spot instances, and of warm starts that took this long."""
    starts = tuple(
        Start(instance_id=BACK[n], began=at(-600), served=at(took - 600))
        for n, took in enumerate(took_s)
    )
    deferral = DeferralMemory(seen_at=at(-60), starts=starts)
    return AvailabilityMemory(need=need, risk=RiskMemory(deferral=deferral))


THROTTLED, REFUSED = (
    {"on_demand_failures": (failure(why, -60),)}
    for why in (FailureClass.THROTTLE, FailureClass.CAPACITY)
)


@pytest.mark.parametrize(
    ("of", "memory", "more", "backfilled"),
    [
        pytest.param(warm(), measured(60), {}, False, id="there is time"),
        pytest.param(warm(), measured(60), THROTTLED, False, id="on-demand was throttled"),
        pytest.param(warm(), measured(60), REFUSED, True, id="on-demand was refused lately"),
        pytest.param(warm(), measured(), {}, True, id="no start was measured"),
        pytest.param(warm(), measured(90), {}, True, id="a start takes as long as the notice"),
        pytest.param(warm(), measured(60, 95, 60), {}, True, id="one of the last starts did"),
        pytest.param(warm(deferral_margin_s=120), measured(1), {}, True, id="switched off"),
        pytest.param(warm(on_demand_warm=False), measured(60), {}, True, id="on-demand is cold"),
        pytest.param(warm(), measured(60), {"can_defer": False}, True, id="no turn would run"),
        pytest.param(warm(), measured(60), {"silent": {WARNED}}, True, id="it is silent"),
        pytest.param(warm(), measured(60), {"warned": {WARNED: at(-90)}}, True, id="late event"),
        pytest.param(warm(), measured(60), {"warned": {WARNED: at(-300)}}, True, id="over"),
    ],
)
def test_backfill_waits_for_its_time_or_is_requested_at_once(
    of: Fleet, memory: AvailabilityMemory, more: dict[str, object], backfilled: bool
) -> None:
    """One instance of four is warned at noon."""
    spot, known = group("spot", 4, instances(POOL[:4])), {"warned": {WARNED: at(0)}} | more
    first = turn(0, spot, group("on-demand", 0), memory, of, **known)
    assert first.action is (Action.BACKFILL if backfilled else Action.HOLD)
    assert first.on_demand_desired == backfilled
    assert (first.look_again_at is None) is backfilled


@pytest.mark.parametrize(("starts", "at_once"), [(1, 2), (2, 1), (5, 0)])
def test_few_starts_put_few_off(starts: int, at_once: int) -> None:
    """Three are warned; the warm pool may hold no more than were measured."""
    known = {"warned": dict.fromkeys(POOL[:3], at(0))}
    memory, spot = measured(*[60] * starts), group("spot", 4, instances(POOL[:4]))
    first = turn(0, spot, group("on-demand", 0), memory, warm(), **known)
    assert first.on_demand_desired == at_once


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


@pytest.mark.parametrize("seen_s", [75, 60], ids=["event after a turn", "event first"])
def test_an_event_has_the_end_of_a_start_whichever_turn_saw_it(seen_s: int) -> None:
    memory = watch_starts(DeferralMemory(), on_demand(), {}, at(0))
    memory = watch_starts(memory, on_demand(launching="x"), {}, at(20))
    memory = watch_starts(memory, on_demand(serving="x"), {}, at(seen_s))
    memory = watch_starts(memory, on_demand(serving="x"), {"x": at(62)}, at(80))
    assert [start.served for start in memory.starts] == [at(min(seen_s, 62))]


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


@given(warnings, policies, st.integers(0, 3), st.sampled_from(FailureClass))
def test_a_turn_at_each_requested_instant_is_never_too_late(
    warned: dict[str, int], policy: AvailabilityPolicy, there: int, refused: FailureClass
) -> None:
    """On-demand has what is gone within the lead, however spot's launches fail after the first."""
    memory, of, members = measured(60, need=8), fleet(availability=policy), instances(POOL)
    risk = {i: at(seconds) for i, seconds in warned.items()}
    now, desired = 0.0, there
    while True:
        failures = (failure(refused),) if now else ()
        spot, seen = group("spot", 8, members), {"warned": risk, "spot_failures": failures}
        launching = group("on-demand", desired, instances((), BACK[:desired]))
        decision = turn(now, spot, launching, memory, of, **seen)
        desired, memory = decision.on_demand_after, decision.memory
        soon = sum(seconds + 120 - LEAD_S <= now for seconds in warned.values())
        assert desired >= soon
        members = tuple(i for i in members if i.instance_id not in decision.detach)
        if decision.look_again_at is None:
            break
        risk, now = {}, (decision.look_again_at - at(0)).total_seconds()
    assert desired >= len(warned)
