"""One window as a strip per policy: what it held, and when too few served."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spotkeeper_lab.backtest.accounting import Counts, RunResult
from spotkeeper_lab.backtest.backtest import Row
from spotkeeper_lab.traces.market import Market

WIDTH, HEIGHT = 400.0, 56.0
MOST_HOURS = 8
HOUR_STEPS = (1, 2, 3, 6, 12, 24, 48, 96, 192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One policy's window as paths in a view box; ``short`` are (x, width) with too few serving."""

    name: str
    width: float
    height: float
    spot: str
    on_demand: str
    target: float
    short: Sequence[tuple[float, float]]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The strips of one window, below the market's own; ``hours`` are (x, hour)."""

    market: str
    width: float
    height: float
    strips: Sequence[Strip]
    hours: Sequence[tuple[float, int]]


def timeline(rows: Sequence[Row]) -> Timeline:
    """The sample window of comparable rows."""
    window, first = rows[0].sample
    top = max(float((row.sample[1].spot + row.sample[1].on_demand).max()) for row in rows)
    top = max(top, first.target) * 1.08
    return Timeline(
        market=_area(_total(window, first.ready.size), 2 * first.target * 1.08),
        width=WIDTH,
        height=HEIGHT,
        strips=[_strip(row.policy, row.sample[1], top) for row in rows],
        hours=list(_hours(window.end_s)),
    )


def _strip(name: str, result: RunResult, top: float) -> Strip:
    short = result.ready < result.target - 1e-6
    short[: result.first] = False
    return Strip(
        name=name,
        width=WIDTH,
        height=HEIGHT,
        spot=_area(result.spot, top),
        on_demand=_area(result.spot + result.on_demand, top),
        target=HEIGHT * (1 - result.target / top),
        short=list(_spans(short)),
        words=f"{result.served_share:.2%} served, {result.cost:.1%} of on demand",
    )


def _total(window: Market, ticks: int) -> Counts:
    """The market's capacity over all pools per tick."""
    tick_s = window.end_s / ticks
    total = np.zeros(ticks)
    for steps in window.steps:
        index = np.searchsorted(steps.times, np.arange(ticks) * tick_s, side="right") - 1
        total += np.array(steps.capacities)[index]
    return total


def _area(counts: Counts, top: float) -> str:
    """A filled step line, only where it changes."""
    scale = WIDTH / counts.size
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]
    points = [f"M0 {HEIGHT:g}"]
    for edge in edges:
        points.append(f"H{edge * scale:.2f}V{HEIGHT * (1 - min(counts[edge] / top, 1)):.1f}")
    return "".join([*points, f"H{WIDTH:g}V{HEIGHT:g}Z"])


def _spans(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[tuple[float, float]]:
    """Where flags are set, as (x, width), at least a hair wide."""
    scale = WIDTH / flags.size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]))).tolist()
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield round(start * scale, 2), round(max((end - start) * scale, 0.7), 2)


def _hours(end_s: float) -> Iterator[tuple[float, int]]:
    fitting = (step for step in HOUR_STEPS if end_s / 3600 / step <= MOST_HOURS)
    step = next(fitting, int(end_s // 3600))
    for hour in range(0, int(end_s // 3600) + 1, step):
        yield round(hour * 3600 / end_s * WIDTH, 1), hour
