"""`spotkeeper mode`, `pause`, `resume` and `stop`: what an operator says of a fleet."""

from datetime import timedelta
from typing import Annotated

import typer

from spotkeeper.domain.permission import Mode
from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, Profile, Region, Stack

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
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Let a fleet's turns act, or only observe and record what they would ask."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls
    from spotkeeper_operator.control_text import control_json, mode_text

    with asked_of_aws():
        found = FleetControls(Aws(region, profile), stack).set_mode(fleet, mode, wiring.now())
        show = control_json if json else mode_text
        typer.echo(show(fleet, found), nl=False)


def pause(
    fleet: Fleet,
    lasting: For,
    why: Why,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Let a fleet be as it is for a time; turns record what they would ask."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls
    from spotkeeper_operator.control_text import control_json, pause_text

    with asked_of_aws():
        controls = FleetControls(Aws(region, profile), stack)
        found = controls.pause(fleet, timedelta(seconds=lasting), why, wiring.now())
        show = control_json if json else pause_text
        typer.echo(show(fleet, found), nl=False)


def resume(
    fleet: Fleet,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """End a pause now."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls
    from spotkeeper_operator.control_text import control_json, pause_text

    with asked_of_aws():
        found = FleetControls(Aws(region, profile), stack).resume(fleet, wiring.now())
        show = control_json if json else pause_text
        typer.echo(show(fleet, found), nl=False)


def stop(
    fleet: Fleet,
    anyway: Anyway = False,
    keep_hooks: KeepHooks = False,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Leave a fleet: backfill goes, what turns set is undone, turns only observe.

    Then its stack can be deleted.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control_text import stopped_json, stopped_text
    from spotkeeper_operator.stop import stop as leave

    with asked_of_aws():
        aws, now = Aws(region, profile), wiring.now()
        done = leave(aws, stack, fleet, now, anyway=anyway, keep_hooks=keep_hooks)
        show = stopped_json if json else stopped_text
        typer.echo(show(fleet, done), nl=False)
