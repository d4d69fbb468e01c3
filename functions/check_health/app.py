"""Sizes every fleet's spot group by its search logs and replaces workers that do not work."""

from typing import TYPE_CHECKING, Any

from spotkeeper import wiring
from spotkeeper.observability import logger, report
from spotkeeper.turns.check_health import check_health

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, str]:
    """Handle one tick of the schedule; raises `TurnFailed` after all fleets were tried."""
    now = wiring.now()
    documents = wiring.fleet_documents()
    turn = check_health(documents.fleets, wiring.ports(), now)
    return report(turn, documents.errors)
