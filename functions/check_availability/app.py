"""Compares desired with serving in every fleet, fills the gap with on-demand, gives it back."""

from typing import TYPE_CHECKING, Any

from spotkeeper import wiring
from spotkeeper.border.events import wake_ups_before
from spotkeeper.observability import logger, report
from spotkeeper.turns.check_availability import check_availability

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, str]:
    """Handle a tick or a wake-up; raises `TurnFailed` after all fleets were tried."""
    now = wiring.now()
    documents = wiring.fleet_documents()
    woken = wake_ups_before(event)
    turn = check_availability(documents.fleets, wiring.ports(), now, woken=woken)
    return report(turn, documents.errors)
