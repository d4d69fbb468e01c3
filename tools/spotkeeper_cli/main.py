"""The `spotkeeper` command.

Each command imports what it needs when it runs, so that help and mistakes answer at once.
"""

import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from spotkeeper_cli import job_commands as jobs
from spotkeeper_cli import lab_commands as lab
from spotkeeper_cli import stack_commands as stack

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "On a deployed stack": (
        stack.init, stack.status, stack.watch, stack.explain, stack.sizing, stack.doctor,
        stack.cost, stack.types, stack.drill, stack.mode, stack.pause, stack.resume, stack.stop,
        stack.observe, stack.fleet, stack.rollout, stack.regions, stack.region, jobs.job,
    ),
    "Without AWS": (lab.demo, lab.backtest, lab.replay, lab.trace, lab.lab),
}  # fmt: skip
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel)(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotkeeper {version('spotkeeper')}")
        raise typer.Exit


@app.callback()
def spotkeeper(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep a fleet of GPU workers serving on spot instances."""


def main() -> None:
    """Run the command line; a wrong argument ends it with exit code 2."""
    # A locale that cannot write a character gets a question mark for it, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in OF_THE_LAB:
            raise
        typer.echo(
            f"error: this needs {error.name}: pip install -e '.[lab]' (or make bootstrap) in the "
            "checkout",
            err=True,
        )
        raise SystemExit(2) from error
    except OSError as error:
        # A file or program without its name is a full disk behind standard output; a pipe that was
        # closed is handled by click.
        where = error.filename or "cannot write"
        typer.echo(f"error: {where}: {error.strerror}", err=True)
        raise SystemExit(2) from error


OF_THE_LAB = frozenset({"greenlet", "moto", "numpy", "scipy", "yaml"})
"""What a plain install leaves out, as it is imported."""


if __name__ == "__main__":
    main()
