"""`spotkeeper drill`: interrupt spot instances on purpose and see what becomes of it."""

from datetime import timedelta
from time import sleep
from typing import Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws, told
from spotkeeper_cli.options import (
    DEFAULT_STACK,
    AsJson,
    Fleet,
    Profile,
    Region,
    Report,
    Stack,
    duration,
)
from spotkeeper_cli.output import OutputError, check_outputs, tell

Count = Annotated[
    int, typer.Option("--count", min=1, max=5, help="Spot instances to interrupt. FIS takes 5.")
]
Longest = Annotated[float, duration("Wait at most this long.", "--timeout", least=60)]


def drill(
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
        show = drill_json if json else drill_text
        tell(show(drilled), drill_page(drilled), report)
        raise typer.Exit(0 if drilled.story.over else 1)
