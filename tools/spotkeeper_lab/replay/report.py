"""The replay's picture: load, workers asked for, workers serving, and waits, per trace and rule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape

from spotkeeper_lab.replay.output import HEADERS, cells, cheapest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper_lab.replay.values import Floats, Row, Run
    from spotkeeper_lab.traces.requests import RequestTrace

BUCKETS = 180
WIDTH, HEIGHT, WAIT_HEIGHT = 720.0, 150.0, 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One rule's picture: SVG points in a box of WIDTH x HEIGHT, waits as bars below it."""

    row: Row
    load: str
    wanted: str
    serving: str
    waits: tuple[tuple[float, float, bool], ...]
    reasons: tuple[tuple[float, str], ...]
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One trace: its table and its panels."""

    name: str
    hours: float
    requests: int
    load: float
    table: tuple[tuple[str, tuple[str, ...]], ...]
    panels: tuple[Panel, ...]


def report_html(runs: Sequence[tuple[RequestTrace, Run]]) -> str:
    """Return the page for runs of one or more traces; it needs no other file."""
    names = list(dict.fromkeys(trace.name for trace, _ in runs))
    chapters = [_chapter([pair for pair in runs if pair[0].name == name]) for name in names]
    environment = Environment(
        loader=PackageLoader("spotkeeper_lab.replay", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        chapters=chapters,
        headers=HEADERS,
        settings=runs[0][1].row.settings,
        width=WIDTH,
        height=HEIGHT,
        wait_height=WAIT_HEIGHT,
        bar=WIDTH / BUCKETS,
    )


def _chapter(runs: Sequence[tuple[RequestTrace, Run]]) -> Chapter:
    trace = runs[0][0]
    rows = [run.row for _, run in runs]
    best = cheapest(rows)
    return Chapter(
        name=trace.name,
        hours=trace.end_s / 3600.0,
        requests=len(trace),
        load=trace.offered_load,
        table=tuple((_mark(row, best), cells(row)) for row in rows),
        panels=tuple(_panel(trace, run) for _, run in runs),
    )


def _mark(row: Row, best: Row | None) -> str:
    if row is best:
        return "best"
    return "" if row.objective_met else "missed"


def _panel(trace: RequestTrace, run: Run) -> Panel:
    edges = np.linspace(0.0, trace.end_s, BUCKETS + 1)
    load = np.histogram(trace.arrival_s, bins=edges, weights=trace.service_s)[0] / edges[1]
    serving, wanted = (_per_bucket(run, edges, which) for which in ("serving", "wanted"))
    usual = float(np.quantile(np.concatenate([serving, wanted]), 0.98))
    highest = max(1.0, 1.1 * max(usual, float(load.max())))
    return Panel(
        row=run.row,
        load=f"0,{HEIGHT:g} {_points(load, highest)} {WIDTH:g},{HEIGHT:g}",
        wanted=_points(wanted, highest),
        serving=_points(serving, highest),
        waits=_waits(trace, run, edges),
        reasons=_reasons(run, edges) if run.row.rule == "spotkeeper" else (),
        highest=highest,
    )


def _per_bucket(run: Run, edges: Floats, which: str) -> Floats:
    """Return the value in force in the middle of each bucket."""
    middles = (edges[:-1] + edges[1:]) / 2
    at = np.searchsorted(run.timeline.time_s, middles, side="right") - 1
    values: Floats = getattr(run.timeline, which)
    return values[np.maximum(at, 0)]


def _points(values: Floats, highest: float) -> str:
    step = WIDTH / len(values)
    heights = HEIGHT * (1 - np.minimum(values / highest, 1.0))
    return " ".join(
        f"{(at + 0.5) * step:.1f},{height:.1f}" for at, height in enumerate(heights.tolist())
    )


def _waits(trace: RequestTrace, run: Run, edges: Floats) -> tuple[tuple[float, float, bool], ...]:
    """Return (x, height, late) per bucket: the 95th percentile of waits; full is 3 promises."""
    starts = np.searchsorted(trace.arrival_s, edges)
    limit_s = run.row.settings.wait_s
    bars = []
    for at, (first, last) in enumerate(pairwise(starts.tolist())):
        if last > first:
            p95 = float(np.quantile(run.wait_s[first:last], 0.95, method="higher"))
            height = WAIT_HEIGHT * min(p95 / max(3 * limit_s, 1e-9), 1.0)
            if height > 1:
                bars.append((at * WIDTH / BUCKETS, round(height, 1), p95 > limit_s))
    return tuple(bars)


def _reasons(run: Run, edges: Floats) -> tuple[tuple[float, str], ...]:
    middles = (edges[:-1] + edges[1:]) / 2
    at = np.maximum(np.searchsorted(run.timeline.time_s, middles, side="right") - 1, 0)
    return tuple(
        (bucket * WIDTH / BUCKETS, f"{middles[bucket] / 3600:.1f} h: {run.timeline.reasons[index]}")
        for bucket, index in enumerate(at.tolist())
    )
