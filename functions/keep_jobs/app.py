"""Keeps jobs: launches their machines, moves their state, and ends them."""

from typing import TYPE_CHECKING, Any

from spotkeeper import wiring
from spotkeeper.border.job_report import read_job_messages
from spotkeeper.observability import logger, report_jobs
from spotkeeper.turns.keep_jobs import keep_jobs

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, list[str]]:
    """Handle a tick, an event of AWS or reports; raises `JobsFailed` once all were tried."""
    now = wiring.now()
    reports, warned, unread = read_job_messages(event)
    turns = keep_jobs(reports, warned, wiring.job_ports(), now)
    return report_jobs(turns, unread)
