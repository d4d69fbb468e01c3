"""The day itself: one virtual clock over cloud, workers, queue and the deployed functions."""

import heapq
import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import boto3

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Bill, CloudEvent, EventKind, InstanceView
from spotkeeper_lab.end_to_end.events import UNHEARD, Events
from spotkeeper_lab.end_to_end.functions import (
    AVAILABILITY,
    COLLECT,
    HEALTH,
    INTERRUPTION,
    LEDGER,
    Functions,
    Invocation,
    functions,
)
from spotkeeper_lab.end_to_end.incidents import Incident, World, incidents
from spotkeeper_lab.end_to_end.prices import at_prices
from spotkeeper_lab.end_to_end.record import Decision, Look, Record
from spotkeeper_lab.end_to_end.scene import FLEET, LEAD_S, REQUEST_QUEUE, Scene
from spotkeeper_lab.end_to_end.serving.logs import SearchLogQueue, SearchLogs
from spotkeeper_lab.end_to_end.serving.machines import Machines
from spotkeeper_lab.end_to_end.serving.served import Served
from spotkeeper_lab.end_to_end.serving.workers import Workforce
from spotkeeper_lab.end_to_end.wake_ups import create_queue, take_new
from spotkeeper_lab.local_aws.answers import VirtualTime
from spotkeeper_lab.local_aws.context import local_aws
from spotkeeper_lab.local_aws.dynamodb.tables import Tables
from spotkeeper_lab.local_aws.table import create_table

TURN_EVERY_S = 60.0
LEDGER_EVERY_S = 300.0
# The event source mapping waits as long as in template.yaml; agents look as often whether to send.
BATCHING_WINDOW_S = 5.0
TABLE, DOCUMENTS = "demo", "/spotkeeper/demo/fleets"
ENVIRONMENT = {
    "TABLE_NAME": TABLE,
    "FLEET_DOCUMENTS_PATH": DOCUMENTS,
    "DEFAULT_FLEET": FLEET,
    "RECORD_DAYS": "30",
    "POWERTOOLS_SERVICE_NAME": "demo",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
}


@dataclass(slots=True)
class Day:
    """A running demo; `run` goes through it, everything found is in `record`."""

    scene: Scene
    cloud: Cloud
    time: VirtualTime
    functions: Functions
    tables: Tables
    record: Record = field(default_factory=Record)
    force: Workforce = field(init=False)
    machines: Machines = field(init=False)
    logs: SearchLogs = field(init=False)
    queue: SearchLogQueue = field(init=False)
    incidents: list[Incident] = field(default_factory=list)
    lead_bill: Bill | None = None
    _events: Events = field(init=False)
    _agenda: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _entered: int = 0
    _musters_s: float = math.inf
    _collects: bool = False

    def __post_init__(self) -> None:
        self.logs = SearchLogs(self.time, self.scene.settings.pace)
        self.queue = SearchLogQueue(self.time)
        self.force = Workforce(
            self.scene.requests,
            self._served,
            workers_per_instance=self.scene.workers_per_instance,
            onprem_workers=self.scene.settings.onprem_workers,
        )
        self.machines = Machines(self.force, self.scene.physics.notice_s)
        self._events = Events(self.time)
        if self.scene.settings.incidents:
            self.incidents = incidents(self.scene.end_s)
        for incident in self.incidents:
            self._enter(incident.story.at_s, _stop_here)
        self._enter(0.0, self._turn)
        self._enter(BATCHING_WINDOW_S, self._ship)
        self._enter(LEAD_S, self._begin)
        self._enter(LEAD_S + LEDGER_EVERY_S, self._keep_ledger)

    @property
    def world(self) -> World:
        """What incidents may touch."""
        return World(self.cloud, self.force, self.logs)

    def run(self, on_minute: Callable[[Look], None]) -> None:
        """Go through the day; `on_minute` sees the fleet after every virtual minute."""
        end_s, minute_s = self.scene.end_s, 0.0
        while self.cloud.now_s < end_s:
            look = self._go(min(self._next_s(), end_s))
            if look.at_s >= minute_s:
                minute_s += TURN_EVERY_S
                on_minute(look)

    def _next_s(self) -> float:
        cloud_s = self.cloud.next_s()
        return self._agenda[0][0] if cloud_s is None else min(cloud_s, self._agenda[0][0])

    def _enter(self, at_s: float, task: Callable[[float], None]) -> None:
        self._entered += 1
        heapq.heappush(self._agenda, (at_s, self._entered, task))

    def _go(self, at_s: float) -> Look:
        """Let time pass up to an instant and do all that is due at it."""
        self.force.advance(at_s)
        self._happened(self.cloud.advance(at_s))
        while self._agenda[0][0] <= at_s:
            heapq.heappop(self._agenda)[2](at_s)
            self._happened(self.cloud.advance(at_s))
        for incident in self.incidents:
            incident.step(self.world)
        return self.record.look(self.cloud, self.force, self._muster())

    def _happened(self, events: list[CloudEvent]) -> None:
        """Post the cloud's events, and bring the workers in line with the instances."""
        for event in events:
            if event.kind is EventKind.WARNING:
                self.record.warn(event, self.cloud.instance(event.instance_id).pool)
            if event.kind not in UNHEARD:
                self._enter(event.deliver_s, self._deliver(event))
        self._muster()

    def _muster(self) -> tuple[InstanceView, ...]:
        """Start, drain or take away the workers of instances that came, leave or are gone."""
        views = self.cloud.instances()
        next_s = self.machines.muster(views, self.cloud.now_s)
        if next_s is not None and next_s < self._musters_s:
            self._musters_s = next_s
            self._enter(next_s, self._muster_again)
        for instance_id in self.force.instances - {view.instance_id for view in views}:
            self._say_goodbye(instance_id)
        return views

    def _muster_again(self, _: float) -> None:
        """Follow what a machine has learnt, or stop what it may serve no longer."""
        self._musters_s = math.inf

    def _served(self, served: Served) -> None:
        self.logs.write(served)
        self._send(self.logs.completed(served), served.finished_s)
        self.machines.served(served)

    def _say_goodbye(self, instance_id: str) -> None:
        """A machine that could drain sends its last logs; one that could not takes them along."""
        if not self.force.serving(instance_id):
            self.queue.send(self.logs.ship(instance_id, self.cloud.now_s), self.cloud.now_s)
        if not self.logs.stopped:
            self.logs.lose(instance_id)
        self.force.lose(instance_id)

    # --- what calls the functions ---------------------------------------------------------------

    def _turn(self, at_s: float) -> None:
        """The schedules: both checkers every minute."""
        self._invoke(HEALTH, self._events.scheduled(at_s))
        self._invoke(AVAILABILITY, self._events.scheduled(at_s))
        self._enter(at_s + TURN_EVERY_S, self._turn)

    def _keep_ledger(self, at_s: float) -> None:
        self._invoke(LEDGER, self._events.scheduled(at_s))
        self._enter(at_s + LEDGER_EVERY_S, self._keep_ledger)

    def _deliver(self, event: CloudEvent) -> Callable[[float], None]:
        def deliver(_: float) -> None:
            self._invoke(INTERRUPTION, self._events.of_cloud(event))

        return deliver

    def _wake_up(self, event: dict[str, object]) -> Callable[[float], None]:
        def wake_up(_: float) -> None:
            self._invoke(AVAILABILITY, event)

        return wake_up

    def _ship(self, at_s: float) -> None:
        self._send(self.logs.due(at_s), at_s)
        self._enter(at_s + BATCHING_WINDOW_S, self._ship)

    def _send(self, bodies: list[str], at_s: float) -> None:
        """Agents send; the window of a batch begins with its first message."""
        self.queue.send(bodies, at_s)
        if bodies and not self._collects:
            self._collects = True
            self._enter(at_s + BATCHING_WINDOW_S, self._collect)

    def _collect(self, at_s: float) -> None:
        """The event source mapping: batches until the queue shows nothing more."""
        self._collects = False
        while batch := self.queue.receive(at_s):
            invocation = self._invoke(COLLECT, batch)
            self.queue.settle(batch, _failed(invocation, batch))

    def _begin(self, _: float) -> None:
        """The lead is over: what was used until now is not counted."""
        self.lead_bill = self.cloud.bill()

    def _invoke(self, name: str, event: dict[str, object]) -> Invocation:
        invocation = self.functions.invoke(name, event)
        self._take_decisions()
        self.record.sent(self.cloud.now_s, invocation.metrics)
        for delay_s, message in take_new():
            self._enter(self.cloud.now_s + delay_s, self._wake_up(message))
        for incident in self.incidents:
            incident.see(self.world, invocation)
        return invocation

    # --- the table ------------------------------------------------------------------------------

    def _take_decisions(self) -> None:
        """Move new decision records out of the table."""
        table = self.tables[TABLE]
        for item in table.take(f"fleet#{FLEET}", "decision#", "decision#\uffff"):
            text = item["record"]["S"]
            self.record.decisions.append(Decision(at_s=self.cloud.now_s, text=text))


def _stop_here(_: float) -> None:
    """Make a moment one at which incidents are looked at."""


def _failed(invocation: Invocation, batch: dict[str, Any]) -> list[str]:
    """The messages that come back: those that the function named, or all when it failed."""
    if invocation.error:
        return [record["messageId"] for record in batch["Records"]]
    return [failure["itemIdentifier"] for failure in invocation.answer["batchItemFailures"]]


@contextmanager
def running(scene: Scene, log: io.TextIOBase) -> Iterator[Day]:
    """A day with everything in place: AWS in process, table, fleet document, functions."""
    cloud = Cloud(scene.market, scene.groups, scene.physics, scene.settings.seed)
    time = VirtualTime(scene.start)

    def now() -> datetime:
        return time.at(cloud.now_s)

    def length() -> tuple[int, int]:
        return day.force.queued, day.force.in_flight

    with (
        local_aws(cloud, time, {REQUEST_QUEUE: length}) as tables,
        functions(ENVIRONMENT | _set_up(scene), now, log) as deployed,
        at_prices(scene.settings.price_ratio, scene.start),
    ):
        day = Day(scene=scene, cloud=cloud, time=time, functions=deployed, tables=tables)
        yield day


def _set_up(scene: Scene) -> dict[str, str]:
    """Create what template.yaml would; answers the environment that is known only then."""
    create_table(boto3.client("dynamodb"), TABLE)
    boto3.client("ssm").put_parameter(
        Name=f"{DOCUMENTS}/{FLEET}", Type="String", Value=json.dumps(scene.fleet_document)
    )
    return {"WAKE_UP_QUEUE_URL": create_queue(), "STACK_NONCE": "demo"}
