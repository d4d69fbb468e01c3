"""`spotkeeper mode`, `pause`, `resume` and `stop`: what an operator says of a fleet."""

from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper.domain.permission import Mode
from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, Fleet, Profile, Region, Stack, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spotkeeper.domain.permission import Control
    from spotkeeper_operator.control import FleetControls

For = Annotated[float, duration("It ends then; 24h at most.", "--for")]
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
    from spotkeeper_operator.control_text import mode_text

    with _controls(stack, region, profile) as (controls, now):
        _say(fleet, controls.set_mode(fleet, mode, now), mode_text, json)


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
    from spotkeeper_operator.control_text import pause_text

    with _controls(stack, region, profile) as (controls, now):
        paused = controls.pause(fleet, timedelta(seconds=lasting), why, now)
        _say(fleet, paused, pause_text, json)


def resume(
    fleet: Fleet,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """End a pause now."""
    from spotkeeper_operator.control_text import pause_text

    with _controls(stack, region, profile) as (controls, now):
        _say(fleet, controls.resume(fleet, now), pause_text, json)


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


@contextmanager
def _controls(
    stack: str, region: str | None, profile: str | None
) -> "Iterator[tuple[FleetControls, datetime]]":
    """The stack's controls and the instant, in which what goes wrong with AWS is told."""
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControls

    with asked_of_aws():
        yield FleetControls(Aws(region, profile), stack), wiring.now()


def _say(fleet: str, found: "Control", text: "Callable[[str, Control], str]", json: bool) -> None:
    from spotkeeper_operator.control_text import control_json

    typer.echo((control_json if json else text)(fleet, found), nl=False)
