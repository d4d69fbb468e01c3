"""The template's dashboard, drawn from the metrics of an outage.

`python -m bench dashboard --out FILE`: FILE is a page, or with the ending .png a picture of it,
which Chromium takes. Of log widgets only the titles are shown.
"""

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spotkeeper_charts.page import (
    Block,
    Chart,
    Colour,
    Figure,
    Heading,
    Page,
    Series,
    Text,
    Tiles,
    Timeline,
    page_html,
)  # fmt: skip
from spotkeeper_lab.alarms import MINUTE_S, Metrics, Points, State, calculate, evaluate_all
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import Watch
from spotkeeper_lab.rings import ADOPTED, STACK, Rings, of_template
from spotkeeper_lab.scenario import Scenario
from spotkeeper_lab.template import Stack

# For ten minutes nothing runs. Then on-demand runs out, and spot after it, in one of two fleets.
OUTAGE = Scenario(
    loads=((0.0, 4.0),),
    faults=(
        Fault(kind=Kind.NO_TURNS, at_s=3000.0, length_s=600.0),
        Fault(kind=Kind.ON_DEMAND_DRY, at_s=4800.0, length_s=2400.0),
        Fault(kind=Kind.SPOT_DRY, at_s=5400.0, length_s=1800.0, value=0.9),
    ),
)
DRAWN_AT_MINUTE = 110
WIDTH, HEIGHT = 960, 2840
STATES = {State.NO_DATA: "no data"}
COLOURS: tuple[Colour, ...] = ("spot", "on-demand", "target", "loss", "load", "wait", "worst")
SEARCH = re.compile(r"""SEARCH\('.*? MetricName=\(?([^')]+)\)?', '(\w+)', (\d+)\)""")
WORST = re.compile(r"SELECT MAX\((\w+)\) .* ORDER BY MAX\(\) DESC LIMIT (\d+)")


def main() -> None:
    """Play the outage, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dashboard.html"))
    out: Path = parser.parse_known_args()[0].out
    watch = Watch(OUTAGE)
    rings = Rings(watch)
    watch.world.observers.append(rings)
    watch.run()
    title = f"The dashboard in an outage of one of two fleets, at minute {DRAWN_AT_MINUTE}"
    page = page_html(Page(title=title, blocks=[*blocks(rings.metrics)]))
    if out.suffix != ".png":
        out.write_text(page, encoding="utf-8")
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        browser = shutil.which("chromium") or "google-chrome"
        size = (f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars", f"--screenshot={out}")
        options = ("--headless", "--no-sandbox", f"--user-data-dir={folder}/profile")
        subprocess.run([browser, *options, *size, path.as_uri()], check=True)


def blocks(metrics: Metrics) -> Iterator[Block]:
    """Return what each widget shows, the rows from above."""
    [board] = Stack.with_parameters(ADOPTED, STACK).resources("AWS::CloudWatch::Dashboard").values()
    charts: list[Chart] = []
    logs: list[str] = []
    widgets = json.loads(board["DashboardBody"])["widgets"]
    for widget in sorted(widgets, key=lambda one: (one["y"], one["x"])):
        shown = widget["properties"]
        if widget["type"] == "log":
            logs.append(shown["title"])
        elif shown.get("view") == "timeSeries":
            charts.append(Chart(title=shown["title"], unit="", series=lines(metrics, shown)))
        else:
            tiles = alarms(metrics) if widget["type"] == "alarm" else numbers(metrics, shown)
            yield Heading(shown["title"])
            yield Tiles([*tiles])
    yield Timeline(length_s=60.0 * DRAWN_AT_MINUTE, charts=charts)
    yield Text("Log widgets: " + "; ".join(logs))


def alarms(metrics: Metrics) -> Iterator[Figure]:
    """Return the state of each alarm, with the fleets for which it rings."""
    every = of_template()
    for minute in range(DRAWN_AT_MINUTE + 1):
        evaluate_all(every, metrics, minute)
    for one in every:
        name = one.name.removeprefix(f"{STACK}-")
        yield Figure(
            label=name, value=STATES.get(one.state, str(one.state)), meaning=", ".join(one.ringing)
        )


def found(metrics: Metrics, expression: str) -> dict[str, Points]:
    """Return the lines that a search finds, by metric and fleet; a gap is a gap."""
    lines: dict[str, Points] = {}
    if search := SEARCH.search(expression):
        stat, period_s = search[2], int(search[3])
        count = max(1, DRAWN_AT_MINUTE * MINUTE_S // period_s)
        for name in re.findall(r"\w+", search[1].replace(" OR ", " ")):
            by_fleet = metrics.grouped("Spotkeeper", name, ("service", STACK), "fleet")
            for fleet, [metric] in by_fleet.items():
                points = metrics.points(metric, stat, period_s, DRAWN_AT_MINUTE, count)
                lines[f"{name} {fleet}"] = points
    return lines


def lines(metrics: Metrics, shown: dict[str, Any]) -> list[Series]:
    """Return the lines of a chart."""
    every = [
        pair for [one] in shown["metrics"] for pair in found(metrics, one["expression"]).items()
    ]
    return [
        Series(
            label=label,
            colour=COLOURS[number % len(COLOURS)],
            t=[float(shown["period"] * n) for n in range(len(points))],
            values=points,
        )
        for number, (label, points) in enumerate(every)
    ]


def numbers(metrics: Metrics, shown: dict[str, Any]) -> Iterator[Figure]:
    """Return the numbers of a widget, those of a query by fleet and the worst first."""
    known: dict[str, Points] = {}
    for [one] in shown["metrics"]:
        expression = one["expression"]
        if query := WORST.match(expression):
            by_fleet = found(metrics, f"SEARCH(' MetricName={query[1]}', 'Maximum', 60)")
            last = {label: points[-1] or 0.0 for label, points in by_fleet.items()}
            for label in sorted(last, key=lambda it: -last[it])[: int(query[2])]:
                fleet = label.partition(" ")[2]
                yield Figure(label=f"{one['label']}: {fleet}", value=f"{last[label]:.4g}")
            continue
        points = [p for points in found(metrics, expression).values() for p in points]
        total = "RUNNING_SUM" in expression
        if SEARCH.search(expression):
            ends = points if total else [p[-1] for p in found(metrics, expression).values()]
            there = [p for p in ends if p is not None]
            known[one["id"]] = [sum(there) if there else None]
        else:
            known[one["id"]] = calculate(expression, known)
        if one.get("visible", True):
            [value] = known[one["id"]]
            text = "-" if value is None else f"{value:.4g}"
            yield Figure(label=one["label"], value=text)
