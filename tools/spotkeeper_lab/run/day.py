"""A demo's day: its fleet, what goes wrong in it on purpose, and what is seen of it.

A short lead precedes the day, so that the fleet exists when the day begins; the figures
leave it out. Times are float seconds from the start of the lead.
"""

import heapq
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np

from spotkeeper import wiring
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    Bill,
    CloudEvent,
    EventKind,
    GroupSpec,
    InstanceView,
    Physics,
    Purchase,
    two_groups,
)
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING
from spotkeeper_lab.local_aws.events import UNHEARD
from spotkeeper_lab.machines import Machines, Served
from spotkeeper_lab.traces.market import Market, MarketError, Steps
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.workers import Workforce
from spotkeeper_lab.world import (
    AVAILABILITY,
    COLLECT,
    HEALTH,
    INTERRUPTION,
    LEDGER,
    REQUEST_QUEUE,
    Invocation,
    Stage,
    World,
)
from spotkeeper_worker.logs.pace import PaceSettings

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
            pace=self.settings.pace,
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


class Incident(Protocol):
    """Something that goes wrong; `step` is called at every moment, `see` after every call."""

    story: Story

    def step(self, world: World) -> None:
        """Begin, or end, when it is time."""
        ...

    def see(self, world: World, invocation: Invocation) -> None:
        """Look at what a function did."""
        ...


def incidents(end_s: float) -> list[Incident]:
    length_s = end_s - LEAD_S
    return [
        HungWorker(_story("hung worker", length_s, HANG_AT, "the workers of an instance hang")),
        ConfigurationBurst(
            _story(
                "configuration failures",
                length_s,
                CONFIGURATION_AT,
                "spot launches fail by configuration for five minutes, and an instance is taken",
            )
        ),
        LogsStop(
            _story("search logs stop", length_s, LOGS_AT, "no search logs for ten minutes"),
            min(LOGS_S, 0.2 * length_s),
        ),
    ]


def _story(name: str, length_s: float, share: float, what: str) -> Story:
    # Half a minute after a turn, so that no incident hides behind one.
    at_s = LEAD_S + share * length_s // 60.0 * 60.0 + 30.0
    return Story(name=name, at_s=at_s, what=what)


@dataclass(slots=True)
class HungWorker:
    """An instance stays in service and serves nothing; check_health replaces it."""

    story: Story
    _instance_id: str = ""

    def step(self, world: World) -> None:
        """Hang the oldest instance once another one serves too; end when it is gone."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            serving = _in_service(world)
            if len(serving) > 1:
                self._instance_id, story.started_s = serving[0].instance_id, now_s
                story.what = f"the workers of {self._instance_id} hang"
                story.outcome = "still there at the end"
                world.force.hang(self._instance_id)
        elif self._instance_id and story.ended_s is None and not self._is_there(world):
            story.ended_s = now_s
            if not story.ended_well:
                story.outcome = "AWS took the instance before it was found out"

    def _is_there(self, world: World) -> bool:
        return any(view.instance_id == self._instance_id for view in world.cloud.instances())

    def see(self, world: World, invocation: Invocation) -> None:
        if invocation.function != HEALTH or not self._instance_id or self.story.ended_well:
            return
        if invocation.metrics.get("WorkersReplaced", 0) > 0:
            known = {i.instance_id: i for i in world.cloud.instances()}
            view = known.get(self._instance_id)
            if view is None or not view.healthy:
                assert self.story.started_s is not None
                after_s = world.cloud.now_s - self.story.started_s
                self.story.ended_well = True
                self.story.outcome = f"replaced after {after_s / 60:.1f} min"


@dataclass(slots=True)
class ConfigurationBurst:
    """Every spot launch fails for a while with a message about the configuration."""

    story: Story
    _alarm_s: float | None = None
    _cleared_s: float | None = None

    def step(self, world: World) -> None:
        """Break the launches and have one instance taken, so that one is needed."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            serving = _in_service(world)
            if serving:
                self._begin(world, serving[-1])
        elif story.ended_s is None and now_s >= (story.started_s or now_s) + CONFIGURATION_S:
            story.ended_s = now_s

    def _begin(self, world: World, victim: InstanceView) -> None:
        story, cloud = self.story, world.cloud
        story.started_s = cloud.now_s
        story.what = f"spot launches fail by configuration; {victim.instance_id} is taken"
        story.outcome = "no alarm was raised"
        zone, _, kind = victim.pool.partition("/")
        text = CONFIGURATION_TEXT.format(type=kind or victim.pool, zone=zone)
        cloud.fail_launches(SPOT_GROUP, cloud.now_s, cloud.now_s + CONFIGURATION_S, text)
        cloud.reclaim([victim.instance_id], cloud.now_s + cloud.physics.notice_s)

    def see(self, world: World, invocation: Invocation) -> None:
        """Note the first turn that raises the alarm, and the first after it that does not."""
        story, raised = self.story, invocation.metrics.get("ConfigurationFailure")
        if story.started_s is None or raised is None or self._cleared_s is not None:
            return
        if invocation.function not in (AVAILABILITY, INTERRUPTION):
            return
        after_s = world.cloud.now_s - story.started_s
        if raised and self._alarm_s is None:
            self._alarm_s, story.ended_well = after_s, True
            story.outcome = f"alarm after {after_s:.0f} s"
        elif not raised and self._alarm_s is not None and after_s > CONFIGURATION_S:
            self._cleared_s = after_s
            story.outcome += f", cleared after {after_s / 60:.1f} min"


@dataclass(slots=True)
class LogsStop:
    """Workers serve but ship no search logs; nothing may be scaled in on silence."""

    story: Story
    length_s: float
    stale_seen: bool = False
    _before: int = 0
    _scaled_in: list[float] = field(default_factory=list)

    def step(self, world: World) -> None:
        """Stop shipping, watch the spot group's desired capacity, start shipping again."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            story.started_s, world.logs.stopped = now_s, True
            self._before = world.cloud.group(SPOT_GROUP).desired
        elif story.started_s is not None and story.ended_s is None:
            self._watch(world)
            if now_s >= story.started_s + self.length_s:
                story.ended_s, world.logs.stopped = now_s, False
                self._conclude()

    def _watch(self, world: World) -> None:
        desired = world.cloud.group(SPOT_GROUP).desired
        if desired < self._before and self.stale_seen:
            self._scaled_in.append(world.cloud.now_s)
        self._before = desired

    def _conclude(self) -> None:
        self.story.ended_well = self.stale_seen and not self._scaled_in
        stale = "alarm raised" if self.stale_seen else "no alarm was raised"
        scaled = f"scaled in {len(self._scaled_in)} times" if self._scaled_in else "no scale-in"
        self.story.outcome = f"{stale}, {scaled}"

    def see(self, world: World, invocation: Invocation) -> None:
        """Note the alarm about stale logs."""
        if self.story.started_s is not None and self.story.ended_s is None:
            self.stale_seen |= bool(invocation.metrics.get("StaleSearchLogs"))


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
        self.incidents: list[Incident] = []
        if scene.settings.incidents:
            self.incidents = incidents(scene.end_s)
        for incident in self.incidents:
            self.enter(incident.story.at_s, _stop_here)
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
        for incident in self.incidents:
            incident.step(self)
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
        """The event source mapping: batches until the queue shows nothing more."""
        self._collects = False
        while batch := self.queue.receive(self.now_s):
            self.invoke(COLLECT, batch)
            self.queue.settle(batch, _failed(self.ended[-1], batch))

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
        for incident in self.incidents:
            incident.see(self, invocation)


def _stop_here() -> None:
    """Make a moment one at which incidents are looked at."""


def _failed(invocation: Invocation, batch: dict[str, Any]) -> list[str]:
    """The messages to deliver again: those that the function named, or all if it failed."""
    if invocation.failed:
        return [record["messageId"] for record in batch["Records"]]
    return [failure["itemIdentifier"] for failure in invocation.answer["batchItemFailures"]]


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
