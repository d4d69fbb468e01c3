"""Runs a turn at once for each fleet that a spot, group or health event concerns."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.border.events import parse_event
from spotkeeper.observability import logger, report, report_unusable
from spotkeeper.turns.check_availability import handle_interruption


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, str]:
    """Handle one event; an event of no known kind or of another account is ignored.

    Raises `EventError` for a known kind without its fields, `TurnFailed` when a turn failed.
    """
    now = wiring.now()
    account = context.invoked_function_arn.split(":")[4]
    interruption = parse_event(event, account)
    if interruption is None:
        logger.info("ignored", kind=str(event.get("detail-type", "none")))
        return {}
    if not interruption.instance_ids and not interruption.group:
        report_unusable(event)
        return {}
    documents = wiring.fleet_documents()
    ports = wiring.ports()
    turn = handle_interruption(interruption, documents.fleets, ports, now)
    # The checkers report a wrong document every minute.
    return report(turn)
