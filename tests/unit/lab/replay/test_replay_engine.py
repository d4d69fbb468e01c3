"""The replay's world: what is billed and what is lost; the rules' figures tell the rest."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.replay.engine import Rule, replay
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


def test_a_released_worker_finishes_within_its_grace_and_is_billed_until_then() -> None:
    settings = ReplaySettings(initial_workers=2, warmup_s=0.0)
    requests = trace_of((0, 100), (1, 300), (299, 1), end_s=400)
    patient = replay(requests, Script(1), settings)
    assert patient.row.lost == 0
    assert patient.row.worker_hours == pytest.approx((400 + 100) / 3600, abs=1e-3)
    hasty = replay(requests, Script(1, grace_s=30.0), settings)
    assert hasty.row.lost == 1
    assert math.isinf(hasty.wait_s[0])


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
