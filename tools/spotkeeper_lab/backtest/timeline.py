"""One window as a chart per policy: what it held, and when too few served."""

from collections.abc import Iterator, Sequence

import numpy as np

from spotkeeper_charts.timeline import Chart, Series, Spans, Timeline, changed
from spotkeeper_lab.backtest.accounting import Counts, RunResult
from spotkeeper_lab.backtest.backtest import Row
from spotkeeper_lab.traces.market import Market


def timeline(rows: Sequence[Row]) -> Timeline:
    """The sample window of comparable rows, below the market's own; one scale for all."""
    window, first = rows[0].sample
    return Timeline(
        length_s=window.end_s,
        one_scale=True,
        columns=True,
        intro="Every policy in the same hours, on one scale. Point at, or tap, a moment.",
        charts=[
            _market(window, first),
            *(_chart(row.policy, row.sample[1], window.end_s) for row in rows),
        ],
    )


def _market(window: Market, run: RunResult) -> Chart:
    """The capacity of all pools, as far as it matters."""
    t, capacity = _steps(np.minimum(_total(window, run.ready.size), 2 * run.target), window.end_s)
    return Chart(
        title="spot market",
        unit="capacity of all pools, up to twice the target",
        height=100,
        whole=True,
        series=[Series(label="capacity", colour="line", kind="area", t=t, values=capacity)],
    )


def _chart(name: str, run: RunResult, end_s: float) -> Chart:
    times = (np.arange(run.spot.size) * (end_s / run.spot.size)).tolist()
    held = list(zip(run.spot.tolist(), (run.spot + run.on_demand).tolist(), strict=True))
    kept = [n for n in range(len(held)) if n == 0 or held[n] != held[n - 1]]
    t = [times[n] for n in kept]
    spot, both = ([held[n][which] for n in kept] for which in (0, 1))
    return Chart(
        title=name,
        unit=f"{run.served_share:.2%} served, cost {run.cost:.1%}",
        height=100,
        whole=True,
        ours=name == "spotkeeper",
        series=[
            Series(label="spot held", colour="spot", kind="area", t=t, values=spot),
            Series(
                label="on demand held",
                colour="on-demand",
                kind="area",
                t=t,
                values=both,
                base=spot,
            ),
            Series(label="target", colour="target", t=[0.0], values=[run.target], width=1.2),
        ],
        spans=[
            Spans(label="too few serving", colour="loss", spans=list(_short(run, end_s)), foot=True)
        ],
    )


def _total(window: Market, ticks: int) -> Counts:
    """The market's capacity over all pools per tick."""
    tick_s = window.end_s / ticks
    total = np.zeros(ticks)
    for steps in window.steps:
        index = np.searchsorted(steps.times, np.arange(ticks) * tick_s, side="right") - 1
        total += np.array(steps.capacities)[index]
    return total


def _steps(counts: Counts, end_s: float) -> tuple[list[float], list[float]]:
    """A count per tick as a step function, only where it changes."""
    return changed((np.arange(counts.size) * (end_s / counts.size)).tolist(), counts.tolist())


def _short(run: RunResult, end_s: float) -> Iterator[tuple[float, float, str]]:
    """When fewer than the target served, after the first cold start."""
    flags = run.ready < run.target - 1e-6
    flags[: run.first] = False
    tick_s = end_s / flags.size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]))).tolist()
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        fewest = int(run.ready[start:end].min())
        yield start * tick_s, end * tick_s, f"{fewest} of {run.target} serve"
