"""What a known queue and leave to have no workers do to sparse traffic, on the replay."""

from __future__ import annotations

import numpy as np
import pytest

from spotkeeper_lab.replay.values import ReplayError, ReplaySettings, Run
from spotkeeper_lab.run.replay import run_rule
from spotkeeper_lab.traces.requests import RequestTrace

HOUR_S = 3_600.0
# Worker-hours of each trace where the queue is not known, so that one worker always stays.
AWAKE_HOURS = {"sparse": 6.0, "office": 44.4, "bursts": 26.0}
KNOWN = ReplaySettings(queue_known=True)
ASLEEP = ReplaySettings(queue_known=True, min_workers=0)


def one_an_hour() -> RequestTrace:
    """Six hours of one request of 3 s half past each hour."""
    arrival_s = np.arange(1800.0, 6 * HOUR_S, HOUR_S)
    return RequestTrace(
        name="sparse", arrival_s=arrival_s, service_s=np.full(6, 3.0), end_s=6 * HOUR_S
    )


def office_hours() -> RequestTrace:
    """Half a request of 3 s a second, from 3 to 11 of fifteen hours."""
    random = np.random.default_rng(0)
    arrival_s = np.sort(random.uniform(3 * HOUR_S, 11 * HOUR_S, 14_400))
    service_s = random.exponential(3.0, 14_400)
    return RequestTrace(name="office", arrival_s=arrival_s, service_s=service_s, end_s=15 * HOUR_S)


def every_other_hour() -> RequestTrace:
    """Ten minutes of half a request of 3 s a second, every two hours, four times."""
    random = np.random.default_rng(0)
    begins_s = np.repeat(np.arange(0.0, 8 * HOUR_S, 2 * HOUR_S), 300)
    arrival_s = np.sort(begins_s + random.uniform(0, 600, 1_200))
    service_s = random.exponential(3.0, 1_200)
    return RequestTrace(name="bursts", arrival_s=arrival_s, service_s=service_s, end_s=8 * HOUR_S)


def of(trace: RequestTrace, settings: ReplaySettings) -> Run:
    return run_rule(trace, "spotkeeper", settings)


def test_a_sparse_request_waits_for_a_cold_start_and_nothing_is_lost() -> None:
    asleep = of(one_an_hour(), ASLEEP)
    assert asleep.row.lost == 0
    # A quarter of an hour for each request, and half an hour until it first sleeps.
    assert asleep.row.worker_hours < 0.35 * AWAKE_HOURS["sparse"]
    # One turn to see it, one cold start to serve it.
    assert float(asleep.wait_s.max()) <= 60 + ASLEEP.cold_start_s
    assert (asleep.row.scale_outs, asleep.row.scale_ins) == (6, 6)


def test_one_worker_is_kept_where_zero_is_not_allowed() -> None:
    row = of(one_an_hour(), KNOWN).row
    assert row.share_in_time == 1.0
    assert row.worker_hours == pytest.approx(6.0, rel=0.01)


def test_a_fleet_sleeps_by_night_and_keeps_its_promise_by_day() -> None:
    asleep = of(office_hours(), ASLEEP).row
    assert asleep.objective_met
    assert asleep.lost == 0
    assert asleep.worker_hours < AWAKE_HOURS["office"] - 2


def test_what_begins_after_a_sleep_is_late_and_not_lost() -> None:
    asleep = of(every_other_hour(), ASLEEP).row
    assert not asleep.objective_met
    assert asleep.lost == 0
    assert asleep.worker_hours < 0.5 * AWAKE_HOURS["bursts"]


def test_without_the_queue_silence_never_lets_it_sleep() -> None:
    blind = of(one_an_hour(), ReplaySettings(min_workers=0))
    assert blind.wanted.min() == 1


@pytest.mark.parametrize("least", [-1, 1_001])
def test_a_least_that_no_fleet_can_have_is_refused(least: int) -> None:
    with pytest.raises(ReplayError, match=r"the fewest workers are .*; give 0 to 1,000"):
        ReplaySettings(min_workers=least)
