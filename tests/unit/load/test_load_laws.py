"""Laws of the load, whatever the logs: it depends on what was served, not on how logs travelled."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.digest import LATE_AFTER_S, SearchLog
from spotkeeper.domain.load.history import arrival_window
from spotkeeper.domain.load.load import load_rate
from spotkeeper.domain.load.summarise import summarise
from tests.laws import rows, shuffles
from tests.search_logs import SENT, before, by_slot, digest_of, log
from tests.unit.load.test_load_digest import search_logs

some_logs = search_logs(7).map(lambda logs: [*{each.request_id: each for each in logs}.values()])
windows = st.integers(10, 1200)


def one_after_the_other(steps: list[bytes]) -> list[SearchLog]:
    """The logs of a worker that serves one request after the other until now or earlier."""
    logs: list[SearchLog] = []
    ended = 0.0
    for step in steps:
        idle, served = (round(int.from_bytes(step[at : at + 2]) / 655, 3) for at in (0, 2))
        logs.append(log(ended + idle + served, ended + idle))
        ended += idle + served
    return logs


@given(logs=some_logs, random=shuffles, window_s=windows)
def test_order_and_repetition_of_digests_do_not_matter(
    logs: list[SearchLog], random: Random, window_s: int
) -> None:
    digests = [digest_of([each]) for each in logs]
    again = random.choices(digests, k=random.randrange(7))
    resent = [
        replace(each, key=f"2026-11-20T12:00:30.000Z#{each.content}", sent_at=before(-30))
        for each in random.choices(digests, k=random.randrange(7))
    ]
    shuffled = digests + again + resent
    random.shuffle(shuffled)
    assert summarise(shuffled, SENT, window_s) == summarise(digests, SENT, window_s)
    assert arrival_window(shuffled, SENT, window_s) == arrival_window(digests, SENT, window_s)


@given(logs=some_logs, cuts=st.sets(st.integers(1, 6)), window_s=windows)
def test_how_logs_are_spread_over_messages_does_not_matter(
    logs: list[SearchLog], cuts: set[int], window_s: int
) -> None:
    edges = sorted({0, len(logs), *(cut for cut in cuts if cut < len(logs))})
    parts = [logs[begin:end] for begin, end in pairwise(edges)]
    split, whole = [*map(digest_of, parts)], [digest_of(logs)]
    assert summarise(split, SENT, window_s) == summarise(whole, SENT, window_s)
    assert arrival_window(split, SENT, window_s) == arrival_window(whole, SENT, window_s)


@given(logs=some_logs, random=shuffles, window_s=windows, now_s=st.floats(0, 60))
def test_adding_digests_up_by_slot_changes_nothing(
    logs: list[SearchLog], random: Random, window_s: int, now_s: float
) -> None:
    now = before(-now_s)
    parts = [logs[number::4] for number in range(min(4, len(logs)))]
    digests = [digest_of(part, before(random.uniform(-300, 300))) for part in parts]
    sums = by_slot(digests)
    assert by_slot(sums) == sums
    assert summarise(sums, now, window_s) == summarise(digests, now, window_s)
    seen = arrival_window(digests, now, 900)
    assert arrival_window(sums, now, 900) == seen


def test_a_sum_of_the_first_slot_counts_whatever_the_part_of_a_millisecond() -> None:
    now = SENT + timedelta(microseconds=500)
    digests = [digest_of([log(1, 0)], SENT - timedelta(seconds=60))]
    assert summarise(by_slot(digests), now, 60) == summarise(digests, now, 60)
    assert summarise(digests, now, 60).finished == 1


@given(rows(4, min_size=1, max_size=7).map(one_after_the_other), windows)
def test_one_request_after_the_other_never_overlaps(logs: list[SearchLog], window_s: int) -> None:
    [worker] = summarise([digest_of(logs)], SENT, window_s).workers
    assert worker.busy_s <= worker.served_s
    # No log is read that finished fifteen minutes before it was sent.
    if window_s > LATE_AFTER_S + 10:
        assert worker.busy_s == worker.served_s
    assert 0 <= worker.load_rate <= 1


@given(logs=some_logs, window_s=windows)
def test_rates_are_shares_and_no_time_is_lost(logs: list[SearchLog], window_s: int) -> None:
    load = summarise([digest_of(logs)], SENT, window_s)
    for worker in load.workers:
        assert 0 <= worker.load_rate <= 1
        assert worker.busy_s <= worker.capacity_s
    assert 0 <= load_rate(load.workers) <= 1
    assert load.arrival_rate >= 0
    assert load.finished == sum(worker.finished for worker in load.workers)
