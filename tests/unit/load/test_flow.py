"""How the search logs flow: how often requests come, and whose logs are known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.flow import HOUR_S, LogFlow, follow, requests_since
from spotkeeper.domain.load.histogram import Histogram
from spotkeeper.domain.load.load import Cluster, LoadDigest, WorkerDigest
from tests.builders import at

TURN_S = 60.0


def sent(seconds: float, count: int) -> LoadDigest:
    return LoadDigest(
        fleet="main",
        key=str(seconds),
        sent_at=at(seconds),
        count=count,
        late=0,
        skewed=0,
        workers=(),
        arrivals={},
        waits=Histogram(),
        service=Histogram(),
    )


def watched(counts: Sequence[int]) -> LogFlow:
    """The flow after turns a minute apart, with so many requests in each minute."""
    flow = LogFlow()
    for minute, count in enumerate(counts):
        digest = sent(TURN_S * minute - 45, count)
        flow, _ = requests_since(flow, [digest], at(TURN_S * minute))
    return flow


@given(a_minute=st.integers(0, 1000), minutes=st.integers(2, 200))
def test_requests_that_come_steadily_come_lately_as_often(a_minute: int, minutes: int) -> None:
    assert watched([a_minute] * minutes).lately == pytest.approx(a_minute / TURN_S)


def test_what_was_an_hour_ago_counts_e_times_less() -> None:
    busy = watched([60] * 600)
    idle = watched([60] * 600 + [0] * round(HOUR_S / TURN_S))
    assert busy.lately == pytest.approx(1.0, rel=0.01)
    assert idle.lately == pytest.approx(0.37, rel=0.02)


def test_a_window_is_whole_once_it_is_known_whose_logs_came_in_it() -> None:
    old = LogFlow(known_since=at(-3600), newest=at(0), watched_since=at(-299))
    assert not old.is_whole(300, at(0))
    assert old.is_whole(300, at(1))
    assert not replace(old, watched_since=None).is_whole(300, at(1))


def logged(sent_s: float, **ages_s: float) -> LoadDigest:
    """A message of some workers, each with the age of its newest log when it was sent."""
    workers = [
        WorkerDigest(
            worker_id=name,
            cluster=Cluster.AWS,
            instance_id="i-0a",
            ok=1,
            error=0,
            timeout=0,
            last_finished=at(sent_s - age_s),
            busy_ms={},
        )
        for name, age_s in ages_s.items()
    ]
    return replace(sent(sent_s, len(workers)), workers=tuple(workers))


@pytest.mark.parametrize("known", [LogFlow(), LogFlow(known_since=at(-3600), newest=at(-400))])
def test_logs_that_are_sent_late_tell_of_no_minute_that_they_have_not_reached(
    known: LogFlow,
) -> None:
    """Without a pace, as after memory was lost, a silence would look like rare requests."""
    late = follow(known, [logged(0, a=150, b=155, c=160)], at(0))
    assert late.ends_at(at(0)) == at(-150)
    assert late.ends_at(at(60)) == at(-95)
    assert not replace(late, known_since=at(-400), watched_since=at(-400)).is_whole(300, at(40))


def test_a_log_that_seldom_comes_is_not_late() -> None:
    rare = follow(LogFlow(), [logged(-300, a=4), logged(-150, b=9)], at(0))
    assert rare.ends_at(at(0)) == at(0)


def test_one_wrong_clock_and_what_waited_for_a_while_are_not_late() -> None:
    one = follow(LogFlow(), [logged(0, a=2, b=200, c=5)], at(0))
    waited = follow(LogFlow(), [logged(0, a=200), logged(0.5, a=100), logged(1, a=3)], at(0))
    for flow in (one, waited):
        assert flow.ends_at(at(20)) == at(20)


def test_logs_come_in_time_again() -> None:
    late = follow(LogFlow(), [logged(0, a=150)], at(0))
    again = follow(late, [logged(0, a=150), logged(30, a=2)], at(30))
    assert again.ends_at(at(60)) == at(60)


def test_until_an_hour_was_watched_requests_come_as_fast_as_the_last_ones_did() -> None:
    flow = LogFlow(rate=0.005, lately=0.0, watched_since=at(-90))
    assert flow.usual(at(0)) == 0.005
    assert replace(flow, lately=0.02).usual(at(0)) == 0.02
    assert replace(flow, watched_since=at(-HOUR_S)).usual(at(0)) == 0.0
    assert replace(flow, watched_since=None).usual(at(0)) == 0.005
