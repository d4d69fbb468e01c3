"""A demo's day: the deployed functions on a market and under a load, and what is seen of them."""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from spotkeeper import wiring
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Bill, CloudEvent, EventKind, InstanceView
from spotkeeper_lab.end_to_end.incidents import Incident, incidents
from spotkeeper_lab.end_to_end.record import Decision, Look, Record
from spotkeeper_lab.end_to_end.scene import LEAD_S, Scene
from spotkeeper_lab.local_aws.events import UNHEARD
from spotkeeper_lab.machines import Machines, Served
from spotkeeper_lab.world import (
    AVAILABILITY,
    COLLECT,
    HEALTH,
    INTERRUPTION,
    LEDGER,
    Invocation,
    World,
)

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

    def run(self, on_minute: Callable[[Look], None]) -> None:
        """Go through the day; `on_minute` sees the fleet after every virtual minute."""
        end_s, minute_s = self.scene.end_s, 0.0
        while self.now_s < end_s:
            self.step(min(self.next_s(), end_s))
            look = self._look()
            if look.at_s >= minute_s:
                minute_s += TURN_EVERY_S
                on_minute(look)

    def step(self, at_s: float) -> None:
        """Let time pass, and do what is due; what each does to the cloud is told at once."""
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
        """Start, drain or take away the workers of instances that came, leave or are gone."""
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
        """Keep a decision."""
        self.record.decisions.append(Decision(at_s=self.now_s, text=text))

    def done(self, invocation: Invocation) -> None:
        """Note what an invocation sent; an error that no function announces ends the demo."""
        if invocation.bug:
            raise RuntimeError(f"{invocation.function}: {invocation.bug}")
        self.ended.append(invocation)
        self.record.sent(self.now_s, invocation.metrics)
        for incident in self.incidents:
            incident.see(self, invocation)


def _stop_here() -> None:
    """Make a moment one at which incidents are looked at."""


def _failed(invocation: Invocation, batch: dict[str, Any]) -> list[str]:
    """The messages that come back: those that the function named, or all when it failed."""
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
