"""The replay's rule is the deployed rule: it decides as both checkers do where spot is plenty."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.made import made
from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_lab.run.demo import Day, scene
from spotkeeper_lab.run.on_market import demo_of
from spotkeeper_lab.run.replay import run_rule
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.traces.requests import Floats, RequestTrace, generate_requests

PLENTY = {f"us-east-1{zone}/g5.xlarge": [(0.0, 400)] for zone in "abc"}


def sparse() -> tuple[Floats, Floats]:
    """A burst of nine long requests after an hour of nothing, then two hours of nothing."""
    at = np.array([0, 90, 101, 139, 140, 155, 244, 288, 330, 6_600.0])
    return 3_600.0 + at, np.array([47, 55, 68, 127, 45, 132, 31, 53, 23, 30.0])


def bursty() -> tuple[Floats, Floats]:
    """One erlang, with sudden batches of thirty requests."""
    draw = np.random.default_rng(3)
    steady = draw.uniform(0, 9_000, 3_000)
    batches = [at + draw.uniform(0, 5, 30) for at in draw.uniform(900, 9_000, 8)]
    arrival_s = np.sort(np.concatenate([steady, *batches]))
    return arrival_s, draw.exponential(3.0, len(arrival_s))


def silent() -> tuple[Floats, Floats]:
    """Four erlangs with forty silent minutes in the middle."""
    day = generate_requests(3, hours=2.0, mean_load=4.0)
    keep = (day.arrival_s < 3_000) | (day.arrival_s > 5_400)
    return day.arrival_s[keep], day.service_s[keep]


def sessions() -> tuple[Floats, Floats]:
    """Some sessions of half an hour or so, and hardly a request between them."""
    days = made("sessions", 77).window(0.0, 4 * 3_600.0)
    return days.arrival_s, days.service_s


@pytest.mark.parametrize("log", [sparse, bursty, silent, sessions])
def test_the_replay_sizes_the_fleet_minute_by_minute_as_both_checkers_do(
    log: Callable[[], tuple[Floats, Floats]],
) -> None:
    arrival_s, service_s = log()
    end_s = 60.0 * np.ceil(arrival_s[-1] / 60 + 1)
    trace = RequestTrace(name="log", arrival_s=arrival_s, service_s=service_s, end_s=float(end_s))
    settings = ReplaySettings()
    replayed = run_rule(trace, "spotkeeper", settings)
    demo = demo_of(trace, market_of("plenty", trace.end_s, PLENTY), settings, size=1)
    with Day(scene(demo)).deployed() as day:
        day.run(lambda look: None)
        looks = day.looks
    times_s = np.array([look.at_s for look in looks])
    after = times_s.searchsorted(replayed.time_s + 0.5) - 1
    deployed = np.array([looks[at].target for at in after])
    assert np.mean(deployed == replayed.wanted) >= 0.95
    assert deployed.sum() == pytest.approx(replayed.wanted.sum(), rel=0.02)


def test_nine_requests_and_a_silence_leave_no_phantom_backlog() -> None:
    """Their waits are those of cold workers. Ten and a half hours cost at most twelve."""
    arrival_s, service_s = sparse()
    arrival_s = np.array([*(arrival_s[:-1] + 18_000), 10.5 * 3_600])
    trace = RequestTrace(name="log", arrival_s=arrival_s, service_s=service_s, end_s=10.5 * 3_600)
    assert run_rule(trace, "spotkeeper", ReplaySettings()).row.worker_hours <= 12
