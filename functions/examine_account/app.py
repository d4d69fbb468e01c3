"""Examines account, stack and groups as `spotkeeper doctor` does, and counts what is wrong."""

from typing import TYPE_CHECKING, Any

from spotkeeper import wiring
from spotkeeper.domain.doctor.checks import examine
from spotkeeper.observability import logger, report_findings

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: "LambdaContext") -> dict[str, int]:
    """Handle a daily tick; returns the number of findings of each severity."""
    return report_findings(examine(wiring.stack_facts()))
