"""`spotkeeper lab`: a local AWS to which `sam deploy` deploys, and in which spot runs out."""

from pathlib import Path
from typing import Annotated

import typer

from spotkeeper_cli.errors import told
from spotkeeper_cli.output import screen

lab = typer.Typer(no_args_is_help=True, help="A local AWS in which spot runs out.")


@lab.callback()
def _lab() -> None:
    """A local AWS in which spot runs out."""


@lab.command()
def up(
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Of the one endpoint.")] = 4566,
    auth: Annotated[bool, typer.Option(help="Enforce roles and policies.")] = True,
    desired: Annotated[int, typer.Option(min=0, help="Spot instances to begin with.")] = 3,
    capacity: Annotated[
        int, typer.Option(min=0, help="Spot instances that each of three zones holds.")
    ] = 4,
    cold_start: Annotated[float, typer.Option(min=0, help="Seconds that an instance boots.")] = 20,
    notice: Annotated[float, typer.Option(min=0, help="Seconds between warning and loss.")] = 120,
) -> None:
    """Serve a local AWS on this machine until Ctrl-C."""
    from spotkeeper_lab.endpoint.settings import LabSettings
    from spotkeeper_lab.endpoint.up import LabError, running

    with told(LabError):
        settings = LabSettings(
            port=port,
            auth=auth,
            desired=desired,
            pools=dict.fromkeys(LabSettings().pools, capacity),
            cold_start_s=cold_start,
            notice_s=notice,
        )
        with running(settings, Path.cwd()) as ready:
            _tell(ready.url, ready.took_s, port)
            code = ready.process.wait()
        raise LabError(f"the endpoint ended by itself ({code}); see build/local-aws/endpoint.log")


def _tell(url: str, took_s: float, port: int) -> None:
    from spotkeeper_lab.endpoint.up import BUILT, environment

    typer.echo(f"The local AWS is up ({took_s:.1f} s). Ctrl-C ends it and everything in it.\n")
    typer.echo(f"  endpoint  {url}\n  page      {url}/_lab/\n")
    typer.echo("Paste into another shell, then build and deploy as to AWS:\n")
    for name, value in environment(port, Path.cwd()).items():
        typer.echo(f"  export {name}={value}")
    if not BUILT.exists():
        typer.echo("\nNothing is built for this machine yet: make local-build")


@lab.command()
def run(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario, or a YAML file.")],
    port: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a scenario of faults in virtual time and check every promise.

    The deployed handlers run against the simulated AWS of `make chaos`. Exit code 1 means that a
    promise was broken.
    """
    from rich.table import Table

    from spotkeeper_lab.promises import Promise
    from spotkeeper_lab.run.chaos import run as run_scenario
    from spotkeeper_lab.run.chaos import story_of
    from spotkeeper_lab.scenario import ScenarioError, find, read

    if port is not None:
        typer.echo("Ignoring --port: a scenario runs in virtual time, in no lab.", err=True)
    with told(ScenarioError):
        result = run_scenario(read(find(scenario)))
    typer.echo("\n".join(story_of(result)))
    broken = {one.promise: one.how for one in reversed(result.violations)}
    promises = Table("promise", "kept", title=result.scenario.about)
    for promise in Promise:
        promises.add_row(promise, f"NO: {broken[promise]}" if promise in broken else "yes")
    screen().print(promises)
    if broken:
        raise typer.Exit(1)


@lab.command()
def scenarios() -> None:
    """List the scenarios that come with the lab."""
    from rich.table import Table

    from spotkeeper_lab.scenario import read, shipped

    listed = Table.grid(padding=(0, 2))
    for name, path in shipped().items():
        listed.add_row(name, read(path).about)
    screen().print(listed, highlight=False)
