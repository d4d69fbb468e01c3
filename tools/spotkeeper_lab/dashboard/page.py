"""The dashboard of a demo's day as a page: its widgets in their order, drawn from what was sent."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotkeeper_charts.page import Block, Figure, Heading, Page, Row, Table, Tiles
from spotkeeper_charts.timeline import Chart, Colour, Series, Timeline
from spotkeeper_lab.dashboard.alarms import rang
from spotkeeper_lab.dashboard.board import STACK, Board
from spotkeeper_lab.dashboard.insights import LogLine, answer
from spotkeeper_lab.dashboard.metric_math import Line, Maths, Samples, UnknownExpression

COLOURS: tuple[Colour, ...] = ("spot", "on-demand", "load", "wait", "loss", "soft")
ROWS_SHOWN = 12
"""As many rows as the widget has room for."""
DAY_S = 86400.0
_BACK = re.compile(r"-P(\d+)D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a day's functions sent: metrics, log lines, until `until_s` from `clock_s` on."""

    metrics: Samples
    log: Sequence[LogLine]
    until_s: float
    clock_s: float = 0.0


def dashboard_page(shown: Board, sent: Sent) -> Page:
    """All widgets; raises `UnknownExpression` or `UnknownQuery` for what is not understood."""
    widgets = sorted(shown.widgets, key=lambda widget: (widget["y"], widget["x"]))
    return Page(
        title=f"The dashboard of the stack {STACK!r}, at the end of a demo's day",
        subtitle="The widgets of template.yaml, drawn from the metrics and log lines that the "
        "day's functions sent; CloudWatch lays them out in 24 columns.",
        footer="Written by spotkeeper demo --dashboard. Alarms on metrics of AWS's own, which no "
        "demo sends, are shown without a state.",
        blocks=[*_numbers(shown, widgets, sent), _tables(widgets, sent), _charts(widgets, sent)],
    )


def _numbers(shown: Board, widgets: Sequence[dict[str, Any]], sent: Sent) -> Iterator[Block]:
    for widget in widgets:
        properties = widget["properties"]
        if widget["type"] == "alarm":
            yield Heading(properties["title"])
            names = [arn.removesuffix(".Arn") for arn in properties["alarms"]]
            yield Tiles([_alarm(shown.alarms[name], sent) for name in names])
        elif properties.get("view") == "singleValue":
            yield Heading(properties["title"])
            yield Tiles(
                [Figure(label=name, value=_last(line)) for name, line in _lines(widget, sent)]
            )


def _alarm(alarm: Mapping[str, Any], sent: Sent) -> Figure:
    name = str(alarm["AlarmName"]).removeprefix(f"{STACK}-")
    rings = rang(alarm, sent.metrics, sent.until_s)
    if rings is None:
        return Figure(label=name, value="-")
    ringing = bool(rings) and rings[-1][1] > sent.until_s
    times = f"; rang {len(rings)} times" if len(rings) > 1 else "; rang once" if rings else ""
    return Figure(label=name + times, value="ALARM" if ringing else "OK")


def _last(line: Line) -> str:
    return f"{line[max(line)]:.4g}" if line else "--"


def _lines(widget: Mapping[str, Any], sent: Sent) -> Iterator[tuple[str, Line]]:
    """The visible lines of a metric widget, with their labels."""
    properties = widget["properties"]
    found = _BACK.fullmatch(properties.get("start", ""))
    since_s = max(0.0, sent.until_s - int(found[1]) * DAY_S) if found else 0.0
    maths = Maths(
        samples=sent.metrics,
        since_s=since_s,
        until_s=sent.until_s,
        period_s=float(properties["period"]),
    )
    for [asked] in properties["metrics"]:
        result = maths.lines[asked["id"]] = maths.answer(asked["expression"])
        if not asked.get("visible", True):
            continue
        yield from result if isinstance(result, list) else [(asked["label"], result)]


def _charts(widgets: Sequence[dict[str, Any]], sent: Sent) -> Timeline:
    lines = [widget for widget in widgets if widget["properties"].get("view") == "timeSeries"]
    return Timeline(
        length_s=sent.until_s,
        clock_s=sent.clock_s,
        columns=True,
        legends=True,
        intro="Point at, or tap, a moment.",
        charts=[_chart(widget, sent) for widget in lines],
    )


def _chart(widget: Mapping[str, Any], sent: Sent) -> Chart:
    properties = widget["properties"]
    lines = _queried(properties, sent) if widget["type"] == "log" else _lines(widget, sent)
    series = [
        Series(
            label=name,
            colour=COLOURS[n % len(COLOURS)],
            t=list(line),
            values=list(line.values()),
            crowded="highest",
            width=1.5,
        )
        for n, (name, line) in enumerate(lines)
    ]
    promised = [
        Series(label=it["label"], colour="target", t=[0.0], values=[float(it["value"])], width=1)
        for it in properties.get("annotations", {}).get("horizontal", [])
    ]
    return Chart(title=properties["title"], unit="", series=[*series, *promised], height=170)


def _queried(properties: Mapping[str, Any], sent: Sent) -> Iterator[tuple[str, Line]]:
    rows = answer(properties["query"], sent.log)
    [time] = {name for row in rows for name in row if name.startswith("bin(")} or {""}
    rows.sort(key=lambda row: row[time])
    for name in dict.fromkeys(name for row in rows for name in row if name != time):
        yield name, {row[time]: row[name] for row in rows if row[name] is not None}


def _tables(widgets: Sequence[dict[str, Any]], sent: Sent) -> Table:
    [properties] = [
        widget["properties"] for widget in widgets if widget["properties"].get("view") == "table"
    ]
    rows = answer(properties["query"], sent.log)[:ROWS_SHOWN]
    columns = ("since", "turns", "fleet", "controller", "action", "rule", "permission", "why")
    if rows and not rows[0].keys() >= set(columns):
        raise UnknownExpression(f"{properties['title']}: other columns than {', '.join(columns)}")
    return Table(
        caption=properties["title"],
        columns=columns,
        numbers=("turns",),
        rows=[
            Row(
                cells=[
                    _clock(row["since"] + sent.clock_s),
                    *(str(row[name]) for name in columns[1:]),
                ],
            )
            for row in rows
        ],
    )


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}"
