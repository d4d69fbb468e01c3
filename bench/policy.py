"""The deployed policy in worlds A, B and C on the recorded markets, beside its goals.

Every figure of a row is of the same run: 24 windows of a day (10 hours where a trace is
shorter than a day) at random offsets, seed 0. A trace of several regions has a row as a whole and
one for each region, because an Auto Scaling group has one region. Then all of its regions are one
fleet, for targets of 3 and 16, also where on-demand is short wherever spot is dry, and at the
regions' public spot prices. `--regions`
measures that alone, `--unseen` markets on which no setting was chosen, in world B. Needs
../shared/traces, or the folder that TRACES names.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.table import Table

from bench._figures import Figure, show, table
from spotkeeper_cli.options import counted, screen
from spotkeeper_lab.backtest.policies import choose
from spotkeeper_lab.backtest.world import World, sampled
from spotkeeper_lab.run.backtest import Row, Windows, run_backtest, run_regions
from spotkeeper_lab.traces.market import Market, generate, market_of, read_market

TRACES = (
    Path(os.environ.get("TRACES") or Path(__file__).parents[2] / "shared" / "traces") / "market"
)
POLICIES = ("spothedge", "spotkeeper", "optimum", "limit")
DAY_H, SHORT_H = 24.0, 10.0
H100 = "gcp-h100-16-2025-10-six-zones.csv.gz"
AWS = "aws-p3.2xlarge-4-2023-08.csv.gz"
FORTNIGHT_H = 240.0
REGION_WINDOWS = 12
SHORT, LISTED = ", on-demand short", ", list prices"
# A fleet in several regions: its target, its market, and its cost over the limit at most.
REGION_CASES = (
    (3, "", 1.05), (3, SHORT, 1.05), (16, "", 1.05), (16, SHORT, 1.05), (16, LISTED, 1.06),
)  # fmt: skip
# Spot over the home's on-demand: p3.2xlarge, means of 2023; a3-highgpu-1g, lists of 2025.
LIST_PRICES = {
    "us-east-1": 0.42, "us-east-2": 0.304, "us-west-2": 0.308,
    "us-central1": 0.23, "us-west1": 0.23, "europe-west1": 0.198,
}  # fmt: skip
# A table whose rows fit 80 columns.
NARROW: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0), "pad_edge": False}

A = World(target=3, tick_s=30.0, cold_start_s=120.0, price_ratio=1 / 3, notice_s=120.0)
B = replace(A, notice_s=0.0)


def world_c(market: Market) -> World:
    """A fleet of the trace's size with a warm pool, where notices get lost and launches fail."""
    target = 4 if market.name.startswith("aws-p3.2xlarge") else 16
    return World(
        target=target,
        cold_start_s=300.0,
        warm_start_s=60.0,
        warm_pool=target,
        price_ratio=0.30,
        notice_s=120.0,
        notice_lost=0.1,
        event_delay_s=30.0,
        on_demand_failure=0.05,
    )


type Rows = Mapping[str, Row]
"""The rows of one market and world, by policy."""


WORLDS: Mapping[str, Callable[[Market], World]] = {"A": lambda _: A, "B": lambda _: B, "C": world_c}


def goals_of(world: str, rows: Rows) -> tuple[Figure, ...]:
    """What a world asks."""
    own, hedge = rows["spotkeeper"], rows["spothedge"]

    def missed(what: str, share: float, most: float) -> Figure:
        return Figure(what, 100 * (1 - share), "%", 100 * most)

    def cost(beside: str, times: float) -> Figure:
        return Figure(f"cost / {beside}", own.cost / rows[beside].cost, "x", times)

    if world == "A":
        # Whole in every window, next to the optimum.
        return missed("not served, worst window", own.served_share_min, 0.0), cost("optimum", 1.02)
    if world == "B":
        # A point less than SpotHedge's service at most, for less.
        most = 1.01 - hedge.served_share
        return missed("not served", own.served_share, most), cost("spothedge", 0.95)
    # Whole but for what cannot be known, next to the limit.
    return (
        missed("not served", own.served_share, 0.002),
        missed("instance-time not served", own.capacity_share, 0.0003),
        cost("limit", 1.08),
    )


def by_region(market: Market) -> Iterator[Market]:
    """The whole market, and each of its regions where there are several."""
    yield market
    if market.regions[1:]:
        yield from map(market.within, market.regions)


def main() -> None:
    """Measure every trace in every world and print the tables."""
    console = screen()
    paths = sorted(TRACES.glob("*.csv.gz"))
    if not paths:
        console.print(f"no traces in {TRACES}: nothing is measured")
    elif "--unseen" in sys.argv:
        console.print("[b]World B, other markets[/]", _unseen(), sep="\n")
    elif "--regions" in sys.argv:
        _regions(paths)
    else:
        markets = [market for path in paths for market in by_region(read_market(path))]
        for name, world_of in WORLDS.items():
            facts, goals = [], []
            for market in markets:
                rows = measured(market, world_of(market))
                own, hedge = rows["spotkeeper"], rows["spothedge"]
                facts.append(
                    (
                        market.name,
                        f"{own.served_share:.3%}",
                        f"{own.served_share_min:.2%}",
                        f"{own.cost:.2%}",
                        f"{hedge.served_share:.3%} at {hedge.cost:.2%}",
                        f"{rows['optimum'].cost:.2%}",
                        f"{rows['limit'].cost:.2%}",
                    )
                )
                goals += [
                    replace(goal, name=f"{market.name}: {goal.name}")
                    for goal in goals_of(name, rows)
                ]
            heads = ("trace", "served", "worst", "cost", "SpotHedge", "optimum", "limit")
            console.print(table(heads, facts, title=f"World {name}", **NARROW))
            show(f"Goals of world {name}", goals)
        _regions(paths)


def _regions(paths: Sequence[Path]) -> None:
    """Measure the regions of each trace as one fleet."""
    facts, goals = [], []
    for market in [market for path in paths if (market := read_market(path)).regions[1:]]:
        for target, how, most in REGION_CASES:
            world = replace(A, target=target, on_demand_short=how == SHORT)
            if how == LISTED:
                market, world = listed(market), replace(world, price_ratio=None)
            name = f"{market.name}, {target}{how}"
            with counted(name) as progress:
                rows = run_regions(
                    market,
                    world,
                    Windows(count=REGION_WINDOWS),
                    progress=progress,
                    workers=os.cpu_count() or 1,
                    beside=not how,
                )
            by_policy = {row.policy: row for row in rows}
            own, limit = by_policy["spotkeeper-regions"], by_policy["limit"]
            facts += [
                (
                    name if row is rows[0] else "",
                    row.policy,
                    f"{row.served_share:.3%}",
                    f"{row.served_share_min:.2%}",
                    f"{row.cost:.2%}",
                    f"{row.cost / limit.cost:.3f}",
                )
                for row in rows
            ]
            missed = 1 - own.served_share_min
            if how == SHORT:
                missed = _servable(market, world) - own.served_share
            goals += [
                Figure(f"{name}: not served", 100 * missed, "%", 0.05 if how == SHORT else 0.0),
                Figure(f"{name}: cost / limit", own.cost / limit.cost, "x", most),
            ]
    heads = ("trace, target", "policy", "served", "worst", "cost", "x limit")
    screen().print(table(heads, facts, title="Regions as one fleet", **NARROW))
    show("Goals of several regions", goals)


def listed(market: Market) -> Market:
    """The market at the public spot prices of its regions."""
    prices = [LIST_PRICES[region] for region in market.regions_of_pools]
    pairs = zip(market.steps, prices, strict=True)
    steps = [replace(s, prices=(price,) * len(s.times)) for s, price in pairs]
    return replace(market, steps=tuple(steps))


def _servable(market: Market, world: World) -> float:
    """The share of ticks in which what was sold first can serve: nothing is while all are dry.

    What was bought on demand still serves where every region runs dry later.
    """
    shares = []
    for window in Windows(count=REGION_WINDOWS).of(market, world):
        cold = world.ticks(world.cold_start_s)
        ticks = np.arange(world.length(window))
        capacity, _ = sampled(window, world, ticks)
        first = int(np.argmax(capacity.sum(axis=0) > 0))
        shares.append(1 - first / (len(ticks) - cold))
    return fmean(shares)


def measured(
    market: Market, world: World, policies: Sequence[str] = POLICIES, seed: int = 0
) -> Rows:
    hours = DAY_H if market.end_s >= DAY_H * 3600 else SHORT_H
    cut, cores = Windows(count=24, hours=hours, seed=seed), os.cpu_count() or 1
    with counted(market.name) as show:
        rows = run_backtest([market], [world], choose(policies), cut, progress=show, workers=cores)
    return {row.policy: row for row in rows}


def _unseen() -> Table:
    """A row for each family of markets: how many keep each half of world B's goal, and means."""
    lines = []
    for family, members in groupby(cases(), key=lambda case: case[0]):
        unplayed = [
            measured(market, B, ("spotkeeper", "spothedge"), seed) for _, market, seed in members
        ]
        kept = zip(*([goal.kept for goal in goals_of("B", rows)] for rows in unplayed), strict=True)
        unserved = [
            1 - fmean(rows[policy].served_share for rows in unplayed)
            for policy in ("spotkeeper", "spothedge")
        ]
        cost = fmean(rows["spotkeeper"].cost / rows["spothedge"].cost for rows in unplayed)
        halves = (f"{sum(half)} of {len(unplayed)}" for half in kept)
        lines.append((family, *halves, *(f"{share:.3%}" for share in unserved), f"{cost:.3f}"))
    heads = ("served as\nSpotHedge", "at 0.90\nof its\ncost", "unserved", "SpotHedge")
    return table(("markets", *heads, "cost /\nSpotHedge"), lines, **NARROW)


def cases() -> Iterator[tuple[str, Market, int]]:
    """The family, a market in it, and the seed of its windows."""
    for name, path in (("H100", H100), ("AWS p3", AWS)):
        market = read_market(TRACES / path)
        for seed in (0, 1, 2):
            yield f"{name}, windows of three seeds", market, seed
        mirrored = {
            pool: [
                (market.end_s - end, held)
                for end, held in zip((*of.times[1:], market.end_s), of.capacities, strict=True)
            ][::-1]
            for pool, of in zip(market.pools, market.steps, strict=True)
        }
        yield f"{name}, backwards", market_of(market.name, market.end_s, mirrored), 0
        for out in market.pools:
            pools = tuple(pool for pool in market.pools if pool != out)
            fewer = replace(market, pools=pools, steps=tuple(map(market.of, pools)))
            yield f"{name}, without one of its zones", fewer, 0
        for most in (1, 2):
            held = {
                pool: [
                    (at_s, min(capacity, most))
                    for at_s, capacity in zip(of.times, of.capacities, strict=True)
                ]
                for pool, of in zip(market.pools, market.steps, strict=True)
            }
            clipped = market_of(market.name, market.end_s, held)
            yield f"{name}, a zone holds 1 or 2", clipped, 0
    for zones, level, count in ((3, 8, 4), (4, 2, 3), (6, 4, 3)):
        pools = tuple(f"zone-{zone}/g5.xlarge" for zone in range(zones))
        for seed in range(count):
            market = generate(100 * zones + seed, pools, FORTNIGHT_H, level)
            yield f"generated, {zones} zones of {level}", market, 0
