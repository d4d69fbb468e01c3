"""A stage for health turns: a simulated cloud, a load table and what turns remember."""

import heapq
import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from spotkeeper.border.events import Message
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.digest import SearchLog
from spotkeeper.domain.permission import Control
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.check_health import check_health
from spotkeeper.turns.collect_search_logs import collect
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Physics, two_groups
from spotkeeper_lab.fakes import FakeLoadTable, FakeStates, Faults, digest, fake_ports, instant
from spotkeeper_lab.traces.market import market_of
from tests import search_logs
from tests.builders import fleet
from tests.search_logs import as_sent

if TYPE_CHECKING:
    from spotkeeper.domain.decision import DecisionRecord
    from spotkeeper.ports import FleetError

POOL = "us-east-1a/g5.xlarge"


START_S = 3600.0


class Controls:
    """The operators' control, unless `error` prevents reading it."""

    def __init__(self, said: Control) -> None:
        self.said = said
        self.error: FleetError | None = None

    def of(self, fleet: str) -> Control:
        """Return the same control for every fleet."""
        if self.error:
            raise self.error
        return self.said


class Stage:
    """A fleet of `spot` instances in service, its ports, and a minute hand."""

    def __init__(self, spot: int = 4, sizing: SizingPolicy | None = None) -> None:
        self.faults = Faults()
        self.cloud = Cloud(
            market_of("health", 86_400.0, {POOL: [(0.0, 99)]}),
            two_groups(pools=(POOL,), maximum=40, desired=spot),
            Physics(),
        )
        self.cloud.advance(START_S)
        self.fleet = fleet(sizing=sizing)
        self.states = FakeStates(self.faults)
        self.table = FakeLoadTable()
        ports = fake_ports(self.cloud, self.faults, states=self.states)
        self.ports = replace(ports, load=self.table)

    @property
    def spot(self) -> list[str]:
        """The spot group's instances that serve, oldest first."""
        return self.in_service("spot")

    def in_service(self, group: str) -> list[str]:
        return [i.instance_id for i in self.cloud.group(group).instances if i.state == "InService"]

    def serve(self, until_minute: int, shares: Mapping[str, float]) -> None:
        """Have instances be busy for a share of the five minutes up to a minute."""
        for slot in range(30):
            end_s = START_S + 60 * until_minute - 10 * slot
            logs = [served(i, end_s, 10 * share) for i, share in shares.items()]
            self.table.add(digest(logs, instant(end_s), "ocr"))

    def turn(self, minute: int, fleets: Sequence[Fleet] = ()) -> TurnReport:
        self.cloud.advance(START_S + 60 * minute)
        report = check_health(fleets or [self.fleet], self.ports, instant(START_S + 60 * minute))
        if report.defects:
            raise ExceptionGroup(f"the turn of minute {minute}", report.defects)
        return report


def served(who: str, end_s: float, service_s: float) -> SearchLog:
    """A log of a request that ended at a second of the cloud's time."""
    return search_logs.served(who, instant(end_s), service_s)


def hung(stage: Stage, busy: float = 0.9) -> str:
    """Bring the first instance to its second observation as silent; the turn of minute 7 is due."""
    victim, *well = stage.spot
    for minute in range(7):
        stage.serve(minute, dict.fromkeys(stage.spot if minute < 2 else well, busy))
        stage.turn(minute)
    stage.serve(7, dict.fromkeys(well, busy))
    return victim


class Workday(Stage):
    """A stage on which time passes minute by minute, and requests arrive at random.

    Requests wait in one line, which Spotkeeper cannot see, and take `service_s`. An instance in
    `hung` takes a request and never finishes it. Each minute the logs are sent, and both
    controllers take their turns. The logs of an instance in `dark` never arrive, and all others
    are `late_s` late. Clocks are `behind_s` behind, those in `slow_clocks` by seconds of their own.
    Workers on premises have names, `onprem`.
    """

    def __init__(
        self,
        spot: int,
        *,
        service_s: float = 5.0,
        objective: bool = False,
        sizing: SizingPolicy | None = None,
        spot_max: int = 20,
    ) -> None:
        super().__init__(spot, sizing)
        promise = Objective(wait_s=10, share=0.95) if objective else None
        bounds = Bounds(spot_min=0, spot_max=spot_max, on_demand_max=20)
        self.fleet = replace(self.fleet, objective=promise, bounds=bounds)
        self.service_s, self.late_s, self.behind_s, self.random = service_s, 0.0, 0.0, Random(7)
        self.hung: set[str] = set()
        self.dark: set[str] = set()
        self.slow_clocks: Mapping[str, float] = {}
        self.onprem: Sequence[str] = ()
        self.turned = self.logged = True
        self.minute = 0
        self.records: list[DecisionRecord] = []
        self.desired: list[int] = []
        self.on_demand_hours = self.spot_hours = 0.0
        self.line: deque[float] = deque()
        self.busy_until: dict[str, float] = {}
        self.unsent: defaultdict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        self.messages: list[Message] = []

    @property
    def now_s(self) -> float:
        return START_S + 60 * self.minute

    @property
    def alarms(self) -> set[str]:
        """Every alarm since the records were last cleared."""
        return {alarm for record in self.records for alarm in record.alarms}

    @property
    def replaced(self) -> float:
        return sum(r.health.workers_replaced for r in self.records if r.health)

    @property
    def sized(self) -> "DecisionRecord":
        """The last record of the health controller."""
        return [r for r in self.records if r.controller is Controller.HEALTH][-1]

    def pass_minutes(self, minutes: int, rate: float = 0.0, every_s: float = 0.0) -> None:
        """Let minutes pass with random requests at `rate` a second, or one every `every_s`."""
        for _ in range(minutes):
            began_s = self.now_s
            self.minute += 1
            at_s = began_s - began_s % every_s if every_s else began_s
            while every_s or rate:
                at_s += every_s or self.random.expovariate(rate)
                if at_s > self.now_s:
                    break
                self.line.append(at_s)
            self.cloud.advance(self.now_s)
            self._serve(began_s)
            self._ship()
            if self.turned:
                self._turns()

    def _serve(self, began_s: float) -> None:
        """Have whoever is free first take the next request in line."""
        there = [*self.in_service("spot"), *self.in_service("on-demand"), *self.onprem]
        free = [
            (max(began_s, self.busy_until.get(i, began_s)), self.random.random(), i) for i in there
        ]
        heapq.heapify(free)
        while self.line and free:
            free_s, _, who = heapq.heappop(free)
            start_s = max(free_s, self.line[0])
            if start_s > self.now_s:
                break
            waited_s = start_s - self.line.popleft()
            if who in self.hung:
                self.busy_until[who] = inf
                continue
            end_s = self.busy_until[who] = start_s + self.service_s
            heapq.heappush(free, (end_s, self.random.random(), who))
            if self.logged and who not in self.dark:
                log = self.log(who, end_s, self.service_s, waited_s)
                self.unsent[who].append((end_s + self.late_s, log))

    def log(
        self, who: str, end_s: float, service_s: float, waited_s: float = 0.5, status: str = "ok"
    ) -> dict[str, Any]:
        """Write a log as the worker does that ends a request."""
        seen_s = end_s - self.slow_clocks.get(who, self.behind_s)
        one = search_logs.served(who, instant(seen_s), service_s, waited_s)
        return as_sent(one) | {"status": status}

    def _ship(self) -> None:
        """Send the logs of what is finished by now, a message for each worker."""
        for who, mine in self.unsent.items():
            if done := [log for due_s, log in mine if due_s <= self.now_s]:
                self.send(done)
            self.unsent[who] = [one for one in mine if one[0] > self.now_s]
        old = instant(self.now_s - 3600)
        for key in [key for key, kept in self.table.items.items() if kept.sent_at < old]:
            del self.table.items[key]

    def send(self, logs: Sequence[dict[str, Any]]) -> None:
        """Have the queue deliver one message."""
        sent_at, number = instant(self.now_s), f"m-{len(self.messages)}"
        self.messages.append(Message(message_id=number, body=json.dumps(logs), sent_at=sent_at))
        self.deliver(self.messages[-1:])

    def deliver(self, messages: Sequence[Message]) -> None:
        collect(messages, self.table, {"ocr"}, "ocr")

    def _turns(self) -> None:
        records = [*self.turn(self.minute).records]
        report = check_availability([self.fleet], self.ports, instant(self.now_s + 1))
        if report.defects:
            raise ExceptionGroup(f"the turn of minute {self.minute}", report.defects)
        self.records += [*records, *report.records]
        self.desired.append(self.cloud.group("spot").desired)
        self.on_demand_hours += len(self.cloud.group("on-demand").instances) / 60
        self.spot_hours += len(self.cloud.group("spot").instances) / 60

    def lose(self) -> None:
        """Have AWS take all spot instances, which are warned two minutes before."""
        self.cloud.reclaim(self.in_service("spot"), self.now_s + 121)
