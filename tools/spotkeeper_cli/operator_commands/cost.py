"""`spotkeeper cost`: what was paid, and what spot and sizing saved."""

from datetime import timedelta
from typing import Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws, told
from spotkeeper_cli.options import (
    DEFAULT_STACK,
    AsJson,
    FleetName,
    Profile,
    Region,
    Report,
    Stack,
    duration,
)
from spotkeeper_cli.output import OutputError, check_outputs, tell

MONTH_S = 30 * 86_400.0

Since = Annotated[
    float, duration("Start this long ago; at most 90d.", "--since", least=60, most=90 * 86_400)
]
By = Annotated[str | None, typer.Option("--by", metavar="[day|zone|type]", help="Told apart.")]

Billed = Annotated[
    bool,
    typer.Option("--actual", help="Ask Cost Explorer what was billed, too (0.01 USD a question)."),
]


def cost(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    since: Since = MONTH_S,
    by: By = None,
    actual: Billed = False,
    report: Report = None,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Show what the fleets cost, USD, and on demand; exit code 1 if a part of it is not known."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.money import cost_text
    from spotkeeper_operator.money.cost_page import cost_page
    from spotkeeper_operator.money.read_cost import read_cost

    if by is not None and by not in set(cost_text.By):
        raise typer.BadParameter("day, zone or type", param_hint="--by")
    kind = cost_text.By(by) if by else None
    with asked_of_aws(), told(OutputError):
        check_outputs([report])
        aws, now = Aws(region, profile), wiring.now()
        first = now - timedelta(seconds=since)
        found = read_cost(aws, stack, fleet, first, now, billed=actual)
        show = cost_text.cost_json if json else cost_text.cost_text
        tell(show(found, kind), cost_page(found, kind), report)
        raise typer.Exit(1 if found.unknown else 0)
