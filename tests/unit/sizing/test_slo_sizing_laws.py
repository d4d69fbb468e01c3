"""Laws of the sizing rule: what must hold for every load, promise and fleet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.level import load_level, quick_level
from spotkeeper.domain.sizing.objective import size_to_objective
from spotkeeper.domain.sizing.values import ObjectivePolicy, PastNeed
from tests.laws import series

# The longest window and a little more; loads of the past in fifths of an erlang.
counts = series(60, min_size=1, max_size=92)
past_loads = series(250, max_size=60).map(lambda drawn: tuple(each / 5 for each in drawn))
shares = st.floats(0.5, 0.999)


# A quiet time is that of a queue in which nothing waits.
queues = st.one_of(
    st.tuples(st.none() | st.integers(1, 1_000), st.just(0.0)),
    st.tuples(st.just(0), st.floats(0.0, 1_200.0)),
)


@st.composite
def loads(draw: st.DrawFn) -> LoadSummary:
    arrivals = draw(counts)
    mean_s = draw(st.floats(0.05, 60.0))
    variability = draw(st.floats(1.0, 20.0))
    requests = draw(st.integers(0, 100_000))
    queued, quiet_s = draw(queues)
    return LoadSummary(
        arrivals=arrivals,
        work_s=tuple(count * mean_s for count in arrivals),
        service_mean_s=mean_s,
        service_second_moment_s2=variability * mean_s**2,
        newest_start_age_s=draw(st.floats(0.0, 60.0)),
        newest_wait_s=draw(st.floats(0.0, 300.0)),
        newest_log_age_s=draw(st.floats(0.0, 400.0)),
        peakedness=draw(st.floats(1.0, 10.0)),
        queued=queued,
        quiet_s=quiet_s,
        requests_last_day=requests,
        late_last_day=draw(st.integers(0, requests)),
        late_error=draw(st.floats(0.0, requests)),
        past_loads=draw(past_loads),
        recent_loads=draw(past_loads),
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


pasts = st.lists(
    st.builds(
        PastNeed, age_s=st.floats(30.0, 1_200.0), workers=st.integers(0, 50), held=st.booleans()
    ),
    max_size=5,
)
fleets = st.integers(0, 100)


@given(loads(), policies(), fleets, fleets, pasts, st.data())
def test_more_load_never_needs_fewer(
    load: LoadSummary,
    policy: ObjectivePolicy,
    live: int,
    booting: int,
    past: list[PastNeed],
    data: st.DataObject,
) -> None:
    slots = len(load.arrivals)
    added = data.draw(series(30, min_size=slots, max_size=slots))
    more = replace(
        load,
        arrivals=tuple(old + new for old, new in zip(load.arrivals, added, strict=True)),
        work_s=tuple(
            old + new * load.service_mean_s for old, new in zip(load.work_s, added, strict=True)
        ),
    )
    before = size_to_objective(load, live, booting, past, policy)
    assert size_to_objective(more, live, booting, past, policy).workers >= before.workers
    assert load_level(more) >= load_level(load)
    assert quick_level(more) >= quick_level(load)


@given(loads(), policies(), fleets, fleets, pasts, st.floats(0.0, 60.0), st.floats(0.0, 0.4))
def test_a_looser_promise_never_needs_more(
    load: LoadSummary,
    policy: ObjectivePolicy,
    live: int,
    booting: int,
    past: list[PastNeed],
    longer_s: float,
    less: float,
) -> None:
    looser = replace(policy, wait_s=policy.wait_s + longer_s, share=policy.share - less)
    tight = size_to_objective(load, live, booting, past, policy)
    assert size_to_objective(load, live, booting, past, looser).workers <= tight.workers


@given(loads(), policies(), st.integers(0, 12), pasts)
def test_booting_workers_are_not_asked_for_twice(
    load: LoadSummary, policy: ObjectivePolicy, live: int, past: list[PastNeed]
) -> None:
    first = size_to_objective(load, live, 0, past, policy)
    assume(first.workers > live)
    remembered = [*past, PastNeed(age_s=60.0, workers=first.load_workers)]
    second = size_to_objective(load, live, first.workers - live, remembered, policy)
    assert second.workers <= first.workers


@given(loads(), policies(), fleets, fleets, pasts)
def test_never_outside_the_bounds_unless_logs_are_missing(
    load: LoadSummary, policy: ObjectivePolicy, live: int, booting: int, past: list[PastNeed]
) -> None:
    need = size_to_objective(load, live, booting, past, policy)
    assert 0 <= need.workers <= policy.max_workers
    assert need.workers >= policy.min_workers
    assert need.reason


@given(loads(), policies(), fleets, fleets, pasts)
def test_missing_logs_never_scale_in(
    load: LoadSummary, policy: ObjectivePolicy, live: int, booting: int, past: list[PastNeed]
) -> None:
    silent = replace(load, newest_log_age_s=policy.stale_s + 1.0, queued=None, quiet_s=0.0)
    need = size_to_objective(silent, live, booting, past, policy)
    assert need.workers >= min(live + booting, policy.max_workers)
    waiting = replace(silent, queued=3)
    need = size_to_objective(waiting, live, booting, past, policy)
    assert need.workers >= max(1, min(live + booting, policy.max_workers))


@given(loads(), policies(), fleets, fleets, pasts, st.integers(1, 5_000))
def test_more_waiting_requests_never_need_fewer(
    load: LoadSummary,
    policy: ObjectivePolicy,
    live: int,
    booting: int,
    past: list[PastNeed],
    more: int,
) -> None:
    known = load if load.queued is not None else replace(load, queued=0)
    longer = replace(known, queued=(known.queued or 0) + more, quiet_s=0.0)
    fewer = size_to_objective(known, live, booting, past, policy)
    assert size_to_objective(longer, live, booting, past, policy).workers >= fewer.workers


@given(loads(), policies(), fleets, fleets, pasts)
def test_zero_only_where_it_is_allowed_after_a_quiet_time(
    load: LoadSummary, policy: ObjectivePolicy, live: int, booting: int, past: list[PastNeed]
) -> None:
    need = size_to_objective(load, live, booting, past, policy)
    asleep = live + booting == 0 and not load.queued
    if need.workers == 0 and not asleep:
        assert policy.min_workers == 0
        assert (load.queued, load.quiet_s >= policy.quiet_after_s) == (0, True)


@given(loads(), policies(), fleets, fleets, pasts)
def test_the_same_input_gives_the_same_need(
    load: LoadSummary, policy: ObjectivePolicy, live: int, booting: int, past: list[PastNeed]
) -> None:
    first = size_to_objective(load, live, booting, past, policy)
    assert size_to_objective(load, live, booting, past[::-1], policy) == first
