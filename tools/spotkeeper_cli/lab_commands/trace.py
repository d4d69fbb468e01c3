"""`spotkeeper trace`: public and own recordings of spot markets as market traces."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import asked_of_aws, told
from spotkeeper_cli.options import DEFAULT_STACK, Profile, Region, Stack
from spotkeeper_cli.output import STANDARD_OUTPUT, OutputError, check_outputs, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spotkeeper_lab.traces.export import Change, Turn
    from spotkeeper_lab.traces.market import Market
    from spotkeeper_operator.aws import Aws

Out = Annotated[
    Path,
    typer.Option(help="The market trace; gzip when it ends in .gz, - is standard output."),
]

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
    out: Out,
    pool: Annotated[
        str | None, typer.Option(help="Pool of a single file, ZONE/TYPE. Default: from its name.")
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
    from spotkeeper_lab.files import name_of
    from spotkeeper_lab.traces.formats import TraceReading, read_public_traces
    from spotkeeper_lab.traces.market import MarketError

    with told(MarketError, OutputError):
        check_outputs([out], files)
        reading = TraceReading(gap_s=gap, inverted=inverted, pool=pool)
        _give(read_public_traces(files, name_of(out), reading), out)


@trace.command()
def export(
    out: Out,
    records: Annotated[
        Path | None, typer.Option(help="Decision records, one a line, as the demo writes them.")
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="Or: a fleet of a deployed stack, by its table.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The table by its name, in place of the stack's.")
    ] = None,
    activities: Annotated[
        Path | None,
        typer.Option(help="Answer of `aws autoscaling describe-scaling-activities`: zones."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Or: the spot group whose activities are read.")
    ] = None,
    instance_type: Annotated[str, typer.Option(help="Names the pools: zone/type.")] = "any",
    stack: Stack = DEFAULT_STACK,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Make a market trace of what a running fleet saw of its market."""
    from spotkeeper_lab.files import name_of
    from spotkeeper_lab.traces.export import export_market
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_operator.aws import Aws

    if (records is None) == (fleet is None) or (records and table):
        raise typer.BadParameter("give --records, or --fleet (with --stack or --table)")
    if activities and group:
        raise typer.BadParameter("give --activities or --group, not both")
    with asked_of_aws(), told(MarketError, OutputError):
        check_outputs([out], [records, activities])
        aws = partial(Aws, region, profile)
        turns = _turns(records, aws, fleet or "", table, stack)
        changes = _changes(activities, aws, group)
        _give(export_market(name_of(out), turns, changes, instance_type), out)


def _turns(
    records: Path | None, aws: "Callable[[], Aws]", fleet: str, table: str | None, stack: str
) -> "Sequence[Turn]":
    from spotkeeper_lab.traces import export as seen

    if records:
        return seen.read_records(records)
    here = aws()
    return seen.table_records(here.dynamodb, table or here.stack(stack).table, fleet)


def _changes(
    activities: Path | None, aws: "Callable[[], Aws]", group: str | None
) -> "Sequence[Change]":
    from spotkeeper_lab.traces import export as seen

    if activities:
        return seen.read_activities(activities)
    return seen.group_activities(aws().autoscaling, group) if group else []


def _give(market: "Market", out: Path) -> None:
    """Write the market and say what is in it, beside it where it goes to standard output."""
    from spotkeeper_lab.traces.market_file import market_text, write_market

    if out == STANDARD_OUTPUT:
        write(market_text(market), out)
    else:
        write_market(market, out)
    pools = ", ".join(market.pools)
    regions = f"{len(market.regions)} regions" if market.regions[1:] else market.regions[0]
    said = f"{out}: pools {pools}; {regions}; {market.end_s / 3600:.1f} h"
    typer.echo(said, err=out == STANDARD_OUTPUT)
