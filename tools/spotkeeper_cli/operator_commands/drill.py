"""`spotkeeper drill`: interrupt spot instances on purpose and see what becomes of it."""

from datetime import timedelta
from time import sleep
from typing import Annotated

import typer

from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import asked_of_aws, told
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, Profile, Region, Report, Stack
from spotkeeper_cli.output import STANDARD_OUTPUT, OutputError, check_outputs, draw

Fleet = Annotated[str, typer.Argument(help="The fleet's name.", metavar="FLEET")]
Count = Annotated[int, typer.Option("--count", min=1, help="Spot instances to interrupt.")]
Longest = Annotated[
    float,
    typer.Option("--timeout", parser=seconds, metavar="DURATION", help="Wait no longer."),
]


def drill(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    fleet: Fleet,
    count: Count = 1,
    timeout: Longest = 1800.0,
    stack: Stack = DEFAULT_STACK,
    json: AsJson = False,
    report: Report = None,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Have AWS take spot instances and tell when all was as before.

    AWS Fault Injection Service warns and takes them as in earnest; deploy the stack with
    Drills=true first. Exit code 1 when something had not happened after --timeout.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.drill.drill_page import drill_page
    from spotkeeper_operator.drill.drill_text import drill_json, drill_text, telling
    from spotkeeper_operator.drill.run_drill import Drill, Waiting

    waiting = Waiting(
        clock=wiring.now,
        sleep=lambda for_s: sleep(for_s),
        progress=telling(lambda text: typer.echo(text, err=True)),
        longest=timedelta(seconds=timeout),
    )
    with asked_of_aws(), told(OutputError):
        check_outputs([report])
        drilled = Drill(Aws(region, profile), stack, fleet).run(count, waiting)
        draw(drill_page(drilled), report)
        if report != STANDARD_OUTPUT:
            typer.echo(drill_json(drilled) if json else drill_text(drilled), nl=False)
        raise typer.Exit(0 if drilled.story.over else 1)
