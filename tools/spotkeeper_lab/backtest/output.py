"""What a backtest says: a table for people, JSON for programs."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.table import Table

from spotkeeper_lab.backtest.backtest import Row


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
