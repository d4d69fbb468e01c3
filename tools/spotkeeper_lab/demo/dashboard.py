"""The stack's dashboard at the end of a demo's day."""

from collections.abc import Iterator
from typing import Any

from spotkeeper_charts.page import Page
from spotkeeper_lab.dashboard.board import board
from spotkeeper_lab.dashboard.page import Sent, dashboard_page
from spotkeeper_lab.end_to_end.day import Day
from spotkeeper_lab.end_to_end.results import Results
from spotkeeper_lab.end_to_end.scene import FLEET, LEAD_S


def dashboard_of(day: Day, found: Results) -> Page:
    """What CloudWatch would show; raises `NoTemplate` outside a checkout."""
    settings, end_s = day.scene.settings, day.scene.end_s
    shown = board(
        {
            "FleetName": FLEET,
            "ObjectiveWaitSeconds": settings.wait_objective_s,
            "ObjectiveShare": settings.wait_share,
        }
    )
    sent = Sent(
        metrics={
            name: [(at_s - LEAD_S, value) for at_s, value in values if LEAD_S <= at_s < end_s]
            for name, values in day.record.metrics.items()
        },
        log=list(_log(found, end_s)),
        until_s=end_s - LEAD_S,
        clock_s=settings.start_h * 3600.0,
    )
    return dashboard_page(shown, sent)


def _log(found: Results, end_s: float) -> Iterator[dict[str, Any]]:
    """The lines that `observability.report` writes of the records."""
    for decision, record in zip(found.decisions, found.records, strict=True):
        if decision.at_s >= end_s:
            break
        line = {name: value for name, value in record.items() if name != "seen"}
        seen = {f"seen.{name}": value for name, value in record["seen"].items()}
        yield {"@timestamp": decision.at_s - LEAD_S, "message": "turned"} | line | seen
