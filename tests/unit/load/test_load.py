"""Load out of digests: rates, quantiles, burstiness and workers at one time, by hand."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.digest import SearchLog
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
from spotkeeper.domain.load.summarise import dispersion, onprem_at_once, summarise
from spotkeeper.domain.release import busy_shares
from spotkeeper.domain.sizing.size import workers_needed
from tests.search_logs import SENT, before, digest_of, log, worker


def test_no_logs_in_the_window_are_no_load() -> None:
    old = digest_of([log(900, 301)], before(301))
    load = summarise([old], SENT, 300)
    assert load == Load(at=SENT, window_s=300)
    assert (load.newest, load.waits.quantile_s(0.95), load.service.mean_s) == (None, 0.0, 0.0)
    idle = WorkerLoad(worker_id="w", cluster=Cluster.AWS, instance_id="i", last_finished=SENT)
    assert idle.load_rate == 0.0


def test_load_rate_is_busy_time_over_the_window_in_the_busier_cluster() -> None:
    in_aws = log(300, 270, worker="gpu-1", cluster=Cluster.AWS, instance_id="i-0123456789abcdef0")
    load = summarise([digest_of([log(300, 290), log(115, 70), in_aws])], SENT, 300)
    cloud, rack = load.workers
    assert (rack.busy_s, rack.capacity_s, rack.served_s) == (55, 300, 55)
    assert cloud.load_rate == 0.1
    assert rack.load_rate == pytest.approx(55 / 300)
    assert load.load_rate == rack.load_rate
    assert load_rate(load.workers) == pytest.approx(85 / 600)
    assert load.newest == before(70)


@pytest.mark.parametrize(
    ("logs", "busy_s", "capacity_s"),
    [
        pytest.param([log(95, 60)], 35, 100, id="from its first busy slot"),
        pytest.param(
            [log(at + 20, at) for at in range(15, 300, 20)], 285, 285, id="within its next request"
        ),
    ],
)
def test_capacity_of_a_worker(logs: list[SearchLog], busy_s: float, capacity_s: float) -> None:
    [one] = summarise([digest_of(logs)], SENT, 300).workers
    assert (one.busy_s, one.capacity_s) == (busy_s, capacity_s)


def test_a_worker_with_slots_is_busy_with_as_many_requests_as_it_has() -> None:
    several = [log(300, 0, request_id=str(n), cluster=Cluster.AWS, instance_id="i-1") for n in "ab"]
    sent = [digest_of(several)]
    for slots, rate in ((1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25)):
        load = summarise(sent, SENT, 300, slots=slots)
        assert load.load_rate == rate
        assert busy_shares(sent, SENT, slots) == {"i-1": rate}
        # Two that finished and two that may still run, at a load rate of half.
        assert (load.offered, workers_needed(load, 0.5, 0, slots)) == (4.0, 8 // slots)


@pytest.mark.parametrize("service_s", [1, 8, 15, 30])
def test_a_lone_request_needs_one_worker(service_s: int) -> None:
    for ended in range(300):
        one = log(ended + service_s, ended, cluster=Cluster.AWS, instance_id="i-1")
        load = summarise([digest_of([one])], SENT, 300)
        assert workers_needed(load, 0.7, 0) == 1, f"{ended} s after it ended"


def test_offered_load_is_arrivals_times_service() -> None:
    # 30 requests in 300 s, 4 s each; at any time one that arrived has not finished yet.
    logs = [log(at, at - 4) for at in range(5, 305, 10)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.arrival_rate == pytest.approx(30 / 296)
    assert load.service.mean_s == 4
    assert load.offered == pytest.approx(4 * 30 / 296)
    assert load.finished == 30


def test_waits_longer_than_half_the_window_do_not_inflate_the_arrival_rate() -> None:
    logs = [log(at, at - 1, waited=200) for at in range(10, 110, 10)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.arrival_rate == pytest.approx(10 / 150)


def test_dispersion_by_hand() -> None:
    assert dispersion([1, 3, 2, 6], 10.0) == {10: pytest.approx(14 / 3 / 3)}
    assert dispersion([9, 1, 3, 2, 6], 5.0) == {10: pytest.approx(8 / 6)}
    assert dispersion([0, 0], 10.0) == {}
    assert dispersion([1, 2, 3], 5.0) == {}
    bursts = [log(at, at - 1, request_id=f"{at} {n}") for at in (65, 305) for n in range(30)]
    assert summarise([digest_of(bursts)], SENT, 600).dispersion[10] == pytest.approx(29, abs=1)


def test_waits_and_service_times_by_hand() -> None:
    logs = [log(at, at - 1, waited=at / 10) for at in range(1, 101)]
    load = summarise([digest_of(logs)], SENT, 300)
    assert load.waits.mean_s == pytest.approx(5.05)
    assert load.waits.within(5) == pytest.approx(50, abs=2)
    assert load.service.squared_variation == Histogram().squared_variation == 0.0
    assert histogram([1000, 3000]).squared_variation == 0.25


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_buckets_keep_order_and_their_middle_is_near(one: int, other: int) -> None:
    assert (bucket(one) <= bucket(other)) or one > other
    assert bucket(one + 1) - bucket(one) in (0, 1)
    assert middle_ms(bucket(one)) == pytest.approx(one, rel=1 / 31, abs=0)


@given(st.lists(st.integers(0, 10**8), min_size=1), st.floats(0, 1))
def test_quantiles_are_within_a_bucket_of_the_exact_ones(values: list[int], share: float) -> None:
    rank = max(-int(-share * len(values) // 1), 1)
    exact = sorted(values)[rank - 1] / 1000
    assert histogram(values).quantile_s(share) == pytest.approx(exact, rel=1 / 31, abs=0)


@given(st.lists(st.integers(0, 10**8)), st.lists(st.integers(0, 10**8)))
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    assert merged([histogram(one), histogram(other)]) == histogram(one + other)


# --- How many workers ran at one time, whatever ids they had ---


def life(name: str, begins_s: float, ends_s: float, every_s: float) -> WorkerLoad:
    """A worker on premises that finishes requests at a fixed interval between two instants."""
    finished = max(1, round((ends_s - begins_s) / every_s))
    began, last = before(300 - begins_s), before(300 - ends_s)
    return worker(name, finished=finished, began=began, last_finished=last)


@pytest.mark.parametrize(
    ("lives", "count"),
    [
        pytest.param((), 0, id="none"),
        pytest.param([(0, 300)] * 20, 20, id="all the time"),
        pytest.param([(0, 100)] * 20 + [(160, 300)] * 20, 20, id="restarted at once"),
        pytest.param([(0, 100)] * 20 + [(100, 300)] * 20, 40, id="both may run at one instant"),
        pytest.param(
            [(0, 15 * n) for n in range(20)] + [(15 * n + 5, 300) for n in range(20)],
            21,
            id="restarted one after the other",
        ),
        pytest.param([(0, 300)] * 5 + [(240, 300)] * 15, 20, id="later ones added"),
    ],
)
def test_workers_that_ran_at_one_time(lives: list[tuple[float, float]], count: int) -> None:
    workers = [life(f"rack-{n}", begins, ends, 5.0) for n, (begins, ends) in enumerate(lives)]
    assert onprem_at_once(Load(at=SENT, window_s=300, workers=tuple(workers))) == count


@pytest.mark.parametrize("mean_s", [2.0, 20.0, 100.0, 1_000.0])
def test_every_worker_counts_where_requests_arrive_by_chance(mean_s: float) -> None:
    random, workers = Random(0), list[WorkerLoad]()
    for n in range(20):
        ends_s = [random.expovariate(1 / mean_s)]
        while ends_s[-1] < 300:
            ends_s.append(ends_s[-1] + random.expovariate(1 / mean_s))
        if ends_s[1:]:
            workers.append(life(f"rack-{n}", ends_s[0], ends_s[-2], mean_s))
    load = Load(at=SENT, window_s=300, workers=tuple(workers))
    assert onprem_at_once(load) == len(workers) > 0
