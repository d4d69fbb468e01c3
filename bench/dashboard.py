"""The template's dashboard, drawn from the metrics of an outage.

`python -m bench dashboard --out FILE`: FILE is a page, or with the ending .png a picture of it,
which Chromium takes. Of log widgets only the titles are shown.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spotkeeper_charts import page
from spotkeeper_lab.alarms import MINUTE_S, Metrics, Points, State, calculate, evaluate_all
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import Watch
from spotkeeper_lab.rings import ADOPTED, STACK, Rings, of_template
from spotkeeper_lab.scenario import Scenario
from spotkeeper_lab.template import Stack

# For ten minutes nothing runs. Then on-demand runs out, and spot after it, in one of two fleets.
FAULTS = (
    Fault(kind=Kind.NO_TURNS, at_s=3000.0, length_s=600.0),
    Fault(kind=Kind.ON_DEMAND_DRY, at_s=4800.0, length_s=2400.0),
    Fault(kind=Kind.SPOT_DRY, at_s=5400.0, length_s=1800.0, value=0.9),
)
MINUTE = 110
SIZE = "--window-size=960,2840"
COLOURS: tuple[page.Colour, ...] = ("spot", "on-demand", "target", "loss", "load", "wait", "worst")
SEARCH = re.compile(r"""SEARCH\('.*? MetricName=\(?([^')]+)\)?', '(\w+)', (\d+)\)""")
WORST = re.compile(r"SELECT MAX\((\w+)\) .* ORDER BY MAX\(\) DESC LIMIT (\d+)")


def main() -> None:
    """Play the outage, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dashboard.html"))
    out: Path = parser.parse_known_args()[0].out
    watch = Watch(Scenario(loads=((0.0, 4.0),), faults=FAULTS))
    rings = Rings(watch)
    watch.world.observers.append(rings)
    watch.run()
    title = f"The dashboard in an outage of one of two fleets, at minute {MINUTE}"
    html = page.page_html(page.Page(title=title, blocks=[*blocks(rings.metrics)]))
    with TemporaryDirectory() as folder:
        written = Path(folder) / "page.html" if out.suffix == ".png" else out
        written.write_text(html, encoding="utf-8")
        if written != out:
            own = (f"--user-data-dir={folder}/profile", "--headless", "--no-sandbox")
            shot = (SIZE, "--hide-scrollbars", f"--screenshot={out}", written.as_uri())
            subprocess.run(["chromium", *own, *shot], check=True)


def blocks(metrics: Metrics) -> Iterator[page.Block]:
    """Return what each widget shows, the rows from above."""
    boards = Stack.with_parameters(ADOPTED, STACK).resources("AWS::CloudWatch::Dashboard")
    widgets = json.loads(boards["Dashboard"]["DashboardBody"])["widgets"]
    charts, logs = list[page.Chart](), list[str]()
    for widget in sorted(widgets, key=lambda one: (one["y"], one["x"])):
        shown, title = widget["properties"], widget["properties"]["title"]
        if widget["type"] == "log":
            logs.append(title)
        elif shown.get("view") == "timeSeries":
            charts.append(page.Chart(title=title, unit="", series=lines(metrics, shown)))
        else:
            yield page.Heading(title)
            tiles = alarms(metrics) if widget["type"] == "alarm" else numbers(metrics, shown)
            yield page.Tiles([page.Figure(label=name, value=text) for name, text in tiles])
    yield page.Timeline(length_s=60.0 * MINUTE, charts=charts)
    yield page.Text("Log widgets: " + "; ".join(logs))


def alarms(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Return the state of each alarm, with the fleets for which it rings."""
    every = of_template()
    for minute in range(MINUTE + 1):
        evaluate_all(every, metrics, minute)
    for one in every:
        name = " ".join((one.name.removeprefix(f"{STACK}-"), *one.ringing))
        yield name, "no data" if one.state is State.NO_DATA else str(one.state)


def found(metrics: Metrics, expression: str) -> dict[str, Points]:
    """Return the lines that a search finds, by metric and fleet; a gap is a gap."""
    if (search := SEARCH.search(expression)) is None:
        return {}
    stat, period_s = search[2], int(search[3])
    count = max(1, MINUTE * MINUTE_S // period_s)
    return {
        f"{name} {fleet}": metrics.points(metric, stat, period_s, MINUTE, count)
        for name in re.findall(r"\w+", search[1].replace(" OR ", " "))
        for fleet, [metric] in metrics.grouped(
            "Spotkeeper", name, ("service", STACK), "fleet"
        ).items()
    }


def lines(metrics: Metrics, shown: dict[str, Any]) -> list[page.Series]:
    """Return the lines of a chart."""
    every = [it for [one] in shown["metrics"] for it in found(metrics, one["expression"]).items()]
    return [
        page.Series(
            label=label,
            colour=COLOURS[number % len(COLOURS)],
            t=[float(shown["period"] * n) for n in range(len(points))],
            values=points,
        )
        for number, (label, points) in enumerate(every)
    ]


def numbers(metrics: Metrics, shown: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the numbers of a widget, those of a query by fleet and the worst first."""
    known: dict[str, Points] = {}
    for [one] in shown["metrics"]:
        expression, name = one["expression"], one.get("label", "")
        if query := WORST.match(expression):
            every = found(metrics, f"SEARCH(' MetricName={query[1]}', 'Maximum', 60)")
            last = {label.partition(" ")[2]: points[-1] or 0.0 for label, points in every.items()}
            for fleet in sorted(last, key=lambda it: -last[it])[: int(query[2])]:
                yield f"{name}: {fleet}", f"{last[fleet]:.4g}"
            continue
        searched = [*found(metrics, expression).values()]
        since = 0 if "RUNNING_SUM" in expression else -1
        values = [value for line in searched for value in line[since:] if value is not None]
        is_search = SEARCH.search(expression)
        total: Points = [sum(values) if values else None]
        known[one["id"]] = total if is_search else calculate(expression, known)
        if one.get("visible", True):
            [value] = known[one["id"]]
            yield name, "-" if value is None else f"{value:.4g}"
