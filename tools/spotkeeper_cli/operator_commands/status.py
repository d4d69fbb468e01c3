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

    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.status.status import StackStatus

Watch = Annotated[float | None, duration("Repeat at this interval.", "--watch", least=1)]
Instances = Annotated[
    bool, typer.Option("--instances", help="Each instance, why it counts or not, and its cost.")
]
Events = Annotated[bool, typer.Option("--events", help="The last changes and failures.")]


def status(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    watch: Watch = None,
    instances: Instances = False,
    events: Events = False,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Show whether each fleet is whole; exit code 1 when one is not, or an alarm rings.

    With --instances or --events: a list of these instead.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.status.read_status import read_status
    from spotkeeper_operator.status.status import exit_code, status_json, status_text

    if (instances or events) and (watch or (instances and events)):
        raise typer.BadParameter("give one of --instances, --events and --watch")
    with asked_of_aws():
        aws = Aws(region, profile)
        if instances or events:
            _list(aws, stack, fleet, instances=instances, json=json)
            return
        found = read_status(aws, stack, fleet, wiring.now())
        show = status_json if json else status_text
        if not watch:
            typer.echo(show(found), nl=False)
            raise typer.Exit(exit_code(found))
        while True:
            screen().clear()
            typer.echo(show(found), nl=False)
            found = _again(lambda: read_status(aws, stack, fleet, wiring.now()), watch)


def _list(aws: "Aws", stack: str, fleet: str | None, *, instances: bool, json: bool) -> None:
    from spotkeeper import wiring
    from spotkeeper_operator.status import details

    read = details.read_instances if instances else details.read_events
    found = read(aws, stack, fleet, wiring.now())
    typer.echo(details.details_json(found) if json else details.details_text(found), nl=False)
    raise typer.Exit(1 if found.troubles else 0)


def _again(read: "Callable[[], StackStatus]", every_s: float) -> "StackStatus":
    """Wait and read again; what AWS has no answer to now is said, and asked for again later."""
    from spotkeeper.ports import Throttled, Unavailable

    while True:
        time.sleep(every_s)
        try:
            return read()
        except (Throttled, Unavailable) as error:
            typer.echo(f"error: {error}", err=True)
