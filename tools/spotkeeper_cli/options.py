"""Options that the commands on a deployed stack share."""

from pathlib import Path
from typing import Annotated

import typer

from spotkeeper_cli.durations import seconds

Stack = Annotated[str, typer.Option("--stack", envvar="SPOTKEEPER_STACK", help="The stack's name.")]
Region = Annotated[
    str | None, typer.Option("--region", envvar="AWS_REGION", help="Default: the profile's.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", envvar="AWS_PROFILE", help="Of your AWS configuration.")
]
FleetName = Annotated[str | None, typer.Option("--fleet", help="One fleet. Default: all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer JSON.")]
Since = Annotated[
    float | None,
    typer.Option("--since", parser=seconds, metavar="DURATION", help="So far back: 20m, 3h, 7d."),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Draw it as a page, too.")
]
DEFAULT_STACK = "spotkeeper"
