"""`spotkeeper watch`: a live page of a deployed stack."""

from contextlib import suppress
from typing import Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, FleetName, Profile, Region, Stack

Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="The port to listen on.")]


def watch(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    port: Port = 8080,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Serve a live page of the fleets on this machine, until Ctrl-C.

    The page changes nothing, and only browsers on this machine reach it.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.watch import LOOPBACK, Watch, server

    with asked_of_aws():
        listening = server(Watch(Aws(region, profile), stack, fleet, wiring.now), port)
    typer.echo(f"http://{LOOPBACK}:{port}/  (Ctrl-C ends it)")
    with listening, suppress(KeyboardInterrupt):
        listening.serve_forever()
