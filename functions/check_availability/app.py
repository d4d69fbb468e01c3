"""Compares desired with serving in every fleet; fills gaps with on-demand, and releases it."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.border.events import turn_request
from spotkeeper.observability import logger, report, report_messages
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.turn import own_share


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Handle a tick, or messages for some fleets; returns the messages to deliver again.

    A tick raises `TurnFailed` once all were tried.
    """
    now = wiring.now()
    wanted = turn_request(event, now)
    documents = wiring.fleet_documents(copies=True)
    if wanted.fleets is not None or wanted.messages:
        # A message that is not ours has all fleets turned.
        some = wanted.fleets
        mine = [each for each in documents.fleets if some is None or each.name in some]
        # Only a tick reports a wrong document.
        turn = check_availability(
            mine, wiring.ports(), now, woken=wanted.woken, taken=documents.groups
        )
        return report_messages(turn, wanted.messages)
    own, errors = own_share(documents.fleets, wiring.availability_queue, now)
    turn = check_availability(own, wiring.ports(), now, taken=documents.groups)
    return report(turn, [*documents.errors, *errors])
