"""The replay's world: queue, workers that start late, what is billed and what is lost."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.replay.engine import Rule, replay, slower
from spotkeeper_lab.replay.seen import Seen
from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_lab.traces.requests import RequestTrace

COLD = ReplaySettings(initial_workers=1, warmup_s=0.0)


class Script(Rule):
    """A rule that asks for given counts at its turns, the last one for good."""

    def __init__(self, *counts: int, grace_s: float = math.inf) -> None:
        super().__init__(COLD)
        self.counts, self.seen, self.grace_s = counts, list[Seen](), grace_s

    def workers(self, seen: Seen) -> int:
        self.seen.append(seen)
        return self.counts[min(len(self.seen), len(self.counts)) - 1]


def trace_of(*requests: tuple[float, float], end_s: float | None = None) -> RequestTrace:
    arrivals, services = np.array(requests, dtype=np.float64).T
    end_s = end_s if end_s is not None else float(arrivals.max())
    return RequestTrace(name="t", arrival_s=arrivals, service_s=services, end_s=end_s)


def test_one_worker_serves_in_order_of_arrival() -> None:
    run = replay(trace_of((0, 5), (1, 2), (20, 1), end_s=30), Script(1), COLD)
    assert run.wait_s.tolist() == [0.0, 4.0, 0.0]
    assert run.row.share_in_time == 1.0
    assert run.row.worker_hours == pytest.approx(30 / 3600, abs=1e-3)


def test_a_worker_serves_a_cold_start_after_its_request() -> None:
    run = replay(trace_of((0, 1_000), (1, 1), end_s=400), Script(2), COLD)
    assert run.wait_s.tolist() == [0.0, 299.0]
    assert run.row.scale_outs == 1
    assert run.row.worker_hours == pytest.approx((1_000 + 940) / 3600, abs=1e-3)


def test_a_released_worker_finishes_within_its_grace_and_is_billed_until_then() -> None:
    settings = ReplaySettings(initial_workers=2, warmup_s=0.0)
    requests = trace_of((0, 100), (1, 300), (299, 1), end_s=400)
    patient = replay(requests, Script(1), settings)
    assert patient.row.lost == 0
    assert patient.row.worker_hours == pytest.approx((400 + 100) / 3600, abs=1e-3)
    hasty = replay(requests, Script(1, grace_s=30.0), settings)
    assert hasty.row.lost == 1
    assert math.isinf(hasty.wait_s[0])


def test_requests_that_share_a_worker_take_longer() -> None:
    settings = ReplaySettings(initial_workers=1, slots=2, warmup_s=0.0)
    script = Script(1)
    run = replay(trace_of((0, 100), (1, 100), (2, 1), (300, 1)), script, settings)
    assert slower(1) == 1.0
    assert run.wait_s.tolist() == [0.0, 0.0, 98.0, 0.0]
    assert (script.seen[0].running, script.seen[0].live) == (2, 1)
    assert script.seen[-1].logs.work_s.sum() == pytest.approx(100 + 101 * slower(2), 1e-3)
    assert 1.0 < slower(2) < slower(16) < slower(1_000) < 60


def test_the_warm_start_is_the_first_quarter_of_an_hour_at_seven_tenths() -> None:
    requests = trace_of(*[(float(at), 7.0) for at in range(900)])
    assert replay(requests, Script(1), ReplaySettings()).wanted[0] == 10


@given(
    st.lists(st.tuples(st.floats(0, 600), st.floats(0.1, 90)), min_size=1, max_size=60),
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
def test_every_request_is_served_once_or_lost(
    requests: list[tuple[float, float]], counts: list[int]
) -> None:
    run = replay(trace_of(*sorted(requests)), Script(*counts, 1), COLD)
    assert run.row.lost == np.isinf(run.wait_s).sum() == 0
    assert (run.wait_s >= 0).all()
    held_s = run.row.worker_hours * 3600
    assert held_s >= sum(service for _, service in requests) - len(counts) * 6 - 10
