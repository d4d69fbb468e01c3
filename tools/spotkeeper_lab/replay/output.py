"""A replay's results: a table for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper_lab.replay.values import Row, Run, Served

HEADERS = ("rule", "kept", "in time", "p50", "p95", "p99", "hours", "out/in", "lost")


def as_json(rows: Sequence[Served]) -> str:
    """Return the rows as a JSON list; a wait without end is null."""
    return json.dumps([_finite(asdict(row)) for row in rows], indent=1, allow_nan=False) + "\n"


def _finite(values: dict[str, object]) -> dict[str, object]:
    return {key: None if value == float("inf") else value for key, value in values.items()}


def table(trace: str, rows: Sequence[Row]) -> Table:
    """Return one trace's table; what keeps the promise with fewest worker-hours is bold."""
    settings = rows[0].settings
    title = f"{trace}: {settings.share:.0%} within {settings.wait_s:g} s"
    result = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0))
    for number, header in enumerate(HEADERS):
        result.add_column(header, justify="right" if number else "left", no_wrap=True)
    result.caption, result.caption_justify = held_back(rows), "left"
    best = cheapest(rows)
    for row in rows:
        style = "" if row.objective_met else "dim"
        result.add_row(*cells(row), style="bold" if row is best else style)
    return result


CHOICES = ("from", "rule followed", "in time", "hours a day")
CHOICES_SHOWN = 12


def choice_cells(run: Run) -> list[tuple[str, ...]]:
    """Return the rules that Spotkeeper followed: from when, and how their shadows had done then."""
    rows: list[tuple[str, ...]] = []
    for since_s, choice in run.choices:
        day, minute = divmod(int(since_s // 60), 1_440)
        member = str(choice.member).removeprefix("Erlang C on the ")
        young = choice.index < 0
        shadow = ("", "") if young else (f"{choice.share:.1%}", f"{choice.hours_a_day:.1f}")
        at = f"day {day + 1} {minute // 60:02}:{minute % 60:02}"
        rows.append((at, f"{member}, and bursts" if young else member, *shadow))
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


def held_back(rows: Sequence[Row]) -> str | None:
    """Name the rules that reached the most workers allowed; None where none did."""
    names = [row.rule for row in rows if row.at_most]
    most = f"{rows[0].settings.max_workers:,} workers (--max-workers)"
    return f"ran into the bound of {most}: {', '.join(names)}" if names else None


def cells(row: Row) -> tuple[str, ...]:
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


def seconds(value: float) -> str:
    """Return a wait for people; a request that was never served has none."""
    return "never" if value == float("inf") else f"{value:.1f} s"


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the row of fewest worker-hours that keeps the promise without knowing the future."""
    met = [row for row in rows if row.objective_met and row.rule != "clairvoyant"]
    return min(met, key=lambda row: row.worker_hours, default=None)
