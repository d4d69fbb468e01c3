"""What search logs cost with the agent's pace: a day of recorded requests on many machines.

`python -m bench.worker_bill [TRACE...]`: request traces of seconds, `arrival_s,service_s`. Each
request goes to the worker that has been idle for longest; each machine has one worker.
"""

import argparse
import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from bench.collect import SQS_USD
from bench.cost import MINUTES, POLL
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests, read_requests
from spotkeeper_worker.logs.pace import Pace, PaceSettings

WORKERS = 50
GOAL_USD = 8.0
# The function and the digests, at a call every five seconds: `make bench`, part "table: digests"
# and "collect_search_logs". They follow the calls, not the messages.
COUNTED_USD = 1.2
HOURS = MINUTES / 60


@dataclass(frozen=True, slots=True)
class Sent:
    """What a day's messages come to."""

    messages_an_hour: float
    mean_age_s: float
    p95_age_s: float

    @property
    def usd(self) -> float:
        """USD a month of 50 workers: each message is sent, received and deleted, and counted."""
        queue = self.messages_an_hour * WORKERS * HOURS * (1 + 2 / POLL) * SQS_USD
        return queue + COUNTED_USD


def finished(trace: RequestTrace, workers: int) -> Iterator[tuple[float, int, float]]:
    """Serve a trace: when each request was finished, by whom, and how long it waited."""
    idle = deque(range(workers))
    busy: list[tuple[float, int]] = []
    done: list[tuple[float, int, float]] = []
    for arrival, service in zip(trace.arrival_s.tolist(), trace.service_s.tolist(), strict=True):
        while busy and (busy[0][0] <= arrival or not idle):
            idle.append(heapq.heappop(busy)[1])
        free_at = arrival if not busy or idle else busy[0][0]
        worker = idle.popleft()
        started = max(arrival, free_at)
        heapq.heappush(busy, (started + service, worker))
        done.append((started + service, worker, started - arrival))
    yield from sorted(done)


def sent(trace: RequestTrace, settings: PaceSettings, busy_share: float = 0.6) -> Sent:
    """Count the messages of as many workers as are busy for `busy_share` of their time."""
    workers = max(1, round(trace.offered_load / busy_share))
    paces = [Pace(settings, 0.0) for _ in range(workers)]
    waiting: list[list[float]] = [[] for _ in range(workers)]
    ages: list[float] = []
    messages, now = 0, 0.0

    def send(number: int, at: float) -> None:
        nonlocal messages
        paces[number].sent(at)
        messages += 1
        ages.extend(at - each for each in waiting[number])
        waiting[number].clear()

    for at, worker, wait_s in finished(trace, workers):
        while now + 1.0 <= at:
            now += 1.0
            for number, pace in enumerate(paces):
                if pace.due(now):
                    send(number, now)
        paces[worker].add(300, wait_s, at)
        waiting[worker].append(at)
        if paces[worker].due(at):
            send(worker, at)
    hours = now / 3600
    return Sent(
        messages_an_hour=messages / workers / hours,
        mean_age_s=float(np.mean(ages)),
        p95_age_s=float(np.quantile(ages, 0.95)),
    )


def main() -> None:
    """Print the bill of each trace, with the agent's pace and with fixed ones."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker_bill", description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    asked = parser.parse_known_args()[0].traces
    traces = [(path.name.partition(".")[0], read_requests(path)) for path in asked]
    traces = traces or [("generated day", generate_requests(0, mean_load=10.0))]
    kinds = (
        ("the agent", PaceSettings()),
        ("10 s apart", PaceSettings(10, 10)),
        ("5 to 30 s", PaceSettings(5, 30)),
    )
    heads = ("sent", "an hour, each", "age of a log: mean, p95 s", "USD a month")
    table = Table(Column("trace", overflow="fold"), *heads)
    table.title = f"Search-log messages of {WORKERS} workers"
    for name, trace in traces:
        for kind, settings in kinds:
            found = sent(trace, settings)
            age = f"{found.mean_age_s:.1f}, {found.p95_age_s:.1f}"
            table.add_row(name, kind, f"{found.messages_an_hour:.0f}", age, f"{found.usd:.2f}")
    table.caption = f"goal: below {GOAL_USD:g} USD, and as fresh as every 10 s"
    Console().print(table)


if __name__ == "__main__":
    main()
