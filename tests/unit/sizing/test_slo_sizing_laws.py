"""Laws of the sizing rule: what must hold for every load, promise and fleet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from spotkeeper.domain.health_memory import Needed
from spotkeeper.domain.load.history import MINUTE_SLOTS, ArrivalLog
from spotkeeper.domain.sizing.shadows import FAMILY, Member, ObjectivePolicy
from spotkeeper.domain.sizing.size import Estimate, ObjectiveInput, found_by, size_to_objective
from tests.builders import at
from tests.laws import series

counts = series(60, min_size=1, max_size=400)
members = st.sampled_from(FAMILY)
shares = st.floats(0.5, 0.999)


@st.composite
def loads(draw: st.DrawFn) -> ObjectiveInput:
    arrivals = draw(counts)
    mean_s = draw(st.floats(0.05, 60.0))
    return ObjectiveInput(
        log=ArrivalLog(0, arrivals, [count * mean_s for count in arrivals]),
        service_mean_s=mean_s,
        newest_start_age_s=draw(st.floats(0.0, 60.0)),
        newest_wait_s=draw(st.floats(0.0, 300.0)),
        queued=draw(st.none() | st.integers(0, 1_000)),
    )


@st.composite
def policies(draw: st.DrawFn) -> ObjectivePolicy:
    return ObjectivePolicy(
        wait_s=draw(st.floats(0.0, 3_600.0)),
        share=draw(shares),
        min_workers=draw(st.integers(0, 3)),
        max_workers=draw(st.integers(3, 5_000)),
        start_up_s=draw(st.floats(0.0, 900.0)),
    )


needs = st.builds(
    Needed, at=st.floats(-1_200, -30).map(at), workers=st.integers(0, 50), held=st.booleans()
)
pasts = st.lists(needs, max_size=5)
fleets = st.integers(0, 100)


@dataclass(frozen=True)
class Case:
    """A fleet, its load and its promise, and the member that sizes it."""

    load: ObjectiveInput
    policy: ObjectivePolicy
    member: Member
    live: int
    booting: int
    past: list[Needed]

    def need(self, **changes: Any) -> Estimate:
        now = replace(self, **changes)
        fleet = now.load, now.live, now.booting, now.past
        return size_to_objective(*fleet, at(0), now.policy, now.member)


cases = st.builds(Case, loads(), policies(), members, fleets, fleets, pasts)


@given(cases, st.data())
def test_more_load_never_needs_fewer(case: Case, data: st.DataObject) -> None:
    load = case.load
    slots = len(load.log)
    added = data.draw(series(30, min_size=slots, max_size=slots))
    requests = [old + new for old, new in zip(load.log.slots()[0], added, strict=True)]
    work_s = [count * load.service_mean_s for count in requests]
    more = replace(load, log=ArrivalLog(0, requests, work_s))
    assert case.need(load=more).steady >= case.need().steady


@given(cases, st.floats(0.0, 60.0), st.floats(0.0, 0.4))
def test_a_looser_promise_never_needs_more(case: Case, longer_s: float, less: float) -> None:
    tight = case.policy
    looser = replace(tight, wait_s=tight.wait_s + longer_s, share=tight.share - less)
    assert case.need(policy=looser).steady <= case.need().steady


@given(cases, st.integers(0, 12))
def test_booting_workers_are_not_requested_twice(case: Case, live: int) -> None:
    first = case.need(live=live, booting=0)
    assume(first.steady > live)
    past = [*case.past, Needed(at=at(-60), workers=first.needed[-1].workers)]
    second = case.need(live=live, booting=first.steady - live, past=past)
    assert second.steady <= first.steady


@given(cases)
def test_never_outside_the_bounds_and_zero_only_of_nothing(case: Case) -> None:
    """Zero is only for a fleet at zero whose load is not known."""
    need = case.need()
    assert case.policy.min_workers <= need.steady <= case.policy.max_workers
    assert need.steady > 0 or case.live + case.booting == 0
    assert need.reason
    assert case.need(past=case.past[::-1]) == need


@given(cases, st.integers(1, 5_000))
def test_more_waiting_requests_never_need_fewer(case: Case, more: int) -> None:
    queued = case.load.queued or 0
    known, longer = (replace(case.load, queued=each) for each in (queued, queued + more))
    assert case.need(load=longer).steady >= case.need(load=known).steady


@given(series(40, min_size=360, max_size=360), st.integers(1, 60), st.integers(0, 5))
def test_what_a_whole_minute_needed_is_kept_at_every_phase_of_later_turns(
    requests: tuple[int, ...], minutes: int, phase: int
) -> None:
    """Turns run at any second: the need must not vary with the windows that they look at."""
    member = Member(60, 0.0, 3600)
    policy = ObjectivePolicy(
        wait_s=10.0, share=0.95, min_workers=0, max_workers=99, start_up_s=240.0
    )

    def found(slots: int) -> int:
        log = ArrivalLog(600, requests[:slots], [2.0 * count for count in requests[:slots]])
        load = ObjectiveInput(
            log=log, service_mean_s=2.0, newest_start_age_s=2.0, newest_wait_s=0.0
        )
        return found_by(member, load, 2.0, policy)[1]

    then = MINUTE_SLOTS * minutes
    assert found(max(then, 360 - phase)) >= found(then)
