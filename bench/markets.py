"""How far the policy carries without notice: other markets than those of the docs' first tables.

Each goes through Spotkeeper and SpotHedge in world B; docs/backtest.md has the table. Needs
../shared/traces/market.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from bench._figures import narrow_table
from bench.policy import DAY_H, TRACES, UNWARNED, B, goals_b
from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.backtest.backtest import BacktestPlan, Row, run_backtest
from spotkeeper_lab.backtest.policies.catalogue import choose
from spotkeeper_lab.backtest.policies.settings import configure
from spotkeeper_lab.backtest.windows import Windows
from spotkeeper_lab.traces.generate import generate
from spotkeeper_lab.traces.market import Market, market_of
from spotkeeper_lab.traces.market_file import read_market

H100 = "gcp-h100-16-2025-10-six-zones.csv.gz"
AWS = "aws-p3.2xlarge-4-2023-08.csv.gz"
FORTNIGHT_H = 240.0

type Steps = list[tuple[float, int]]
"""From each time on, so much capacity."""


@dataclass(frozen=True, slots=True)
class Case:
    """One market of a family, and which windows of it are tried."""

    family: str
    market: Market
    seed: int = 0


def mapped(market: Market, change: Callable[[Steps], Steps], end_s: float | None = None) -> Market:
    """A market with every pool's steps changed."""
    pools = {
        pool: change([*zip(steps.times, steps.capacities, strict=True)])
        for pool, steps in zip(market.pools, market.steps, strict=True)
    }
    return market_of(market.name, end_s or market.end_s, pools)


def backwards(market: Market) -> Market:
    """The market as it would be if time ran backwards."""

    def change(steps: Steps) -> Steps:
        ends = [*(at for at, _ in steps[1:]), market.end_s]
        return [(market.end_s - end, held) for (_, held), end in zip(steps, ends, strict=True)][
            ::-1
        ]

    return mapped(market, change)


def faster(market: Market, times: int) -> Market:
    """The market with everything happening so many times as fast, on whole ticks."""
    return mapped(
        market,
        lambda steps: [*{round(at / times / 30) * 30.0: held for at, held in steps}.items()],
        market.end_s / times,
    )


def clipped(market: Market, most: int) -> Market:
    """The market with no more capacity in a pool than this."""
    return mapped(market, lambda steps: [(at, min(held, most)) for at, held in steps])


def only(market: Market, pools: Sequence[str]) -> Market:
    """The market without the other pools."""
    return Market(tuple(pools), market.end_s, market.name, tuple(market.of(p) for p in pools))


def cases() -> Iterator[Case]:
    """What is tried, by row of the table."""
    for name, market in (
        ("H100", read_market(TRACES / H100)),
        ("AWS p3", read_market(TRACES / AWS)),
    ):
        for seed in (0, 1, 2):
            yield Case(f"{name}, windows of three seeds", market, seed)
        yield Case(f"{name}, backwards", backwards(market))
        for pool in market.pools:
            others = [other for other in market.pools if other != pool]
            yield Case(f"{name}, without one of its zones", only(market, others))
        for most in (1, 2):
            yield Case(f"{name}, a zone holds 1 or 2", clipped(market, most))
        if name == "H100":
            draw = random.Random(5)
            for _ in range(5):
                yield Case("H100, three of its zones", only(market, draw.sample(market.pools, 3)))
        else:
            yield Case("AWS p3, twice as fast", faster(market, 2))
    for zones, level, count in ((3, 8, 4), (4, 2, 3), (6, 4, 3)):
        pools = [f"zone-{zone}/g5.xlarge" for zone in range(zones)]
        for seed in range(count):
            made = generate(100 * zones + seed, pools, FORTNIGHT_H, level)
            yield Case(f"generated, {zones} zones of {level}", made)


def measured(case: Case) -> tuple[Row, Row]:
    """Spotkeeper and SpotHedge on one market."""
    plan = BacktestPlan(
        markets=[case.market],
        worlds=[B],
        policies=configure(choose(["spotkeeper", "spothedge"]), UNWARNED),
        windows=Windows(count=24, hours=DAY_H, seed=case.seed),
    )
    own, hedge = run_backtest(plan, workers=os.cpu_count() or 1)
    return own, hedge


def main() -> None:
    """Measure every market and print a row for each family."""
    console = screen()
    if not (TRACES / H100).exists():
        console.print(f"no traces in {TRACES}: nothing is measured")
        return
    columns = (
        "markets",
        "served as\nSpotHedge",
        "at 0.90\nof its\ncost",
        "unserved",
        "SpotHedge",
        "cost /\nSpotHedge",
    )
    table = narrow_table(*columns)
    for family, members in groupby(cases(), key=lambda case: case.family):
        tried = [*members]
        results: list[tuple[Row, Row]] = []
        with counted("markets") as show:
            for case in tried:
                results.append(measured(case))
                show(len(results), len(tried), family)
        table.add_row(family, *_cells(results))
    console.print("[b]World B, other markets[/]", table, sep="\n")


def _cells(results: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    goals = [[*goals_b({"spotkeeper": own, "spothedge": hedge})] for own, hedge in results]
    for served_or_cost in zip(*goals, strict=True):
        yield f"{sum(goal.kept for goal in served_or_cost)} of {len(results)}"
    yield f"{1 - fmean(own.served_share for own, _ in results):.3%}"
    yield f"{1 - fmean(hedge.served_share for _, hedge in results):.3%}"
    yield f"{fmean(own.cost / hedge.cost for own, hedge in results):.3f}"


if __name__ == "__main__":
    main()
