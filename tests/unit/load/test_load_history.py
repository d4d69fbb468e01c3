"""Steps of history, and the summary that the sizing rule receives."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.history import (
    DAY_MINUTES,
    ArrivalLog,
    LoadHistory,
    arrival_log,
    arrival_window,
    as_if_full,
    extended,
    learned,
    own_starts,
    slower_when_full,
    spread,
)
from spotkeeper.domain.load.load import LoadDigest, slot_of
from tests.laws import shuffles
from tests.search_logs import SENT, digest_of, served

FRESH = LoadHistory()


def steady(
    minutes: int, until: datetime = SENT, *, waited: float = 0.0, every_s: int = 5
) -> list[LoadDigest]:
    """A request of one second every `every_s` seconds, each in a message of its own."""
    sent = [until - timedelta(seconds=ago_s) for ago_s in range(0, 60 * minutes, every_s)]
    return [digest_of([served("rack", at, 1.0, waited)], at) for at in sent]


def after(
    digests: Sequence[LoadDigest], now: datetime = SENT, history: LoadHistory = FRESH
) -> LoadHistory:
    return extended(history, arrival_window(digests, now, 900))


def test_only_whole_steps_that_have_settled_are_added() -> None:
    history = after(steady(15))
    assert history.work_ms == (12_000,) * 10
    assert history.requests == (12,) * 10
    soon, settled = SENT + timedelta(seconds=59), SENT + timedelta(seconds=60)
    assert after(steady(15), soon, history) is history
    assert after(steady(15), settled, history).work_ms == (12_000,) * 15


def test_steps_without_a_turn_are_quiet_and_a_day_is_kept() -> None:
    later, away = SENT + timedelta(hours=1), SENT + timedelta(days=99)
    history = after(steady(15, later), later, after(steady(15)))
    assert history.work_ms == (*[12_000] * 10, *[0] * 50, *[12_000] * 10)
    long = after(steady(15, away), away, history)
    assert long.requests == (*[0] * (DAY_MINUTES - 10), *[12] * 10)


def test_the_starts_of_a_step_are_counted_once_and_the_late_ones_among_them() -> None:
    soon, late = steady(5, waited=3), steady(5, SENT - timedelta(minutes=9), waited=20)
    starts = own_starts([*soon, *late, *soon[:9]], 10.0).values()
    assert (sum(count for count, _ in starts), sum(late for _, late in starts)) == (120, 60)


def test_late_logs_count_while_their_step_is_read() -> None:
    some = after(steady(15, every_s=10))
    assert some.requests == (6,) * 10
    settled = SENT + timedelta(seconds=60)
    assert after(steady(15), settled, some).requests[-10:] == (12,) * 10


@given(shuffles, st.integers(0, 3600))
def test_order_and_repetition_of_digests_do_not_matter(random: Random, seconds: int) -> None:
    now = SENT + timedelta(seconds=seconds)
    digests = steady(12, now, every_s=random.randrange(17, 61))
    shuffled = [*digests, *random.sample(digests, 9)]
    random.shuffle(shuffled)
    assert after(shuffled, now) == after(digests, now)


def test_log_and_window_say_what_the_logs_say() -> None:
    digests = steady(15, waited=3)
    seen = arrival_window(digests, SENT, 900)
    log = arrival_log(after(digests), seen)
    requests, work_s = log.slots()
    assert requests[-88:] == [2] * 88
    assert sum(work_s) == pytest.approx(180)
    assert log.first + len(log) == slot_of(SENT)
    assert seen.service_mean_s == 1
    assert (seen.newest_start_age_s, seen.newest_wait_s) == (1, 3)


def test_minutes_before_the_window_are_taken_from_the_history() -> None:
    later = SENT + timedelta(minutes=30)
    history = after(steady(15))
    log = arrival_log(history, arrival_window(steady(15, later), later, 900))
    assert log.first + len(log) == slot_of(later)
    assert log.count(0, len(log)) == sum(history.requests) + 180
    assert log.load(len(log), 90) == pytest.approx(0.2)
    assert log.load(len(log) - 210, 30) == pytest.approx(0.2)


def test_the_load_of_a_log_covers_its_slots_only() -> None:
    log = ArrivalLog(0, (1, 0, 3), (4.0, 0.0, 2.0))
    assert log.load(3, 100) == pytest.approx(0.2)
    assert (log.load(2, 1), log.load(-5, 3)) == (0.0, 0.0)
    assert (log.service_mean_s(3), log.service_mean_s(0)) == (1.5, 0.0)


counts = st.lists(st.integers(0, 9), max_size=9)


@given(counts, counts, counts, st.integers(0, 9), st.integers(0, 18))
def test_slots_that_follow_another_log_are_as_if_copied(
    old: list[int], more: list[int], most: list[int], kept: int, again: int
) -> None:
    def times(requests: list[int]) -> list[float]:
        return [2.0 * count for count in requests]

    log = ArrivalLog(7, old, times(old))
    requests = old
    for new, keep in ((more, kept), (most, again)):
        keep = min(keep, len(log))
        log = ArrivalLog(7, new, times(new), log, keep)
        requests = [*requests[:keep], *new]
    copy = ArrivalLog(7, requests, times(requests))
    assert (len(log), log.slots()) == (len(copy), copy.slots())
    for end in range(len(requests) + 1):
        assert log.slots(3, end) == (requests[3:end], times(requests[3:end]))
        assert log.load(end, 4) == copy.load(end, 4)
        assert log.count(end - 4, end) == sum(requests[max(0, end - 4) : end])
        assert log.service_mean_s(end) == copy.service_mean_s(end)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60_000)), max_size=9))
def test_minutes_that_are_spread_keep_their_sums(minutes: list[tuple[int, int]]) -> None:
    counts, works = zip(*minutes, strict=True) if minutes else ((), ())
    requests, work_s = spread(0, counts, works).slots()
    assert len(requests) == len(work_s) == 6 * len(minutes)
    assert sum(requests) == sum(count for count, _ in minutes)
    assert sum(work_s) == pytest.approx(sum(work for _, work in minutes) / 1000)


def shared(at_once: int, took_s: int, until: datetime) -> list[LoadDigest]:
    """For a quarter of an hour, one worker serves `at_once` requests at a time."""
    ends = [until - timedelta(seconds=ago_s) for ago_s in range(0, 900, took_s)]
    return [
        digest_of(
            [
                replace(served("rack", end, took_s, 0.0), request_id=f"{n} {end}")
                for n in range(at_once)
            ],
            end,
        )
        for end in ends
    ]


def seen_at(now: datetime, digests: list[LoadDigest], history: LoadHistory) -> LoadHistory:
    """One turn of a worker with eight slots."""
    history, window = as_if_full(history, arrival_window(digests, now, 900, 8), 8)
    return extended(history, window)


def test_requests_that_share_a_worker_count_as_long_as_when_it_is_full() -> None:
    """Alone 10 s, four at once 12 s, eight 20 s: work is what full workers take."""
    history, now = FRESH, SENT
    alone = shared(1, 10, now)
    assert seen_at(now, alone, history).work_ms == after(alone).work_ms, "no slower, until seen"
    for at_once, took_s in [(1, 10), (4, 12), (8, 20)] * 4:
        now += timedelta(seconds=1_200)
        history = seen_at(now, shared(at_once, took_s, now), history)
    now += timedelta(seconds=1_200)
    window = arrival_window(shared(1, 10, now), now, 900, 8)
    _, full = as_if_full(history, window, 8)
    assert window.service_mean_s == 10
    assert 17 <= full.service_mean_s <= 20
    assert sum(full.work_ms) == pytest.approx(sum(window.work_ms) * full.service_mean_s / 10, 0.01)
    assert as_if_full(history, window, 1) == (history, window), "a worker with one slot"


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 400), st.floats(1, 64), st.floats(0.01, 600)), max_size=8
    ),
    shares=st.tuples(st.floats(1, 64), st.floats(1, 64)),
    slots=st.integers(2, 64),
)
def test_sharing_never_helps(
    steps: list[tuple[int, float, float]], shares: tuple[float, float], slots: int
) -> None:
    """A full worker is never quicker, and least of all beside one with few requests."""
    sharing = FRESH.sharing_sums
    for count, many, mean_s in steps:
        sharing = learned(sharing, [count], [count * mean_s], [many])
    fewer, more = slower_when_full(sharing, sorted(shares), slots)
    assert fewer >= more >= 1
    assert fewer <= slots


@pytest.mark.parametrize(("lately", "mean_s"), [(5, 50 / 15), (25, 10 / 25)])
def test_a_mean_service_time_is_of_a_day_while_requests_are_few(lately: int, mean_s: float) -> None:
    log = ArrivalLog(0, [10, *[0] * 200, lately], [40.0, *[0.0] * 200, 10.0])
    assert log.service_mean_s(len(log)) == mean_s
