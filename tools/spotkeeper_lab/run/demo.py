"""A virtual day: its fleet, its faults, its figures and its page.

A short lead precedes the day, so that the fleet exists when the day begins. The figures exclude the
lead. Times are float seconds from the start of the lead.
"""

import heapq
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.domain.decision import DecisionRecord
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
from spotkeeper_lab.backtest.world import WARM_DISK_RATIO
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    DRAINS,
    IN_SERVICE,
    PENDING,
    CloudEvent,
    EventKind,
    InstanceView,
    LifecycleHook,
    Physics,
    Purchase,
    two_groups,
)
from spotkeeper_lab.fakes import EPOCH
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.files import write_whole
from spotkeeper_lab.traces.market import Market, Steps
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.troubles import Faulted
from spotkeeper_lab.workers import Machines, Served
from spotkeeper_lab.world import AVAILABILITY, HEALTH, REQUEST_QUEUE, Invocation, Stage
from spotkeeper_operator.explain import records_timeline
from spotkeeper_operator.text import spoken

LEAD_S = 900.0
"""Longer than a cold start and the window that the first sizing looks at."""
PEAK_WINDOW_S = 300.0
ROOM = 1.5
"""The maximum of the fleet, over the need of its busiest minutes."""
TARGET_LOAD_RATE = 0.7
"""The default of a fleet document; the demo only derives the fleet's bounds from it."""

FLEET = "demo"
SPOT_GROUP, ON_DEMAND_GROUP = "demo-spot", "demo-on-demand"
SPOT_MIN = 2

PHYSICS = Physics(
    cold_start_s=240.0,
    warm_start_s=60.0,
    notice_s=120.0,
    event_delay_s=3.0,
)
"""A GPU worker that loads a model, and a warm pool of on-demand instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of a demo; `start_h` and `hours` select a part of the traces.

    Without a size, the warm pool holds what the busiest minutes need. Without `bounds` in workers,
    the fleet has room for half as much again. By default, an instance has enough workers for the
    market to serve those minutes.
    `queue_known`: the fleet reads the length of its request queue.
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
    bounds: tuple[int, int] | None = None
    physics: Physics = PHYSICS
    workers_per_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The hours of a demo with their lead, and the fleet in them."""

    settings: DemoSettings
    market: Market
    requests: RequestTrace
    workers_per_instance: int
    spot_min: int
    spot_max: int
    first_desired: int
    physics: Physics
    hooks: tuple[LifecycleHook, ...] = (DRAINS,)

    @property
    def end_s(self) -> float:
        return LEAD_S + self.settings.hours * 3600.0

    @property
    def start(self) -> datetime:
        offset_s = self.settings.start_h * 3600.0 - LEAD_S
        return datetime.fromtimestamp(EPOCH.timestamp() + offset_s, tz=UTC)

    def stage(self) -> Stage:
        """The world of the day, its spot group over all pools; calls take no time in it."""
        both = two_groups(
            SPOT_GROUP,
            ON_DEMAND_GROUP,
            pools=self.market.pools,
            maximum=self.spot_max,
            desired=self.first_desired,
        )
        groups = [replace(group, hooks=self.hooks) for group in both]
        return Stage(
            cloud=Cloud(self.market, groups, self.physics, self.settings.seed),
            documents={FLEET: json.dumps(self.fleet_document)},
            requests=self.requests,
            start=self.start,
            workers_per_instance=self.workers_per_instance,
            onprem_workers=self.settings.onprem_workers,
        )

    @property
    def fleet_document(self) -> dict[str, object]:
        """The fleet document: defaults, except for what the traces require."""
        return {
            "version": 1,
            "spot_group": SPOT_GROUP,
            "on_demand_group": ON_DEMAND_GROUP,
            "workers_per_instance": self.workers_per_instance,
            "onprem_workers": self.settings.onprem_workers,
            "request_queue_url": REQUEST_QUEUE if self.settings.queue_known else None,
            "bounds": {
                "spot_min": self.spot_min,
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
    start_s, length_s = settings.start_h * 3600.0, settings.hours * 3600.0
    market = _cut_market(settings.market, start_s, length_s)
    requests = _cut_requests(settings.requests, start_s, length_s)
    arrival_s, service_s = requests.arrival_s, requests.service_s
    # The offered load of the busiest window, and that of the lead, in erlangs.
    offered = np.bincount((arrival_s // PEAK_WINDOW_S).astype(np.int64), weights=service_s)
    peak = float(offered.max(initial=0.0)) / PEAK_WINDOW_S / TARGET_LOAD_RATE
    mean = float(service_s[arrival_s < LEAD_S].sum()) / LEAD_S / TARGET_LOAD_RATE
    most = sum(max(steps.capacities) for steps in market.steps)
    fitted = max(1, math.ceil(ROOM * peak / max(most, 1)))
    per_instance = settings.workers_per_instance or fitted
    spot_max = max(4, math.ceil(ROOM * peak / per_instance))
    spot_min = min(SPOT_MIN, spot_max)
    if settings.bounds:
        spot_min, spot_max = (math.ceil(workers / per_instance) for workers in settings.bounds)
    warm_pool = settings.warm_pool
    if warm_pool is None:
        warm_pool = math.ceil(peak / per_instance)
    return Scene(
        settings=settings,
        market=market,
        requests=requests,
        workers_per_instance=per_instance,
        spot_min=spot_min,
        spot_max=spot_max,
        first_desired=min(spot_max, max(spot_min, math.ceil(mean / per_instance))),
        physics=replace(settings.physics, warm_pool=warm_pool),
    )


def _cut_market(market: Market, start_s: float, length_s: float) -> Market:
    """Cut the market to the hours; in the lead it is as at their start."""
    day = market.window(start_s, length_s)
    steps = tuple(
        Steps((0.0, *(time + LEAD_S for time in one.times[1:])), one.capacities, one.prices)
        for one in day.steps
    )
    return Market(day.pools, LEAD_S + length_s, day.name, steps)


def _cut_requests(trace: RequestTrace, start_s: float, length_s: float) -> RequestTrace:
    """Cut the requests to the lead and the hours; repeat a trace that is too short."""
    end_s, done_s, from_s = LEAD_S + length_s, 0.0, (start_s - LEAD_S) % trace.end_s
    arrivals, services = [], []
    while done_s < end_s:
        part = trace.window(from_s, end_s - done_s)
        arrivals.append(part.arrival_s + done_s)
        services.append(part.service_s)
        done_s, from_s = done_s + part.end_s, 0.0
    return RequestTrace(
        name=trace.name,
        arrival_s=np.concatenate(arrivals),
        service_s=np.concatenate(services),
        end_s=end_s,
    )


# --- the day --------------------------------------------------------------------------------------

TURN_EVERY_S = 60.0
# As in template.yaml; agents check as often whether to send.
BATCHING_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the fleet from `at_s` on.

    An instance serves if its workers take requests: not if it was warned, drains or hangs.
    `stays` counts spot instances that launch or are in service, without a warning.
    """

    at_s: float
    target: int
    spot: frozenset[str]
    on_demand: int
    stays: int
    on_demand_desired: int
    workers: int

    @property
    def serving(self) -> int:
        return len(self.spot) + self.on_demand


class Day(Faulted):
    """A running demo; `run` plays the day and keeps the looks, warnings and records."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.stage(), SPOT_GROUP, ON_DEMAND_GROUP)
        self.scene = scene
        self.looks: list[Look] = []
        self.warnings: list[CloudEvent] = []
        self.records: list[str] = []
        self.failures: list[str] = []
        """Which invocations failed, and how."""
        self.machines = Machines(self.force, scene.physics.notice_s)
        self._next_update_s = math.inf
        self._collects = False
        self.faults = faults_of(scene) if scene.settings.incidents else []
        self.play(self.faults)
        self.enter(0.0, self._turn)
        self.enter(BATCHING_WINDOW_S, self._ship)

    def run(self, on_minute: Callable[[Look], object]) -> None:
        """Play the day; call `on_minute` with the fleet's state after every virtual minute."""
        end_s, minute_s = self.scene.end_s, 0.0
        while self.now_s < end_s:
            self.step(min(self.next_s(), end_s))
            look = self._look()
            if look.at_s >= minute_s:
                minute_s += TURN_EVERY_S
                on_minute(look)

    def step(self, at_s: float) -> None:
        """Let time pass, and run the tasks that are due; the workers follow the cloud."""
        self.pass_to(at_s)
        while self._agenda[0][0] <= at_s:
            heapq.heappop(self._agenda)[2]()
            self.pass_to(at_s)

    def _look(self) -> Look:
        """Return the fleet's state; keep it if it differs from the one before."""
        group = self.group(self.spot)
        serving = [v for v in self._update_workers() if self.force.serving(v.instance_id)]
        spot = frozenset(v.instance_id for v in serving if v.purchase is Purchase.SPOT)
        look = Look(
            at_s=self.now_s,
            target=group.desired,
            spot=spot,
            on_demand=len(serving) - len(spot),
            stays=sum(
                v.state in (PENDING, IN_SERVICE) and v.warned_s is None and v.healthy
                for v in group.instances
            ),
            on_demand_desired=self.group(self.on_demand).desired,
            workers=self.force.accepting,
        )
        if not self.looks or replace(look, at_s=self.looks[-1].at_s) != self.looks[-1]:
            self.looks.append(look)
        return look

    def pass_to(self, to_s: float) -> None:
        """Let time pass, and bring the workers in line with the instances."""
        super().pass_to(to_s)
        self._update_workers()

    def happened(self, event: CloudEvent) -> None:
        """Deliver an event that a rule of template.yaml lets through."""
        if event.kind is EventKind.WARNING:
            self.warnings.append(event)
        if event.kind is not EventKind.FULFILLED:
            self.enter(event.deliver_s, lambda: self.event(self.events.of_cloud(event)))

    def choose(self, fault: Fault, share: float | None = None) -> list[str]:
        """Choose an instance without a warning: the oldest one hangs, the newest one is taken."""
        there = sorted(self.group(self.spot).instances, key=lambda view: view.launched_s)
        running = [v.instance_id for v in there if v.state == IN_SERVICE and v.warned_s is None]
        self.hit[fault.kind] = running[:1] if fault.kind is Kind.HANG else running[-1:]
        return self.hit[fault.kind]

    def _update_workers(self) -> tuple[InstanceView, ...]:
        """Start, drain or remove the workers of instances that are new, leave or are gone."""
        views = self.cloud.instances()
        next_s = self.machines.update(views, self.now_s)
        if next_s is not None and next_s < self._next_update_s:
            self._next_update_s = next_s
            self.enter(next_s, self._update_again)
        for instance_id in self.force.instances - {view.instance_id for view in views}:
            last = self.logs.dismiss(instance_id, self.force, self.now_s)
            self.queue.send(last, self.now_s)
        return views

    def _update_again(self) -> None:
        """Allow the next update: a machine has read its metadata, or must stop."""
        self._next_update_s = math.inf

    def served(self, served: Served) -> None:
        """Log a finished request."""
        self.logs.write(served)
        self._sent(self.logs.completed(served), served.finished_s)
        self.machines.served(served)

    # --- what calls the functions ---------------------------------------------------------------

    def _turn(self) -> None:
        """The schedules: both checkers every minute."""
        at_s = self.now_s
        self.invoke(HEALTH, self.events.scheduled(at_s))
        self.invoke(AVAILABILITY, self.events.scheduled(at_s))
        self.enter(at_s + TURN_EVERY_S, self._turn)

    def _ship(self) -> None:
        self._sent(self.logs.due(self.now_s), self.now_s)
        self.enter(self.now_s + BATCHING_WINDOW_S, self._ship)

    def _sent(self, bodies: list[str], at_s: float) -> None:
        """Send messages; the batching window begins with the first one."""
        self.queue.send(bodies, at_s)
        if bodies and not self._collects:
            self._collects = True
            self.enter(at_s + BATCHING_WINDOW_S, self._collect)

    def _collect(self) -> None:
        self._collects = False
        self.collect()

    def recorded(self, fleet: str, text: str) -> None:
        self.records.append(text)

    def done(self, invocation: Invocation) -> None:
        """Keep a failure; an error that no function announces ends the demo."""
        if invocation.bug:
            raise RuntimeError(f"{invocation.function}: {invocation.bug}")
        if invocation.failed:
            self.failures.append(f"{invocation.function}: {invocation.failed}")


# --- faults ---------------------------------------------------------------------------------------

type Records = Sequence[tuple[float, DecisionRecord]]
"""Decision records, each with its second."""
type Judge = Callable[[Day, Fault, Records], tuple[bool, str]]
"""Returns whether a fault ended as it should, and a text, from the records since its begin."""


def _hung(day: Day, fault: Fault, records: Records) -> tuple[bool, str]:
    """An instance stays in service and serves nothing; check_health replaces it."""
    (victim,) = (v for v in day.cloud.history() if v.instance_id in day.hung)
    replaced = [
        at_s for at_s, record in records if record.health and record.health.workers_replaced
    ]
    if replaced and victim.ended_s is not None and replaced[0] <= victim.ended_s:
        return True, f"replaced after {(replaced[0] - fault.at_s) / 60:.1f} min"
    if victim.ended_s is None:
        return False, "still there at the end"
    return False, "AWS took the instance before it was replaced"


def _refused(day: Day, fault: Fault, records: Records) -> tuple[bool, str]:
    """Every spot launch fails by configuration for a while, and one instance is taken."""
    alarms = [at_s for at_s, record in records if "configuration" in record.alarms]
    if not alarms:
        return False, "no alarm was raised"
    return True, f"alarm after {alarms[0] - fault.at_s:.0f} s"


def _silent(day: Day, fault: Fault, records: Records) -> tuple[bool, str]:
    """Workers serve but ship no search logs; nothing may be scaled in on silence."""
    stale = [at_s for at_s, record in records if record.stale]
    alarm_s = min(stale, default=math.inf)
    scaled_in = sum(
        later.target < before.target and alarm_s <= later.at_s <= fault.end_s
        for before, later in pairwise(day.looks)
    )
    raised = alarm_s < fault.end_s
    scaled = f"scaled in {scaled_in} times" if scaled_in else "no scale-in"
    outcome = f"{'alarm raised' if raised else 'no alarm was raised'}, {scaled}"
    return raised and not scaled_in, outcome


INCIDENTS: Mapping[Kind, tuple[str, str, float, float, Judge]] = {
    Kind.HANG: ("hung worker", "the workers of {} hang", 0.25, 0.0, _hung),
    Kind.LAUNCH_REFUSED: (
        "configuration failures",
        "spot launches fail by configuration; {} is taken",
        0.5,
        300.0,
        _refused,
    ),
    Kind.LOGS_STOP: ("search logs stop", "no search logs for ten minutes", 0.75, 600.0, _silent),
}
"""The faults: name, text, start as a share of the hours, length in seconds, and judge.

Each ends before the next one begins, even if the demo lasts an hour.
"""


def faults_of(scene: Scene) -> list[Fault]:
    """Return the faults of a scene; each begins half a minute after a turn."""
    hours_s = scene.end_s - LEAD_S
    return [
        Fault(
            kind=kind,
            at_s=LEAD_S + share * hours_s // 60.0 * 60.0 + 30.0,
            length_s=min(length_s, 0.2 * hours_s),
        )
        for kind, (_, _, share, length_s, _) in INCIDENTS.items()
    ]


def _stories(day: Day, records: Records) -> Iterator[dict[str, Any]]:
    """Yield each fault and its outcome, with times from the start of the day."""
    ends = {view.instance_id: view.ended_s for view in day.cloud.history()}
    for fault in day.faults:
        name, what, _, _, judge = INCIDENTS[fault.kind]
        victim = next(iter(day.hit.get(fault.kind, ())), None)
        begun = victim is not None or fault.kind is Kind.LOGS_STOP
        since = [(at_s, record) for at_s, record in records if at_s >= fault.at_s]
        well, outcome = judge(day, fault, since) if begun else (False, "did not begin")
        ended_s = fault.end_s if fault.length_s else ends[victim] if victim else None
        yield {
            "name": name,
            "at_s": fault.at_s - LEAD_S,
            "what": what.format(victim or "an instance"),
            "started_s": fault.at_s - LEAD_S if begun else None,
            "ended_s": ended_s - LEAD_S if begun and ended_s is not None else None,
            "ended_well": well,
            "outcome": outcome,
        }


# --- figures --------------------------------------------------------------------------------------

type Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning, and how long each step took; None if it did not happen before the end.

    `requested_after_s` is from the warning until its replacement was requested, `restored_after_s`
    from when the instance stopped until enough instances served without it, `spot_only_after_s`
    from the warning until spot alone served, without backfill.
    """

    at_s: float
    instance_id: str
    pool: str
    requested_after_s: float | None
    restored_after_s: float | None
    spot_only_after_s: float | None


def _notices(day: Day) -> list[Notice]:
    """Return the warnings after the lead, each with its recovery."""
    times = [look.at_s for look in day.looks]
    pools = {view.instance_id: view.pool for view in day.cloud.history()}

    def first(since_s: float, holds: Callable[[Look], bool]) -> float:
        """Return the first instant, from `since_s` on, at which `holds` is true; else infinity."""
        looks = day.looks[bisect_right(times, since_s) - 1 :] if since_s < math.inf else ()
        return next((max(since_s, look.at_s) for look in looks if holds(look)), math.inf)

    def after(instant_s: float, since_s: float) -> float | None:
        return instant_s - since_s if instant_s < math.inf else None

    def of(at_s: float, instance_id: str) -> Notice:
        requested_s = first(
            at_s, lambda sample: sample.stays + sample.on_demand_desired >= sample.target
        )
        stopped_s = first(at_s, lambda sample: instance_id not in sample.spot)
        restored_s = first(stopped_s, lambda sample: sample.serving >= sample.target)
        spot_only_s = first(
            stopped_s,
            lambda sample: len(sample.spot) >= sample.target and not sample.on_demand_desired,
        )
        return Notice(
            at_s=at_s,
            instance_id=instance_id,
            pool=pools[instance_id],
            requested_after_s=after(requested_s, at_s),
            restored_after_s=after(restored_s, stopped_s),
            spot_only_after_s=after(spot_only_s, at_s),
        )

    return [of(event.at_s, event.instance_id) for event in day.warnings if event.at_s >= LEAD_S]


def per_second(looks: Sequence[Look], value: Callable[[Look], int], end_s: float) -> Ints:
    """A value of the fleet at every second from the start of the lead to its end."""
    times = np.array([look.at_s for look in looks])
    values = np.array([value(look) for look in looks], dtype=np.int64)
    seconds = np.arange(0.0, end_s)
    return values[np.maximum(np.searchsorted(times, seconds, side="right") - 1, 0)]


def expected_serving(target: Ints, start_s: float) -> Ints:
    """Return how many instances should serve each second: the least target of the last `start_s`.

    A requested instance cannot serve before it has started. A lost one is missing at once.
    """
    window = int(start_s) + 1
    padded = np.concatenate([np.full(window - 1, target[0]), target])
    least: Ints = sliding_window_view(padded, window).min(axis=1)
    return least


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of a day as JSON values, and its decisions and notices after the lead."""

    values: dict[str, Any]
    records: Records
    texts: Sequence[str]
    notices: Sequence[Notice]


def results(day: Day) -> Results:
    """Compute the figures of a finished day."""
    every = [(day.time.seconds(record.at), record) for record in map(read_record, day.records)]
    # Calls take no time, so that the records are in the order of their instants.
    lead = sum(at_s < LEAD_S for at_s, _ in every)
    records = every[lead:]
    notices = _notices(day)
    actions = Counter(str(record.action) for _, record in records)
    settings = day.scene.settings

    counted = [record.availability for _, record in records if record.availability]
    judged = [record.health for _, record in records if record.health]
    values = {
        **_fleet_figures(day),
        "interruptions": len(notices),
        "backfills": actions["backfill"],
        "releases": actions["release"],
        "instances_backfilled": sum(figures.backfilled for figures in counted),
        "instances_released": sum(figures.released for figures in counted),
        "workers_replaced": sum(figures.workers_replaced for figures in judged),
        **_request_figures(day),
        "turns": len(records),
        "replacement_asked_s": _seconds([notice.requested_after_s for notice in notices]),
        "whole_again_s": _seconds([notice.restored_after_s for notice in notices]),
        "back_on_spot_s": _seconds([notice.spot_only_after_s for notice in notices]),
        "incidents": list(_stories(day, records)),
        "failed_invocations": len(day.failures),
        "errors": day.failures[:SHOWN_ERRORS],
        "dead_letters": len(day.queue.dead_letters),
        "settings": {
            "market": settings.market.name,
            "requests": settings.requests.name,
            **{
                name: getattr(settings, name)
                for name in ("hours", "start_h", "seed", "price_ratio", "wait_objective_s")
            },
            "fleet": day.scene.fleet_document,
            "physics": asdict(day.scene.physics),
        },
    }
    return Results(values, records, day.records[lead:], notices)


def _fleet_figures(day: Day) -> dict[str, Any]:
    """Served share and cost; `served` counts an instance from when it can have started."""
    settings, first, end_s = day.scene.settings, int(LEAD_S), day.scene.end_s
    target = per_second(day.looks, lambda look: look.target, end_s)
    serving = per_second(day.looks, lambda look: look.serving, end_s)[first:]
    expected = expected_serving(target, day.scene.physics.cold_start_s)[first:]
    target = target[first:]
    used_h = dict.fromkeys(Purchase, 0.0)
    losses = 0
    for view in day.cloud.history():
        ended_s = end_s if view.ended_s is None else view.ended_s
        used_h[view.purchase] += max(0.0, ended_s - max(LEAD_S, view.launched_s)) / 3600.0
        losses += view.lost and ended_s > LEAD_S
    disks_h = day.scene.physics.warm_pool * settings.hours
    cost = settings.price_ratio * used_h[Purchase.SPOT] + used_h[Purchase.ON_DEMAND]
    cost += WARM_DISK_RATIO * disks_h
    target_h = float(target.sum()) / 3600.0
    fixed_h = float(target.max()) * settings.hours
    return {
        "served_share": _share(float((serving >= expected).mean())),
        "served_instance_share": _share(
            float(np.minimum(serving, expected).sum() / max(expected.sum(), 1))
        ),
        "cost_vs_on_demand": _share(cost / target_h) if target_h else 0.0,
        "cost_vs_fixed_on_demand": _share(cost / fixed_h) if fixed_h else 0.0,
        "spot_hours": round(used_h[Purchase.SPOT], 2),
        "on_demand_hours": round(used_h[Purchase.ON_DEMAND], 2),
        "target_hours": round(target_h, 2),
        "target_peak": int(target.max()),
        "losses": losses,
    }


def _request_figures(day: Day) -> dict[str, Any]:
    """Waits of the day; messages of search logs include those of the lead."""
    end_s, longest_s = day.scene.end_s, day.scene.settings.wait_objective_s
    mine = [request for request in day.force.requests if request.arrival_s >= LEAD_S]
    waits = [
        (end_s if each.started_s is None else each.started_s) - each.arrival_s for each in mine
    ]
    lost = sum(day.force.requests[number].arrival_s >= LEAD_S for number in day.force.lost)
    count, late = len(mine), sum(wait > longest_s for wait in waits) - lost
    points = np.quantile(waits, (0.5, 0.95, 0.99)) if count else np.zeros(3)
    worker_h = float(per_second(day.looks, lambda look: look.workers, end_s).sum()) / 3600.0
    return {
        "requests": count,
        "late_requests": late,
        "lost_requests": lost,
        "in_time_share": _share(1 - (late + lost) / count) if count else 1.0,
        "retried_requests": sum(request.receives > 1 for request in mine),
        **{f"wait_p{p}_s": round(float(w), 2) for p, w in zip((50, 95, 99), points, strict=True)},
        "search_log_messages": day.logs.messages,
        "messages_per_worker_hour": round(day.logs.messages / worker_h, 1) if worker_h else 0.0,
    }


def _seconds(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return the mean and the maximum without None, and the number of None."""
    known = [value for value in values if value is not None]
    return {
        "mean": round(sum(known) / len(known), 1) if known else None,
        "max": round(max(known), 1) if known else None,
        "never": len(values) - len(known),
    }


def _share(value: float) -> float:
    return round(value, 5)


SHOWN_ERRORS = 20


# Warnings of one burst arrive within seconds of each other.
TOGETHER_S = 5.0
WIDE = 120
HEADLINE = (
    "time fully served",
    "saved",
    "cost of all on demand",
    "interruptions, losses",
    "requests late",
    "requests lost",
    "in time, promised",
)
"""The labels of the figures above the picture begin with these."""
FIGURES = (
    ("time fully served", "{served_share:.2%}", "share of time in which every requested instance "
     "served; a new instance is given the start-up time"),
    ("instance time served", "{served_instance_share:.2%}",
     "instance hours served, as a share of the instance hours requested"),
    ("cost of all on demand", "{cost_vs_on_demand:.1%}",
     "as a share of the same instances on demand, with spot at {price_ratio:.2f} of on demand; "
     "start-up time and the warm pool's disks are included"),
    ("saved", "{saved:.1%}", "against the same instances on demand"),
    ("cost of a fixed fleet", "{cost_vs_fixed_on_demand:.1%}",
     "as a share of {target_peak} on-demand instances (the peak) all day"),
    ("instance hours", "{spot_hours:.1f} spot, {on_demand_hours:.1f} on demand",
     "{target_hours:.1f} were requested"),
    ("interruptions, losses", "{interruptions}, {losses}",
     "warnings of AWS, and spot instances that it took"),
    ("replacement requested", "{replacement_asked_s}",
     "from a warning until a replacement for each missing instance was requested"),
    ("whole again", "{whole_again_s}",
     "from when a warned instance stops serving until enough others serve"),
    ("back on spot", "{back_on_spot_s}",
     "from a warning until enough spot instances serve again"),
    ("backfills, releases", "{backfills}, {releases}",
     "turns that requested on-demand ({instances_backfilled} instances) and that released it "
     "({instances_released})"),
    ("requests late", "{late_requests:,} of {requests:,}",
     "started more than {wait_objective_s:g} s after they arrived; {retried_requests} were served "
     "again because their worker was lost"),
    ("in time, promised {promised:g} %", "{in_time_share:.1%} kept",
     "share of requests that started in time; lost requests count as late"),
    ("requests lost", "{lost_requests:,}", "given up after their last try"),
    ("wait", "{wait_p50_s:g} / {wait_p95_s:g} / {wait_p99_s:g} s",
     "median, 95th and 99th percentile"),
    ("turns", "{turns:,}", "decisions taken, each with its reason in decisions.jsonl"),
    ("search-log messages", "{search_log_messages:,}",
     "{messages_per_worker_hour:g} an hour of a worker that takes requests"),
    ("failed invocations, dead letters", "{failed_invocations}, {dead_letters}", "{failures}"),
)  # fmt: skip
"""Each figure's label, its value by its names in summary.json, and what it is."""


def figures(values: dict[str, Any]) -> list[Figure]:
    """The figures of a day in the order in which they are read."""
    shown = values["settings"] | values
    shown["saved"] = 1 - values["cost_vs_on_demand"]
    shown["promised"] = 100 * values["settings"]["fleet"]["objective"]["share"]
    shown["failures"] = "; ".join(values["errors"][:3]) or "none"
    for name in ("replacement_asked_s", "whole_again_s", "back_on_spot_s"):
        shown[name] = _mean_and_longest(values[name])
    return [
        Figure(
            label=label.format_map(shown),
            value=value.format_map(shown).replace("%", " %"),
            meaning=meaning.format_map(shown),
        )
        for label, value, meaning in FIGURES
    ]


def table(values: dict[str, Any], *, wide: bool) -> Grid:
    """The figures for a terminal; what they mean only on a wide one."""
    shown = Grid(title="The day", title_justify="left")
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    if wide:
        shown.add_column("what it is", style="dim", overflow="fold")
    rows = [(figure.label, figure.value, figure.meaning) for figure in figures(values)]
    for story in values["incidents"]:
        outcome = f"[{'green' if story['ended_well'] else 'red'}]{story['outcome']}[/]"
        rows.append((f"incident: {story['name']}", outcome, story["what"]))
    for row in rows:
        shown.add_row(*row[: 3 if wide else 2])
    return shown


def _mean_and_longest(seconds: dict[str, float | None]) -> str:
    if seconds["mean"] is None:
        return "-"
    text = f"{spoken(seconds['mean'])}, at most {spoken(seconds['max'] or 0)}"
    return text + (f", {seconds['never']} not" if seconds["never"] else "")


def line(day: Day, look: Look) -> str:
    return (
        f"{day.time.at(look.at_s):%a %H:%M}  target {look.target}  spot {len(look.spot)}  "
        f"on-demand {look.on_demand}  busy {day.force.busy} of {look.workers}  "
        f"queue {day.force.queued}  warnings {len(day.warnings)}"
    )


# --- the page -------------------------------------------------------------------------------------


def page(day: Day, results_of_day: Results) -> Page:
    """All that the demo's page shows."""
    settings, rows = day.scene.settings, figures(results_of_day.values)
    moments = sorted(_moments(day, results_of_day), key=lambda row: row.at_s or 0.0)
    happened = Table(
        caption="What happened",
        intro="Each row is a warning of AWS or a fault of the demo. Press a row to see its moment "
        "in the picture.",
        columns=("time", "what", "how it ended"),
        rows=moments,
    )
    return Page(
        title=f"{settings.hours:g} hours of Spotkeeper",
        subtitle=f"Spot market {settings.market.name}, requests {settings.requests.name}, "
        f"from hour {settings.start_h:g}. Times are UTC of the virtual clock.",
        footer="Written by spotkeeper demo; the decisions are in decisions.jsonl, "
        "the figures in summary.json.",
        blocks=[
            Tiles([row for row in rows if row.label.startswith(HEADLINE)]),
            _timeline(day, results_of_day),
            *([happened] if moments else []),
            Table(
                caption="All figures",
                columns=("figure", "value", "what it is"),
                numbers=("value",),
                rows=[Row(cells=(row.label, row.value, row.meaning)) for row in rows],
            ),
        ],
    )


def _timeline(day: Day, figures: Results) -> Timeline:
    """The charts that `spotkeeper explain` draws of the same records, and the market below."""
    end_s, market = day.scene.end_s, day.scene.market
    lost_s = [v.ended_s - LEAD_S for v in day.cloud.history() if v.lost and v.ended_s]
    records = [record for _, record in figures.records]
    drawn = records_timeline(records, day.time.at(LEAD_S), day.time.at(end_s))
    times = sorted({0.0, *(change.at_s for change in market.changes())})
    t = [max(0.0, time - LEAD_S) for time in times]
    capacity = [float(sum(market.capacity(pool, at_s) for pool in market.pools)) for at_s in times]
    dry = [
        (at, until, "no spot anywhere")
        for at, until, held in zip(t, [*t[1:], end_s - LEAD_S], capacity, strict=True)
        if not held
    ]
    below = Chart(
        title="Spot market",
        unit="instances that AWS had to give, all zones",
        height=130,
        whole=True,
        series=[Series(label="capacity", colour="spot", kind="area", t=t, values=capacity)],
        spans=[Spans(label="none anywhere", colour="dry", spans=dry)],
    )
    failing = [
        (story["started_s"], story["ended_s"] or end_s - LEAD_S, story["what"])
        for story in figures.values["incidents"]
        if story["started_s"] is not None
    ]
    return replace(
        drawn,
        start_at=min((at_s for at_s in lost_s if at_s >= 0), default=drawn.start_at),
        bands=Spans(label="incident", colour="band", spans=failing),
        charts=[drawn.charts[0], below, *drawn.charts[1:]],
    )


def _moments(day: Day, figures: Results) -> Iterator[Row]:
    """Yield a row for each warning and fault, with its outcome."""

    def moment(at_s: float, what: str, ended: str) -> Row:
        clock = f"{day.time.at(LEAD_S + at_s):%H:%M:%S}"
        return Row(cells=(clock, what, ended), at_s=round(at_s, 1))

    bursts: list[list[Notice]] = []
    for notice in figures.notices:
        if bursts and notice.at_s - bursts[-1][-1].at_s <= TOGETHER_S:
            bursts[-1].append(notice)
        else:
            bursts.append([notice])
    for burst in bursts:
        zones = sorted({notice.pool.partition("/")[0] for notice in burst})
        count = f"{len(burst)} spot instances" if burst[1:] else burst[0].instance_id
        yield moment(
            burst[0].at_s - LEAD_S,
            f"AWS warns that it takes {count} ({', '.join(zones)})",
            f"replacement requested after {_longest(n.requested_after_s for n in burst)}, "
            f"whole again {_longest(n.restored_after_s for n in burst)} after it was gone, "
            f"back on spot alone after {_longest(n.spot_only_after_s for n in burst)}",
        )
    for story in figures.values["incidents"]:
        if story["started_s"] is not None:
            yield moment(story["started_s"], f"Made to fail: {story['what']}", story["outcome"])


def _longest(durations_s: Iterable[float | None]) -> str:
    """Return the longest of several durations as text."""
    known = list(durations_s)
    if None in known:
        return "the end of the day"
    return spoken(max(each for each in known if each is not None))


# --- the command ----------------------------------------------------------------------------------


def run_demo(
    settings: DemoSettings,
    out: Path,
    console: Console,
    show: Callable[[int, int, str], object] = lambda *_: None,
) -> dict[str, Any]:
    """Run a demo, write its files to `out`, show its figures; return those of summary.json.

    Raises MarketError when the market is too short, OSError when `out` cannot be written.
    """
    stage = scene(settings)
    out.mkdir(parents=True, exist_ok=True)
    with Day(stage).deployed() as day:
        day.run(lambda look: show(int(look.at_s), int(stage.end_s), line(day, look)))
        figures = results(day)
        files = {
            "report.html": page_html(page(day, figures)),
            "summary.json": json.dumps(figures.values, indent=1) + "\n",
            "decisions.jsonl": "".join(f"{text}\n" for text in figures.texts),
        }
    for name, text in files.items():
        write_whole(out / name, text)
    # A narrow terminal shows the figures without their meanings.
    console.print(table(figures.values, wide=console.width >= WIDE))
    for name in files:
        console.print(f"{out / name}", highlight=False, soft_wrap=True)
    return figures.values
