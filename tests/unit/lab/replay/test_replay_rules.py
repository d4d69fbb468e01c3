"""Every rule's figures on a generated trace, odd traces, and the clairvoyant schedule."""

import math
from dataclasses import replace

import numpy as np
import pytest

from spotkeeper.domain.sizing.shadows import FAMILY
from spotkeeper_lab.replay.deployed import Spotkeeper
from spotkeeper_lab.replay.engine import replay
from spotkeeper_lab.replay.rules import erlang_workers
from spotkeeper_lab.replay.values import ReplayError, ReplaySettings
from spotkeeper_lab.run.replay import RULE_NAMES, run_rule
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests

SETTINGS = ReplaySettings()
HOUR_S, DAY_S = 3600.0, 86_400.0


def steady(name: str, arrival_s: np.ndarray, service_s: float, end_s: float) -> RequestTrace:
    services = np.full(len(arrival_s), service_s)
    return RequestTrace(name=name, arrival_s=arrival_s, service_s=services, end_s=end_s)


def test_erlang_c_against_a_known_table() -> None:
    # M/M/c, 10 erlangs: P(wait > 0) is 0.031 with 17 workers and 0.016 with 18.
    nothing_waits = ReplaySettings(wait_s=0.0, share=0.98)
    assert erlang_workers(10.0, 2.0, nothing_waits) == 18


GOLDEN = {
    "fixed-peak": [(9.002, 1.0, 0, 0), (2.001, 1.0, 0, 0)],
    "load-rate": [(8.154, 0.179524, 13, 0), (1.867, 0.596032, 2, 2)],
    "aws-backlog": [(358.964, 0.728571, 5, 2), (20.826, 0.746032, 5, 2)],
    "keda-queue": [(42.413, 0.508571, 87, 35), (4.992, 0.849841, 17, 4)],
    "hpa": [(4.088, 0.049841, 0, 1), (1.526, 0.777143, 2, 2)],
    "kpa": [(54.551, 0.840317, 123, 14), (3.669, 0.857937, 42, 4)],
    "skyserve": [(8.253, 0.253333, 1, 0), (1.578, 0.521746, 1, 0)],
    "erlang-c": [(4.4, 0.051746, 1, 3), (1.35, 0.540635, 1, 1)],
    "square-root": [(7.668, 0.363175, 9, 6), (1.434, 0.707302, 1, 1)],
    "spotkeeper": [(7.62, 0.511746, 5, 1), (1.634, 0.707302, 1, 0)],
    "clairvoyant": [(4.402, 1.0, 1, 1), (1.351, 0.95746, 1, 2)],
}


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_rule_does_with_a_step_what_its_documents_say(rule: str) -> None:
    """Two erlangs, then eight, then two, for twenty minutes each, with workers of 1 and 8 slots.

    Of each run: worker-hours, the share in time, and how often it scaled out and in.
    """
    arrival_s = np.concatenate(
        [np.arange(0, 1_200, 1.0), np.arange(1_200, 2_400, 0.25), np.arange(2_400, 3_600, 1.0)]
    )
    trace = steady("step", arrival_s, 2.0, 3_600.0)
    rows = [run_rule(trace, rule, replace(SETTINGS, slots=slots)).row for slots in (1, 8)]
    found = [(r.worker_hours, r.share_in_time, r.scale_outs, r.scale_ins) for r in rows]
    assert found == GOLDEN[rule]


def test_a_trace_that_no_replay_can_hold_is_refused() -> None:
    day = generate_requests(0, hours=0.1)
    endless = replace(day, arrival_s=np.append(day.arrival_s[:-1], 1e15), end_s=1e15)
    with pytest.raises(ReplayError, match=rf"days are too long; .* from request {len(day)} on"):
        run_rule(endless, "spotkeeper", SETTINGS)
    with pytest.raises(ReplayError, match="no request in"):
        run_rule(day.window(0.0, 1e-9), "spotkeeper", SETTINGS)


EVERY_6_S = np.arange(600) * 6.0
ODD = (
    steady("no time at all", EVERY_6_S, 0.0, HOUR_S),
    # A trace that rounds to seconds has both.
    replace(
        steady("no time at last", EVERY_6_S, 0.0, HOUR_S), service_s=np.repeat([1.0, 0.0], 300)
    ),
    steady("a single request", np.array([100.0]), 0.0, HOUR_S),
    steady("one a day", HOUR_S + DAY_S * np.arange(2), 2.0, DAY_S + 2 * HOUR_S),
    steady(
        "idle for 23 days",
        np.concatenate([EVERY_6_S, 23 * DAY_S + EVERY_6_S]),
        1.0,
        23 * DAY_S + HOUR_S,
    ),
)


# Rules that look every few seconds, or judge each minute, take long for days.
@pytest.mark.parametrize(
    ("rule", "trace"),
    [
        pytest.param(rule, trace, id=f"{rule}, {trace.name}")
        for rule in RULE_NAMES
        for trace in ODD
        if rule == "load-rate" or trace.end_s == HOUR_S
    ],
)
def test_every_rule_replays_an_odd_trace(rule: str, trace: RequestTrace) -> None:
    row = run_rule(trace, rule, SETTINGS).row
    assert row.lost == 0
    assert math.isfinite(row.worker_hours)
    assert 0 <= row.share_in_time <= 1


def test_clairvoyant_is_there_for_batches_out_of_nothing() -> None:
    arrival_s = np.concatenate([at + np.linspace(0, 5, 40) for at in range(600, 10_800, 600)])
    row = run_rule(steady("batches", arrival_s, 2.0, 10_800.0), "clairvoyant", SETTINGS).row
    assert row.objective_met
    assert row.worker_hours < 6 * 3.0


def test_slots_that_workers_do_not_have_cost_an_hour_and_not_the_promise() -> None:
    trace, settings = generate_requests(5, hours=1.5, mean_load=12.0), replace(SETTINGS, slots=4)
    run = replay(trace, Spotkeeper(replace(settings, slots=16)), settings)
    assert (run.wait_s[trace.arrival_s > HOUR_S] <= settings.wait_s).all()
    known = replay(trace, Spotkeeper(settings), settings)
    assert run.row.worker_hours < 1.1 * known.row.worker_hours
    assert replay(trace, Spotkeeper(settings, FAMILY[0]), settings).row.worker_hours > 0
