"""`spotkeeper cost`: what was paid, and what spot and sizing saved."""

from datetime import timedelta
from typing import Annotated

import typer

from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, FleetName, Profile, Region, Stack

MONTH_S = 30 * 86_400.0

Since = Annotated[
    float,
    typer.Option("--since", parser=seconds, metavar="DURATION", help="So far back; 90d at most."),
]
By = Annotated[str | None, typer.Option("--by", metavar="[day|zone|type]", help="Told apart.")]


def cost(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    since: Since = MONTH_S,
    by: By = None,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Say what the fleets cost, USD, and what they would have cost on demand."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.money import cost_text
    from spotkeeper_operator.money.read_cost import read_cost

    if by is not None and by not in set(cost_text.By):
        raise typer.BadParameter("day, zone or type", param_hint="--by")
    if not 0 < since <= 90 * 86_400:
        raise typer.BadParameter("AWS keeps spot prices for 90d", param_hint="--since")
    with asked_of_aws():
        now = wiring.now()
        found = read_cost(Aws(region, profile), stack, fleet, now - timedelta(seconds=since), now)
        show = cost_text.cost_json if json else cost_text.cost_text
        typer.echo(show(found, cost_text.By(by) if by else None), nl=False)
