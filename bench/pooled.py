"""One table for each world and size: variants of the policy, pooled over many markets.

Markets are the recorded ones of ../shared/traces/market, where they are there, and made ones
(`_made`): choose on `--seeds 0 1 2`, and judge once on seeds that nobody has looked at. Variants
are settings, as in `spotkeeper backtest --set`, several joined by commas; none is the default.

    python -m bench.pooled --world B --target 16 --seeds 40 --try elevated_risk_s=0
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev

from rich.table import Table

from bench._made import made_markets
from bench.policy import DAY_H, SHORT_H, TRACES, A, B, world_c
from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.backtest.backtest import BacktestPlan, Row, run_backtest
from spotkeeper_lab.backtest.policies.catalogue import choose
from spotkeeper_lab.backtest.policies.settings import configure
from spotkeeper_lab.backtest.policies.values import Policy
from spotkeeper_lab.backtest.windows import Windows
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market
from spotkeeper_lab.traces.market_file import read_market

COLUMNS = ("unserved ticks", "unserved time", "cost")


@dataclass(frozen=True, slots=True)
class Figures:
    """One variant on one market, in percent: ticks with too few, instance-time short, cost."""

    ticks: float
    time: float
    cost: float

    def __iter__(self) -> Iterator[float]:
        """The three, in the order of the columns."""
        return iter((self.ticks, self.time, self.cost))


type Results = Mapping[str, Sequence[Figures]]
"""What each variant did, in the same order of markets; the first is what others are held to."""


def pooled(results: Results) -> Iterator[tuple[str, list[float], list[float]]]:
    """Each variant's means over markets, and the standard errors of its differences to the first.

    Differences are taken market by market: what is hard for one variant is hard for the others.
    """
    first = next(iter(results.values()))
    for name, figures in results.items():
        columns = [*zip(*figures, strict=True)]
        bases = [*zip(*first, strict=True)]
        sure = [_standard_error(*pair) for pair in zip(columns, bases, strict=True)]
        yield name, [fmean(column) for column in columns], sure


def _standard_error(own: Sequence[float], others: Sequence[float]) -> float:
    off = [a - b for a, b in zip(own, others, strict=True)]
    return stdev(off) / sqrt(len(off)) if len(off) > 1 else 0.0


def world_of(name: str, market: Market, target: int) -> World:
    """World A, B or C at a size."""
    if name == "C":
        return replace(world_c(market), target=target, warm_pool=target)
    return replace({"A": A, "B": B}[name], target=target)


def measured(market: Market, world: World, variants: Sequence[Policy], count: int) -> list[Figures]:
    """Every variant on one market, over the same windows."""
    hours = DAY_H if market.end_s >= DAY_H * 3600 else SHORT_H
    windows = Windows(count=count, hours=hours)
    plan = BacktestPlan(markets=[market], worlds=[world], policies=variants, windows=windows)
    return [_figures(row) for row in run_backtest(plan, workers=os.cpu_count() or 1)]


def _figures(row: Row) -> Figures:
    return Figures(100 * (1 - row.served_share), 100 * (1 - row.capacity_share), 100 * row.cost)


def table_of(title: str, results: Results) -> Table:
    """One row a variant."""
    table = Table("variant", *COLUMNS, title=title, title_justify="left")
    for name, means, sure in pooled(results):
        cells = (f"{mean:.3f} % ±{error:.3f}" for mean, error in zip(means, sure, strict=True))
        table.add_row(name, *cells)
    return table


def main() -> None:
    """Measure and print."""
    asked = _arguments()
    texts = ["", *asked.variants]
    variants = [configure(choose(["spotkeeper"]), _split(text))[0] for text in texts]
    variants += choose(["spothedge"])
    recorded = [read_market(path) for path in sorted(TRACES.glob("*.csv.gz"))]
    markets = [*recorded, *made_markets(asked.seeds)]
    found: list[list[Figures]] = []
    with counted("markets") as show:
        for market in markets:
            world = world_of(asked.world, market, asked.target)
            found.append(measured(market, world, variants, asked.windows))
            show(len(found), len(markets), market.name)
    names = ["default", *asked.variants, "SpotHedge"]
    results = dict(zip(names, zip(*found, strict=True), strict=True))
    title = f"World {asked.world}, target {asked.target}, {len(markets)} markets"
    screen().print(table_of(title, results))


def _split(text: str) -> list[str]:
    return text.split(",") if text else []


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pooled", description=__doc__)
    parser.add_argument("name", nargs="?", choices=("pooled",), help=argparse.SUPPRESS)
    parser.add_argument("--world", choices="ABC", default="B")
    parser.add_argument("--target", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--try", dest="variants", action="append", default=[], metavar="SETTINGS")
    return parser.parse_args()


if __name__ == "__main__":
    main()
