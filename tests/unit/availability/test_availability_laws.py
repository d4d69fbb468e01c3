"""What holds of the availability controller whatever happens."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability.memory import AvailabilityMemory, Level
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Group
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import at, failure, fleet, group, ids, instances, turn

POOL = ids("a", 30)
BACK = ids("b", 30)
small = st.integers(0, 12)


@st.composite
def spot_groups(draw: st.DrawFn) -> Group:
    serving, launching, leaving = draw(small), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    first, second = serving + launching, serving + launching + leaving
    members = instances(POOL[:serving], POOL[serving:first], POOL[first:second])
    return group("spot", draw(st.integers(0, 20)), members)


@st.composite
def on_demand_groups(draw: st.DrawFn) -> Group:
    serving, launching, missing = draw(small), draw(st.integers(0, 4)), draw(st.integers(0, 4))
    members = instances(BACK[:serving], BACK[serving : serving + launching])
    return group("on-demand", serving + launching + missing, members)


failures = st.lists(
    st.builds(failure, st.sampled_from(FailureClass), st.integers(-300, 0)), max_size=4
).map(tuple)
memories = st.builds(
    AvailabilityMemory,
    seen_at=st.just(at(-60)),
    need=st.none() | small,
    levels=st.tuples(st.builds(Level, at=st.just(at(-3600)), serving=small)),
)


@given(spot_groups(), on_demand_groups(), memories, failures, st.integers(0, 10))
def test_no_raise_leaves_the_bounds_and_no_release_drops_serving_below_the_target(
    spot: Group,
    on_demand: Group,
    memory: AvailabilityMemory,
    refused: tuple[LaunchFailure, ...],
    most: int,
) -> None:
    decision = turn(0, spot, on_demand, memory, fleet(on_demand_max=most), spot_failures=refused)
    assert 0 <= decision.on_demand_after <= max(most, on_demand.desired)
    if decision.action is not Action.RELEASE:
        return
    assert {*decision.ends} <= {m.instance_id for m in on_demand.instances}
    serving = {m.instance_id for m in instances(BACK[: decision.on_demand.serving])}
    kept = decision.spot.serving + len(serving - {*decision.ends})
    assert kept >= min(spot.desired, decision.spot.serving + len(serving))


@given(spot_groups(), on_demand_groups(), memories, st.integers(1, 5))
def test_raising_the_target_never_lowers_the_sum(
    spot: Group, on_demand: Group, memory: AvailabilityMemory, more: int
) -> None:
    low = turn(0, spot, on_demand, memory)
    raised = replace(spot, desired=spot.desired + more)
    high = turn(0, raised, on_demand, memory)
    assert raised.desired + high.on_demand_after >= spot.desired + low.on_demand_after


@given(spot_groups(), on_demand_groups(), memories, st.sets(st.sampled_from(POOL)))
def test_a_warned_instance_never_counts(
    spot: Group, on_demand: Group, memory: AvailabilityMemory, warned: set[str]
) -> None:
    decision = turn(0, spot, on_demand, memory, warned=dict.fromkeys(warned, at(0)))
    left = [i for i in spot.instances if i.instance_id not in warned]
    without = turn(0, replace(spot, instances=tuple(left)), on_demand, memory)
    assert decision.spot.serving == without.spot.serving
    assert decision.spot.launching == without.spot.launching


@given(spot_groups(), st.integers(0, 8), failures)
def test_constant_input_settles_and_then_holds(
    spot: Group, backfill: int, refused: tuple[LaunchFailure, ...]
) -> None:
    """Spot does not change any more; on-demand always delivers. One hour must be enough."""
    policy = AvailabilityPolicy(early_replacement=False)
    memory, desired, changes = AvailabilityMemory(), backfill, []
    for minute in (*range(10), *range(10, 60, 3), *range(60, 150, 9)):
        on_demand = group("on-demand", desired, instances(BACK[:desired]))
        late = tuple(replace(f, at=at(60 * minute)) for f in refused)
        decision = turn(
            60 * minute, spot, on_demand, memory, fleet(availability=policy), spot_failures=late
        )
        if decision.on_demand_after != desired:
            changes.append(minute)
        memory, desired = decision.memory, decision.on_demand_after
    assert all(minute <= 60 for minute in changes)
    assert len(changes) <= 12
