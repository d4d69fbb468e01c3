"""The `spotkeeper` command: one sub-command per thing that the lab can do.

Each command imports what it needs when it runs, so that help and mistakes answer at once.
"""

import typer

from spotkeeper_cli.backtest import backtest
from spotkeeper_cli.demo import demo
from spotkeeper_cli.lab import lab
from spotkeeper_cli.replay import replay
from spotkeeper_cli.trace import trace

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(backtest)
app.command()(replay)
app.add_typer(trace, name="trace")
app.add_typer(lab, name="lab")


@app.callback()
def spotkeeper() -> None:
    """Keep a fleet of workers whole on spot instances."""


def main() -> None:
    """Run the command line; a wrong argument ends it with exit code 2."""
    app()
