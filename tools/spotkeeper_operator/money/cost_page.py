"""What fleets cost, as a page: the few sums, money and instances over time, and who it was."""

from datetime import datetime, timedelta

from spotkeeper.domain.money.savings import savings
from spotkeeper_charts.page import Figure, Page, Row, Table, Tiles
from spotkeeper_charts.timeline import Chart, Series, Timeline
from spotkeeper_operator.money.cost_text import By, rows, sentences
from spotkeeper_operator.money.read_cost import Cost

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Beyond this, hours crowd a picture: days are drawn.
BY_HOURS_UP_TO = timedelta(days=14)


def cost_page(cost: Cost, by: By | None = None) -> Page:
    """The page of a cost; told apart by day where nothing else is asked for."""
    whole = savings(cost.found, cost.begins, cost.until, cost.peak)
    kind = by or By.DAY
    return Page(
        title="What it cost, and what it saved",
        subtitle=f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD at list "
        "and spot prices",
        footer="Written by spotkeeper cost from the ledger.",
        blocks=[
            Tiles(
                [
                    Figure(label="paid", value=f"{whole.paid:.2f}"),
                    Figure(label="the same hours on demand", value=f"{whole.same_on_demand:.2f}"),
                    Figure(label="saved by spot", value=f"{whole.saved_by_spot:.2f}"),
                    Figure(
                        label="saved by sizing",
                        value="not known"
                        if whole.saved_by_sizing is None
                        else f"{whole.saved_by_sizing:.2f}",
                    ),
                ]
            ),
            _over_time(cost),
            Table(
                caption=f"By {kind}",
                columns=(kind.value, "hours", "paid", "on demand", "saved"),
                numbers=("hours", "paid", "on demand", "saved"),
                rows=[Row(cells=tuple(row.values())) for row in rows(cost, kind)],
            ),
            Table(
                caption="All of it",
                columns=("what", "how much"),
                rows=[Row(cells=pair) for pair in sentences(cost, whole)],
            ),
        ],
    )


def _over_time(cost: Cost) -> Timeline:
    step = HOUR if cost.until - cost.begins <= BY_HOURS_UP_TO else DAY
    starts = _steps(cost.begins, cost.until, step)
    sums = [savings(cost.within(at, min(at + step, cost.until)), at, at + step) for at in starts]
    t = [(at - cost.begins).total_seconds() for at in starts]
    spans = [(min(at + step, cost.until) - at) / HOUR for at in starts]

    def stacked(spot: list[float], on_demand: list[float]) -> list[Series]:
        both = [a + b for a, b in zip(spot, on_demand, strict=True)]
        return [
            Series(label="spot", colour="spot", kind="area", t=t, values=spot),
            Series(label="on-demand", colour="on-demand", kind="area", t=t, values=both, base=spot),
        ]

    paid = stacked(
        [s.spent_spot / h for s, h in zip(sums, spans, strict=True)],
        [s.spent_on_demand / h for s, h in zip(sums, spans, strict=True)],
    )
    same = [s.same_on_demand / h for s, h in zip(sums, spans, strict=True)]
    running = stacked(
        [s.spot_h / h for s, h in zip(sums, spans, strict=True)],
        [s.on_demand_h / h for s, h in zip(sums, spans, strict=True)],
    )
    first = cost.begins
    return Timeline(
        length_s=max(1.0, (cost.until - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        charts=[
            Chart(
                title="Paid",
                unit="USD an hour",
                height=220,
                series=[
                    *paid,
                    Series(label="the same on demand", colour="target", t=t, values=same),
                ],
            ),
            Chart(title="Instances", unit="running, in the mean", series=running),
        ],
    )


def _steps(first: datetime, until: datetime, step: timedelta) -> list[datetime]:
    starts = [first]
    while starts[-1] + step < until:
        starts.append(starts[-1] + step)
    return starts
