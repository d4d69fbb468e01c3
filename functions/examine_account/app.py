"""Examines account, stack and groups as `spotkeeper doctor` does, and counts what is wrong."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.domain.doctor.checks import examine
from spotkeeper.observability import logger, report_findings


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    """Handle a daily tick; returns the number of findings of each severity."""
    return report_findings(examine(wiring.stack_facts()))
