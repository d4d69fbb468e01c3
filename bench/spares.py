"""What an ideal spare would cost and save without notice; docs/backtest.md has the table.

The losses are those of the deployed policy without spares in world B. An ideal spare is held for a
while after each loss, replaced in no time, and never lost together with another instance.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from bench.policy import DAY_H, TRACES, B
from spotkeeper_lab.backtest.accounting import account
from spotkeeper_lab.backtest.policies.catalogue import deployed_settings
from spotkeeper_lab.backtest.policies.spotkeeper_runner import lives_of, replay_of
from spotkeeper_lab.backtest.windows import Windows
from spotkeeper_lab.traces.market import Market
from spotkeeper_lab.traces.market_file import read_market

HELD_MIN = (0, 10, 30, 60, 120, 240, 480, 1440)


@dataclass(frozen=True, slots=True)
class Loss:
    """An instant at which so many instances go, and how long before it and after it none does."""

    count: int
    since_s: float
    until_s: float


def losses(window: Market, seed: int) -> tuple[list[Loss], float]:
    """The losses of a window without spares, and what it cost."""
    world = replace(B, seed=seed)
    replay = replay_of(window, world, deployed_settings() | {"elevated_risk_s": 0})
    replay.run(window.end_s)
    lives = lives_of(replay.cloud, window.end_s)
    counts = Counter(life.ended_s for life in lives if life.lost)
    at = sorted(counts)
    before = [float("-inf"), *at]
    after = [*at[1:], window.end_s]
    found = [
        Loss(counts[now], now - last, following - now)
        for last, now, following in zip(before, at, after, strict=False)
    ]
    return found, account(lives, window, world).cost


def rows(found: Sequence[Loss], cost: float, seconds: float) -> Iterator[tuple[str, ...]]:
    """For each time that a spare is held: share of time, cost, losses in it, unserved ticks."""
    price = (B.price_ratio or 0.0) / B.target
    for minutes in HELD_MIN:
        held_s = minutes * 60.0
        share = sum(min(held_s, loss.until_s) for loss in found) / seconds
        within = [loss for loss in found if loss.since_s <= held_s]
        holes = len(found) - sum(loss.count == 1 for loss in within)
        yield (
            f"{minutes} min",
            f"{share:.0%}",
            f"{cost + share * price:.1%}",
            f"{len(within)} of {len(found)}",
            str(holes * B.ticks(B.cold_start_s)),
        )


def main() -> None:
    """Print the table for each trace that is long enough."""
    for path in sorted(TRACES.glob("*.csv.gz")):
        market = read_market(path)
        if market.end_s < DAY_H * 3600:
            continue
        windows = Windows(count=24, hours=DAY_H, seed=0).of(market, B.tick_s)
        runs = [losses(window, seed) for seed, window in enumerate(windows)]
        cost = sum(paid for _, paid in runs) / len(runs)
        found = [loss for run, _ in runs for loss in run]
        if not found:
            continue
        table = Table("held after a loss", "share of time", "cost", "losses in it", "unserved")
        table.title = f"{market.name}: an ideal spare"
        for row in rows(found, cost, sum(window.end_s for window in windows)):
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
