"""The replay's page: per trace a table, and for each rule the load, its workers and late waits."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from spotkeeper_charts.page import (
    Chart,
    Heading,
    Notes,
    Page,
    Row,
    Series,
    Spans,
    Table,
    Text,
    Timeline,
    changed,
    page_html,
)
from spotkeeper_lab.replay.output import CHOICES, HEADERS, cells, cheapest, choice_cells, held_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotkeeper_charts.page import Block
    from spotkeeper_lab.replay.values import ReplaySettings, Run
    from spotkeeper_lab.traces.requests import RequestTrace

BUCKETS = 180
"""The number of steps in which a trace's load and waits are drawn."""
ROOM = 3.0
"""The scale ends at this many times the highest load, so that one rule cannot flatten the rest."""


def report_html(runs: Sequence[tuple[RequestTrace, Run]]) -> str:
    """Return the page for runs of one or more traces; it needs no other file."""
    names = list(dict.fromkeys(trace.name for trace, _ in runs))
    chapters = [_chapter([pair for pair in runs if pair[0].name == name]) for name in names]
    return page_html(
        Page(
            title="Which rule keeps the promise, and for how many worker-hours",
            subtitle=_world(runs[0][1].row.settings),
            footer="Waits are those of the requests that arrive in a step; a step is late when "
            "fewer of them than promised start in time.",
            blocks=[block for blocks in chapters for block in blocks],
        )
    )


def _world(settings: ReplaySettings) -> str:
    queue = (
        f"Spotkeeper sees the length of the request queue and has at least {settings.min_workers} "
        "workers. "
    )
    return (
        f"Promise: {settings.share * 100:g} % of requests start within {settings.wait_s:g} s. "
        f"A worker serves {settings.cold_start_s:g} s after its launch; "
        f"{settings.workers_per_instance} per instance, {settings.onprem} on premises. "
        f"{queue if settings.queue_known else ''}"
        f"Waits count after the first {settings.warmup_s / 60:g} minutes; worker-hours from launch "
        "to release."
    )


def _chapter(runs: Sequence[tuple[RequestTrace, Run]]) -> Iterator[Block]:
    trace = runs[0][0]
    yield Heading(trace.name)
    yield Text(
        f"{len(trace):,} requests in {trace.end_s / 3600.0:.1f} h, "
        f"{trace.offered_load:.1f} erlangs on average."
    )
    yield _table([run for _, run in runs])
    if told := held_back([run.row for _, run in runs]):
        yield Text(f"Rules that {told}.")
    for _, run in runs:
        if run.choices:
            yield Text("Spotkeeper followed these rules of its family, as their shadows had done.")
            rows = [Row(cells=each) for each in choice_cells(run)]
            yield Table(columns=CHOICES, numbers=CHOICES[2:], rows=rows)
    yield Timeline(
        length_s=trace.end_s,
        one_scale=True,
        columns=True,
        intro="All rules on one scale, which ends at three times the highest load. Point at, or "
        "tap, a moment to read every rule's workers, and Spotkeeper's reason.",
        charts=[_chart(trace, run) for _, run in runs],
        notes=[_reasons(run) for _, run in runs if run.row.rule == "spotkeeper"],
    )


def _table(runs: Sequence[Run]) -> Table:
    best = cheapest([run.row for run in runs])
    return Table(
        columns=HEADERS,
        numbers=HEADERS[1:],
        rows=[
            Row(
                cells=cells(run.row),
                style="ours" if run.row is best else "" if run.row.objective_met else "dim",
            )
            for run in runs
        ],
    )


def _chart(trace: RequestTrace, run: Run) -> Chart:
    row = run.row
    kept = f"{row.settings.share * 100:g} % promised, {row.share_in_time * 100:.1f} % kept"
    edges = np.linspace(0.0, trace.end_s, BUCKETS + 1)
    load = np.histogram(trace.arrival_s, bins=edges, weights=trace.service_s)[0] / edges[1]
    times = run.timeline.time_s.tolist()
    wanted, serving = (
        changed(times, values.tolist()) for values in (run.timeline.wanted, run.timeline.serving)
    )
    return Chart(
        title=row.rule,
        unit=f"{kept}, {row.worker_hours:.1f} worker-hours",
        ours=row.rule == "spotkeeper",
        top=max(1.0, ROOM * float(load.max())),
        series=[
            Series(
                label="load",
                colour="worst",
                kind="area",
                t=edges[:-1].tolist(),
                values=[round(value, 2) for value in load.tolist()],
            ),
            Series(label="requested", colour="on-demand", t=wanted[0], values=wanted[1], width=1.5),
            Series(label="serving", colour="spot", t=serving[0], values=serving[1], width=1.5),
        ],
        spans=[
            Spans(label="waits too long", colour="loss", spans=_late(trace, run, edges), foot=True)
        ],
    )


def _late(
    trace: RequestTrace, run: Run, edges: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> list[tuple[float, float, str]]:
    """Return the steps in which fewer requests than promised started in time."""
    settings = run.row.settings
    starts = np.searchsorted(trace.arrival_s, edges).tolist()
    late = []
    for at, (first, last) in enumerate(pairwise(starts)):
        waits = run.wait_s[first:last]
        if waits.size and np.mean(waits <= settings.wait_s) < settings.share:
            wait = float(np.quantile(waits, settings.share, method="higher"))
            words = f"{settings.share * 100:g} % waited up to {wait:.1f} s"
            late.append((round(float(edges[at]), 1), round(float(edges[at + 1]), 1), words))
    return late


def _reasons(run: Run) -> Notes:
    return Notes(
        name="spotkeeper's reason",
        t=run.timeline.time_s.tolist(),
        texts=run.timeline.reasons,
    )
