"""The `spotkeeper` command: one sub-command per thing that the lab can do."""

import typer

from spotkeeper_cli.demo import demo

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(demo)


@app.callback()
def spotkeeper() -> None:
    """Keep a fleet of workers whole on spot instances."""


def main() -> None:
    """Run the command line; a wrong argument ends it with exit code 2."""
    app()
