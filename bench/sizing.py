"""Every sizing rule on the recorded requests, and both checkers on a recorded market, with goals.

Needs ../shared/traces, or the folder that TRACES names; made logs (`bench.made`) need nothing.
`python -m bench sizing --log=clients-1-3` replays one log alone, `--log=made-steps` a made one,
drawn by `--seed=1`. Hours are worker-hours; late is what starts after the promised wait.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from bench._figures import Figure, show
from bench.made import LOGS, made
from spotkeeper.domain.load.history import ArrivalLog
from spotkeeper.domain.sizing.shadows import ObjectivePolicy, judged
from spotkeeper_cli.options import counted, screen
from spotkeeper_lab.replay.deployed import Spotkeeper
from spotkeeper_lab.replay.engine import replay
from spotkeeper_lab.replay.report import cheapest, seconds
from spotkeeper_lab.replay.values import MarketRow, ReplaySettings, Row, Run
from spotkeeper_lab.run.on_market import on_market
from spotkeeper_lab.run.replay import RULE_NAMES, best_member, run_rule
from spotkeeper_lab.traces.market import read_market
from spotkeeper_lab.traces.requests import Floats, RequestTrace, read_requests

TRACES = Path(os.environ.get("TRACES") or Path(__file__).parents[2] / "shared" / "traces")
MARKET = "aws-p3.2xlarge-4-2023-08.csv.gz"
ON_MARKET = "servegen-mm-image-tenth"
SETTINGS = ReplaySettings()
DAY_LONG_S = 80_000.0
# The recorded rates of m-mid are of hundreds of machines: they are scaled to this mean.
RATE_PER_S = 1.0
MADE = "made-"

LIMIT_STEP_MS = 20.0
LIMIT_MEDIAN, LIMIT_WORST, LIMIT_COST = 1.05, 1.20, 0.30
# Logs replayed with workers that batch, and the slots of a worker.
BATCHING = {
    "azure-llm-conv-2023-11": 16,
    "mooncake-conversation": 16,
    "servegen-mm-image-tenth": 4,
}
LIMIT_BATCHING = 1.25
# Of an hour, without a history: what the rule of release 0.2 needed, and 5 % more.
FIRST_HOURS = {"azure-llm-conv-2023-11": 36.7, "mooncake-conversation": 43.0}
BEST = "best member"
PROMISE = f"{SETTINGS.share:.0%} within {SETTINGS.wait_s:g} s"
# Rules that know the trace beforehand, and Spotkeeper's own.
NO_PEERS = ("fixed-peak", "clairvoyant", "spotkeeper")

# A day with fewer requests says little about a share of 95 %.
FEWEST_A_DAY = 20


class Played(NamedTuple):
    """One rule on one trace: its row, and the days of the trace that kept the promise."""

    row: Row
    days_kept: int
    days: int
    worst_day: float


type Rows = Mapping[str, Played]
"""What was played of one trace, by rule; `BEST` is the best member known afterwards."""


def main() -> None:
    """Replay everything and print a table for each log, then the verdicts."""
    console = screen()
    named = tuple(
        argument.removeprefix("--log=") for argument in sys.argv if argument.startswith("--log=")
    )
    recorded = sorted((TRACES / "requests").glob("*.csv.gz"))
    paths = [
        path
        for path in (*recorded, *(Path(f"{MADE}{name}") for name in LOGS))
        if not named or path.name.startswith(named)
    ]
    if not paths:
        console.print(f"no traces in {TRACES}: nothing is replayed")
        return
    traces, both, batching = _replayed(paths, console)
    goals = [goal for path, rows in traces.items() for goal in _goals(rows, _requests(path).end_s)]
    show("The promise and what it costs", [*goals, *_over_all(list(traces.values()))])
    if batching:
        show("Workers that serve several requests at once", batching)
    if both:
        # The cost against a fixed on-demand fleet for the peak, and where it comes from.
        figures = (
            _late(both.trace, both.share_in_time),
            Figure("cost / fixed on demand", both.cost, "x", LIMIT_COST),
            Figure("  = sizing: hours asked for / fixed", both.sizing_factor, "x"),
            Figure("  x spot: cost / the same on demand", both.spot_factor, "x"),
        )
        show(f"Both checkers on {both.market}, {both.hours:g} hours", figures)
    if not named:
        show("Speed of the rule", [step()])


def _replayed(
    paths: Sequence[Path], console: Console
) -> tuple[Mapping[Path, Rows], MarketRow | None, list[Figure]]:
    """Run every rule on every log, and both checkers on one, in processes; print each log's table.

    The longest log runs first.
    """
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        both = [pool.submit(_on_market, path) for path in paths if path.name.startswith(ON_MARKET)]
        runs: dict[Path, list[Future[list[Played]]]] = {
            path: [pool.submit(_rows, path, rule) for rule in reversed(RULE_NAMES)]
            for path in sorted(paths, key=lambda path: "14d" not in path.name)
        }
        slotted = [pool.submit(_batching, path) for path in paths if _name(path) in BATCHING]
        rows = dict[Path, Rows]()
        with counted("replay") as progress:
            for path, rules in runs.items():
                progress(len(rows), len(paths), "logs")
                played = [one for rule in reversed(rules) for one in rule.result()]
                names = [BEST if one.row.rule.startswith(BEST) else one.row.rule for one in played]
                rows[path] = dict(zip(names, played, strict=True))
                console.print(_table(rows[path]))
        batching = [figure for each in slotted for figure in each.result()]
        return rows, both[0].result() if both else None, batching


@cache
def _requests(path: Path) -> RequestTrace:
    if path.name.startswith(MADE):
        seeds = [it.removeprefix("--seed=") for it in sys.argv if it.startswith("--seed=")]
        return made(path.name.removeprefix(MADE), int(seeds[0]) if seeds else 0)
    return read_requests(path, mean_rate_per_s=RATE_PER_S)


def _rows(path: Path, rule: str) -> list[Played]:
    """Replay one rule; after Spotkeeper's own, the best member of its family known afterwards."""
    trace = _requests(path)
    if rule != Spotkeeper.name:
        runs: list[Run | None] = [run_rule(trace, rule, SETTINGS)]
    else:
        own = Spotkeeper(SETTINGS)
        runs = [replay(trace, own, SETTINGS), best_member(trace, own, SETTINGS)]
    return [_played(run.row, run.wait_s, trace) for run in runs if run]


def _batching(path: Path) -> list[Figure]:
    """Replay a log with workers that batch: by slots, by requests as workers, by the future."""
    trace, slots = _requests(path), BATCHING[_name(path)]
    settings = replace(SETTINGS, slots=slots)
    own = replay(trace, Spotkeeper(settings), settings).row
    single = replay(trace, Spotkeeper(SETTINGS), settings).row
    known = run_rule(trace, "clairvoyant", settings).row
    name, hours = f"{trace.name}, {slots} slots", own.worker_hours
    return [
        _late(name, own.share_in_time),
        Figure(f"{name}: hours", hours, "h"),
        Figure(f"{name}: hours / clairvoyant", hours / known.worker_hours, "x", LIMIT_BATCHING),
        Figure(f"{name}: requests as workers / hours", single.worker_hours / hours, "x"),
    ]


def _name(path: Path) -> str:
    return path.name.removesuffix(".csv.gz")


def _played(row: Row, wait_s: Floats, trace: RequestTrace) -> Played:
    """Count the days that kept the promise: of those with requests enough to tell."""
    days = (trace.arrival_s // 86_400).astype(int)
    in_time, requests = np.bincount(days, weights=wait_s <= SETTINGS.wait_s), np.bincount(days)
    shares = (in_time / np.maximum(requests, 1))[requests > FEWEST_A_DAY]
    kept = int((shares >= SETTINGS.share).sum())
    return Played(row, kept, len(shares), float(shares.min(initial=1.0)))


def _on_market(path: Path) -> MarketRow:
    return on_market(_requests(path), read_market(TRACES / "market" / MARKET), SETTINGS)


def _table(rows: Rows) -> Table:
    """Every rule on one trace; bold is what keeps the promise with the fewest hours."""
    known, member = rows["clairvoyant"].row, rows.get(BEST)
    best = cheapest([one.row for one in rows.values() if one is not member])
    shown = Table(title=f"{known.trace}: {PROMISE}", title_justify="left")
    columns = ("rule", "in time", "days kept", "worst day", "p95", "hours", "/ member", "/ known")
    for number, header in enumerate(columns):
        shown.add_column(header, justify="right" if number else "left")
    for one in rows.values():
        row = one.row
        shown.add_row(
            row.rule,
            f"{row.share_in_time:.2%}",
            f"{one.days_kept}/{one.days}",
            f"{one.worst_day:.1%}",
            seconds(row.wait_p95),
            f"{row.worker_hours:,.1f}",
            f"{row.worker_hours / member.row.worker_hours:.2f}" if member else "",
            f"{row.worker_hours / known.worker_hours:.2f}",
            style="bold" if row is best else "" if row.objective_met else "dim",
        )
    return shown


def _goals(rows: Rows, end_s: float) -> Iterator[Figure]:
    """What the rule must do on one trace: keep the promise that a member keeps, with few hours."""
    own, known = rows["spotkeeper"].row, rows["clairvoyant"].row
    name, hours = own.trace, own.worker_hours
    late = _late(name, own.share_in_time)
    yield late if BEST in rows else replace(late, limit=None)
    if name in FIRST_HOURS:
        yield Figure(f"{name}: hours", hours, "h", FIRST_HOURS[name])
    if end_s >= DAY_LONG_S and BEST in rows:
        ratio = hours / rows[BEST].row.worker_hours
        yield Figure(f"{name}: hours / best member known afterwards", ratio, "x", LIMIT_WORST)
    yield Figure(f"{name}: hours / clairvoyant", hours / known.worker_hours, "x")


def _over_all(traces: Sequence[Rows]) -> Iterator[Figure]:
    """Over all logs: the median ratio to the best member, and each peer that keeps its promises."""
    ratios = [
        rows["spotkeeper"].row.worker_hours / rows[BEST].row.worker_hours
        for rows in traces
        if BEST in rows and rows[BEST].days > 1
    ]
    if ratios:
        name = "median log of days: hours / best member known afterwards"
        yield Figure(name, median(ratios), "x", LIMIT_MEDIAN)
    ours = sum(rows["spotkeeper"].row.worker_hours for rows in traces)
    for rule in RULE_NAMES:
        peer = [rows[rule].row for rows in traces if rule in rows and rule not in NO_PEERS]
        if len(peer) == len(traces) and sum(r.objective_met for r in peer) >= 0.9 * len(peer):
            name = f"all logs: hours / {rule}, which keeps nine of ten"
            yield Figure(name, ours / sum(row.worker_hours for row in peer), "x", 1.0)


def _late(name: str, in_time: float) -> Figure:
    limit = round(100 * (1 - SETTINGS.share), 6)
    return Figure(f"{name}: late", 100 * (1 - in_time), "%", limit)


def step() -> Figure:
    """What every shadow of 500 workers costs once in five turns, the best of some rounds."""
    draw = np.random.default_rng(0)
    requests = draw.poisson(2_000, 8_640).tolist()
    log = ArrivalLog(0, requests, [2.0 * count for count in requests])
    policy = ObjectivePolicy(
        wait_s=10, share=0.95, min_workers=1, max_workers=2_000, start_up_s=240
    )
    times_s = []
    for _ in range(5):
        began = time.process_time()
        judged(log, len(log), policy, 0.5)
        times_s.append(time.process_time() - began)
    name = "all shadows of 500 workers, five minutes"
    return Figure(name, 1000 * min(times_s), "ms", LIMIT_STEP_MS)
