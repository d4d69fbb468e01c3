"""What holds of just-in-time backfill whatever is warned, and whenever turns happen."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability.memory import (
    AvailabilityMemory,
    DeferralMemory,
    RiskMemory,
    Start,
)
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Group, Instance
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import Turn, at, fleet, group, ids, instances, turn

POOL, BACK = ids("a", 8), ids("b", 16)
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


def measured(**known: object) -> AvailabilityMemory:
    """A memory of warm starts that took a minute."""
    start = Start(instance_id=BACK[0], began=at(-7200), served=at(60 - 7200))
    deferral = DeferralMemory(seen_at=at(-200), starts=(start,))
    return AvailabilityMemory(need=8, risk=RiskMemory(deferral=deferral), **known)  # type: ignore[arg-type]


def backfill(serving: int) -> Group:
    """An on-demand group that has delivered."""
    return group("on-demand", serving, instances(BACK[:serving]))


def after(decision: Turn) -> int:
    """The on-demand capacity that a decision leaves."""
    return decision.on_demand_desired - len(decision.ends)


@given(warnings, policies, st.integers(0, 8), st.integers(0, 8))
def test_putting_off_asks_for_no_more_and_gives_nothing_else_back(
    warned: dict[str, int], policy: AvailabilityPolicy, serving: int, there: int
) -> None:
    spot, on_demand = group("spot", 8, instances(POOL[:serving])), backfill(there)
    risk = {i: at(seconds) for i, seconds in warned.items()}
    of = fleet(availability=policy)
    late = turn(0, spot, on_demand, measured(), of, warned=risk)
    at_once = turn(0, spot, on_demand, measured(), of, warned=risk, can_defer=False)
    assert after(late) <= after(at_once)
    assert after(late) >= min(there, after(at_once))
    assert (late.drain, late.detach, late.spot) == (at_once.drain, at_once.detach, at_once.spot)
    assert (late.look_again_at is not None) == (after(late) < after(at_once))


@given(warnings, policies, st.integers(0, 3))
def test_a_turn_at_each_instant_that_is_asked_for_is_never_too_late(
    warned: dict[str, int], policy: AvailabilityPolicy, there: int
) -> None:
    """On-demand has what is gone within the lead, however the turns are spread."""
    memory, of, members = measured(), fleet(availability=policy), instances(POOL)
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


@given(warnings.filter(bool), policies, st.integers(9, 120))
def test_warnings_ask_for_backfill_in_one_direction_and_then_give_it_back(
    warned: dict[str, int], policy: AvailabilityPolicy, every_s: int
) -> None:
    """Spot is whole again after four minutes; on-demand always delivers at once."""
    memory, of = measured(), fleet(availability=policy)
    risk = {i: at(seconds) for i, seconds in warned.items()}
    desired, moves, inside = 0, list[Action](), list(instances(POOL))
    for now in (*range(0, 360, every_s), *range(360, 1800, 240)):
        if now >= 120:
            inside = [i for i in inside if i.instance_id not in warned]
        spot = group("spot", 8, (*inside, *_replacements(len(inside), now)))
        decision = turn(now, spot, backfill(desired), memory, of, warned=risk)
        moves += [decision.action] if after(decision) != desired else []
        desired, memory, risk = after(decision), decision.memory, {}
        inside = [i for i in inside if i.instance_id not in decision.detach]
    assert desired == 0
    assert Action.BACKFILL not in moves[moves.index(Action.RELEASE) :] if moves else True


def _replacements(inside: int, now: int) -> tuple[Instance, ...]:
    return instances(ids("c", 8 - inside)) if now >= 240 else ()


@given(st.integers(0, 119), st.integers(0, 89))
def test_one_instant_is_asked_for_once(warned_s: int, start_s: int) -> None:
    policy = AvailabilityPolicy(on_demand_warm=True, early_replacement=False, deferral_margin_s=30)
    of = fleet(availability=policy)
    memory = measured()
    start = replace(memory.risk.deferral.starts[0], served=at(start_s - 7200))
    deferral = replace(memory.risk.deferral, starts=(start,))
    memory = replace(memory, risk=replace(memory.risk, deferral=deferral))
    asked = list[float]()
    for now in range(0, 120, 3):
        spot, risk = group("spot", 8, instances(POOL)), {POOL[0]: at(-warned_s)}
        decision = turn(now, spot, backfill(0), memory, of, warned=risk)
        memory = decision.memory
        if decision.look_again_at:
            asked.append((decision.look_again_at - at(0)).total_seconds())
        if decision.on_demand_desired:
            break
    assert asked in ([], [120 - warned_s - start_s - 30])
