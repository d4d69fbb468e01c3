"""The `spotkeeper` command.

Each command imports what it needs when it runs, so that help and mistakes answer at once.
"""

import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from spotkeeper_cli.lab_commands.backtest import backtest
from spotkeeper_cli.lab_commands.demo import demo
from spotkeeper_cli.lab_commands.lab import lab
from spotkeeper_cli.lab_commands.replay import replay
from spotkeeper_cli.lab_commands.trace import trace
from spotkeeper_cli.operator_commands.control import mode, pause, resume, stop
from spotkeeper_cli.operator_commands.cost import cost
from spotkeeper_cli.operator_commands.doctor import doctor
from spotkeeper_cli.operator_commands.drill import drill
from spotkeeper_cli.operator_commands.explain import explain
from spotkeeper_cli.operator_commands.observe import observe
from spotkeeper_cli.operator_commands.status import status
from spotkeeper_cli.operator_commands.watch import watch

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_STACK, _LAB = "On a deployed stack", "Without AWS"
app.command(rich_help_panel=_STACK)(status)
app.command(rich_help_panel=_STACK)(watch)
app.command(rich_help_panel=_STACK)(explain)
app.command(rich_help_panel=_STACK)(doctor)
app.command(rich_help_panel=_STACK)(cost)
app.command(rich_help_panel=_STACK)(drill)
app.command(rich_help_panel=_STACK)(mode)
app.command(rich_help_panel=_STACK)(pause)
app.command(rich_help_panel=_STACK)(resume)
app.command(rich_help_panel=_STACK)(stop)
app.command(rich_help_panel=_LAB)(demo)
app.command(rich_help_panel=_LAB)(backtest)
app.command(rich_help_panel=_LAB)(replay)
app.add_typer(observe, name="observe", rich_help_panel=_STACK)
app.add_typer(trace, name="trace", rich_help_panel=_LAB)
app.add_typer(lab, name="lab", rich_help_panel=_LAB)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"spotkeeper {version('spotkeeper')}")
        raise typer.Exit


@app.callback()
def spotkeeper(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Which it is.")
    ] = False,
) -> None:
    """Keep a fleet of workers whole on spot instances."""


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
        # A full disk behind standard output; a pipe that was closed is handled by click.
        typer.echo(f"error: cannot write: {error.strerror}", err=True)
        raise SystemExit(2) from error


OF_THE_LAB = frozenset({"moto", "numpy", "scipy", "yaml"})
"""What a plain install leaves out, as it is imported."""


if __name__ == "__main__":
    main()
