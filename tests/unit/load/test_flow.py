"""How the search logs flow: how often requests arrive, and whose logs are known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.flow import LogFlow, follow, paced, requests_since
from spotkeeper.domain.load.load import Load, LoadDigest, slot_of
from tests.builders import at
from tests.search_logs import shipped

TURN_S = 60.0
LONG_AGO = at(-86_400)


def watched(counts: Sequence[int]) -> LogFlow:
    """The flow after turns a minute apart, with `counts` requests in each minute."""
    flow = LogFlow()
    for minute, count in enumerate(counts):
        sent = shipped(at(TURN_S * minute - 45), count, {})
        flow, _ = requests_since(flow, [sent], at(TURN_S * minute), LONG_AGO)
    return flow


@given(a_minute=st.integers(0, 1000), minutes=st.integers(2, 200))
def test_the_recent_rate_of_steady_requests_is_their_rate(a_minute: int, minutes: int) -> None:
    assert watched([a_minute] * minutes).lately == pytest.approx(a_minute / TURN_S)


def test_a_night_does_not_make_requests_rarer() -> None:
    """After it, a worker that takes none is still known by the requests that pass it."""
    evening = replace(watched([1] * 600), known_since=at(0), newest=at(599 * TURN_S), rate=1 / 60)
    for minute in range(600, 840):
        evening, _ = requests_since(evening, [], at(TURN_S * minute), LONG_AGO)
    morning = follow(evening, [logged(840 * TURN_S, a=1)], at(840 * TURN_S))
    assert morning.lately == pytest.approx(1 / 60, rel=0.05)


def test_hours_without_a_turn_do_not_make_requests_rarer() -> None:
    """The first turn after them reads ten minutes: nothing before those is known."""
    before, back = watched([6] * 600), TURN_S * 840
    sent = shipped(at(back - 45), 6 * 10, {})
    after, count = requests_since(before, [sent], at(back), at(back - 600))
    assert count == 60
    assert after.lately == pytest.approx(before.lately, rel=0.05)


def test_a_window_is_whole_once_it_was_watched_from_its_start() -> None:
    old = LogFlow(known_since=at(-3600), newest=at(0), watched_since=at(-299))
    assert not old.is_whole(300, at(0))
    assert old.is_whole(300, at(1))
    assert not replace(old, watched_since=None).is_whole(300, at(1))


def logged(sent_s: float, **ages_s: float) -> LoadDigest:
    """A message of some workers, each with the age of its newest log when it was sent."""
    last = {name: at(sent_s - age_s) for name, age_s in ages_s.items()}
    return shipped(at(sent_s), len(last), last)


@pytest.mark.parametrize("known", [LogFlow(), LogFlow(known_since=at(-3600), newest=at(-400))])
def test_logs_that_are_sent_late_end_the_window_where_they_end(known: LogFlow) -> None:
    """Without a pace, as after memory was lost, a silence would look like rare requests."""
    late = follow(known, [logged(0, a=150, b=155, c=160)], at(0))
    assert late.ends_at(at(0)) == at(-150)
    assert late.ends_at(at(60)) == at(-95)
    assert not replace(late, known_since=at(-400), watched_since=at(-400)).is_whole(300, at(40))


def test_one_wrong_clock_and_old_messages_are_not_late_logs() -> None:
    one = follow(LogFlow(), [logged(0, a=2, b=200, c=5)], at(0))
    waited = follow(LogFlow(), [logged(0, a=200), logged(0.5, a=100), logged(1, a=3)], at(0))
    for flow in (one, waited):
        assert flow.ends_at(at(20)) == at(20)


def busy(sent_s: float, since_s: float, *, ends_s: float) -> LoadDigest:
    """A message of one worker that was busy from an instant until another, every second."""
    one = logged(sent_s, a=sent_s - ends_s)
    slots = range(slot_of(at(since_s)), slot_of(at(ends_s)) + 1)
    workers = [replace(worker, busy_ms=dict.fromkeys(slots, 10_000)) for worker in one.workers]
    return replace(one, count=round(ends_s - since_s), workers=tuple(workers))


def turns(start: LogFlow, looks: Sequence[float], came: Mapping[float, LoadDigest]) -> LogFlow:
    """The flow after looks at the messages, which are keyed by the time they arrived."""
    for look in looks:
        there = [one for when, one in came.items() if when <= look]
        start = replace(follow(start, there, at(look)), rate=1.0)
        start, _ = requests_since(start, there, at(look), LONG_AGO)
    return start


LONG = LogFlow(
    known_since=at(-7200), newest=at(-5), rate=1.0, lately=1.0, counted=slot_of(at(-30)),
    watched_since=at(-7200),
)  # fmt: skip
OUTAGE_S = 600.0


def test_after_an_outage_of_both_the_first_messages_tell_of_no_whole_window() -> None:
    """Nobody looked; one old message comes with the new ones, the others minutes later."""
    came = {
        OUTAGE_S + 1: busy(20, 0, ends_s=19),
        OUTAGE_S + 9: busy(OUTAGE_S + 8, OUTAGE_S, ends_s=OUTAGE_S + 8),
    }
    flow = turns(LONG, [0, OUTAGE_S + 10], came)
    assert not flow.is_whole(300, at(OUTAGE_S + 10))
    assert flow.in_order_since == at(OUTAGE_S + 10)


def test_after_an_outage_of_collecting_old_messages_tell_of_no_whole_window() -> None:
    """Turns went on meanwhile: what was sent before the last of them is late."""
    looks = [60.0 * minute for minute in range(round(OUTAGE_S / 60) + 2)]
    flow = turns(LONG, looks, {OUTAGE_S + 1: busy(20, 0, ends_s=19)})
    assert not flow.is_whole(300, at(looks[-1]))
    assert flow.in_order_since == at(looks[-1])


@given(
    every_s=st.floats(1, 60),
    comes_s=st.floats(0, 25),
    phase_s=st.floats(0, 60),
    jitter=st.lists(st.floats(-4, 4), min_size=20, max_size=20),
)
def test_however_a_worker_ships_its_logs_a_window_is_whole_as_soon_as_it_passed(
    every_s: float, comes_s: float, phase_s: float, jitter: Sequence[float]
) -> None:
    ends = [phase_s - 60 + every_s * n for n in range(round(1300 / every_s))]
    came = {end + comes_s: busy(end, end - every_s, ends_s=end) for end in ends}
    looks = [60.0 * minute + 5 + jitter[minute] for minute in range(20)]
    assert turns(LONG, looks, came).in_order_since is None


def test_a_silence_does_not_change_the_rate_before_it() -> None:
    """One a minute: the window forgets the last of them long before 14 are due."""
    flow = replace(LONG, newest=at(0), rate=1 / 60, lately=1 / 60)
    silent = Load(at=at(300), window_s=300, newest=at(0), arrival_rate=0.0)
    still = paced(flow, flow, silent)
    assert (still.is_missing(at(830)), still.is_missing(at(850))) == (False, True)
    heard = replace(flow, newest=at(60))
    assert paced(flow, heard, replace(silent, newest=at(60), arrival_rate=0.5)).rate == 0.5


def test_the_logs_of_a_backlog_arrive_as_fast_as_its_requests_finish() -> None:
    """Its requests arrived before the window, and 43 minutes without a log are still a gap."""
    flow = replace(LONG, newest=at(0), lately=0.4)
    heard = replace(flow, newest=at(60))
    drained = Load(at=at(60), window_s=300, newest=at(60), arrival_rate=0.0, finished=15)
    after = paced(flow, heard, drained)
    assert after.rate == 0.05
    assert after.is_missing(at(60 + 43 * 60))


def test_the_rate_is_at_most_that_of_the_hour_before_the_newest_log() -> None:
    """One of a quiet night, alone in its minutes, is no pace of one in five minutes."""
    night = replace(LONG, newest=at(0), rate=1 / 300, lately=1 / 3600)
    assert not night.is_missing(at(2 * 3600))
    young = replace(night, watched_since=at(-1800))
    assert young.is_missing(at(2 * 3600))
