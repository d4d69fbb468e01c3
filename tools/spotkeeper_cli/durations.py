"""Durations as options of commands."""

import typer

from spotkeeper_operator.durations import parse_duration


def seconds(text: str | float) -> float:
    """Read a duration as seconds; anything else is a wrong argument."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
