"""Every sizing rule on the recorded requests, and both checkers on a recorded market, with goals.

Needs ../shared/traces; takes some minutes of two cores. Hours are worker-hours; late is what starts
after the promised wait.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bench._figures import Figure, show
from spotkeeper.domain.load.history import DAY_STEPS
from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.objective import size_to_objective
from spotkeeper.domain.sizing.values import ObjectivePolicy, PastNeed
from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.replay.on_market import on_market
from spotkeeper_lab.replay.output import cheapest, seconds
from spotkeeper_lab.replay.run import RULE_NAMES, run_rule
from spotkeeper_lab.replay.values import MarketRow, ReplaySettings, Row
from spotkeeper_lab.traces.market_file import read_market
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests, read_requests

TRACES = Path(__file__).parents[2] / "shared" / "traces"
MARKET = "aws-p3.2xlarge-4-2023-08.csv.gz"
ON_MARKET = "servegen-mm-image-tenth"
SETTINGS = ReplaySettings()
DAY_LONG_S = 80_000.0
# The recorded rates of m-mid are of hundreds of machines; docs/sizing.md has them at this mean.
RATE_PER_S = 1.0

LIMIT_TURN_MS, LIMIT_DAY_S = 20.0, 20.0
LIMIT_CLAIRVOYANT, LIMIT_COST = 1.25, 0.30
WORKERS, TURNS, ROUNDS = 500, 20, 5

type Rows = Mapping[str, Row]
"""The rows of one trace, by rule."""


def main() -> None:
    """Replay everything and print the tables and the verdicts."""
    console = screen()
    paths = sorted((TRACES / "requests").glob("*.csv.gz"))
    if not paths:
        console.print(f"no traces in {TRACES}: nothing is replayed")
    traces, both = _replayed(paths)
    for rows in traces.values():
        console.print(_table(rows))
    goals = [goal for path, rows in traces.items() for goal in _goals(rows, _requests(path).end_s)]
    show("The promise and what it costs", goals)
    if both:
        show(f"Both checkers on {both.market}, {both.hours:g} hours", _market_goals(both))
    show("Speed and cost of the rule", [turn(), day()])


def _replayed(paths: Sequence[Path]) -> tuple[Mapping[Path, Rows], MarketRow | None]:
    """Run every rule on every trace, and both checkers on one, in processes; longest first."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        both = [pool.submit(_on_market, path) for path in paths if path.name.startswith(ON_MARKET)]
        runs: dict[tuple[Path, str], Future[Row]] = {
            (path, rule): pool.submit(_row, path, rule)
            for rule in reversed(RULE_NAMES)
            for path in sorted(paths, key=lambda path: "14d" not in path.name)
        }
        _wait([*both, *runs.values()])
        rows = {path: {rule: runs[path, rule].result() for rule in RULE_NAMES} for path in paths}
        return rows, both[0].result() if both else None


def _wait(runs: Sequence[Future[Any]]) -> None:
    with counted("replay") as progress:
        for done, run in enumerate(as_completed(runs), start=1):
            row = run.result()
            progress(done, len(runs), f"{row.trace} {row.rule}")


@cache
def _requests(path: Path) -> RequestTrace:
    return read_requests(path, mean_rate_per_s=RATE_PER_S)


def _row(path: Path, rule: str) -> Row:
    return run_rule(_requests(path), rule, SETTINGS).row


def _on_market(path: Path) -> MarketRow:
    return on_market(_requests(path), read_market(TRACES / "market" / MARKET), SETTINGS)


def _table(rows: Rows) -> Table:
    """Every rule on one trace; bold is what keeps the promise with the fewest hours."""
    best, known = cheapest(list(rows.values())), rows["clairvoyant"].worker_hours
    promise = f"{SETTINGS.share:.0%} within {SETTINGS.wait_s:g} s"
    title = f"{rows['clairvoyant'].trace}: {promise}"
    table = Table(title=title, title_justify="left")
    for number, header in enumerate(("rule", "kept", "in time", "p95", "hours", "/ clairvoyant")):
        table.add_column(header, justify="right" if number else "left")
    for row in rows.values():
        table.add_row(
            row.rule,
            "yes" if row.objective_met else "no",
            f"{row.share_in_time:.2%}",
            seconds(row.wait_p95),
            f"{row.worker_hours:,.1f}",
            f"{row.worker_hours / known:.2f}",
            style="bold" if row is best else "" if row.objective_met else "dim",
        )
    return table


def _goals(rows: Rows, end_s: float) -> Iterator[Figure]:
    """What is asked of the rule on one trace: the promise kept, for the fewest hours.

    The next best is the other rule that keeps the promise with the fewest hours.
    """
    own, known = rows["spotkeeper"], rows["clairvoyant"]
    others = [
        row.worker_hours for row in rows.values() if row.objective_met and row not in (own, known)
    ]
    yield _late(own.trace, own.share_in_time)
    yield Figure(
        name=f"{own.trace}: hours / next best",
        value=own.worker_hours / min(others, default=own.worker_hours),
        unit="x",
        limit=1.0,
    )
    yield Figure(
        name=f"{own.trace}: hours / clairvoyant",
        value=own.worker_hours / known.worker_hours,
        unit="x",
        limit=LIMIT_CLAIRVOYANT if end_s >= DAY_LONG_S else None,
    )


def _late(name: str, in_time: float) -> Figure:
    limit = round(100 * (1 - SETTINGS.share), 6)
    return Figure(name=f"{name}: late", value=100 * (1 - in_time), unit="%", limit=limit)


def _market_goals(row: MarketRow) -> Iterator[Figure]:
    """The cost against a fixed on-demand fleet for the peak, and where it comes from."""
    yield _late(row.trace, row.share_in_time)
    yield Figure(name="cost / fixed on demand", value=row.cost, unit="x", limit=LIMIT_COST)
    yield Figure(name="  = sizing: hours asked for / fixed", value=row.sizing_factor, unit="x")
    yield Figure(name="  x spot: cost / the same on demand", value=row.spot_factor, unit="x")


def turn() -> Figure:
    """One turn of sizing for 500 workers, their logs summed up: the slowest of some situations."""
    calm = _summary()
    behind = replace(calm, newest_wait_s=120.0, newest_start_age_s=5.0)
    lost = replace(calm, newest_log_age_s=300.0)
    value = max(_milliseconds(load) for load in (calm, behind, lost))
    name = f"sizing {WORKERS} workers, 15 minutes"
    return Figure(name=name, value=value, unit="ms", limit=LIMIT_TURN_MS)


def _summary() -> LoadSummary:
    """A quarter of an hour of 500 workers that are busy to 80 %, after two weeks of days."""
    draw = np.random.default_rng(0)
    load, mean_s, second_s2 = 0.8 * WORKERS, 2.0, 6.0
    arrivals = draw.poisson(10 * load / mean_s, 90)
    hours = np.arange(0.0, 14 * 24, 1 / 12)
    past = load * (1 + 0.5 * np.sin(hours * np.pi / 12)) * draw.normal(1.0, 0.05, len(hours))
    return LoadSummary(
        arrivals=tuple(arrivals.tolist()),
        work_s=tuple((arrivals * mean_s).tolist()),
        service_mean_s=mean_s,
        service_second_moment_s2=second_s2,
        newest_start_age_s=3.0,
        newest_wait_s=0.0,
        newest_log_age_s=2.0,
        peakedness=3.0,
        requests_last_day=10_000_000,
        late_last_day=200_000,
        past_loads=tuple(past.tolist()),
        recent_loads=tuple((past[-DAY_STEPS:].repeat(5) * draw.choice((0.5, 2), 1440)).tolist()),
    )


def _milliseconds(load: LoadSummary) -> float:
    """Processor time of a turn, the best of some rounds."""
    policy = ObjectivePolicy(
        wait_s=10, share=0.95, min_workers=1, max_workers=2_000, start_up_s=240
    )
    past = [PastNeed(age_s=60.0 * age, workers=WORKERS) for age in range(1, 16)]

    best = math.inf
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(TURNS):
            size_to_objective(load, WORKERS, 0, past, policy)
        best = min(best, time.process_time() - began)
    return 1000 * best / TURNS


def day() -> Figure:
    """A day of a request per second, through every rule and the clairvoyant."""
    trace = generate_requests(0)
    began = time.process_time()
    for rule in RULE_NAMES:
        run_rule(trace, rule, SETTINGS)
    name = f"a day of {len(trace) / trace.end_s:.1f} requests/s, all {len(RULE_NAMES)} rules"
    return Figure(name=name, value=time.process_time() - began, unit="s", limit=LIMIT_DAY_S)


if __name__ == "__main__":
    main()
