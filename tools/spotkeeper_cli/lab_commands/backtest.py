"""`spotkeeper backtest`: recorded spot markets through the deployed code, beside every peer."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.errors import told
from spotkeeper_cli.options import ColdStart, JsonFile, ReportFile, duration
from spotkeeper_cli.output import WIDE, OutputError, check_outputs, counted, give, remark, screen

if TYPE_CHECKING:
    from spotkeeper_lab.backtest.backtest import Row, Windows
    from spotkeeper_lab.backtest.world import World
    from spotkeeper_lab.traces.market import Market


GENERATED_H = 14 * 24.0
"""Hours of the market that is made where none is given."""
WINDOW_H = 24.0

Markets = Annotated[
    list[Path] | None,
    typer.Option(help="Market trace; may be given again. Default: 14 days by --seed."),
]
# Written out, so that help needs nothing of the lab; tests/unit/test_help.py compares.
POLICY_NAMES = (
    "on-demand, spot, static-split, even-spread, round-robin, two-group-loop, "
    "spothedge, spotkeeper, optimum, limit"
)

Region = Annotated[
    str | None,
    typer.Option(help="Only the pools of this region, as one Auto Scaling group has them."),
]
Target = Annotated[int, typer.Option(help="Instances asked for.")]
Policies = Annotated[
    list[str] | None,
    typer.Option(help=f"Policy; may be given again. Default: all of {POLICY_NAMES}."),
]
PriceRatio = Annotated[
    float | None, typer.Option(help="Spot over on-demand. Default: the trace's prices, else 0.30.")
]
Tick = Annotated[float, duration("Resolution; at most 10m.", least=1, most=600)]
WarmStart = Annotated[float | None, duration("The same, from the warm pool.")]
WarmPool = Annotated[int, typer.Option(help="Stopped on-demand instances.")]
Notice = Annotated[float, duration("Warning before a loss; 0 is none.")]
NoticeLost = Annotated[float, typer.Option(help="Share of warnings that get lost.")]
EventDelay = Annotated[float, duration("Events are up to so late.")]
TurnJitter = Annotated[float, duration("A minute's turn is up to so late; AWS: 59s.")]
OnDemandFailure = Annotated[float, typer.Option(help="Share of on-demand launches refused.")]
WindowCount = Annotated[int | None, typer.Option(help="Random windows. Default: the whole trace.")]
WindowHours = Annotated[float | None, typer.Option(help="Length of a window. Default: 24.")]
Seed = Annotated[int, typer.Option(min=0, help="Of windows and chance.")]
Settings = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A policy's setting.")
]


def backtest(
    market: Markets = None,
    region: Region = None,
    target: Target = 3,
    policy: Policies = None,
    price_ratio: PriceRatio = None,
    tick: Tick = 30.0,
    cold_start: ColdStart = 120.0,
    warm_start: WarmStart = None,
    warm_pool: WarmPool = 0,
    notice: Notice = 0.0,
    notice_lost: NoticeLost = 0.0,
    event_delay: EventDelay = 0.0,
    turn_jitter: TurnJitter = 0.0,
    on_demand_failure: OnDemandFailure = 0.0,
    windows: WindowCount = None,
    window_hours: WindowHours = None,
    seed: Seed = 0,
    json: JsonFile = None,
    report: ReportFile = None,
    set: Settings = None,
) -> None:
    """Try policies on recorded spot markets: what each would have served and cost."""
    from spotkeeper_lab.backtest.backtest import Windows
    from spotkeeper_lab.backtest.world import World

    if window_hours is not None and windows is None:
        raise typer.BadParameter("give --windows, too: without it the whole trace is one window")
    with told(*_mendable()):
        check_outputs((json, report), market or ())
        world = World(
            target=target,
            tick_s=tick,
            cold_start_s=cold_start,
            warm_start_s=warm_start,
            warm_pool=warm_pool,
            notice_s=notice,
            notice_lost=notice_lost,
            event_delay_s=event_delay,
            turn_jitter_s=turn_jitter,
            on_demand_failure=on_demand_failure,
            price_ratio=price_ratio,
            seed=seed,
        )
        asked = Windows(
            count=windows, hours=WINDOW_H if window_hours is None else window_hours, seed=seed
        )
        markets = _markets(market or (), region, world.seed)
        _show(_tried(markets, world, asked, policy or (), set or ()), json, report)


def _markets(paths: Sequence[Path], region: str | None, seed: int) -> "list[Market]":
    """Read the markets, or make one; say which of them no Auto Scaling group can have."""
    from spotkeeper_lab.traces.generate import generate
    from spotkeeper_lab.traces.market_file import read_markets

    whole = read_markets(paths) if paths else [generate(seed, hours=GENERATED_H)]
    if region:
        return [market.within(region) for market in whole]
    remark(
        f"{market.name}: its pools are in {len(market.regions)} regions "
        f"({', '.join(market.regions)}), and an Auto Scaling group has one. "
        "Use --region NAME for what one group can reach."
        for market in whole
        if market.regions[1:]
    )
    return whole


def _mendable() -> tuple[type[Exception], ...]:
    """The errors that a user can mend."""
    from spotkeeper_lab.backtest.policies import SettingError, UnknownNameError
    from spotkeeper_lab.backtest.world import WorldError
    from spotkeeper_lab.traces.market import MarketError

    return MarketError, OutputError, SettingError, UnknownNameError, WorldError


def _tried(
    markets: "Sequence[Market]",
    world: "World",
    windows: "Windows",
    policies: Sequence[str],
    settings: Sequence[str],
) -> "list[Row]":
    """Run the backtest with a progress bar."""
    from spotkeeper_lab.backtest.backtest import BacktestPlan, run_backtest
    from spotkeeper_lab.backtest.policies import choose, configure

    plan = BacktestPlan(
        markets=markets,
        worlds=[world],
        policies=configure(choose(policies), settings),
        windows=windows,
    )
    with counted("backtest") as show:
        return run_backtest(plan, progress=show, workers=os.cpu_count() or 1)


def _show(rows: "Sequence[Row]", json: Path | None, report: Path | None) -> None:
    from spotkeeper_lab.backtest.report import json_text, report_html, tables

    command = f"spotkeeper {shlex.join(sys.argv[1:])}"
    shown = tables(rows, wide=screen().width >= WIDE)
    give(shown, json_text(rows), json, lambda: report_html(rows, command), report)
