"""`spotkeeper status`: is it whole, on one screen."""

import time
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
from spotkeeper_cli.output import screen

Watch = Annotated[float | None, duration("Again and again, so often.", "--watch")]


def status(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    watch: Watch = None,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Say whether each fleet is whole; exit code 1 when one is not, or an alarm rings."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.status.read_status import read_status
    from spotkeeper_operator.status.status_text import exit_code, status_json, status_text

    with asked_of_aws():
        aws = Aws(region, profile)
        while True:
            found = read_status(aws, stack, fleet, wiring.now())
            if watch:
                screen().clear()
            typer.echo(status_json(found) if json else status_text(found), nl=False)
            if not watch:
                raise typer.Exit(exit_code(found))
            time.sleep(max(1.0, watch))
