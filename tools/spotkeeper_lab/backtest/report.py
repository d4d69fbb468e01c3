"""The backtest as one HTML file that needs nothing else: table, scatter, one window's timelines."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from spotkeeper_lab.backtest.backtest import Row
from spotkeeper_lab.backtest.output import CELLS, cells, compared
from spotkeeper_lab.backtest.scatter import scatter
from spotkeeper_lab.backtest.timeline import timeline
from spotkeeper_lab.files import write_whole


def write_report(rows: Sequence[Row], path: Path, command: str = "") -> None:
    """Write the report of a backtest; ``command`` is what made it. Replaces the file at once."""
    write_whole(path, report_html(rows, command))


def report_html(rows: Sequence[Row], command: str = "") -> str:
    """The report's page."""
    # The demo's report lends its style sheet, so that both look alike.
    loader = ChoiceLoader(
        [PackageLoader("spotkeeper_lab.backtest"), PackageLoader("spotkeeper_lab")]
    )
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = loader.get_source(environment, "report.css")[0]
    return environment.get_template("backtest.html.j2").render(
        css=css, command=command, columns=CELLS, sections=[_section(*one) for one in compared(rows)]
    )


def _section(title: str, rows: Sequence[Row]) -> dict[str, object]:
    market, _, world = title.partition(", ")
    return {
        "market": market,
        "world": world,
        "rows": [(row.policy, cells(row, rows)) for row in rows],
        "scatter": scatter(rows),
        "timeline": timeline(rows),
        "settings": [
            (row.policy, ", ".join(f"{name} = {value}" for name, value in row.settings.items()))
            for row in rows
            if row.settings
        ],
    }
