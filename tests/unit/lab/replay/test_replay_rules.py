"""The peers' rules by example, and the clairvoyant schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spotkeeper_lab.replay.clairvoyant import clairvoyant
from spotkeeper_lab.replay.engine import replay
from spotkeeper_lab.replay.erlang import erlang_workers
from spotkeeper_lab.replay.peers import AwsBacklog, Hpa, KedaQueue, Kpa, SkyServe
from spotkeeper_lab.replay.rules import (
    ErlangC,
    Highest,
    LoadRate,
    Spotkeeper,
    SquareRoot,
    fixed_peak,
)
from spotkeeper_lab.replay.seen import Seen, SeenLogs
from spotkeeper_lab.replay.values import ReplayError, ReplaySettings
from spotkeeper_lab.run.replay import RULE_NAMES, run_rule
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests

SETTINGS = ReplaySettings()


def busy_logs(load: float, minutes: int = 20, service_s: float = 2.0) -> SeenLogs:
    """Logs of a steady load, nothing waiting."""
    logs = SeenLogs(7_200.0, 10.0)
    arrival_s = np.arange(0.0, minutes * 60.0 - service_s, service_s / load)
    logs.add(arrival_s, arrival_s, np.full(len(arrival_s), service_s))
    return logs


def look(
    load: float = 10.0,
    now_s: float = 1_200.0,
    *,
    live: int = 10,
    booting: int = 0,
    queue: int = 0,
    running: int = 10,
) -> Seen:
    return Seen(
        now_s=now_s,
        live=live,
        booting=booting,
        queue=queue,
        running=running,
        arrived_s=np.arange(0.0, now_s, 2.0 / load),
        logs=busy_logs(load),
    )


def test_highest_forgets() -> None:
    highest = Highest(300.0)
    assert [highest.of(0, 5), highest.of(60, 3), highest.of(299, 1)] == [5, 5, 5]
    assert [highest.of(300, 1), highest.of(400, 1)] == [3, 1]


def test_erlang_c_against_a_known_table() -> None:
    # M/M/c, 10 erlangs: P(wait > 0) is 0.031 with 17 workers and 0.016 with 18.
    nothing_waits = ReplaySettings(wait_s=0.0, share=0.98)
    assert erlang_workers(10.0, 2.0, nothing_waits) == 18


def test_the_fixed_fleet_is_sized_for_the_highest_five_minutes() -> None:
    arrival_s = np.concatenate([np.arange(0, 3_000, 2.0), np.arange(3_000, 3_300, 0.25)])
    trace = RequestTrace(
        name="t", arrival_s=arrival_s, service_s=np.full(len(arrival_s), 2.0), end_s=3_600.0
    )
    assert fixed_peak(trace, SETTINGS).count == erlang_workers(8.0, 2.0, SETTINGS)


@pytest.mark.parametrize(
    ("rule", "waiting", "workers"),
    [
        (LoadRate(settings=SETTINGS), 0, 15),
        (ErlangC(settings=SETTINGS), 0, 11),
        (SquareRoot(settings=SETTINGS), 0, 16),
        (Hpa(), 0, 15),
        (Kpa(), 0, 15),
        (KedaQueue(), 0, 10),
        (KedaQueue(), 390, 80),
        (SkyServe(), 0, 10),
        (AwsBacklog(SETTINGS), 0, 10),
    ],
)
def test_the_first_answer_to_ten_erlangs_on_ten_workers(
    rule: LoadRate, waiting: int, workers: int
) -> None:
    assert rule.workers(look(queue=waiting)) == workers


def test_aws_asks_again_for_what_boots() -> None:
    rule = AwsBacklog(SETTINGS)
    for _ in range(2):
        assert rule.workers(look(queue=100)) == 10
    assert rule.workers(look(queue=100)) == 20
    assert rule.workers(look(queue=100, booting=10)) == 30


def test_hpa_waits_for_pods_that_boot_and_for_the_stabilisation() -> None:
    rule = Hpa()
    assert rule.workers(look(booting=5)) == 15
    assert rule.workers(look(now_s=1_215.0, running=0, live=15)) == 15
    assert rule.workers(look(now_s=1_600.0, running=0, live=15)) < 15


def test_kpa_panics_at_twice_and_stays_for_a_minute() -> None:
    rule = Kpa()
    assert rule.workers(look(queue=60)) == 100
    assert rule.workers(look(now_s=1_202.0, running=0, live=10)) == 100
    calm = [rule.workers(look(now_s=1_300.0 + 2 * at, running=0)) for at in range(40)]
    assert calm[-1] == 5


def test_skyserve_waits_five_minutes() -> None:
    rule = SkyServe()
    answers = [rule.workers(look(load=20.0, now_s=1_200.0 + 20 * at)) for at in range(15)]
    assert answers[:14] == [10] * 14
    assert answers[14] > 25


def test_an_unknown_rule_is_refused_with_the_names() -> None:
    with pytest.raises(ReplayError, match="no rule is called 'magic'; there are fixed-peak, load-"):
        run_rule(generate_requests(0, hours=0.1), "magic", SETTINGS)


def test_a_trace_that_no_replay_can_hold_is_refused() -> None:
    day = generate_requests(0, hours=0.1)
    endless = replace(day, arrival_s=np.append(day.arrival_s[:-1], 1e15), end_s=1e15)
    with pytest.raises(ReplayError, match=rf"days are too long; .* from request {len(day)} on"):
        run_rule(endless, "spotkeeper", SETTINGS)
    with pytest.raises(ReplayError, match="no request in"):
        run_rule(day.window(0.0, 1e-9), "spotkeeper", SETTINGS)


def test_clairvoyant_keeps_the_promise_for_the_fewest_worker_hours() -> None:
    trace = generate_requests(5, hours=1.0, mean_load=3.0)
    rows = {rule: run_rule(trace, rule, SETTINGS).row for rule in RULE_NAMES}
    best = rows.pop("clairvoyant")
    assert best.objective_met
    kept = [row.worker_hours for row in rows.values() if row.objective_met]
    assert float(trace.service_s.sum()) / 3600 <= best.worker_hours <= min(kept)


def test_clairvoyant_is_there_for_batches_out_of_nothing() -> None:
    arrival_s = np.concatenate([at + np.linspace(0, 5, 40) for at in range(600, 10_800, 600)])
    batches = RequestTrace(
        name="t", arrival_s=arrival_s, service_s=np.full(len(arrival_s), 2.0), end_s=10_800.0
    )
    row = clairvoyant(batches, SETTINGS).row
    assert row.objective_met
    assert row.worker_hours < 6 * 3.0


@pytest.mark.parametrize("rule", RULE_NAMES[:-1])
def test_every_rule_counts_workers_and_not_the_requests_that_they_serve(rule: str) -> None:
    trace = generate_requests(5, hours=0.7, mean_load=12.0)
    worlds = (replace(SETTINGS, slots=slots) for slots in (1, 8))
    single, batching = (run_rule(trace, rule, world).row for world in worlds)
    assert batching.worker_hours < single.worker_hours / 2
    assert batching.objective_met or rule != "spotkeeper"


def test_slots_that_workers_do_not_have_cost_an_hour_and_not_the_promise() -> None:
    trace, settings = generate_requests(5, hours=1.5, mean_load=12.0), replace(SETTINGS, slots=4)
    rule = Spotkeeper(replace(settings, slots=16))
    run = replay(trace, rule, settings)
    assert (run.wait_s[trace.arrival_s > 3_600] <= settings.wait_s).all()
    assert (
        run.row.worker_hours < 1.1 * replay(trace, Spotkeeper(settings), settings).row.worker_hours
    )
