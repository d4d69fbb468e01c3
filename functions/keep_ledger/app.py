"""Keeps the ledger: which instances ran for each fleet, and what they cost."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.observability import logger, report_spending
from spotkeeper.turns.keep_ledger import keep_ledger


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, float]:
    """Handle a tick; returns what each fleet spent, and raises after all were tried."""
    documents = wiring.fleet_documents()
    report = keep_ledger(documents.fleets, wiring.ledger_ports(), wiring.now(), wiring.LEDGER_EVERY)
    return report_spending(report)
