"""Keeps jobs: launches their machines, moves their state, and ends them."""

from typing import TYPE_CHECKING, Any

from spotkeeper import wiring
from spotkeeper.border.job_report import messages_of, named_by_events, read_job_messages
from spotkeeper.observability import logger, report, report_messages
from spotkeeper.ports import FleetError
from spotkeeper.turns.keep_jobs import keep_jobs
from spotkeeper.turns.turn import TurnReport

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, Any]:
    """Handle a tick, or a batch of reports and events of AWS.

    A tick keeps all jobs and raises `TurnFailed` once all were tried. A batch keeps the jobs that
    it names, and returns its messages to deliver again: most events are of others' machines.
    """
    now, ports = wiring.now(), wiring.job_ports()
    account = context.invoked_function_arn.split(":")[4]
    reports, warned, unread = read_job_messages(event, now, account)
    for text in unread:
        logger.error(text, kind="JobReportError")
    if not event.get("Records"):
        return report(keep_jobs(reports, warned, ports, now))
    reported = {each.job for each in reports}
    try:
        some = reported.union(ports.table.naming(named_by_events(event), now))
        turn = keep_jobs(reports, warned, ports, now, some)
    except FleetError as error:
        turn = TurnReport(errors=[error], unnoted=frozenset(reported or {""}))
    return report_messages(turn, dict.fromkeys(messages_of(event, turn.unnoted)))
