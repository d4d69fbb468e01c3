"""What a fleet that may sleep saves, and whom it lets wait: docs/sizing.md's table of four logs.

Spotkeeper alone, by logs only, with the queue's length known, and with zero workers allowed.
Needs ../shared/traces/requests for the last log.
"""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.table import Table

from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.replay.run import run_rule
from spotkeeper_lab.replay.values import ReplaySettings, Row
from spotkeeper_lab.traces.requests import RequestTrace, read_requests

MID = Path(__file__).parents[2] / "shared/traces/requests/servegen-m-mid-14d-rates.csv.gz"
DAY_S, HOUR_S = 86_400.0, 3_600.0
SERVICE_S, SPREAD = 3.0, 0.5
WAYS = {
    "logs only": ReplaySettings(),
    "queue known, least 1": ReplaySettings(queue_known=True),
    "least 0": ReplaySettings(queue_known=True, min_workers=0),
}


def main() -> None:
    """Replay each log each way and print a row for each log."""
    console = screen()
    table = Table(
        "requests of 3 s on average", *WAYS, title="Worker-hours (% in time), 95 % in 10 s"
    )
    traces = [*logs()]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        runs = {
            (trace.name, way): pool.submit(_row, trace, way)
            for trace in reversed(traces)
            for way in WAYS
        }
        with counted("replay") as show:
            for done, (key, run) in enumerate(runs.items(), start=1):
                run.result()
                show(done, len(runs), " ".join(key))
    for trace in traces:
        table.add_row(trace.name, *(_cell(runs[trace.name, way].result()) for way in WAYS))
    console.print(table)


def logs() -> Iterator[RequestTrace]:
    """One request an hour, office hours, ten minutes every two hours, and a recorded fortnight."""
    yield _requests("one an hour, a day", 1 / HOUR_S, [(0.0, DAY_S)])
    yield _requests("one every 2 s from 8 to 18 h", 0.5, [(8 * HOUR_S, 18 * HOUR_S)])
    twelve = [(2 * hour * HOUR_S, 2 * hour * HOUR_S + 600.0) for hour in range(12)]
    yield _requests("the same for 10 minutes every 2 h", 0.5, twelve)
    if MID.exists():
        yield read_requests(MID, mean_rate_per_s=1.0)


def _requests(name: str, per_s: float, parts: list[tuple[float, float]]) -> RequestTrace:
    draw = np.random.default_rng(1)
    drawn = (draw.uniform(begin, end, draw.poisson(per_s * (end - begin))) for begin, end in parts)
    arrival_s = np.sort(np.concatenate([*drawn]))
    service_s = draw.lognormal(math.log(SERVICE_S) - SPREAD**2 / 2, SPREAD, len(arrival_s))
    return RequestTrace(name=name, arrival_s=arrival_s, service_s=service_s, end_s=DAY_S)


def _row(trace: RequestTrace, way: str) -> Row:
    return run_rule(trace, "spotkeeper", WAYS[way]).row


def _cell(row: Row) -> str:
    lost = f", {row.lost} lost" if row.lost else ""
    return f"{row.worker_hours:,.1f} ({100 * row.share_in_time:.1f}{lost})"


if __name__ == "__main__":
    main()
