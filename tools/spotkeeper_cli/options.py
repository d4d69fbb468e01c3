"""Options that commands share, durations among them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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


def _named(stack: str) -> str:
    if not stack.strip():
        raise typer.BadParameter("give the name of a stack")
    return stack


Stack = Annotated[
    str,
    typer.Option("--stack", envvar="SPOTKEEPER_STACK", callback=_named, help="The stack's name."),
]
Region = Annotated[
    str | None, typer.Option("--region", envvar="AWS_REGION", help="Default: the profile's.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", envvar="AWS_PROFILE", help="Of your AWS configuration.")
]
FleetName = Annotated[str | None, typer.Option("--fleet", help="One fleet. Default: all.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Draw it as a page, too.")
]


def duration(
    help: str, *names: str, least: float = 0.0, most: float | None = None, **more: Any
) -> Any:
    """An option that is read as a duration, in seconds: 90s, 20m, 3h, 7d."""
    parser = seconds_between(least, most)
    return typer.Option(*names, parser=parser, metavar="DURATION", help=help, **more)


Fleet = Annotated[str, typer.Argument(help="The fleet's name.", metavar="FLEET")]
# Of the lab's runs.
ColdStart = Annotated[float, duration("Launch to serving.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the rows as JSON; - is standard output.")
]
ReportFile = Annotated[Path | None, typer.Option("--report", help="Write an HTML report.")]
MeanRate = Annotated[
    float | None,
    typer.Option(help="Requests a second of a trace of rates, on average. Default: as it says."),
]
Since = Annotated[float | None, duration("Start this long ago: 20m, 3h, 7d.", "--since", least=1)]
