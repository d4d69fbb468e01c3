"""From logs to digests: what is kept of a message, and what makes two messages the same."""

from dataclasses import replace
from datetime import timedelta, timezone
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.digest import MAX_SKEW_S, MAX_WORKERS, NotDigestible, SearchLog, Status
from spotkeeper.domain.load.load import SLOT_MS, Cluster, milliseconds
from tests.laws import rows, shuffles
from tests.search_logs import FLEET, SENT, before, digest_of, log

SLOT = milliseconds(SENT) // SLOT_MS
LOG_BYTES = 8


def _search_log(row: bytes) -> SearchLog:
    """A log of one of three workers, one of them in AWS, up to 400 s old at each step."""
    finished, service, wait = (
        round(int.from_bytes(row[at : at + 2]) * 400 / 65_535, 3) for at in (0, 2, 4)
    )
    at_an_edge, at_once, unwaited = (row[6] >> bit & 3 == 0 for bit in (0, 2, 4))
    finished = finished // 10 * 10 if at_an_edge else finished
    number = row[7] % 3
    return log(
        finished + (0 if at_once else service),
        finished,
        waited=0 if unwaited else wait,
        worker=f"gpu-{number}",
        status=[*Status][row[7] // 3 % len(Status)],
        cluster=Cluster.AWS if number == 2 else Cluster.ONPREM,
        instance_id="i-0123456789abcdef0" if number == 2 else "",
    )


def search_logs(most: int) -> st.SearchStrategy[list[SearchLog]]:
    drawn = rows(LOG_BYTES, min_size=1, max_size=most)
    return drawn.map(lambda many: [*map(_search_log, many)])


single = search_logs(1).map(lambda logs: logs[0])


def test_a_log_becomes_counts_and_milliseconds() -> None:
    one = digest_of([log(25, 12.5, waited=3)])
    ended = [*Status, Status.ERROR]
    [counted] = digest_of([log(at, at, status=how) for at, how in enumerate(ended)]).workers
    assert (counted.ok, counted.failed) == (1, 3)
    assert (one.fleet, one.sent_at, one.count, one.late, one.skewed) == (FLEET, SENT, 1, 0, 0)
    assert one.arrivals == {SLOT - 3: 1}
    assert one.work_ms == {SLOT - 3: 12_500}
    assert (one.newest_start, one.newest_wait_ms) == (before(25), 3000)
    assert (one.waits.total_ms, one.waits.count) == (3000, 1)
    assert (one.service.total_ms, one.service.squares) == (12_500, 12_500**2)
    [worker] = one.workers
    assert (worker.worker_id, worker.cluster, worker.instance_id) == ("gpu-0", Cluster.ONPREM, "")
    assert (worker.ok, worker.failed) == (1, 0)
    assert worker.last_finished == before(12.5)
    assert worker.busy_ms == {SLOT - 3: 5000, SLOT - 2: 7500}


def test_the_key_is_the_time_in_utc_and_a_hash_of_the_logs() -> None:
    key = digest_of([log(9, 1)]).key
    assert key.startswith("2026-11-20T12:00:00.000Z#")
    assert len(key.partition("#")[2]) == 16
    assert digest_of([log(9, 1, request_id="other")]).key != key
    assert digest_of([log(9, 1)], SENT.astimezone(timezone(timedelta(hours=2)))).key == key


def test_each_worker_has_its_own_clock() -> None:
    """A clock that is ten minutes ahead shifts no other logs, and makes no request wait."""
    right, ahead = log(20, 10, request_id="a"), log(-580, -600, request_id="b", worker="gpu-9")
    both = digest_of([right, ahead])
    assert both.skewed == 1
    assert both.workers[0] == digest_of([right]).workers[0]
    assert both.workers[1].last_finished == SENT
    # The arrival was stamped by a clock that is right.
    waited = replace(log(-580, -600), enqueued_at=before(22))
    assert digest_of([waited]).waits.total_ms == 2000


def test_a_time_a_day_ahead_is_no_clock_and_refused_by_name() -> None:
    assert digest_of([log(0, -MAX_SKEW_S)]).skewed == 1
    with pytest.raises(NotDigestible, match=r"finished_at: 2026-11-21T12:00:01\+00:00 is 86401 s"):
        digest_of([log(0, -MAX_SKEW_S - 1)])


def test_times_of_two_clocks_that_disagree_a_little_are_put_in_order_and_counted() -> None:
    before_it_came = log(9, 1, waited=-0.003)
    backwards = log(1, 2)
    one = digest_of([before_it_came, backwards, log(5, 4, waited=1)])
    assert (one.count, one.skewed) == (3, 2)
    assert (one.waits.total_ms, one.service.total_ms) == (1000, 9000)


@given(single, st.floats(0, 5), st.floats(0, 5))
def test_no_time_is_negative_however_clocks_disagree(
    one: SearchLog, late_s: float, back_s: float
) -> None:
    skewed = replace(
        one,
        enqueued_at=one.started_at + timedelta(seconds=late_s),
        finished_at=one.started_at - timedelta(seconds=back_s),
    )
    found = digest_of([skewed])
    assert (found.waits.total_ms, found.service.total_ms) == (0, 0)
    assert found.workers[0].busy_ms == {}


def test_too_many_workers_are_refused_by_name() -> None:
    logs = [log(9, 1, worker=f"gpu-{number}") for number in range(MAX_WORKERS + 1)]
    assert len(digest_of(logs[1:]).workers) == MAX_WORKERS
    with pytest.raises(NotDigestible, match="worker_id: 201 different workers"):
        digest_of(logs)


@pytest.mark.parametrize(("workers", "busy_s"), [(1, 2_999), (200, 899)])
def test_a_request_of_many_minutes_counts_whole_where_its_slots_fit(
    workers: int, busy_s: int
) -> None:
    found = digest_of([log(3_000, 1, worker=f"gpu-{number}") for number in range(workers)])
    assert sum(found.arrivals.values()) == workers
    assert sum(found.work_ms.values()) == workers * 2_999_000
    assert sum(found.workers[0].busy_ms.values()) == busy_s * 1000


@given(search_logs(12), shuffles)
def test_neither_order_nor_repetition_within_a_message_matters(
    logs: list[SearchLog], random: Random
) -> None:
    again = random.choices(logs, k=random.randrange(9))
    assert digest_of(random.sample(logs + again, len(logs + again))) == digest_of(logs)


@given(single)
def test_busy_time_is_split_exactly(one: SearchLog) -> None:
    [worker] = digest_of([one]).workers
    assert sum(worker.busy_ms.values()) == milliseconds(one.finished_at) - milliseconds(
        one.started_at
    )
    assert all(0 < ms <= SLOT_MS for ms in worker.busy_ms.values())
