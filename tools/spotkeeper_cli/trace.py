"""`spotkeeper trace`: public and own recordings of spot markets as market traces."""

from pathlib import Path
from typing import Annotated

import typer

from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import told

trace = typer.Typer(no_args_is_help=True, help="Make market traces of other recordings.")


@trace.callback()
def _trace() -> None:
    """Make market traces of other recordings."""


@trace.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="SkyPilot JSON (one file per zone), SkyNomad CSV (the same) or Bamboo events."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The market trace; gzip when it ends in .gz.")],
    pool: Annotated[
        str | None, typer.Option(help="Pool of a single file. Default: from its name.")
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="DURATION", help="Step of a JSON file that tells a wrong one."
        ),
    ] = None,
    inverted: Annotated[
        bool | None, typer.Option(help="Whether 1 means not available. Default: by the file.")
    ] = None,
) -> None:
    """Convert the public formats, the zones of one market together, to a market trace."""
    from spotkeeper_lab.market import MarketError, write_market
    from spotkeeper_lab.trace_formats import Reading, read_public_traces

    with told(MarketError):
        name = out.name.removesuffix(".gz").removesuffix(".csv")
        reading = Reading(gap_s=gap, inverted=inverted, pool=pool)
        market = read_public_traces(files, name, reading)
        write_market(market, out)
    typer.echo(f"{out}: {len(market.pools)} pools, {market.end_s / 3600:.1f} h")
