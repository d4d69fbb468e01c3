"""`spotkeeper observe`: what turns that only looked would have done."""

from datetime import timedelta
from typing import Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import (
    DEFAULT_STACK,
    AsJson,
    FleetName,
    Profile,
    Region,
    Stack,
    duration,
)

observe = typer.Typer(no_args_is_help=True, help="What a fleet that only looks would have done.")
WEEK_S = 7 * 86_400.0


@observe.callback()
def _observe() -> None:
    """What a fleet that only looks would have done."""


@observe.command()
def report(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    since: Annotated[float, duration("Start this long ago.", "--since", least=60)] = WEEK_S,
    price_ratio: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Spot price over on-demand price.")
    ] = 0.30,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Say what it would have asked, and the hours that ran beside those that would have run."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.decisions.observed import read_observed, report_json, report_text

    with asked_of_aws():
        now = wiring.now()
        first = now - timedelta(seconds=since)
        found = read_observed(Aws(region, profile), stack, fleet, first, now)
        show = report_json if json else report_text
        typer.echo(show(found, price_ratio), nl=False)
