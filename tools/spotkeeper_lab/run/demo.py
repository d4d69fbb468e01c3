"""A virtual day: its fleet, what goes wrong in it on purpose, its figures and its page.

A short lead precedes the day, so that the fleet exists when the day begins; the figures leave it
out. Times are float seconds from the start of the lead.
"""

import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper_charts.page import (
    Chart,
    Figure,
    Page,
    Row,
    Series,
    Spans,
    Table,
    Tiles,
    Timeline,
    page_html,
)
from spotkeeper_lab.aws.wire import UNHEARD
from spotkeeper_lab.backtest.world import WARM_DISK_RATIO
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    PENDING,
    Bill,
    CloudEvent,
    EventKind,
    GroupSpec,
    InstanceView,
    Physics,
    Purchase,
    two_groups,
)
from spotkeeper_lab.files import write_whole
from spotkeeper_lab.traces.market import Market, MarketError, Steps
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.workers import Machines, Served, Workforce
from spotkeeper_lab.world import (
    AVAILABILITY,
    HEALTH,
    INTERRUPTION,
    LEDGER,
    REQUEST_QUEUE,
    Invocation,
    Stage,
    World,
)
from spotkeeper_operator.explain import records_timeline
from spotkeeper_operator.text import spoken

LEAD_S = 900.0
"""Longer than a cold start and the window that the first sizing looks at."""
EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday; second 0 of a market that starts with the day."""
PEAK_WINDOW_S = 300.0
ROOM = 1.5
"""The fleet may grow to this many times what its busiest minutes offer."""
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
    """The settings of a demo; the traces are whole, `start_h` and `hours` cut them.

    Without a size, the warm pool holds what the busiest minutes need. Each instance then has enough
    workers for the market to have room for those minutes.
    `queue_known`: the fleet looks at the length of its request queue.
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
        return LEAD_S + self.settings.hours * 3600.0

    @property
    def start(self) -> datetime:
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
        )

    @property
    def groups(self) -> tuple[GroupSpec, GroupSpec]:
        """The spot group over all pools of the market, and the on-demand group."""
        return two_groups(
            SPOT_GROUP,
            ON_DEMAND_GROUP,
            pools=self.market.pools,
            maximum=self.spot_max,
            desired=self.first_desired,
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
    market = _cut_market(settings.market, settings.start_h * 3600.0, length_s)
    requests = _cut_requests(settings.requests, settings.start_h * 3600.0, length_s)
    most = sum(max(steps.capacities) for steps in market.steps)
    peak = _peak_load(requests) / TARGET_LOAD_RATE
    fitted = max(1, math.ceil(ROOM * peak / max(most, 1)))
    per_instance = settings.workers_per_instance or fitted
    first = math.ceil(_mean_load(requests, LEAD_S) / TARGET_LOAD_RATE / per_instance)
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


def _cut_market(market: Market, start_s: float, length_s: float) -> Market:
    """The market's hours after a lead in which it stands as it does at their start."""
    day = market.window(start_s, length_s)
    steps = tuple(
        Steps((0.0, *(time + LEAD_S for time in one.times[1:])), one.capacities, one.prices)
        for one in day.steps
    )
    return Market(day.pools, LEAD_S + length_s, day.name, steps)


def _cut_requests(trace: RequestTrace, start_s: float, length_s: float) -> RequestTrace:
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


def _mean_load(trace: RequestTrace, until_s: float) -> float:
    """The offered load up to a moment, in erlangs."""
    return float(trace.service_s[trace.arrival_s < until_s].sum()) / until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The fleet from `at_s` on, in instances: wanted and serving, by purchase option.

    Serving is an instance whose workers take requests: not one that was warned, drains or hangs.
    """

    at_s: float
    target: int
    spot: int
    on_demand: int
    on_demand_desired: int
    workers: int


@dataclass(slots=True, kw_only=True)
class Notice:
    """A warning and its result; the warned instance serves until `stopped_s`.

    `asked_s` is when its replacement was requested, `served_s` when enough served without it, and
    `back_s` when spot alone did.
    """

    at_s: float
    instance_id: str
    pool: str
    asked_s: float | None = None
    stopped_s: float | None = None
    served_s: float | None = None
    back_s: float | None = None

    @property
    def whole_after_s(self) -> float | None:
        """How long the fleet was short of the warned instance; None while it still is."""
        if self.served_s is None or self.stopped_s is None:
            return None
        return self.served_s - self.stopped_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision record as the functions left it, at its second."""

    at_s: float
    text: str

    @property
    def values(self) -> dict[str, object]:
        """The record's fields."""
        values: dict[str, object] = json.loads(self.text)
        return values


@dataclass(slots=True)
class Record:
    looks: list[Look] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    _open: list[Notice] = field(default_factory=list)

    def warn(self, event: CloudEvent, pool: str) -> None:
        notice = Notice(at_s=event.at_s, instance_id=event.instance_id, pool=pool)
        self.notices.append(notice)
        self._open.append(notice)

    def look(self, cloud: Cloud, force: Workforce, instances: Sequence[InstanceView]) -> Look:
        """Note the fleet as it is now, where it differs from before; bring notices up to now."""
        spot_group, on_demand_group = cloud.group(SPOT_GROUP), cloud.group(ON_DEMAND_GROUP)
        serving = [view for view in instances if force.serving(view.instance_id)]
        spot = sum(view.purchase is Purchase.SPOT for view in serving)
        lost = cloud.bill().losses - len(self.losses)
        self.losses.extend([cloud.now_s] * lost)
        look = Look(
            at_s=cloud.now_s,
            target=spot_group.desired,
            spot=spot,
            on_demand=len(serving) - spot,
            on_demand_desired=on_demand_group.desired,
            workers=force.accepting,
        )
        if not self.looks or _state(self.looks[-1]) != _state(look):
            self.looks.append(look)
        if self._open:
            self._follow_notices(look, sum(map(_will_serve, spot_group.instances)), force)
        return look

    def _follow_notices(self, look: Look, spot_launching: int, force: Workforce) -> None:
        """Note when enough instances serve, launch or are requested to replace each warned one.

        As long as the warned instance serves itself, the fleet is not whole without it.
        """
        now_s = look.at_s
        for notice in self._open:
            if notice.asked_s is None and spot_launching + look.on_demand_desired >= look.target:
                notice.asked_s = now_s
            if force.serving(notice.instance_id):
                continue
            if notice.stopped_s is None:
                notice.stopped_s = now_s
            if notice.served_s is None and look.spot + look.on_demand >= look.target:
                notice.served_s = now_s
            if look.spot >= look.target and not look.on_demand_desired:
                notice.back_s = now_s
        self._open = [notice for notice in self._open if notice.back_s is None]


def _will_serve(view: InstanceView) -> bool:
    return view.state in (PENDING, IN_SERVICE) and view.warned_s is None and view.healthy


def _state(look: Look) -> tuple[int, ...]:
    return (look.target, look.spot, look.on_demand, look.on_demand_desired, look.workers)


HANG_AT, CONFIGURATION_AT, LOGS_AT = 0.25, 0.5, 0.75
"""Shares of the hours; far enough apart that each ends before the next one of an hour begins."""
CONFIGURATION_S = 300.0
LOGS_S = 600.0
CONFIGURATION_TEXT = (
    "Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type "
    "({type}) is not supported in your requested Availability Zone ({zone}). "
    "Launching EC2 instance failed."
)


@dataclass(slots=True, kw_only=True)
class Story:
    """One incident: when it began and ended, whether it ended as it should, in words."""

    name: str
    at_s: float
    what: str
    started_s: float | None = None
    ended_s: float | None = None
    ended_well: bool = False
    outcome: str = "did not begin"


type Incident = Generator[None, Invocation | None]
"""Something that goes wrong: it gets None at every moment, and every invocation that is done."""


def incidents(world: World, end_s: float) -> list[tuple[Story, Incident]]:
    """All that goes wrong, each with its story."""
    length_s = end_s - LEAD_S
    logs_s = min(LOGS_S, 0.2 * length_s)
    hung = _begins("hung worker", length_s, HANG_AT, "the workers of an instance hang")
    burst = _begins(
        "configuration failures",
        length_s,
        CONFIGURATION_AT,
        "spot launches fail by configuration for five minutes, and an instance is taken",
    )
    logs = _begins("search logs stop", length_s, LOGS_AT, "no search logs for ten minutes")
    found = [
        (hung, _hung_worker(world, hung)),
        (burst, _configuration_burst(world, burst)),
        (logs, _logs_stop(world, logs, logs_s)),
    ]
    for _, incident in found:
        next(incident)
    return found


def _begins(name: str, length_s: float, share: float, what: str) -> Story:
    # Half a minute after a turn, so that no incident hides behind one.
    at_s = LEAD_S + share * length_s // 60.0 * 60.0 + 30.0
    return Story(name=name, at_s=at_s, what=what)


def _until(world: World, story: Story, serving: int) -> Incident:
    """Wait until it is time, and as many spot instances are in service."""
    while (yield) or world.now_s < story.at_s or len(_in_service(world)) < serving:
        pass
    story.started_s = world.now_s


def _hung_worker(world: World, story: Story) -> Incident:
    """The oldest instance stays in service and serves nothing; check_health replaces it."""
    yield from _until(world, story, 2)
    began_s, victim = world.now_s, _in_service(world)[0].instance_id
    story.what = f"the workers of {victim} hang"
    story.outcome = "still there at the end"
    world.force.hang(victim)
    while True:
        seen = yield
        view = {one.instance_id: one for one in world.cloud.instances()}.get(victim)
        if seen is None:
            if view is None and story.ended_s is None:
                story.ended_s = world.now_s
                if not story.ended_well:
                    story.outcome = "AWS took the instance before it was found out"
            continue
        replaced = seen.function == HEALTH and seen.metrics.get("WorkersReplaced", 0) > 0
        if replaced and not story.ended_well and (view is None or not view.healthy):
            story.ended_well = True
            story.outcome = f"replaced after {(world.now_s - began_s) / 60:.1f} min"


def _configuration_burst(world: World, story: Story) -> Incident:
    """Every spot launch fails by configuration for a while, and one instance is taken."""
    yield from _until(world, story, 1)
    cloud, began_s, victim = world.cloud, world.now_s, _in_service(world)[-1]
    story.what = f"spot launches fail by configuration; {victim.instance_id} is taken"
    story.outcome = "no alarm was raised"
    zone, _, kind = victim.pool.partition("/")
    text = CONFIGURATION_TEXT.format(type=kind or victim.pool, zone=zone)
    cloud.fail_launches(SPOT_GROUP, began_s, began_s + CONFIGURATION_S, text)
    cloud.reclaim([victim.instance_id], began_s + cloud.physics.notice_s)
    is_cleared = False
    while True:
        seen = yield
        if seen is None:
            if story.ended_s is None and world.now_s >= began_s + CONFIGURATION_S:
                story.ended_s = world.now_s
            continue
        raised, after_s = seen.metrics.get("ConfigurationFailure"), world.now_s - began_s
        if raised is None or is_cleared or seen.function not in (AVAILABILITY, INTERRUPTION):
            continue
        if raised and not story.ended_well:
            story.ended_well, story.outcome = True, f"alarm after {after_s:.0f} s"
        elif not raised and story.ended_well and after_s > CONFIGURATION_S:
            is_cleared = True
            story.outcome += f", cleared after {after_s / 60:.1f} min"


def _logs_stop(world: World, story: Story, length_s: float) -> Incident:
    """Workers serve but ship no search logs; nothing may be scaled in on silence."""
    yield from _until(world, story, 0)
    began_s, before = world.now_s, world.cloud.group(SPOT_GROUP).desired
    world.logs.stopped = True
    is_stale, scaled_in = False, 0
    while story.ended_s is None:
        if seen := (yield):
            is_stale |= bool(seen.metrics.get("StaleSearchLogs"))
            continue
        desired = world.cloud.group(SPOT_GROUP).desired
        scaled_in += desired < before and is_stale
        before = desired
        if world.now_s >= began_s + length_s:
            story.ended_s, world.logs.stopped = world.now_s, False
            story.ended_well = is_stale and not scaled_in
            stale = "alarm raised" if is_stale else "no alarm was raised"
            scaled = f"scaled in {scaled_in} times" if scaled_in else "no scale-in"
            story.outcome = f"{stale}, {scaled}"
    while True:
        yield


def _in_service(world: World) -> Sequence[InstanceView]:
    """Spot instances in service that nobody has warned, oldest first."""
    views = world.cloud.group(SPOT_GROUP).instances
    found = [view for view in views if view.state == IN_SERVICE and view.warned_s is None]
    return sorted(found, key=lambda view: view.launched_s)


TURN_EVERY_S = 60.0
LEDGER_EVERY_S = 300.0
# The event source mapping waits as long as in template.yaml; agents look as often whether to send.
BATCHING_WINDOW_S = 5.0
ON_DEMAND_USD = 1.0


class Day(World):
    """A running demo; `run` goes through it, everything found is in `record`."""

    def __init__(self, scene: Scene) -> None:
        cloud = Cloud(scene.market, scene.groups, scene.physics, scene.settings.seed)
        super().__init__(scene.stage(cloud))
        self.scene = scene
        self.record = Record()
        self.machines = Machines(self.force, scene.physics.notice_s)
        self.ended: list[Invocation] = []
        self.lead_bill: Bill | None = None
        self._musters_s = math.inf
        self._collects = False
        self.incidents = incidents(self, scene.end_s) if scene.settings.incidents else []
        for story, _ in self.incidents:
            # A moment at which incidents are looked at.
            self.enter(story.at_s, lambda: None)
        self.enter(0.0, self._turn)
        self.enter(BATCHING_WINDOW_S, self._ship)
        self.enter(LEAD_S, self._begin)
        self.enter(LEAD_S + LEDGER_EVERY_S, self._keep_ledger)

    def run(self, on_minute: Callable[[Look], object]) -> None:
        """Go through the day; `on_minute` sees the fleet after every virtual minute."""
        end_s, minute_s = self.scene.end_s, 0.0
        while self.now_s < end_s:
            self.step(min(self.next_s(), end_s))
            look = self._look()
            if look.at_s >= minute_s:
                minute_s += TURN_EVERY_S
                on_minute(look)

    def step(self, at_s: float) -> None:
        """Let time pass, and do what is due; the workers follow each change of the cloud."""
        self.pass_to(at_s)
        while self._agenda[0][0] <= at_s:
            heapq.heappop(self._agenda)[2]()
            self.pass_to(at_s)

    def _look(self) -> Look:
        for _, incident in self.incidents:
            next(incident)
        return self.record.look(self.cloud, self.force, self._muster())

    def pass_to(self, to_s: float) -> None:
        """Let time pass, and bring the workers in line with the instances."""
        super().pass_to(to_s)
        self._muster()

    def happened(self, event: CloudEvent) -> None:
        """Deliver an event that a rule of template.yaml lets through."""
        if event.kind is EventKind.WARNING:
            self.record.warn(event, self.cloud.instance(event.instance_id).pool)
        if event.kind not in UNHEARD:
            delivered = lambda: self.invoke(INTERRUPTION, self.events.of_cloud(event))  # noqa: E731
            self.enter(event.deliver_s, delivered)

    def _muster(self) -> tuple[InstanceView, ...]:
        """Start, drain or remove the workers of instances that are new, leave or are gone."""
        views = self.cloud.instances()
        next_s = self.machines.muster(views, self.now_s)
        if next_s is not None and next_s < self._musters_s:
            self._musters_s = next_s
            self.enter(next_s, self._muster_again)
        for instance_id in self.force.instances - {view.instance_id for view in views}:
            self._say_goodbye(instance_id)
        return views

    def _muster_again(self) -> None:
        """Follow what a machine has learnt, or stop what it may serve no longer."""
        self._musters_s = math.inf

    def served(self, served: Served) -> None:
        """Log a finished request."""
        self.logs.write(served)
        self._sent(self.logs.completed(served), served.finished_s)
        self.machines.served(served)

    def _say_goodbye(self, instance_id: str) -> None:
        """A machine that could drain sends its last logs; one that could not takes them along."""
        if not self.force.serving(instance_id):
            self.queue.send(self.logs.ship(instance_id, self.now_s), self.now_s)
        if not self.logs.stopped:
            self.logs.lose(instance_id)
        self.force.lose(instance_id)

    # --- what calls the functions ---------------------------------------------------------------

    def _turn(self) -> None:
        """The schedules: both checkers every minute."""
        at_s = self.now_s
        self.invoke(HEALTH, self.events.scheduled(at_s))
        self.invoke(AVAILABILITY, self.events.scheduled(at_s))
        self.enter(at_s + TURN_EVERY_S, self._turn)

    def _keep_ledger(self) -> None:
        self.invoke(LEDGER, self.events.scheduled(self.now_s))
        self.enter(self.now_s + LEDGER_EVERY_S, self._keep_ledger)

    def _ship(self) -> None:
        self._sent(self.logs.due(self.now_s), self.now_s)
        self.enter(self.now_s + BATCHING_WINDOW_S, self._ship)

    def _sent(self, bodies: list[str], at_s: float) -> None:
        """Agents send; the window of a batch begins with its first message."""
        self.queue.send(bodies, at_s)
        if bodies and not self._collects:
            self._collects = True
            self.enter(at_s + BATCHING_WINDOW_S, self._collect)

    def _collect(self) -> None:
        self._collects = False
        self.collect()

    def _begin(self) -> None:
        """The lead is over: what was used until now is not counted."""
        self.lead_bill = self.cloud.bill()

    def recorded(self, fleet: str, text: str) -> None:
        self.record.decisions.append(Decision(at_s=self.now_s, text=text))

    def done(self, invocation: Invocation) -> None:
        """Look at an invocation; an error that no function announces ends the demo."""
        if invocation.bug:
            raise RuntimeError(f"{invocation.function}: {invocation.bug}")
        self.ended.append(invocation)
        for _, incident in self.incidents:
            incident.send(invocation)


@contextmanager
def running(scene: Scene) -> Iterator[Day]:
    """A day with everything in place: AWS in process, table, fleet document, functions."""
    wired = wiring.ledger_ports
    prices = FixedPrices(ratio=scene.settings.price_ratio, since=scene.start)
    with (
        Day(scene).deployed() as day,
        patch.object(wiring, "ledger_ports", lambda: replace(wired(), prices=prices)),
    ):
        yield day


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPrices:
    """On demand 1 USD an hour, spot a share of it, at all times."""

    ratio: float
    since: datetime

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Prices of pools (zone/type)."""
        del now
        spot = PriceSeries(at=(self.since,), usd=(self.ratio * ON_DEMAND_USD,))
        types = {pool.partition("/")[2] for pool in pools}
        return PriceBook(
            spot=dict.fromkeys(pools, spot), on_demand=dict.fromkeys(types, ON_DEMAND_USD)
        )


type Floats = NDArray[np.float64]
type Ints = NDArray[np.int64]


def per_second(looks: Sequence[Look], value: Callable[[Look], int], end_s: float) -> Ints:
    """A value of the fleet at every second from the start of the lead to its end."""
    times = np.array([look.at_s for look in looks])
    values = np.array([value(look) for look in looks], dtype=np.int64)
    seconds = np.arange(0.0, end_s)
    return values[np.maximum(np.searchsorted(times, seconds, side="right") - 1, 0)]


def due(target: Ints, start_s: float) -> Ints:
    """What should serve at every second: the least target since a start-up time ago.

    An instance that is requested now cannot serve before it has started; one that was lost is
    owed at once.
    """
    window = int(start_s) + 1
    padded = np.concatenate([np.full(window - 1, target[0]), target])
    least: Ints = sliding_window_view(padded, window).min(axis=1)
    return least


SHOWN_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of a day as JSON values, and its decisions and notices after the lead."""

    values: dict[str, Any]
    decisions: Sequence[Decision]
    notices: Sequence[Notice]


def results(day: Day) -> Results:
    """Work the figures of a finished day out."""
    decisions = [decision for decision in day.record.decisions if decision.at_s >= LEAD_S]
    notices = [notice for notice in day.record.notices if notice.at_s >= LEAD_S]
    records = [decision.values for decision in decisions]
    values = {
        **_fleet_figures(day),
        "interruptions": len(notices),
        **_decisions(records),
        **_requests(day),
        **_messages(day),
        "turns": len(decisions),
        "replacement_asked_s": _seconds(n.asked_s and n.asked_s - n.at_s for n in notices),
        "whole_again_s": _seconds(n.whole_after_s for n in notices),
        "back_on_spot_s": _seconds(n.back_s and n.back_s - n.at_s for n in notices),
        "incidents": [_story_values(asdict(story)) for story, _ in day.incidents],
        "aws_calls": _calls(day.ended),
        **_failures(day),
        "settings": _settings(day),
    }
    return Results(values, decisions, notices)


def _fleet_figures(day: Day) -> dict[str, Any]:
    """Served share and cost; `served` counts an instance from when it can have started."""
    looks, end_s, first = day.record.looks, day.scene.end_s, int(LEAD_S)
    target = per_second(looks, lambda look: look.target, end_s)
    serving = per_second(looks, lambda look: look.spot + look.on_demand, end_s)[first:]
    owed = due(target, day.cloud.physics.cold_start_s)[first:]
    target = target[first:]
    assert day.lead_bill is not None
    bill, before = day.cloud.bill(), day.lead_bill
    spot_h = (bill.spot_s - before.spot_s) / 3600.0
    on_demand_h = (bill.on_demand_s - before.on_demand_s) / 3600.0
    ratio = day.scene.settings.price_ratio
    disks_h = day.scene.physics.warm_pool * day.scene.settings.hours
    cost = ratio * spot_h + on_demand_h + WARM_DISK_RATIO * disks_h
    asked_h = float(target.sum()) / 3600.0
    fixed_h = float(target.max()) * day.scene.settings.hours
    return {
        "served_share": _share(float((serving >= owed).mean())),
        "served_share_at_once": _share(float((serving >= target).mean())),
        "served_instance_share": _share(
            float(np.minimum(serving, owed).sum() / max(owed.sum(), 1))
        ),
        "cost_vs_on_demand": _share(cost / asked_h) if asked_h else 0.0,
        "cost_vs_fixed_on_demand": _share(cost / fixed_h) if fixed_h else 0.0,
        "spot_hours": round(spot_h, 2),
        "on_demand_hours": round(on_demand_h, 2),
        "target_hours": round(asked_h, 2),
        "target_peak": int(target.max()),
        "losses": bill.losses - before.losses,
    }


def _decisions(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often the availability controller backfilled and released, and how many instances."""
    actions = Counter(str(record["action"]) for record in records)
    seen = [record["seen"] for record in records]
    return {
        "backfills": actions["backfill"],
        "releases": actions["release"],
        "resizes": actions["resize"],
        "instances_backfilled": round(sum(values.get("Backfilled", 0) for values in seen)),
        "instances_released": round(sum(values.get("Released", 0) for values in seen)),
        "workers_replaced": round(sum(values.get("WorkersReplaced", 0) for values in seen)),
    }


def _requests(day: Day) -> dict[str, Any]:
    ledger, end_s = day.force.ledger, day.scene.end_s
    objective_s = day.scene.settings.wait_objective_s
    mine = ledger.arrival_s >= LEAD_S
    waits = ledger.waits(end_s)[mine]
    count, lost = int(mine.sum()), sum(bool(mine[request]) for request in ledger.lost)
    late = int((waits > objective_s).sum()) - lost
    points = np.quantile(waits, (0.5, 0.95, 0.99)) if count else np.zeros(3)
    return {
        "requests": count,
        "late_requests": late,
        "lost_requests": lost,
        "in_time_share": _share(1 - (late + lost) / count) if count else 1.0,
        "retried_requests": int((ledger.receives[mine] > 1).sum()),
        **{f"wait_p{p}_s": round(float(w), 2) for p, w in zip((50, 95, 99), points, strict=True)},
    }


def _messages(day: Day) -> dict[str, Any]:
    """Search-log messages, the lead's included: what the bill of their queue follows."""
    looks, end_s = day.record.looks, day.scene.end_s
    worker_h = float(per_second(looks, lambda look: look.workers, end_s).sum()) / 3600.0
    sent = day.logs.messages
    return {
        "search_log_messages": sent,
        "messages_per_worker_hour": round(sent / worker_h, 1) if worker_h else 0.0,
    }


def _seconds(values: Any) -> dict[str, float | int | None]:
    """Mean and longest of those that happened, and how many did not."""
    every = list(values)
    known = [value for value in every if value is not None]
    return {
        "mean": round(sum(known) / len(known), 1) if known else None,
        "max": round(max(known), 1) if known else None,
        "never": len(every) - len(known),
    }


def _story_values(story: dict[str, Any]) -> dict[str, Any]:
    """An incident with its times from the start of the day."""
    times = ("at_s", "started_s", "ended_s")
    moved = {name: None if story[name] is None else story[name] - LEAD_S for name in times}
    return story | moved


def _calls(invocations: Sequence[Invocation]) -> dict[str, Any]:
    """AWS calls of an invocation, per function and service."""
    by_function: dict[str, list[Invocation]] = defaultdict(list)
    for invocation in invocations:
        by_function[invocation.function].append(invocation)
    return {name: _calls_of(those) for name, those in sorted(by_function.items())}


def _calls_of(invocations: Sequence[Invocation]) -> dict[str, Any]:
    services: dict[str, list[int]] = defaultdict(lambda: [0] * len(invocations))
    for number, invocation in enumerate(invocations):
        for call, count in invocation.calls.items():
            services[call.partition(".")[0]][number] += count
    totals = [sum(invocation.calls.values()) for invocation in invocations]
    return {
        "invocations": len(invocations),
        "mean": round(sum(totals) / len(totals), 2),
        "max": max(totals),
        "services": {
            service: {"mean": round(sum(counts) / len(counts), 2), "max": max(counts)}
            for service, counts in sorted(services.items())
        },
    }


def _failures(day: Day) -> dict[str, Any]:
    failed = [i for i in day.ended if i.failed]
    return {
        "failed_invocations": len(failed),
        "errors": [f"{i.function}: {i.failed}" for i in failed[:SHOWN_ERRORS]],
        "dead_letters": len(day.queue.dead_letters),
    }


def _settings(day: Day) -> dict[str, Any]:
    settings, scene = day.scene.settings, day.scene
    return {
        "market": settings.market.name,
        "requests": settings.requests.name,
        "hours": settings.hours,
        "start_h": settings.start_h,
        "seed": settings.seed,
        "price_ratio": settings.price_ratio,
        "wait_objective_s": settings.wait_objective_s,
        "fleet": scene.fleet_document,
        "physics": asdict(scene.physics),
    }


def _share(value: float) -> float:
    return round(value, 5)


HEADLINE = {
    "time fully served",
    "saved",
    "cost of all on demand",
    "interruptions, losses",
    "requests late",
    "requests lost",
}
PROMISED = "in time, promised"


def figures(values: dict[str, Any]) -> list[Figure]:
    """The figures of a day in the order in which they are read."""
    v, settings = values, values["settings"]
    promised = settings["fleet"]["objective"]["share"]
    waits = " / ".join(f"{v[f'wait_p{p}_s']:g}" for p in (50, 95, 99))
    rows = [
        (
            "time fully served",
            _percent(v["served_share"]),
            "share of time in which at least the instances serve that were requested a "
            "start-up time ago; a lost one is missed at once",
        ),
        (
            "instance time served",
            _percent(v["served_instance_share"]),
            "instance hours that served, of those owed in the same sense",
        ),
        (
            "cost of all on demand",
            _percent(v["cost_vs_on_demand"], 1),
            f"at a spot price of {settings['price_ratio']:.2f} of on demand, start-up time and "
            "the warm pool's disks paid: against the same target all on demand",
        ),
        (
            "saved",
            _percent(1 - v["cost_vs_on_demand"], 1),
            "the rest of it: not paid, against the same target all on demand",
        ),
        (
            "cost of a fixed fleet",
            _percent(v["cost_vs_fixed_on_demand"], 1),
            f"against {v['target_peak']} on-demand instances, the peak, all day",
        ),
        (
            "instance hours",
            f"{v['spot_hours']:.1f} spot, {v['on_demand_hours']:.1f} on demand",
            f"{v['target_hours']:.1f} were requested",
        ),
        (
            "interruptions, losses",
            f"{v['interruptions']}, {v['losses']}",
            "warnings of AWS, and spot instances that it took",
        ),
        (
            "replacement requested",
            _mean_and_longest(v["replacement_asked_s"]),
            "from a warning until what serves, launches or was requested is as much as the target",
        ),
        (
            "whole again",
            _mean_and_longest(v["whole_again_s"]),
            "from the end of a warned instance's work until others are as much as the target",
        ),
        (
            "back on spot",
            _mean_and_longest(v["back_on_spot_s"]),
            "from a warning until spot alone is as much as the target, and the backfill gone",
        ),
        (
            "backfills, releases",
            f"{v['backfills']}, {v['releases']}",
            f"turns that requested on-demand ({v['instances_backfilled']} instances) "
            f"and that released it ({v['instances_released']})",
        ),
        (
            "requests late",
            f"{v['late_requests']:,} of {v['requests']:,}",
            f"started over {settings['wait_objective_s']:g} s after their arrival; "
            f"{v['retried_requests']} were served again because their worker was lost",
        ),
        (
            f"{PROMISED} {100 * promised:g} %",
            f"{_percent(v['in_time_share'], 1)} kept",
            "requests that started in time, of all; those lost are not",
        ),
        ("requests lost", f"{v['lost_requests']:,}", "given up after their last try"),
        ("wait", f"{waits} s", "median, 95th and 99th percentile"),
        ("turns", f"{v['turns']:,}", "decisions taken, each with its reason in decisions.jsonl"),
        (
            "search-log messages",
            f"{v['search_log_messages']:,}",
            f"{v['messages_per_worker_hour']:g} an hour of a worker that takes requests",
        ),
        *_call_rows(v["aws_calls"]),
        (
            "failed invocations, dead letters",
            f"{v['failed_invocations']}, {v['dead_letters']}",
            "; ".join(v["errors"][:3]) or "none",
        ),
    ]
    return [Figure(label=label, value=value, meaning=meaning) for label, value, meaning in rows]


def _call_rows(calls: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, those in calls.items():
        services = ", ".join(
            f"{service} {counts['mean']:g} (most {counts['max']})"
            for service, counts in those["services"].items()
        )
        counted = f"{those['mean']:g} (most {those['max']})"
        yield f"AWS calls, {name}", counted, f"{those['invocations']:,} invocations: {services}"


def headline(rows: Sequence[Figure]) -> list[Figure]:
    """The figures that stand above the picture."""
    return [row for row in rows if row.label in HEADLINE or row.label.startswith(PROMISED)]


def table(values: dict[str, Any], *, wide: bool) -> Grid:
    """The figures for a terminal; what they mean only on a wide one."""
    shown = Grid(title="The day", title_justify="left")
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    if wide:
        shown.add_column("what it is", style="dim", overflow="fold")
    for figure in figures(values):
        shown.add_row(figure.label, figure.value, *([figure.meaning] if wide else []))
    for story in values["incidents"]:
        outcome = f"[{'green' if story['ended_well'] else 'red'}]{story['outcome']}[/]"
        shown.add_row(f"made to fail: {story['name']}", outcome, *([story["what"]] if wide else []))
    return shown


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _mean_and_longest(seconds: dict[str, float | None]) -> str:
    if seconds["mean"] is None:
        return "-"
    text = f"{spoken(seconds['mean'])}, at most {spoken(seconds['max'] or 0)}"
    return text + (f", {seconds['never']} not" if seconds["never"] else "")


def line(day: Day, look: Look) -> str:
    return (
        f"{day.time.at(look.at_s):%a %H:%M}  target {look.target}  spot {look.spot}  "
        f"on-demand {look.on_demand}  busy {day.force.busy} of {look.workers}  "
        f"queue {day.force.queued}  warnings {len(day.record.notices)}"
    )


# Warnings of one burst arrive within seconds of each other.
TOGETHER_S = 5.0


def page(day: Day, found: Results) -> Page:
    """All that the demo's page shows."""
    settings, rows = day.scene.settings, figures(found.values)
    moments = sorted([*_notices(day, found), *_stories(day, found.values)], key=_time_of)
    return Page(
        title=f"{settings.hours:g} hours of Spotkeeper",
        subtitle=f"Spot market {settings.market.name}, requests {settings.requests.name}, "
        f"from hour {settings.start_h:g}. Times are UTC of the virtual clock.",
        footer="Written by spotkeeper demo; the decisions are in decisions.jsonl, "
        "the figures in summary.json.",
        blocks=[
            Tiles(headline(rows)),
            _timeline(day, found),
            *([_happened(moments)] if moments else []),
            _all_figures(rows),
        ],
    )


def _timeline(day: Day, found: Results) -> Timeline:
    """The charts that `spotkeeper explain` draws of the same records, and the market below."""
    first, last = (day.time.at(at_s) for at_s in (LEAD_S, day.scene.end_s))
    losses = [loss - LEAD_S for loss in day.record.losses if loss >= LEAD_S]
    records = [read_record(decision.text) for decision in found.decisions]
    drawn = records_timeline(records, first, last)
    fleet, *others = drawn.charts
    return replace(
        drawn,
        start_at=losses[0] if losses else drawn.start_at,
        bands=_made_to_fail(day, found.values),
        charts=[fleet, _market_chart(day), *others],
    )


def _market_chart(day: Day) -> Chart:
    """The capacity of all pools together."""
    market, end_s = day.scene.market, day.scene.end_s - LEAD_S
    times = sorted({0.0, *(change.at_s for change in market.changes())})
    t = [max(0.0, time - LEAD_S) for time in times]
    capacity = [float(sum(market.capacity(pool, at_s) for pool in market.pools)) for at_s in times]
    dry = [
        (at, until, "no spot anywhere")
        for at, until, held in zip(t, [*t[1:], end_s], capacity, strict=True)
        if not held
    ]
    return Chart(
        title="Spot market",
        unit="instances that AWS had to give, all zones",
        height=130,
        whole=True,
        series=[Series(label="capacity", colour="spot", kind="area", t=t, values=capacity)],
        spans=[Spans(label="none anywhere", colour="dry", spans=dry)],
    )


def _made_to_fail(day: Day, values: dict[str, Any]) -> Spans:
    length_s = day.scene.end_s - LEAD_S
    return Spans(
        label="made to fail",
        colour="band",
        spans=[
            (story["started_s"], story["ended_s"] or length_s, story["what"])
            for story in values["incidents"]
            if story["started_s"] is not None
        ],
    )


def _happened(moments: Sequence[Row]) -> Table:
    return Table(
        caption="What happened",
        intro="Each row is one moment at which spot was taken away or something was made to go "
        "wrong. Press it to see it in the picture.",
        columns=("time", "what", "how it ended"),
        rows=moments,
    )


def _all_figures(rows: Sequence[Figure]) -> Table:
    return Table(
        caption="All figures",
        columns=("figure", "value", "what it is"),
        numbers=("value",),
        rows=[Row(cells=(row.label, row.value, row.meaning)) for row in rows],
    )


def _notices(day: Day, found: Results) -> Iterator[Row]:
    for group in _bursts(found.notices):
        first = group[0]
        zones = sorted({notice.pool.partition("/")[0] for notice in group})
        count = f"{len(group)} spot instances" if len(group) > 1 else first.instance_id
        yield _moment(
            day,
            first.at_s,
            f"AWS warns that it takes {count} ({', '.join(zones)})",
            f"replacement requested after {_after(group, 'asked_s')}, "
            f"whole again {_after(group, 'served_s', 'stopped_s')} after it was gone, "
            f"back on spot alone after {_after(group, 'back_s')}",
        )


def _bursts(notices: Sequence[Notice]) -> list[list[Notice]]:
    """Warnings that arrived together."""
    bursts: list[list[Notice]] = []
    for notice in notices:
        if bursts and notice.at_s - bursts[-1][-1].at_s <= TOGETHER_S:
            bursts[-1].append(notice)
        else:
            bursts.append([notice])
    return bursts


def _after(group: Sequence[Notice], name: str, since: str = "at_s") -> str:
    """The longest time that one of them took, in words."""
    if any(getattr(notice, name) is None for notice in group):
        return "the end of the day"
    return spoken(max(getattr(notice, name) - getattr(notice, since) for notice in group))


def _stories(day: Day, values: dict[str, Any]) -> Iterator[Row]:
    for story in values["incidents"]:
        if story["started_s"] is not None:
            at_s = story["started_s"] + LEAD_S
            yield _moment(day, at_s, f"Made to fail: {story['what']}", story["outcome"])


def _moment(day: Day, at_s: float, what: str, ended: str) -> Row:
    """Something that went wrong at a moment, and how it ended."""
    clock = f"{day.time.at(at_s):%H:%M:%S}"
    return Row(cells=(clock, what, ended), at_s=round(at_s - LEAD_S, 1))


def _time_of(moment: Row) -> float:
    return moment.at_s or 0.0


# Narrower terminals show the figures without what they mean.
WIDE = 120


class DemoError(Exception):
    """The demo cannot write to the folder of `--out`."""


def run_demo(
    settings: DemoSettings,
    out: Path,
    console: Console,
    show: Callable[[int, int, str], object] = lambda *_: None,
) -> dict[str, Any]:
    """Run a demo, write its files to `out`, show its figures; answers those of summary.json.

    Raises MarketError when the market is too short, DemoError when `out` cannot be written.
    """
    stage = scene(settings)
    _make(out)
    with running(stage) as day:
        day.run(lambda look: show(int(look.at_s), int(stage.end_s), line(day, look)))
        found = results(day)
        drawn = page(day, found)
    _write(out, found, drawn)
    console.print(table(found.values, wide=console.width >= WIDE))
    for name in ("report.html", "summary.json", "decisions.jsonl"):
        console.print(f"{out / name}", highlight=False, soft_wrap=True)
    return found.values


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{out}: cannot be made: {error.strerror}; give another --out") from error


def _write(out: Path, found: Results, drawn: Page) -> None:
    lines = (f"{decision.text}\n" for decision in found.decisions)
    _put(out / "decisions.jsonl", "".join(lines))
    _put(out / "report.html", page_html(drawn))
    _put(out / "summary.json", json.dumps(found.values, indent=1) + "\n")


def _put(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise DemoError(f"{path}: cannot be written: {error.strerror}; name another") from error
