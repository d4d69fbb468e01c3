"""`spotkeeper backtest`: recorded spot markets through the deployed code, beside every peer."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from spotkeeper_cli.durations import seconds
from spotkeeper_cli.errors import told
from spotkeeper_cli.output import STANDARD_OUTPUT, OutputError, check_folders, counted, write


def backtest(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    market: Annotated[list[Path], typer.Option(help="Market trace; may be given again.")],
    target: Annotated[int, typer.Option(help="Instances asked for.")] = 3,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy; may be given again. Default: all.")
    ] = None,
    price_ratio: Annotated[
        float | None,
        typer.Option(help="Spot over on-demand. Default: the trace's prices, else 0.30."),
    ] = None,
    tick: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Resolution.")
    ] = 30.0,
    cold_start: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Launch to serving.")
    ] = 120.0,
    warm_start: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="The same, from the warm pool."),
    ] = None,
    warm_pool: Annotated[int, typer.Option(help="Stopped on-demand instances.")] = 0,
    notice: Annotated[
        float,
        typer.Option(parser=seconds, metavar="DURATION", help="Warning before a loss; 0 is none."),
    ] = 0.0,
    notice_lost: Annotated[float, typer.Option(help="Share of warnings that get lost.")] = 0.0,
    event_delay: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Events are up to so late.")
    ] = 0.0,
    on_demand_failure: Annotated[
        float, typer.Option(help="Share of on-demand launches refused.")
    ] = 0.0,
    windows: Annotated[
        int | None, typer.Option(help="Random windows. Default: the whole trace.")
    ] = None,
    window_hours: Annotated[float, typer.Option(help="Length of a window.")] = 24.0,
    seed: Annotated[int, typer.Option(help="Of windows and chance.")] = 0,
    json: Annotated[
        Path | None, typer.Option(help="Write the rows as JSON; - is standard output.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A policy's setting.")
    ] = None,
) -> None:
    """Try policies on recorded spot markets: what each would have served and cost."""
    from rich.console import Console

    from spotkeeper_lab.backtest.backtest import Plan, Windows, run_backtest
    from spotkeeper_lab.backtest.catalogue import (
        SettingError,
        UnknownNameError,
        choose,
        configure,
    )
    from spotkeeper_lab.backtest.output import json_text, tables
    from spotkeeper_lab.backtest.report import report_html
    from spotkeeper_lab.backtest.world import World, WorldError
    from spotkeeper_lab.market import MarketError, read_market

    with told(MarketError, OutputError, SettingError, UnknownNameError, WorldError):
        check_folders(json, report)
        policies = configure(choose(policy or ()), set or ())
        world = World(
            target=target,
            tick_s=tick,
            cold_start_s=cold_start,
            warm_start_s=warm_start,
            warm_pool=warm_pool,
            notice_s=notice,
            notice_lost=notice_lost,
            event_delay_s=event_delay,
            on_demand_failure=on_demand_failure,
            price_ratio=price_ratio,
            seed=seed,
        )
        plan = Plan(
            markets=[read_market(path) for path in market],
            worlds=[world],
            policies=policies,
            windows=Windows(count=windows, hours=window_hours, seed=seed),
        )
        with counted("backtest") as show:
            rows = run_backtest(plan, progress=show, workers=os.cpu_count() or 1)
        if json != STANDARD_OUTPUT:
            for table in tables(rows):
                Console().print(table)
        if json:
            write(json_text(rows), json)
        if report:
            write(report_html(rows, f"spotkeeper {shlex.join(sys.argv[1:])}"), report)
