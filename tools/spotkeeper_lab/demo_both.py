"""Both halves together: a request trace on a spot market through the deployed functions.

The cost against a fixed on-demand fleet of the peak comes apart in two factors: sizing (instance
hours asked for, of the peak all the time) and spot (what they cost, of the same on demand).
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from spotkeeper_lab.demo_day import running
from spotkeeper_lab.demo_results import results
from spotkeeper_lab.demo_scene import PHYSICS, DemoSettings, scene
from spotkeeper_lab.market import Market
from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_lab.requests import RequestTrace

KEPT = (
    "served_share",
    "in_time_share",
    "wait_p50_s",
    "wait_p95_s",
    "wait_p99_s",
    "late_requests",
    "lost_requests",
    "requests",
    "losses",
    "spot_hours",
    "on_demand_hours",
)


def both_halves(trace: RequestTrace, market: Market, settings: ReplaySettings) -> dict[str, Any]:
    """Run both checkers for as long as trace and market last; answers the figures.

    Raises MarketError when the market is shorter than six minutes.
    """
    demo = DemoSettings(
        market=market,
        requests=trace,
        hours=max(0.1, min(market.end_s, trace.end_s) / 3600.0),
        seed=settings.seed,
        incidents=False,
        onprem_workers=settings.onprem,
        wait_objective_s=settings.wait_s,
        physics=replace(PHYSICS, cold_start_s=settings.cold_start_s),
    )
    with running(scene(demo), io.StringIO()) as day:
        day.run(lambda _: None)
        values = results(day).values
    asked, fixed = values["target_hours"], values["target_peak"] * demo.hours
    return {
        "trace": trace.name,
        "market": market.name,
        "rule": "spotkeeper, both checkers",
        "objective_met": values["in_time_share"] >= settings.share,
        **{name: values[name] for name in KEPT},
        "cost_vs_fixed_on_demand": values["cost_vs_fixed_on_demand"],
        "sizing_factor": round(asked / fixed, 5) if fixed else 0.0,
        "spot_factor": values["cost_vs_on_demand"],
    }


def both_table(rows: Sequence[dict[str, Any]]) -> Table:
    """What both checkers did, for a terminal."""
    table = Table(title="Both checkers on the market", title_justify="left")
    headers = ("trace", "in time", "served", "lost", "cost of the fixed peak", "= sizing", "x spot")
    for number, header in enumerate(headers):
        table.add_column(header, justify="right" if number else "left")
    for row in rows:
        table.add_row(
            row["trace"],
            f"{row['in_time_share']:.2%}",
            f"{row['served_share']:.2%}",
            str(row["lost_requests"]),
            f"{row['cost_vs_fixed_on_demand']:.1%}",
            f"{row['sizing_factor']:.1%}",
            f"{row['spot_factor']:.1%}",
        )
    return table
