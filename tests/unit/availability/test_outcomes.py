"""Only what AWS accepted has happened: laws of turns that are refused, or cut off."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability.decide import apply, assess, plan
from spotkeeper.domain.availability.memory import AvailabilityMemory, Level
from spotkeeper.domain.availability.snapshot import Snapshot, Sweep
from spotkeeper.domain.decision import Answer, RequestKind
from spotkeeper.domain.fleet import Observation
from tests.builders import answered, at, fleet, group, ids, instances, turn
from tests.laws import shuffles

SPOT, BACK, OUT = ids("a", 12), ids("b", 12), ids("c", 3)
small = st.integers(0, 6)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Snapshot, AvailabilityMemory]:
    """A fleet in which much is due at once: backfill or release, marks, spares, strays."""
    serving, backs = draw(small), draw(small)
    spot = group("spot", draw(st.integers(1, 9)), instances(SPOT[:serving], SPOT[6:7]))
    on_demand = group("on-demand", backs + draw(st.integers(0, 2)), instances(BACK[:backs]))
    warned = {i: at(0) for i in SPOT[: draw(st.integers(0, serving))]}
    memory = AvailabilityMemory(
        seen_at=at(-60),
        need=draw(small),
        spot_seen=spot.desired,
        levels=(Level(at=at(-7200), serving=draw(small)),),
        detached=dict.fromkeys(OUT, at(-3600)),
        drained=tuple(draw(st.sets(st.sampled_from([*SPOT[:4], *BACK[:2]])))),
    )
    snapshot = Snapshot(
        fleet=fleet(),
        groups=Observation(seen_at=at(0), spot=spot, on_demand=on_demand),
        warned=warned,
        running=frozenset(OUT),
    )
    return snapshot, memory


@given(situations())
def test_a_refused_turn_leaves_the_memory_of_what_was_seen(
    situation: tuple[Snapshot, AvailabilityMemory],
) -> None:
    wanted = plan(assess(*situation))
    refused = [(request, Answer.REFUSED) for request in wanted.requests]
    assert apply(wanted.memory, wanted.assessment, refused) == wanted.memory
    before = situation[1]
    for name in ("unsure", "detached"):
        assert getattr(wanted.memory, name) == getattr(before, name)
    assert set(wanted.memory.drained) <= set(before.drained)


@given(situations(), shuffles)
def test_the_order_of_the_answers_does_not_matter(
    situation: tuple[Snapshot, AvailabilityMemory], random: Random
) -> None:
    wanted = plan(assess(*situation))
    pairs = [(request, random.choice([*Answer])) for request in wanted.requests]
    shuffled = random.sample(pairs, len(pairs))
    one, other = (apply(wanted.memory, wanted.assessment, some) for some in (pairs, shuffled))
    assert replace(one, detached={}, drained=()) == replace(other, detached={}, drained=())
    assert dict(one.detached) == dict(other.detached)
    assert set(one.drained) == set(other.drained)


def test_the_result_of_an_end_with_a_lost_answer_is_read_from_the_group() -> None:
    whole = group("spot", 4, instances(SPOT[:4]))
    memory = turn(-300, whole, group("on-demand", 0)).memory
    wanted = turn(0, whole, group("on-demand", 2, instances(BACK[:2])), memory).plan
    assert [each.kind for each in wanted.requests] == [RequestKind.END, RequestKind.END]
    lost = answered(wanted, {0: Answer.LOST, 1: Answer.LOST})
    one_left = turn(10, whole, group("on-demand", 1, instances(BACK[:1])), lost)
    assert one_left.plan.assessment.moved == -1


def test_after_a_lost_memory_only_what_is_proven_to_be_detached_is_ended() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    found = Sweep(detached={OUT[0]: at(-1200), OUT[1]: at(-30)}, unproven_marks=(OUT[2],))
    first = turn(0, spot, group("on-demand", 0), sweep=found)
    assert (first.terminate, set(first.memory.detached)) == ((OUT[0],), {OUT[1]})
    assert first.memory.swept_at == at(0)
    assert "unproven-marks" in first.alarms
    assert f"{OUT[2]} have Spotkeeper's tags" in first.reason
    later = turn(
        600, spot, group("on-demand", 0), first.memory, running=frozenset({OUT[1], OUT[2]})
    )
    assert later.terminate == (OUT[1],)
    assert "unproven-marks" in later.alarms
    cleared = turn(3600, spot, group("on-demand", 0), later.memory, sweep=Sweep())
    assert "unproven-marks" not in cleared.alarms


def test_a_forgotten_mark_inside_a_group_is_removed() -> None:
    """Its workers refuse work until then, so that it does not serve."""
    spot = group("spot", 4, instances(SPOT[:4]))
    first = turn(0, spot, group("on-demand", 1), sweep=Sweep(inside=frozenset(SPOT[:1])))
    assert first.of(RequestKind.STOP_DRAINING) == (SPOT[0],)
    assert first.spot.serving == 3
    assert turn(60, spot, group("on-demand", 1), first.memory).spot.serving == 4
