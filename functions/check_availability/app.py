"""Compares desired with serving in every fleet; fills gaps with on-demand, and releases it."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.border.events import turn_request
from spotkeeper.observability import logger, report
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.turn import own_share


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, str]:
    """Handle a tick, or a message for some fleets; raises `TurnFailed` once all were tried."""
    now = wiring.now()
    wanted = turn_request(event, now)
    documents = wiring.fleet_documents(copies=True)
    if wanted.fleets is not None:
        mine = [fleet for fleet in documents.fleets if fleet.name in wanted.fleets]
        # Only a tick reports a wrong document.
        turn = check_availability(
            mine, wiring.ports(), now, woken=wanted.woken, taken=documents.groups
        )
        return report(turn)
    own, errors = own_share(documents.fleets, wiring.availability_queue, now)
    turn = check_availability(own, wiring.ports(), now, taken=documents.groups)
    return report(turn, [*documents.errors, *errors])
