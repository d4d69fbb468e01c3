"""Options that commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spotkeeper_cli.durations import seconds_between


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
AsJson = Annotated[bool, typer.Option("--json", help="Answer JSON.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Draw it as a page, too.")
]
DEFAULT_STACK = "spotkeeper"


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
