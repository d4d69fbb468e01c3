"""The windows of a market that a backtest looks at."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spotkeeper_lab.backtest.policies.bounds import limit
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market, MarketError

# 400 days in steps of half a minute.
MOST_TICKS = 1_152_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """``count`` windows of ``hours`` at random offsets, or (count None) the whole market."""

    count: int | None = None
    hours: float = 24.0
    seed: int = 0

    def of(self, market: Market, tick_s: float) -> list[Market]:
        """The windows of a market, on whole ticks; raises MarketError where they do not fit."""
        if self.count is None:
            return [market]
        if self.count < 1:
            raise MarketError(f"{self.count} windows are none; ask for 1 or more")
        if not 0 < self.hours < math.inf:
            raise MarketError(f"a window of {self.hours:g} h has no length; ask for more than 0 h")
        length_s = self.hours * 3600.0
        market.window(0.0, length_s)
        latest = int((market.end_s - length_s) // tick_s)
        rng = random.Random(self.seed)
        starts = [rng.randint(0, latest) * tick_s for _ in range(self.count)]
        return [market.window(start_s, length_s) for start_s in starts]


def long_enough(windows: list[Market], world: World) -> list[Market]:
    """Refuse windows that end with the first cold start, or that nobody waits for."""
    ticks = world.length(windows[0])
    if ticks > MOST_TICKS:
        raise MarketError(
            f"a window of {windows[0].end_s:g} s has {ticks:,} ticks of {world.tick_s:g} s, more "
            f"than {MOST_TICKS:,}; ask for a longer tick or shorter windows"
        )
    if world.length(windows[0]) <= world.ticks(world.cold_start_s):
        raise MarketError(
            f"a window of {windows[0].end_s:g} s ends before the first cold start of "
            f"{world.cold_start_s:g} s does; ask for longer windows"
        )
    return windows


def most_eventful(windows: Sequence[Market], world: World) -> int:
    """The window in which what spot can give of the target changes most often."""
    events = [np.count_nonzero(np.diff(limit(window, world).spot)) for window in windows]
    return int(np.argmax(events))
