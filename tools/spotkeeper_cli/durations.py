"""Durations as options of commands."""

from collections.abc import Callable

import typer

from spotkeeper_operator.durations import parse_duration, spoken


def seconds(text: str | float) -> float:
    """Read a duration as seconds; anything else is a wrong argument."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seconds_between(least: float, most: float | None) -> Callable[[str | float], float]:
    """Make a parser that refuses a duration out of bounds, too."""

    def read(text: str | float) -> float:
        value = seconds(text)
        if value < least:
            raise typer.BadParameter(f"{text!r} is too short: at least {spoken(least)}")
        if most is not None and value > most:
            raise typer.BadParameter(f"{text!r} is too long: at most {spoken(most)}")
        return value

    return read
