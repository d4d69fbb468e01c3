"""What a known queue and leave to have no workers do to sparse traffic, on the replay."""

from __future__ import annotations

import numpy as np
import pytest

from spotkeeper_lab.replay.values import ReplaySettings, Run
from spotkeeper_lab.run.replay import run_rule
from spotkeeper_lab.traces.requests import RequestTrace

HOUR_S = 3_600.0
KNOWN = ReplaySettings(queue_known=True)
ASLEEP = ReplaySettings(queue_known=True, min_workers=0)


def of(name: str, settings: ReplaySettings) -> Run:
    """A replay of requests of 3 s: hours of one each, a working day, or bursts."""
    random = np.random.default_rng(0)
    match name:
        case "one an hour":
            hours, arrival_s = 6.0, np.arange(1800.0, 6 * HOUR_S, HOUR_S)
        case "office hours":
            hours, arrival_s = 15.0, random.uniform(3 * HOUR_S, 11 * HOUR_S, 14_400)
        case _:
            begins_s = np.repeat(np.arange(0.0, 8 * HOUR_S, 2 * HOUR_S), 300)
            hours, arrival_s = 8.0, begins_s + random.uniform(0, 600, 1_200)
    trace = RequestTrace(
        name=name,
        arrival_s=np.sort(arrival_s),
        service_s=random.exponential(3.0, len(arrival_s)),
        end_s=hours * HOUR_S,
    )
    return run_rule(trace, "spotkeeper", settings)


# The worker-hours of the comments are those where the queue is not known: one worker always stays.
def test_a_sparse_request_waits_for_a_cold_start_and_nothing_is_lost() -> None:
    asleep = of("one an hour", ASLEEP)
    assert asleep.row.lost == 0
    # A quarter of an hour for each request, and half an hour until it first sleeps; awake 6.0.
    assert asleep.row.worker_hours < 2.1
    # One turn to see it, one cold start to serve it.
    assert float(asleep.wait_s.max()) <= 60 + ASLEEP.cold_start_s
    assert (asleep.row.scale_outs, asleep.row.scale_ins) == (6, 6)


def test_one_worker_is_kept_where_zero_is_not_allowed() -> None:
    row = of("one an hour", KNOWN).row
    assert row.share_in_time == 1.0
    assert row.worker_hours == pytest.approx(6.0, rel=0.01)
    # Without the queue, silence never lets it sleep.
    assert of("one an hour", ReplaySettings(min_workers=0)).wanted.min() == 1


def test_a_fleet_sleeps_by_night_and_keeps_its_promise_by_day() -> None:
    asleep = of("office hours", ASLEEP).row
    assert asleep.objective_met
    assert asleep.lost == 0
    assert asleep.worker_hours < 37.0  # awake 39.2


def test_requests_after_a_sleep_are_late_and_not_lost() -> None:
    asleep = of("bursts", ASLEEP).row
    assert not asleep.objective_met
    assert asleep.lost == 0
    assert asleep.worker_hours < 14.0  # awake 29.8


def test_a_fleet_that_has_a_worker_stays_awake_once_its_budget_is_spent() -> None:
    """A quiet time makes the next burst late, until the budget of late requests is spent."""
    run = of("bursts", KNOWN)
    assert run.wait_s[-300:].max() < KNOWN.wait_s < run.wait_s[300:600].max()
    assert min(run.wanted[-60:]) > 1 == min(run.wanted[60:120])
