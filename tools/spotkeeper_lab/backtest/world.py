"""The world that a policy is tried in: the fleet's target and how the cloud behaves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotkeeper_lab.traces.market import Market

type Value = bool | int | float | str
type Settings = Mapping[str, Value]
"""A policy's settings by name."""

DEFAULT_PRICE_RATIO = 0.30
"""Spot over on-demand where neither the market nor the user says (us-east-1 GPUs, 2021)."""
MINUTE_S = 60.0
MOST_INSTANCES = 10_000
"""Of a group, as a fleet document allows."""
WARM_DISK_RATIO = 0.0036
"""A stopped instance's disk over a running instance: 100 GB of gp3 at $0.08 per GB-month
($0.011/h, us-east-1) beside p3.2xlarge at $3.06/h."""


class WorldError(ValueError):
    """A world that cannot be: names the setting and what it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world; all durations in seconds, all shares from 0 to 1, prices over on-demand's.

    An instance launched at t is billed from t and ready from t + start on. Where capacity falls at
    t, the newest instances of the pool are lost at t and were warned at t - ``notice_s`` (or not:
    ``notice_lost``); warnings arrive up to ``event_delay_s`` late. The turn of each minute comes up
    to ``turn_jitter_s`` after its beginning. An on-demand launch is refused with probability
    ``on_demand_failure``. With ``warm_start_s``, as many on-demand instances as
    ``warm_pool`` are kept prepared: running ones are billed as such, stopped ones for their disk,
    and an instance given back is stopped again (reuse on scale-in).
    """

    target: int
    tick_s: float = 30.0
    cold_start_s: float = 120.0
    warm_start_s: float | None = None
    warm_pool: int = 0
    notice_s: float = 0.0
    notice_lost: float = 0.0
    event_delay_s: float = 0.0
    turn_jitter_s: float = 0.0
    on_demand_failure: float = 0.0
    price_ratio: float | None = None
    warm_disk_ratio: float = WARM_DISK_RATIO
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be; raises WorldError."""
        self._check("target", 1 <= self.target <= MOST_INSTANCES, f"from 1 to {MOST_INSTANCES:,}")
        self._check("warm_pool", self.warm_pool <= MOST_INSTANCES, f"from 0 to {MOST_INSTANCES:,}")
        self._check("tick_s", 0 < self.tick_s < math.inf, "more than 0 s")
        for name in ("cold_start_s", "notice_s", "event_delay_s", "warm_pool", "warm_disk_ratio"):
            self._check(name, 0 <= getattr(self, name) < math.inf, "0 or more")
        self._check("turn_jitter_s", 0 <= self.turn_jitter_s < MINUTE_S, "from 0 to below 60 s")
        for name in ("notice_lost", "on_demand_failure"):
            self._check(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1")
        if self.price_ratio is not None:
            self._check("price_ratio", 0 <= self.price_ratio < math.inf, "0 or more")
        if self.warm_start_s is not None:
            self._check("warm_start_s", 0 <= self.warm_start_s < math.inf, "0 s or more")
        if self.warm_pool and self.warm_start_s is None:
            raise WorldError("warm_pool needs warm_start_s, the time a stopped instance takes")

    def _check(self, name: str, good: bool, must: str) -> None:
        if not good:
            raise WorldError(f"{name} is {getattr(self, name)}; it must be {must}")

    def priced(self, market: Market) -> "World":
        """This world with its price settled: as set, else the market's own (None), else 0.30."""
        if self.price_ratio is not None or market.has_prices:
            return self
        return replace(self, price_ratio=DEFAULT_PRICE_RATIO)

    def ticks(self, seconds: float) -> int:
        """The number of ticks that last at least ``seconds``."""
        return math.ceil(seconds / self.tick_s - 1e-9)

    def length(self, market: Market) -> int:
        return math.ceil(market.end_s / self.tick_s - 1e-9)

    def spot_price(self, market: Market, pool: str, at_s: float) -> float:
        """Spot over on-demand: as set, else the market's own, else 0.30."""
        if self.price_ratio is not None:
            return self.price_ratio
        price = market.price(pool, at_s)
        return DEFAULT_PRICE_RATIO if price is None else price
