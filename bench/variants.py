"""How far the sizing rule carries: other traffic than that of the docs' first table.

Each trace goes through Spotkeeper, the rules that may beat it, and the clairvoyant; docs/sizing.md
has the table. Needs ../shared/traces/requests.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.table import Table

from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.replay.engine import replay
from spotkeeper_lab.replay.rules import FixedRule
from spotkeeper_lab.replay.run import run_rule
from spotkeeper_lab.replay.values import ReplaySettings, Row
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests, read_requests

TRACES = Path(__file__).parents[2] / "shared" / "traces" / "requests"
PEERS = ("fixed-peak", "load-rate", "skyserve", "erlang-c", "square-root", "aws-backlog", "hpa")
DAY_S, HOUR_S = 86_400.0, 3_600.0
HOURS = ("azure-llm-conv-2023-11", "mooncake-conversation")
IMAGES, MID = "servegen-mm-image-tenth", "servegen-m-mid-14d-rates"


@dataclass(frozen=True, slots=True)
class Result:
    """Whether Spotkeeper kept the promise, its share in time, and hours over the others'.

    `mixture` is what the best mixture of two constant sizes needs over clairvoyant's hours.
    """

    kept: bool
    share: float
    over_next: float
    over_clairvoyant: float
    mixture: float


def measured(trace: RequestTrace) -> Result:
    """One trace through the rules."""
    settings = ReplaySettings()
    ours = run_rule(trace, "spotkeeper", settings).row
    peers = (run_rule(trace, rule, settings).row for rule in PEERS)
    best = min((row.worker_hours for row in peers if row.objective_met), default=math.nan)
    future = run_rule(trace, "clairvoyant", settings).row
    hours, known = ours.worker_hours, future.worker_hours
    mixture = best_mixture(trace, settings) / known
    return Result(ours.objective_met, ours.share_in_time, hours / best, hours / known, mixture)


def best_mixture(trace: RequestTrace, settings: ReplaySettings) -> float:
    """Return the worker-hours of two fleets of constant size, each for a part of the time.

    Sizes and parts are the best that keep the promise, known afterwards. Where what will arrive has
    nothing to do with what arrived, a fleet of any other sizes is such a mixture, or a dearer one.
    """
    sizes: list[Row] = []
    busy = float(trace.service_s.sum()) / trace.end_s
    for workers in count(max(1, math.floor(busy / 2))):
        fixed = replace(settings, initial_workers=workers)
        sizes.append(replay(trace, FixedRule(name="constant", count=workers), fixed).row)
        if sizes[-1].share_in_time >= (1 + settings.share) / 2:
            break
    enough = [row for row in sizes if row.share_in_time >= settings.share]
    short = [row for row in sizes if row.share_in_time < settings.share]
    return min(
        (_mixed_hours(less, more, settings.share) for less in short for more in enough),
        default=enough[0].worker_hours,
    )


def _mixed_hours(less: Row, more: Row, share: float) -> float:
    """Return the worker-hours of two sizes, each for so long that together they keep the share."""
    part = (share - less.share_in_time) / (more.share_in_time - less.share_in_time)
    return less.worker_hours + part * (more.worker_hours - less.worker_hours)


def days() -> Iterator[RequestTrace]:
    """Every other day of the fortnight."""
    fortnight = read_requests(TRACES / f"{MID}.csv.gz", seed=5, mean_rate_per_s=1.0)
    for day in range(0, 14, 2):
        now = (fortnight.arrival_s >= day * DAY_S) & (fortnight.arrival_s < (day + 1) * DAY_S)
        arrival_s, service_s = fortnight.arrival_s[now] - day * DAY_S, fortnight.service_s[now]
        yield RequestTrace(name=f"day {day}", arrival_s=arrival_s, service_s=service_s, end_s=DAY_S)


def changed(
    name: str, shares: Sequence[float], shifts_s: Sequence[float]
) -> Iterator[RequestTrace]:
    """A trace thinned, with other service times, and begun later."""
    trace, draw = read_requests(TRACES / f"{name}.csv.gz"), np.random.default_rng(1)
    for share in shares:
        kept = draw.random(len(trace)) < share
        yield replace(trace, arrival_s=trace.arrival_s[kept], service_s=trace.service_s[kept])
    for times in (0.3, 3.0):
        yield replace(trace, service_s=trace.service_s * times)
    for shift_s in shifts_s:
        moved_s = (trace.arrival_s + shift_s) % trace.end_s
        order = np.argsort(moved_s)
        yield replace(trace, arrival_s=moved_s[order], service_s=trace.service_s[order])


def turned(name: str) -> Iterator[RequestTrace]:
    """An hour as `changed` has it, backwards, and with its service times permuted."""
    yield from changed(name, (0.3, 0.6), (900.0, 1_800.0, 2_700.0))
    trace, draw = read_requests(TRACES / f"{name}.csv.gz"), np.random.default_rng(1)
    backwards_s = (trace.end_s - trace.arrival_s)[::-1].copy()
    yield replace(trace, arrival_s=backwards_s, service_s=trace.service_s[::-1].copy())
    yield replace(trace, service_s=draw.permutation(trace.service_s))


def bursts(
    seed: int, every_s: float, long_s: float, rate: float, calm: float, end_s: float
) -> RequestTrace:
    """Bursts of `rate` requests of 1.3 s a second between stretches of `calm`, both exponential."""
    draw = np.random.default_rng(seed)
    count = math.ceil(2 * end_s / (every_s + long_s)) + 10
    parts_s = np.column_stack([draw.exponential(every_s, count), draw.exponential(long_s, count)])
    ends_s = parts_s.reshape(-1).cumsum()
    arrivals = (
        draw.uniform(end - long, end, draw.poisson(per_s * long))
        for end, long, per_s in zip(ends_s, parts_s.reshape(-1), [calm, rate] * count, strict=True)
    )
    arrival_s = np.sort(np.concatenate([*arrivals]))
    arrival_s = arrival_s[arrival_s < end_s]
    service_s = draw.lognormal(math.log(1.3) - 0.154, 0.554, len(arrival_s))
    return RequestTrace(name="bursts", arrival_s=arrival_s, service_s=service_s, end_s=end_s)


def sparse(load: float, service_s: float, seed: int) -> RequestTrace:
    """A day of independent requests that take long: a worker is a large step of the fleet."""
    draw = np.random.default_rng(seed)
    arrival_s = np.sort(draw.uniform(0.0, DAY_S, draw.poisson(load / service_s * DAY_S)))
    times_s = draw.lognormal(math.log(service_s) - 0.125, 0.5, len(arrival_s))
    return RequestTrace(
        name=f"{load:g} erlangs", arrival_s=arrival_s, service_s=times_s, end_s=DAY_S
    )


def spikes(seed: int, hours: int) -> RequestTrace:
    """20 to 120 requests of 2 s within 10 to 60 s, every 4 to 30 minutes, over a steady erlang."""
    draw, end_s = np.random.default_rng(seed), hours * HOUR_S
    starts_s = draw.uniform(240.0, 1_800.0, 15 * hours).cumsum()
    parts = (
        at + draw.uniform(0.0, draw.uniform(10.0, 60.0), draw.integers(20, 121)) for at in starts_s
    )
    calm_s = draw.uniform(0.0, end_s, draw.poisson(0.5 * end_s))
    arrival_s = np.sort(np.concatenate([calm_s, *parts]))
    arrival_s = arrival_s[arrival_s < end_s]
    service_s = draw.lognormal(math.log(2.0) - 0.125, 0.5, len(arrival_s))
    return RequestTrace(name="spikes", arrival_s=arrival_s, service_s=service_s, end_s=end_s)


def steep(seed: int, *, regular: bool) -> RequestTrace:
    """An hour of 0.2 to 10 requests a second, 2 to 8 times as many for 30 to 180 s now and then.

    The next spike begins 5, 10 or 15 minutes after the one before, or, where that is not `regular`,
    an exponential time with that mean. They differ in length by 40 % each way.
    """
    draw = np.random.default_rng(seed)
    rate, times = draw.choice((0.2, 0.5, 1.0, 3.0, 10.0)), draw.choice((2.0, 3.0, 5.0, 8.0))
    long_s, every_s = draw.choice((30.0, 60.0, 180.0)), draw.choice((300.0, 600.0, 900.0))
    service_s = draw.choice((0.5, 2.0, 5.0))
    gaps_s = draw.exponential(every_s, 100)
    starts_s = np.arange(every_s / 2, HOUR_S, every_s) if regular else gaps_s.cumsum()
    parts = [draw.uniform(0.0, HOUR_S, draw.poisson(rate * HOUR_S))]
    for at, length_s in zip(starts_s, long_s * draw.uniform(0.6, 1.4, len(starts_s)), strict=True):
        parts.append(at + draw.uniform(0.0, length_s, draw.poisson(rate * (times - 1) * length_s)))
    arrival_s = np.sort(np.concatenate(parts))
    arrival_s = arrival_s[arrival_s < HOUR_S]
    times_s = draw.lognormal(math.log(service_s) - 0.125, 0.5, len(arrival_s))
    return RequestTrace(name="steep", arrival_s=arrival_s, service_s=times_s, end_s=HOUR_S)


def batches(seed: int) -> RequestTrace:
    """Four hours of 10 to 60 requests of 3 s within seconds, every 2 to 20 minutes."""
    draw, end_s = np.random.default_rng(seed), 4 * HOUR_S
    starts_s = draw.uniform(120.0, 1_200.0, 120).cumsum()
    parts = (at + draw.uniform(0.0, 5.0, draw.integers(10, 61)) for at in starts_s)
    arrival_s = np.sort(np.concatenate([*parts]))
    arrival_s = arrival_s[arrival_s < end_s]
    service_s = draw.lognormal(math.log(3.0) - 0.18, 0.6, len(arrival_s))
    return RequestTrace(name="batches", arrival_s=arrival_s, service_s=service_s, end_s=end_s)


def first_day(low: float, high: float) -> RequestTrace:
    """An hour of `low` erlangs of 2 s, as before traffic is switched over, then 12 of `high`."""
    draw, end_s, service_s = np.random.default_rng(9), 13 * HOUR_S, 2.0
    tried_s = draw.uniform(0.0, HOUR_S, draw.poisson(low / service_s * HOUR_S))
    served_s = draw.uniform(HOUR_S, end_s, draw.poisson(high / service_s * 12 * HOUR_S))
    arrival_s = np.sort(np.concatenate([tried_s, served_s]))
    times_s = draw.lognormal(math.log(service_s) - 0.11, 0.47, len(arrival_s))
    return RequestTrace(name="first day", arrival_s=arrival_s, service_s=times_s, end_s=end_s)


def families() -> Iterator[tuple[str, list[RequestTrace]]]:
    """What is tried, by row of the table."""
    yield "seven single days of m-mid", [*days()]
    hours_s = tuple(hour * HOUR_S for hour in (6, 12, 18))
    yield "the image day, changed", [*changed(IMAGES, (0.25, 0.5), hours_s)]
    for name in HOURS:
        yield f"{name}, changed", [*turned(name)]
    shapes = ((240.0, 45.0, 15.0, 0.3), (900.0, 300.0, 6.0, 1.0), (300.0, 120.0, 4.0, 1.5))
    made = partial(bursts, end_s=DAY_S)
    yield "days of bursts", [made(seed, *shape) for seed in (1, 2) for shape in shapes]
    shapes = ((240.0, 45.0, 15.0, 0.3), (600.0, 120.0, 8.0, 0.5), (300.0, 120.0, 4.0, 1.5))
    made = partial(bursts, end_s=HOUR_S)
    yield "hours of bursts", [made(seed, *shape) for seed in (1, 2) for shape in shapes]
    yield "batches out of nothing", [batches(seed) for seed in range(4)]
    yield "0.4 erlangs of 30 s, a day", [sparse(0.4, 30.0, seed) for seed in range(6)]
    loads = ((0.1, 20.0), (0.2, 10.0), (0.4, 5.0), (0.4, 60.0), (0.7, 10.0), (1.0, 30.0))
    yield "0.1 to 1 erlang of 5 to 60 s, a day", [sparse(load, long_s, 7) for load, long_s in loads]
    yield "spikes, an hour", [spikes(seed, 1) for seed in range(6)]
    yield "spikes, six hours", [spikes(seed, 6) for seed in range(4)]
    alike = [steep(seed, regular=True) for seed in range(24)]
    yield "regular spikes, 2 to 8 times the load, an hour", alike
    yield "the same, not regular", [steep(seed, regular=False) for seed in range(24)]
    begun = [first_day(low, high) for low in (0.02, 0.2, 2.0) for high in (5.0, 20.0)]
    yield "next to nothing, then 5 or 20 erlangs, 13 h", begun
    yield "generated days", [generate_requests(seed) for seed in range(3)]


def main() -> None:
    """Measure every family and print a row for each."""
    console = screen()
    if not TRACES.exists():
        console.print(f"no traces in {TRACES}: nothing is measured")
        return
    columns = ("traffic", "kept", "in time", "/ next best", "/ clairvoyant", "a mixture")
    table = Table(*columns, title="Sizing, other traffic: 95 % within 10 s; hours over others'")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        for name, traces in families():
            results: list[Result] = []
            with counted(name) as show:
                for result in pool.map(measured, traces):
                    results.append(result)
                    show(len(results), len(traces), name)
            table.add_row(name, *_cells(results))
    console.print(table)


def _cells(results: Sequence[Result]) -> tuple[str, ...]:
    kept = f"{sum(result.kept for result in results)} of {len(results)}"
    shares = [100 * result.share for result in results]
    known = [result.over_next for result in results if not math.isnan(result.over_next)]
    return (
        kept,
        f"{min(shares):.0f} to {max(shares):.0f} %",
        _between(known),
        _between([result.over_clairvoyant for result in results]),
        _between([result.mixture for result in results]),
    )


def _between(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "none kept it"
