"""What a backtest says: a table for people, JSON for programs, and one HTML page.

The page has cost against service as a picture, the table, and one window's timelines.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from spotkeeper_charts import page
from spotkeeper_charts.page import (
    Block,
    Chart,
    Heading,
    Page,
    Point,
    Scatter,
    Series,
    Spans,
    Text,
    Timeline,
    changed,
    page_html,
    scatter,
)
from spotkeeper_lab.backtest.accounting import Counts, RunResult
from spotkeeper_lab.backtest.backtest import Row
from spotkeeper_lab.traces.market import Market

CELLS = (
    "served",
    "cost",
    "saved",
    "x optimum",
    "x limit",
    "±",
    "worst window",
    "capacity",
    "launches",
    "lost",
)
"""What a row shows beside its policy; launches are on spot + on demand, in all windows."""
LEFT_OUT_OF_80_COLUMNS = ("saved", "lost")
"""What a narrow terminal has no room for; JSON and report have it."""


def json_text(rows: Sequence[Row]) -> str:
    """The rows as a JSON list, one object per market, world and policy."""
    return json.dumps([row.as_json() for row in rows], indent=2) + "\n"


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows that can be compared, with a heading: same market, same world, same windows."""
    for _, same in groupby(rows, key=lambda row: (row.market, row.world, row.hours)):
        group = list(same)
        yield heading(group[0]), group


def heading(row: Row) -> str:
    """The market, the windows and the world in a line."""
    world = row.world
    spanned = [f"spans {len(row.regions)} regions"] if row.regions[1:] else []
    parts = [
        row.market,
        *spanned,
        f"target {world.target}",
        f"{row.windows} x {row.hours:.4g} h",
        f"tick {world.tick_s:g} s",
        f"cold start {world.cold_start_s:g} s",
    ]
    if world.warm_start_s is not None and world.warm_pool:
        parts.append(f"warm start {world.warm_start_s:g} s for {world.warm_pool}")
    parts.append(f"notice {world.notice_s:g} s" if world.notice_s else "no notice")
    if world.notice_s and world.notice_lost:
        parts.append(f"{world.notice_lost:.0%} of notices lost")
    if world.turn_jitter_s:
        parts.append(f"turns up to {world.turn_jitter_s:g} s late")
    if world.event_delay_s:
        parts.append(f"events up to {world.event_delay_s:g} s late")
    if world.on_demand_failure:
        parts.append(f"{world.on_demand_failure:.0%} of on-demand launches refused")
    parts.append(
        "market's prices" if world.price_ratio is None else f"spot at {world.price_ratio:.4g}"
    )
    return ", ".join(parts)


def cost_of(rows: Sequence[Row], policy: str) -> float | None:
    """A policy's cost among comparable rows."""
    return next((row.cost for row in rows if row.policy == policy), None)


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """A row's figures as text, in the order of CELLS."""
    return (
        f"{row.served_share:.2%}",
        f"{row.cost:.1%}",
        f"{1 - row.cost:.1%}",
        _times(row.cost, cost_of(rows, "optimum")),
        _times(row.cost, cost_of(rows, "limit")),
        f"{row.cost_sd:.1%}",
        f"{row.served_share_min:.2%}",
        f"{row.capacity_share:.3%}",
        f"{row.spot_launches} + {row.on_demand_launches}",
        str(row.losses),
    )


def _times(cost: float, beside: float | None) -> str:
    return f"{cost / beside:.2f}" if beside else ""


def tables(rows: Sequence[Row], *, wide: bool = True) -> Iterator[Table]:
    """One table for people per market and world; one that is not `wide` has at most 80 columns."""
    shown = [name for name in CELLS if wide or name not in LEFT_OUT_OF_80_COLUMNS]
    for title, group in compared(rows):
        table = Table(title=title, title_justify="left")
        if not wide:
            table.box, table.padding = SIMPLE, (0, 0)
        table.add_column("policy", no_wrap=True)
        for name in shown:
            table.add_column(name if wide else name.replace(" ", "\n"), justify="right")
        for row in group:
            style = "bold" if row.policy == "spotkeeper" else None
            found = zip(CELLS, cells(row, group), strict=True)
            table.add_row(row.policy, *(it for name, it in found if name in shown), style=style)
        yield table


def report_html(rows: Sequence[Row], command: str = "") -> str:
    sections = [block for title, group in compared(rows) for block in _section(title, group)]
    return page_html(
        Page(
            title="Backtest: what each policy serves, and what it costs",
            footer="Served: share of ticks, after the first cold start, with at least the target "
            "ready. Capacity: instance-time that served, of the target's. Cost: of the target all "
            "on demand; saved: the rest. Launches (spot + on demand) and losses: in all windows.",
            blocks=[*([Text("Made by", command)] if command else []), *sections],
        )
    )


def picture(rows: Sequence[Row]) -> Scatter:
    kinds = {"spotkeeper": "ours", "optimum": "optimum", "limit": "limit"}
    return scatter(
        [
            Point(
                name=row.policy,
                served=row.served_share,
                cost=row.cost,
                kind=kinds.get(row.policy, "peer"),  # type: ignore[arg-type]
            )
            for row in rows
        ]
    )


def _section(title: str, rows: Sequence[Row]) -> Iterator[Block]:
    market, _, world = title.partition(", ")
    yield Heading(market)
    yield Text(world)
    yield picture(rows)
    yield _table(rows)
    yield Heading("The most eventful window")
    yield timeline(rows)
    if settings := [row for row in rows if row.settings]:
        yield _settings(settings)


def _table(rows: Sequence[Row]) -> page.Table:
    made = [
        page.Row(
            cells=(row.policy, *cells(row, rows)),
            style="ours" if row.policy == "spotkeeper" else "",
        )
        for row in rows
    ]
    return page.Table(columns=("policy", *CELLS), numbers=CELLS, rows=made)


def _settings(rows: Sequence[Row]) -> page.Table:
    texts = (", ".join(f"{name} = {value}" for name, value in r.settings.items()) for r in rows)
    return page.Table(
        caption="Settings of the policies",
        folded=True,
        columns=("policy", "settings"),
        rows=[page.Row(cells=(r.policy, text)) for r, text in zip(rows, texts, strict=True)],
    )


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
