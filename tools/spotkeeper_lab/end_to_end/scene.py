"""What a demo runs on: the market and the requests of its hours, and a fleet that fits both.

A short lead comes before the day, so that the fleet is there when the day begins; the figures
leave it out. Times are float seconds from the start of the lead.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.traces.market import Market, MarketError, Steps
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.world import REQUEST_QUEUE, Stage
from spotkeeper_worker.logs.pace import PaceSettings

LEAD_S = 900.0
"""Longer than a cold start and the window that the first sizing looks at."""
EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday; second 0 of a market that starts with the day."""
PEAK_WINDOW_S = 300.0
ROOM = 1.5
"""The fleet may grow to so many times what its busiest minutes offer."""
TARGET_LOAD_RATE = 0.7
"""The default of a fleet document; only the fleet's bounds are read off it here."""

FLEET = "demo"
SPOT_GROUP, ON_DEMAND_GROUP = "demo-spot", "demo-on-demand"
SPOT_MIN = 2

PHYSICS = Physics(
    cold_start_s=240.0,
    warm_start_s=60.0,
    notice_s=120.0,
    event_delay_s=3.0,
    terminate_hook_s=30.0,
)
"""A GPU worker that loads a model; stopped on-demand instances that only have to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What a demo is asked for; the traces are whole, `start_h` and `hours` cut them.

    Without a size the warm pool holds what the busiest minutes need, and instances are so large
    that the market can hold those minutes.
    `queue_known`: the fleet looks at the length of its request queue. `pace`: how often the agents
    send search logs.
    """

    market: Market
    requests: RequestTrace
    hours: float = 24.0
    start_h: float = 0.0
    seed: int = 0
    incidents: bool = True
    onprem_workers: int = 0
    warm_pool: int | None = None
    price_ratio: float = 0.30
    wait_objective_s: float = 10.0
    wait_share: float = 0.95
    queue_known: bool = True
    spot_min: int = SPOT_MIN
    physics: Physics = field(default=PHYSICS)
    workers_per_instance: int | None = None
    pace: PaceSettings = field(default_factory=PaceSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The hours of a demo with their lead, and the fleet in them."""

    settings: DemoSettings
    market: Market
    requests: RequestTrace
    workers_per_instance: int
    spot_max: int
    first_desired: int
    physics: Physics

    @property
    def end_s(self) -> float:
        """Where the day ends."""
        return LEAD_S + self.settings.hours * 3600.0

    @property
    def start(self) -> datetime:
        """The instant of second 0."""
        offset_s = self.settings.start_h * 3600.0 - LEAD_S
        return datetime.fromtimestamp(EPOCH.timestamp() + offset_s, tz=UTC)

    def stage(self, cloud: Cloud) -> Stage:
        """The world of the day; calls take no time in it."""
        return Stage(
            cloud=cloud,
            documents={FLEET: json.dumps(self.fleet_document)},
            requests=self.requests,
            start=self.start,
            workers_per_instance=self.workers_per_instance,
            onprem_workers=self.settings.onprem_workers,
            pace=self.settings.pace,
        )

    @property
    def groups(self) -> tuple[GroupSpec, GroupSpec]:
        """The spot group over all pools of the market, and the on-demand group."""
        pools, most = self.market.pools, self.spot_max
        return (
            GroupSpec(
                name=SPOT_GROUP,
                purchase=Purchase.SPOT,
                minimum=0,
                maximum=most,
                desired=self.first_desired,
                pools=pools,
            ),
            GroupSpec(
                name=ON_DEMAND_GROUP,
                purchase=Purchase.ON_DEMAND,
                minimum=0,
                maximum=most,
                pools=pools,
            ),
        )

    @property
    def fleet_document(self) -> dict[str, object]:
        """The fleet document, defaults but for what the traces ask for."""
        return {
            "version": 1,
            "spot_group": SPOT_GROUP,
            "on_demand_group": ON_DEMAND_GROUP,
            "workers_per_instance": self.workers_per_instance,
            "onprem_workers": self.settings.onprem_workers,
            "request_queue_url": REQUEST_QUEUE if self.settings.queue_known else None,
            "bounds": {
                "spot_min": min(self.settings.spot_min, self.spot_max),
                "spot_max": self.spot_max,
                "on_demand_max": self.spot_max,
            },
            "objective": {
                "wait_s": self.settings.wait_objective_s,
                "share": self.settings.wait_share,
            },
            "availability": {"on_demand_warm": self.physics.warm_pool > 0},
        }


def scene(settings: DemoSettings) -> Scene:
    """Cut the traces and fit a fleet; raises MarketError when the market is too short."""
    length_s = settings.hours * 3600.0
    if not length_s > 0 or settings.start_h < 0:
        raise MarketError("a demo lasts more than 0 hours and starts at 0 or later")
    market = _market(settings.market, settings.start_h * 3600.0, length_s)
    requests = _requests(settings.requests, settings.start_h * 3600.0, length_s)
    most = sum(max(steps.capacities) for steps in market.steps)
    peak = _peak_load(requests) / TARGET_LOAD_RATE
    fitted = max(1, math.ceil(ROOM * peak / max(most, 1)))
    per_instance = settings.workers_per_instance or fitted
    first = math.ceil(_load(requests, LEAD_S) / TARGET_LOAD_RATE / per_instance)
    spot_max = max(4, math.ceil(ROOM * peak / per_instance))
    warm_pool = settings.warm_pool
    if warm_pool is None:
        warm_pool = math.ceil(peak / per_instance)
    return Scene(
        settings=settings,
        market=market,
        requests=requests,
        workers_per_instance=per_instance,
        spot_max=spot_max,
        first_desired=min(spot_max, max(2, first)),
        physics=replace(settings.physics, warm_pool=warm_pool),
    )


def _market(market: Market, start_s: float, length_s: float) -> Market:
    """The market's hours after a lead in which it stands as it does at their start."""
    day = market.window(start_s, length_s)
    steps = tuple(
        Steps((0.0, *(time + LEAD_S for time in one.times[1:])), one.capacities, one.prices)
        for one in day.steps
    )
    return Market(day.pools, LEAD_S + length_s, day.name, steps)


def _requests(trace: RequestTrace, start_s: float, length_s: float) -> RequestTrace:
    """The requests of the lead and the hours; a trace that ends before them begins again."""
    parts = list(_parts(trace, (start_s - LEAD_S) % trace.end_s, LEAD_S + length_s))
    return RequestTrace(
        name=trace.name,
        arrival_s=np.concatenate([part.arrival_s + at_s for at_s, part in parts]),
        service_s=np.concatenate([part.service_s for _, part in parts]),
        end_s=LEAD_S + length_s,
    )


def _parts(
    trace: RequestTrace, from_s: float, length_s: float
) -> Iterator[tuple[float, RequestTrace]]:
    done_s = 0.0
    while done_s < length_s:
        part = trace.window(from_s, length_s - done_s)
        yield done_s, part
        done_s, from_s = done_s + part.end_s, 0.0


def _peak_load(trace: RequestTrace) -> float:
    """The highest offered load of a window, in erlangs."""
    windows = (trace.arrival_s // PEAK_WINDOW_S).astype(np.int64)
    if not len(windows):
        return 0.0
    return float(np.bincount(windows, weights=trace.service_s).max()) / PEAK_WINDOW_S


def _load(trace: RequestTrace, until_s: float) -> float:
    """The offered load up to a moment, in erlangs."""
    return float(trace.service_s[trace.arrival_s < until_s].sum()) / until_s
