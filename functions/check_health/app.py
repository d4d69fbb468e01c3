"""Sizes every fleet's spot group by its search logs and replaces workers that do not work."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.border.events import turn_request
from spotkeeper.observability import logger, report
from spotkeeper.turns.check_health import check_health
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
        return report(check_health(mine, wiring.ports(), now))
    own, errors = own_share(documents.fleets, wiring.health_queue, now)
    return report(check_health(own, wiring.ports(), now), [*documents.errors, *errors])
