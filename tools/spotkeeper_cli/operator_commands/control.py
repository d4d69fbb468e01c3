"""`spotkeeper mode`, `pause`, `resume` and `stop`: what an operator decides for a fleet."""

import sys
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper.domain.permission import Mode
from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, Fleet, Profile, Region, Stack, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spotkeeper.domain.permission import Control
    from spotkeeper_operator.control import FleetControls

For = Annotated[float, duration("End after this time; at most 24h.", "--for")]
Why = Annotated[str, typer.Option("--why", help="The reason; status shows it.")]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Stop although on-demand stands in: the fleet shrinks."),
]

KeepHooks = Annotated[
    bool, typer.Option("--keep-hooks", help="Keep the hooks spotkeeper-* of adopted groups.")
]


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]


def mode(
    fleet: Fleet,
    mode: Annotated[Mode, typer.Argument(help="What its turns may do.")],
    yes: Yes = False,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Let a fleet's turns act, or only observe and record what they would ask.

    Before turns act, the command shows what they would ask for now, and waits for your yes.
    """
    from spotkeeper_operator.control_text import mode_text

    with _controls(stack, region, profile) as (controls, now):
        if mode is Mode.ACT and controls.only_observes(fleet, now):
            _confirm(controls.preview(fleet, now), "Let the turns act?", yes)
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
    """Leave a fleet as it is for a time; turns record what they would ask."""
    from spotkeeper_operator.control_text import pause_text

    with _controls(stack, region, profile) as (controls, now):
        paused = controls.pause(fleet, timedelta(seconds=lasting), why, now)
        _say(fleet, paused, pause_text, json)


def resume(
    fleet: Fleet,
    yes: Yes = False,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """End a pause now.

    The command shows what the turns would ask for now, and waits for your yes.
    """
    from spotkeeper_operator.control_text import pause_text

    with _controls(stack, region, profile) as (controls, now):
        controls.require_paused(fleet, now)
        if not controls.only_observes(fleet, now):
            _confirm(controls.preview(fleet, now), "Let the turns act?", yes)
        _say(fleet, controls.resume(fleet, now), pause_text, json)


def stop(
    fleet: Fleet,
    anyway: Anyway = False,
    keep_hooks: KeepHooks = False,
    yes: Yes = False,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Leave a fleet: end its backfill, undo what turns set, and let turns only observe.

    Then its stack can be deleted. The command shows what it will do, and waits for your yes.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control_text import stopped_json, stopped_text
    from spotkeeper_operator.stop import Leaving

    with asked_of_aws():
        aws, now = Aws(region, profile), wiring.now()
        leaving = Leaving(aws, stack, fleet, now, anyway=anyway, keep_hooks=keep_hooks)
        _confirm(leaving.preview(), f"Stop {fleet}?", yes)
        show = stopped_json if json else stopped_text
        typer.echo(show(fleet, leaving.stop()), nl=False)


def _confirm(preview: "Sequence[str]", question: str, yes: bool) -> None:
    """Show what will happen, on standard error, and go on only with a yes."""
    from spotkeeper_operator.aws import OperatorError

    if yes:
        return
    for line in preview:
        typer.echo(f"would  {line}", err=True)
    if not _asks():
        raise OperatorError("nobody to ask: give --yes, or run it in a terminal")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _asks() -> bool:
    """Say whether there is a terminal to ask on."""
    return sys.stdin.isatty()


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
