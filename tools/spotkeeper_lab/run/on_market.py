"""Both controllers together: a request trace on a spot market through the deployed functions.

Compared with `fixed-peak` on demand, the cost has two factors: sizing (instance hours requested
over those of the fixed fleet) and spot (what they cost over the same on demand).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from spotkeeper_lab.replay.report import seconds
from spotkeeper_lab.replay.rules import FixedPeak
from spotkeeper_lab.replay.values import MarketRow, ReplaySettings
from spotkeeper_lab.run.demo import LEAD_S, PHYSICS, Day, DemoSettings, results, scene
from spotkeeper_lab.run.replay import check
from spotkeeper_lab.traces.market import Market
from spotkeeper_lab.traces.requests import RequestTrace

SHORTEST_H = 0.1
RULE = "spotkeeper, both checkers"


def demo_of(
    trace: RequestTrace, market: Market, settings: ReplaySettings, size: int | None
) -> DemoSettings:
    """Return the world of a replay, with a spot market instead of instances that always launch.

    Its lead is the replay's warm-up: the trace's first quarter of an hour, where there is more.
    """
    start_h = LEAD_S / 3600.0 if trace.end_s >= LEAD_S + SHORTEST_H * 3600.0 else 0.0
    return DemoSettings(
        market=market,
        requests=trace,
        start_h=start_h,
        hours=max(SHORTEST_H, min(market.end_s, trace.end_s) / 3600.0 - start_h),
        seed=settings.seed,
        incidents=False,
        onprem_workers=settings.onprem,
        wait_objective_s=settings.wait_s,
        wait_share=settings.share,
        queue_known=settings.queue_known,
        bounds=(settings.min_workers, settings.max_workers),
        physics=replace(PHYSICS, cold_start_s=settings.cold_start_s, begins_warm=True),
        workers_per_instance=size,
    )


def on_market(
    trace: RequestTrace,
    market: Market,
    settings: ReplaySettings,
    progress: Callable[[int, int, str], None] = lambda done, of, at_work: None,
    *,
    size: int | None = None,
) -> MarketRow:
    """Run both checkers for as long as trace and market last; `progress` gets minutes.

    An instance has `size` workers; without one its size is fitted to the market, which so can hold
    the peak. Raises MarketError when the market is shorter than six minutes, ReplayError for a
    trace that cannot be replayed.
    """
    check(trace)
    demo = demo_of(trace, market, settings, size)
    minutes = math.ceil((LEAD_S / 3600.0 + demo.hours) * 60)
    with Day(scene(demo)).deployed() as day:
        day.run(lambda look: progress(int(look.at_s / 60), minutes, f"{trace.name} on the market"))
        values, size = results(day).values, day.scene.workers_per_instance
        looks, end_s, begin_s = day.looks, day.scene.end_s, 0.0 if demo.start_h else LEAD_S
        held_s = [
            max(0.0, (end_s if v.ended_s is None else v.ended_s) - max(begin_s, v.launched_s))
            for v in day.cloud.history()
        ]
    peak = FixedPeak(settings, trace.window(0.0, demo.hours * 3600.0)).count - settings.onprem
    sizing = values["target_hours"] / (max(1, math.ceil(peak / size)) * demo.hours)
    # The spot group's desired capacity from the end of the lead on.
    lead = sum(look.at_s <= LEAD_S for look in looks)
    steps = np.diff([look.target for look in looks[max(0, lead - 1) :]])
    return MarketRow(
        trace=trace.name,
        market=market.name,
        rule=RULE,
        objective_met=values["in_time_share"] >= settings.share,
        share_in_time=values["in_time_share"],
        wait_p50=values["wait_p50_s"],
        wait_p95=values["wait_p95_s"],
        wait_p99=values["wait_p99_s"],
        worker_hours=round(sum(held_s) * size / 3600.0, 3),
        scale_outs=int((steps > 0).sum()),
        scale_ins=int((steps < 0).sum()),
        lost=values["lost_requests"],
        requests=values["requests"],
        hours=round(demo.hours, 4),
        workers_per_instance=size,
        served_share=values["served_share"],
        losses=values["losses"],
        spot_hours=values["spot_hours"],
        on_demand_hours=values["on_demand_hours"],
        cost=round(sizing * values["cost_vs_on_demand"], 5),
        sizing_factor=round(sizing, 5),
        spot_factor=values["cost_vs_on_demand"],
        settings=settings,
    )


def market_table(rows: Sequence[MarketRow]) -> Table:
    """Return what both checkers did, for a terminal."""
    title = f"both checkers on {rows[0].market}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0))
    headers = ("trace", "in time", "p95", "lost", "cost of fixed peak", "= sizing", "x spot")
    for number, header in enumerate(headers):
        table.add_column(header, justify="right" if number else "left")
    for row in rows:
        table.add_row(
            row.trace,
            f"{row.share_in_time:.2%}",
            seconds(row.wait_p95),
            str(row.lost),
            *(f"{value:.1%}" for value in (row.cost, row.sizing_factor, row.spot_factor)),
        )
    return table
