"""The backtest as one HTML file that needs nothing else: scatter, table, one window's timelines."""

from collections.abc import Iterator, Sequence

from spotkeeper_charts import page
from spotkeeper_charts.page import Block, Heading, Page, Table, Text, page_html
from spotkeeper_charts.scatter import Point, Scatter, scatter
from spotkeeper_lab.backtest.backtest import Row
from spotkeeper_lab.backtest.output import CELLS, cells, compared
from spotkeeper_lab.backtest.timeline import timeline


def report_html(rows: Sequence[Row], command: str = "") -> str:
    """The report's page."""
    sections = [block for title, group in compared(rows) for block in _section(title, group)]
    return page_html(
        Page(
            title="Backtest: what each policy serves, and what it costs",
            footer="Served: share of ticks, after the first cold start, with at least the target "
            "ready. Capacity: instance-time delivered of asked. Cost: of the target all on demand; "
            "saved: the rest. Launches (spot + on demand) and losses: in all windows.",
            blocks=[*([Text("Made by", command)] if command else []), *sections],
        )
    )


def picture(rows: Sequence[Row]) -> Scatter:
    """Where comparable rows lie."""
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


def _table(rows: Sequence[Row]) -> Table:
    return Table(
        columns=("policy", *CELLS),
        numbers=CELLS,
        rows=[
            page.Row(
                cells=(row.policy, *cells(row, rows)),
                style="ours" if row.policy == "spotkeeper" else "",
            )
            for row in rows
        ],
    )


def _settings(rows: Sequence[Row]) -> Table:
    return Table(
        caption="Settings of the policies",
        folded=True,
        columns=("policy", "settings"),
        rows=[
            page.Row(
                cells=(
                    row.policy,
                    ", ".join(f"{name} = {value}" for name, value in row.settings.items()),
                )
            )
            for row in rows
        ],
    )
