"""How the search logs flow: how often requests come, and whose logs are known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.flow import HOUR_S, LogFlow, requests_since
from spotkeeper.domain.load.histogram import Histogram
from spotkeeper.domain.load.load import LoadDigest
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


def test_until_an_hour_was_watched_requests_come_as_fast_as_the_last_ones_did() -> None:
    flow = LogFlow(rate=0.005, lately=0.0, watched_since=at(-90))
    assert flow.usual(at(0)) == 0.005
    assert replace(flow, lately=0.02).usual(at(0)) == 0.02
    assert replace(flow, watched_since=at(-HOUR_S)).usual(at(0)) == 0.0
    assert replace(flow, watched_since=None).usual(at(0)) == 0.005
