"""`spotkeeper status`: is it whole, on one screen."""

import time
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from spotkeeper_operator.status.status import StackStatus

Watch = Annotated[float | None, duration("Repeat at this interval.", "--watch", least=1)]


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
    from spotkeeper_operator.status.status import exit_code, status_json, status_text

    with asked_of_aws():
        aws = Aws(region, profile)
        found = read_status(aws, stack, fleet, wiring.now())
        show = status_json if json else status_text
        if not watch:
            typer.echo(show(found), nl=False)
            raise typer.Exit(exit_code(found))
        while True:
            screen().clear()
            typer.echo(show(found), nl=False)
            found = _again(lambda: read_status(aws, stack, fleet, wiring.now()), watch)


def _again(read: "Callable[[], StackStatus]", every_s: float) -> "StackStatus":
    """Wait and read again; what AWS has no answer to now is said, and asked for again later."""
    from spotkeeper.ports import Throttled, Unavailable

    while True:
        time.sleep(every_s)
        try:
            return read()
        except (Throttled, Unavailable) as error:
            typer.echo(f"error: {error}", err=True)
