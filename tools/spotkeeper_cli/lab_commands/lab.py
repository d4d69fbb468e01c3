"""`spotkeeper lab`: a local AWS to which `sam deploy` deploys, and in which spot runs out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.errors import told
from spotkeeper_cli.output import screen

if TYPE_CHECKING:
    from spotkeeper_lab.endpoint.story import Story

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
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Of the lab to run in.")] = 4566,
) -> None:
    """Let go wrong what a scenario says and tell whether the promises held.

    It runs in the lab that is up at the port, or starts one of its own; exit code 1 when a promise
    did not hold.
    """
    from spotkeeper_lab.endpoint.story import (
        ScenarioError,
        find_scenario,
        read_scenario,
        run_scenario,
    )
    from spotkeeper_lab.endpoint.up import LabError

    with told(LabError, ScenarioError):
        story = run_scenario(read_scenario(find_scenario(scenario)), port, Path.cwd(), _tell_at)
    _print(story)
    if not all(verdict.held for verdict in story.verdicts):
        raise typer.Exit(1)


@lab.command()
def scenarios() -> None:
    """List the scenarios that come along."""
    from rich.table import Table

    from spotkeeper_lab.endpoint.story import FOLDER, read_scenario

    listed = Table.grid(padding=(0, 2))
    for path in sorted(FOLDER.glob("*.yaml")):
        scenario = read_scenario(path)
        listed.add_row(scenario.name, f"{scenario.for_s:.0f} s", scenario.about)
    screen().print(listed, highlight=False)


def _tell_at(at_s: float, text: str) -> None:
    typer.echo(f"{at_s:7.1f} s  {text}")


def _print(story: "Story") -> None:
    from rich.table import Table

    last = story.moments[-1]
    figures = Table("what happened", "", title=story.scenario.about)
    hours = [
        sum(getattr(one, kind) for one in story.moments) / max(1, len(story.moments))
        for kind in ("spot_running", "on_demand_running")
    ]
    figures.add_row("requests served", str(last.served))
    figures.add_row("taken back while being served", str(story.lost_requests))
    figures.add_row("longest queue", str(max(one.queued for one in story.moments)))
    figures.add_row("spot, on-demand instances (mean)", f"{hours[0]:.2f}, {hours[1]:.2f}")
    promises = Table("promise", "promised", "seen", "held")
    for verdict in story.verdicts:
        held = "yes" if verdict.held else "NO"
        promises.add_row(verdict.promise, verdict.promised, verdict.seen, held)
    screen().print(figures, promises)
