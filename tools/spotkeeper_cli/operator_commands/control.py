"""`spotkeeper mode`, `pause`, `resume` and `stop`: what an operator says of a fleet."""

from datetime import timedelta
from typing import Annotated

import typer

from spotkeeper.domain.permission import Mode
from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, Profile, Region, Stack

Fleet = Annotated[str, typer.Argument(help="The fleet's name.", metavar="FLEET")]
For = Annotated[
    float,
    typer.Option("--for", parser=seconds, metavar="DURATION", help="It ends then; 24h at most."),
]
Why = Annotated[str, typer.Option("--why", help="For who finds it paused.")]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Although on-demand stands in for spot: the fleet shrinks.")
]

KeepHooks = Annotated[
    bool, typer.Option("--keep-hooks", help="Of groups that were adopted: leave spotkeeper-*.")
]


def mode(
    fleet: Fleet,
    mode: Annotated[Mode, typer.Argument(help="What its turns may do.")],
    stack: Stack = DEFAULT_STACK,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Let a fleet's turns act, or only observe and record what they would ask."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls

    with asked_of_aws():
        found = FleetControls(Aws(region, profile), stack).set_mode(fleet, mode, wiring.now())
        typer.echo(f"{fleet}: {found.mode}, said {found.mode_by}")


def pause(
    fleet: Fleet,
    lasting: For,
    why: Why,
    stack: Stack = DEFAULT_STACK,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Let a fleet be as it is for a time; turns record what they would ask."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls

    with asked_of_aws():
        controls = FleetControls(Aws(region, profile), stack)
        found = controls.pause(fleet, timedelta(seconds=lasting), why, wiring.now()).pause
        if found:
            typer.echo(f"{fleet}: paused until {found.until:%Y-%m-%d %H:%M:%S} UTC")


def resume(
    fleet: Fleet,
    stack: Stack = DEFAULT_STACK,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """End a pause now."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls

    with asked_of_aws():
        FleetControls(Aws(region, profile), stack).resume(fleet, wiring.now())
        typer.echo(f"{fleet}: not paused any more")


def stop(
    fleet: Fleet,
    anyway: Anyway = False,
    keep_hooks: KeepHooks = False,
    stack: Stack = DEFAULT_STACK,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Leave a fleet: backfill goes, what turns set is undone, turns only observe.

    Then its stack can be deleted.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.stop import stop as leave

    with asked_of_aws():
        aws, now = Aws(region, profile), wiring.now()
        done = leave(aws, stack, fleet, now, anyway=anyway, keep_hooks=keep_hooks)
        for line in done.did:
            typer.echo(f"did   {line}")
        for line in done.left:
            typer.echo(f"left  {line}")
