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
    from spotkeeper_lab.traces.formats import TraceReading, read_public_traces
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_lab.traces.market_file import write_market

    with told(MarketError):
        name = out.name.removesuffix(".gz").removesuffix(".csv")
        reading = TraceReading(gap_s=gap, inverted=inverted, pool=pool)
        market = read_public_traces(files, name, reading)
        write_market(market, out)
    typer.echo(f"{out}: pools {', '.join(market.pools)}; {market.end_s / 3600:.1f} h")


@trace.command()
def export(
    out: Annotated[Path, typer.Option(help="The market trace; gzip when it ends in .gz.")],
    records: Annotated[
        Path | None, typer.Option(help="Decision records, one a line, as the demo writes them.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Or: the table of a deployed stack.")] = None,
    fleet: Annotated[str | None, typer.Option(help="The fleet in that table.")] = None,
    activities: Annotated[
        Path | None,
        typer.Option(help="Answer of `aws autoscaling describe-scaling-activities`: zones."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Or: the spot group whose activities are read.")
    ] = None,
    instance_type: Annotated[str, typer.Option(help="Names the pools: zone/type.")] = "any",
) -> None:
    """Make a market trace of what a running fleet saw of its market."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from spotkeeper_lab.traces import records as seen
    from spotkeeper_lab.traces.export import export_market
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_lab.traces.market_file import write_market

    if (records is None) == (table is None) or (table is None) != (fleet is None):
        raise typer.BadParameter("give --records, or --table with --fleet")
    if activities and group:
        raise typer.BadParameter("give --activities or --group, not both")
    with told(MarketError, BotoCoreError, ClientError):
        if records:
            turns = seen.read_records(records)
        else:
            turns = seen.table_records(boto3.client("dynamodb"), table or "", fleet or "")
        changes = seen.read_activities(activities) if activities else []
        if group:
            changes = seen.group_activities(boto3.client("autoscaling"), group)
        name = out.name.removesuffix(".gz").removesuffix(".csv")
        market = export_market(name, turns, changes, instance_type)
        write_market(market, out)
    typer.echo(f"{out}: pools {', '.join(market.pools)}; {market.end_s / 3600:.1f} h")
