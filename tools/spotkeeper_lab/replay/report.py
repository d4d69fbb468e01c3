"""A replay's results: tables for a terminal, JSON for programs, and a page.

The page has per trace a table, and for each rule the load, its workers and late waits.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from spotkeeper_charts import page
from spotkeeper_charts.page import (
    Block,
    Chart,
    Heading,
    Notes,
    Page,
    Series,
    Spans,
    Text,
    Timeline,
    changed,
    page_html,
)
from spotkeeper_lab.replay.values import Row, Run
from spotkeeper_lab.traces.requests import Floats, RequestTrace

HEADERS = ("rule", "kept", "in time", "p50", "p95", "p99", "hours", "out/in", "lost")
CHOICES = ("from", "rule followed", "in time", "hours a day")
CHOICES_SHOWN = 12
BUCKETS = 180
"""The number of steps in which a trace's load and waits are drawn."""
ROOM = 3.0
"""The scale ends at this many times the highest load, so that one rule cannot flatten the rest."""


def seconds(value: float) -> str:
    """Return a wait for people; a request that was never served has none."""
    return "never" if value == inf else f"{value:.1f} s"


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the row of fewest worker-hours that keeps the promise without knowing the future."""
    met = [row for row in rows if row.objective_met and row.rule != "clairvoyant"]
    return min(met, key=lambda row: row.worker_hours, default=None)


def _held_back(rows: Sequence[Row]) -> str | None:
    """Name the rules that reached the most workers allowed; None where none did."""
    names = [row.rule for row in rows if row.at_most]
    most = f"{rows[0].settings.max_workers:,} workers (--max-workers)"
    return f"ran into the bound of {most}: {', '.join(names)}" if names else None


def _cells(row: Row) -> tuple[str, ...]:
    """Return a row's texts, one per header."""
    return (
        row.rule,
        "yes" if row.objective_met else "no",
        f"{row.share_in_time:.2%}",
        *(seconds(value) for value in (row.wait_p50, row.wait_p95, row.wait_p99)),
        f"{row.worker_hours:.1f}",
        f"{row.scale_outs}/{row.scale_ins}",
        str(row.lost),
    )


def table(trace: str, rows: Sequence[Row]) -> Table:
    """Return one trace's table; what keeps the promise with fewest worker-hours is bold."""
    settings = rows[0].settings
    title = f"{trace}: {settings.share:.0%} within {settings.wait_s:g} s"
    result = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0))
    for number, header in enumerate(HEADERS):
        result.add_column(header, justify="right" if number else "left", no_wrap=True)
    result.caption, result.caption_justify = _held_back(rows), "left"
    best = cheapest(rows)
    for row in rows:
        style = "bold" if row is best else "" if row.objective_met else "dim"
        result.add_row(*_cells(row), style=style)
    return result


def choice_cells(run: Run) -> list[tuple[str, ...]]:
    """Return the rules that Spotkeeper followed: from when, and how their shadows had done then."""
    rows: list[tuple[str, ...]] = []
    for since_s, choice in run.choices:
        day, minute = divmod(int(since_s // 60), 1_440)
        member = str(choice.member).removeprefix("Erlang C on the ")
        young = choice.index < 0
        share, hours = ("", "") if young else map(format, choice.kept(choice.index), (".1%", ".1f"))
        at = f"day {day + 1} {minute // 60:02}:{minute % 60:02}"
        rows.append((at, f"{member}, and bursts" if young else member, share, hours))
    return rows


def choices_table(run: Run) -> Table:
    """Return the last choices over time, as a table."""
    result = Table(title=f"{run.row.trace}: the rule that Spotkeeper followed", box=SIMPLE)
    result.title_justify, result.padding = "left", (0, 1)
    for number, header in enumerate(CHOICES):
        result.add_column(header, justify="left" if number <= 1 else "right", no_wrap=True)
    rows = choice_cells(run)
    for cells_of in rows[-CHOICES_SHOWN:]:
        result.add_row(*cells_of)
    before = len(rows) - CHOICES_SHOWN
    result.caption = f"{before} choices before are in the report (--report)" if before > 0 else None
    result.caption_justify = "left"
    return result


def report_html(runs: Sequence[tuple[RequestTrace, Run]]) -> str:
    """Return the page for runs of one or more traces; it needs no other file."""
    settings = runs[0][1].row.settings
    queue = (
        f"Spotkeeper sees the length of the request queue and has at least {settings.min_workers} "
        "workers. "
    )
    by_trace: dict[str, list[tuple[RequestTrace, Run]]] = {}
    for trace, run in runs:
        by_trace.setdefault(trace.name, []).append((trace, run))
    return page_html(
        Page(
            title="Which rule keeps the promise, and for how many worker-hours",
            subtitle=f"Promise: {settings.share * 100:g} % of requests start within "
            f"{settings.wait_s:g} s. "
            f"A worker serves {settings.cold_start_s:g} s after its launch; "
            f"{settings.workers_per_instance} per instance, {settings.onprem} on premises. "
            f"{queue if settings.queue_known else ''}"
            f"Waits count after the first {settings.warmup_s / 60:g} minutes; worker-hours from "
            "launch to release.",
            footer="Waits are those of the requests that arrive in a step; a step is late when "
            "fewer of them than promised start in time.",
            blocks=[block for same in by_trace.values() for block in _chapter(same)],
        )
    )


def _chapter(pairs: Sequence[tuple[RequestTrace, Run]]) -> Iterator[Block]:
    trace, runs = pairs[0][0], [run for _, run in pairs]
    rows = [run.row for run in runs]
    best = cheapest(rows)
    yield Heading(trace.name)
    yield Text(
        f"{len(trace):,} requests in {trace.end_s / 3600.0:.1f} h, "
        f"{trace.offered_load:.1f} erlangs on average."
    )
    styles = ["ours" if row is best else "" if row.objective_met else "dim" for row in rows]
    yield page.Table(
        columns=HEADERS,
        numbers=HEADERS[1:],
        rows=[page.Row(cells=_cells(r), style=s) for r, s in zip(rows, styles, strict=True)],
    )
    if text := _held_back(rows):
        yield Text(f"Rules that {text}.")
    for run in runs:
        if run.choices:
            yield Text("Spotkeeper followed these rules of its family, as their shadows had done.")
            followed = [page.Row(cells=each) for each in choice_cells(run)]
            yield page.Table(columns=CHOICES, numbers=CHOICES[2:], rows=followed)
    yield Timeline(
        length_s=trace.end_s,
        one_scale=True,
        columns=True,
        intro="All rules on one scale, which ends at three times the highest load. Point at, or "
        "tap, a moment to read every rule's workers, and Spotkeeper's reason.",
        charts=[_chart(trace, run) for run in runs],
        notes=[
            Notes(name="spotkeeper's reason", t=run.time_s.tolist(), texts=run.reasons)
            for run in runs
            if run.row.rule == "spotkeeper"
        ],
    )


def _chart(trace: RequestTrace, run: Run) -> Chart:
    row = run.row
    kept = f"{row.settings.share * 100:g} % promised, {row.share_in_time * 100:.1f} % kept"
    edges = np.linspace(0.0, trace.end_s, BUCKETS + 1)
    load = np.histogram(trace.arrival_s, bins=edges, weights=trace.service_s)[0] / edges[1]
    times = run.time_s.tolist()
    wanted, serving = (changed(times, values.tolist()) for values in (run.wanted, run.serving))
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


def _late(trace: RequestTrace, run: Run, edges: Floats) -> list[tuple[float, float, str]]:
    """Return the steps in which fewer requests than promised started in time."""
    settings, late = run.row.settings, []
    starts = np.searchsorted(trace.arrival_s, edges).tolist()
    for (first, last), (start_s, end_s) in zip(
        pairwise(starts), pairwise(edges.tolist()), strict=True
    ):
        waits = run.wait_s[first:last]
        if waits.size and np.mean(waits <= settings.wait_s) < settings.share:
            wait = float(np.quantile(waits, settings.share, method="higher"))
            words = f"{settings.share * 100:g} % waited up to {wait:.1f} s"
            late.append((round(start_s, 1), round(end_s, 1), words))
    return late
