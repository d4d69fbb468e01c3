"""Load out of digests: rates, quantiles, burstiness, by hand."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.load import (
    Cluster,
    Histogram,
    Load,
    WorkerLoad,
    bucket,
    histogram,
    load_rate,
    merged,
    middle_ms,
)
from spotkeeper.domain.load.summarise import busy_shares, dispersion, summarise
from spotkeeper.domain.sizing.size import workers_needed
from tests.search_logs import SENT, before, digest_of, log


def test_no_logs_are_no_load_and_no_newest() -> None:
    load = summarise([], SENT, 300)
    assert load == Load(at=SENT, window_s=300)
    assert (load.newest, load.waits.quantile_s(0.95), load.service_mean_s) == (None, 0.0, 0.0)


def test_load_rate_is_busy_time_over_the_window() -> None:
    load = summarise([digest_of([log(300, 290), log(115, 70)])], SENT, 300)
    [worker] = load.workers
    assert (worker.busy_s, worker.capacity_s, worker.served_s) == (55, 300, 55)
    assert worker.load_rate == pytest.approx(55 / 300)
    assert load.load_rate == {Cluster.ONPREM: pytest.approx(55 / 300)}
    assert load.newest == before(70)


def test_a_new_worker_has_capacity_from_its_first_busy_slot() -> None:
    [worker] = summarise([digest_of([log(95, 60)])], SENT, 300).workers
    assert (worker.busy_s, worker.capacity_s) == (35, 100)


def test_a_worker_within_its_next_request_is_not_idle() -> None:
    busy = [log(at + 20, at) for at in range(15, 300, 20)]
    [worker] = summarise([digest_of(busy)], SENT, 300).workers
    assert worker.load_rate == 1.0
    assert worker.capacity_s == 285


def test_clusters_are_kept_apart() -> None:
    in_aws = log(300, 270, worker="gpu-1", cluster=Cluster.AWS, instance_id="i-0123456789abcdef0")
    logs = [log(300, 270), in_aws, log(300, 240, worker="gpu-2")]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.load_rate == {Cluster.ONPREM: pytest.approx(90 / 600), Cluster.AWS: 0.1}
    assert load_rate(load.workers) == pytest.approx(120 / 900)


def test_a_worker_with_slots_is_busy_with_as_many_requests_as_it_has() -> None:
    several = [log(300, 0, request_id=str(n), cluster=Cluster.AWS, instance_id="i-1") for n in "ab"]
    sent = [digest_of(several)]
    for slots, rate in ((1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25)):
        load = summarise(sent, SENT, 300, slots=slots)
        assert load.load_rate == {Cluster.AWS: rate}
        assert busy_shares(sent, SENT, timedelta(seconds=300), slots) == {"i-1": rate}
        # Two that finished and two that may still run, at a load rate of half.
        assert (load.offered, workers_needed(load, 0.5, 0, slots)) == (4.0, 8 // slots)


def test_what_was_sent_before_the_window_does_not_count() -> None:
    old = digest_of([log(900, 301)], before(301))
    assert summarise([old], SENT, 300) == summarise([], SENT, 300)


def test_offered_load_is_arrivals_times_service() -> None:
    # 30 requests in 300 s, 4 s each; at any time one that arrived has not finished yet.
    logs = [log(at, at - 4) for at in range(5, 305, 10)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.arrival_rate == pytest.approx(30 / 296)
    assert load.service_mean_s == 4
    assert load.offered == pytest.approx(4 * 30 / 296)
    assert load.finished == 30


def test_waits_longer_than_half_the_window_do_not_inflate_the_arrival_rate() -> None:
    logs = [log(at, at - 1, waited=200) for at in range(10, 110, 10)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.arrival_rate == pytest.approx(
        len([a for a in range(210, 310, 10) if a <= 300]) / 150
    )


def test_dispersion_tells_even_from_bursty_traffic() -> None:
    even = [log(at, at - 1) for at in range(5, 605, 10)]
    bursts = [log(at, at - 1, request_id=f"{at} {n}") for at in (65, 305) for n in range(30)]
    assert summarise([digest_of(even)], SENT, 600).dispersion == {10: 0.0, 60: 0.0, 300: 0.0}
    load = summarise([digest_of(bursts)], SENT, 600)
    assert load.dispersion[10] == pytest.approx(29.5, abs=0.5)
    assert load.dispersion[300] == 0.0
    assert summarise([digest_of(even)], SENT, 300).dispersion.keys() == {10, 60}


def test_dispersion_by_hand() -> None:
    assert dispersion([1, 3, 2, 6], 10.0) == {10: pytest.approx(14 / 3 / 3)}
    assert dispersion([9, 1, 3, 2, 6], 5.0) == {10: pytest.approx(8 / 6)}
    assert dispersion([0, 0], 10.0) == {}
    assert dispersion([1, 2, 3], 5.0) == {}


def test_waits_and_service_times_have_quantiles() -> None:
    logs = [log(at, at - 1, waited=at / 10) for at in range(1, 101)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.waits.quantile_s(0.5) == pytest.approx(5, rel=0.032)
    assert load.waits.quantile_s(0.95) == pytest.approx(9.5, rel=0.032)
    assert load.waits.mean_s == pytest.approx(5.05)
    assert load.waits.within(5) == pytest.approx(50, abs=2)
    assert load.service.squared_variation == 0.0


def test_squared_variation_by_hand() -> None:
    assert histogram([1000, 3000]).squared_variation == 0.25
    assert Histogram().squared_variation == 0.0


def test_a_worker_without_capacity_has_no_load_rate() -> None:
    idle = WorkerLoad(worker_id="w", cluster=Cluster.AWS, instance_id="i", last_finished=SENT)
    assert idle.load_rate == 0.0


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_buckets_keep_order_and_their_middle_is_near(one: int, other: int) -> None:
    assert (bucket(one) <= bucket(other)) or one > other
    assert middle_ms(bucket(one)) == pytest.approx(one, rel=1 / 31, abs=0)


def test_buckets_follow_each_other_without_a_gap() -> None:
    assert [bucket(value) for value in range(32)] == list(range(32))
    assert sorted({bucket(value) for value in range(5000)}) == list(range(bucket(4999) + 1))


@given(st.lists(st.integers(0, 10**8), min_size=1), st.floats(0, 1))
def test_quantiles_are_within_a_bucket_of_the_exact_ones(values: list[int], share: float) -> None:
    rank = max(-int(-share * len(values) // 1), 1)
    exact = sorted(values)[rank - 1] / 1000
    assert histogram(values).quantile_s(share) == pytest.approx(exact, rel=1 / 31, abs=0)


@given(st.lists(st.integers(0, 10**8)), st.lists(st.integers(0, 10**8)))
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    assert merged([histogram(one), histogram(other)]) == histogram(one + other)
