"""A fleet without a request queue over hours: workers that pull from one line, and both turns."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import inf
from random import Random
from typing import TYPE_CHECKING

from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.load import Cluster
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper.turns.check_availability import check_availability
from spotkeeper_lab.fakes import instant
from tests.unit.turns.stage import START_S, Stage

if TYPE_CHECKING:
    from spotkeeper.domain.decision import DecisionRecord

MINUTE_S = 60


class Hours(Stage):
    """A stage on which time passes minute by minute; requests come at `rate(second)` a second.

    Requests wait in one line, which Spotkeeper cannot see, and take `service_s`. An instance in
    `hung` takes a request and never finishes it. Each minute the logs are sent, and both
    controllers have their turns. `slow_clocks` are so many seconds behind, by instance.
    """

    def __init__(self, spot: int, *, service_s: float = 5.0, objective: bool = False) -> None:
        super().__init__(spot)
        promise = Objective(wait_s=10, share=0.95) if objective else None
        bounds = Bounds(spot_min=0, spot_max=20, on_demand_max=20)
        self.fleet = replace(self.fleet, objective=promise, bounds=bounds)
        self.service_s, self.random = service_s, Random(7)
        self.hung: set[str] = set()
        self.status: Callable[[str], Status] = lambda _: Status.OK
        self.minute = 0
        self.records: list[DecisionRecord] = []
        self.on_demand_hours = self.spot_hours = 0.0
        self.line: deque[float] = deque()
        self.busy_until: dict[str, float] = {}
        self.unsent: defaultdict[str, list[SearchLog]] = defaultdict(list)
        self.slow_clocks: Mapping[str, float] = {}

    @property
    def now_s(self) -> float:
        return START_S + MINUTE_S * self.minute

    def pass_minutes(self, minutes: int, rate: float = 0.0, every_s: float = 0.0) -> None:
        """Let minutes pass with so many requests a second by chance, or one every so often."""
        for _ in range(minutes):
            began_s = self.now_s
            self.minute += 1
            self._arrive(began_s, rate, every_s)
            self.cloud.advance(self.now_s)
            self._ship(self._serve(began_s))
            self._turns()

    def _arrive(self, began_s: float, rate: float, every_s: float) -> None:
        if every_s:
            at_s = began_s - began_s % every_s + every_s
            while at_s <= self.now_s:
                self.line.append(at_s)
                at_s += every_s
        elif rate:
            at_s = began_s + self.random.expovariate(rate)
            while at_s <= self.now_s:
                self.line.append(at_s)
                at_s += self.random.expovariate(rate)

    def _serve(self, began_s: float) -> Mapping[str, list[SearchLog]]:
        """Have whoever is free first take the next request in line."""
        there = [i for group in ("spot", "on-demand") for i in self.in_service(group)]
        free = [
            (max(began_s, self.busy_until.get(i, began_s)), self.random.random(), i) for i in there
        ]
        heapq.heapify(free)
        logs: defaultdict[str, list[SearchLog]] = defaultdict(list)
        while self.line and free:
            free_s, _, who = heapq.heappop(free)
            start_s = max(free_s, self.line[0])
            if start_s > self.now_s:
                break
            enqueued_s = self.line.popleft()
            if who in self.hung:
                self.busy_until[who] = inf
                continue
            end_s = start_s + self.service_s
            self.busy_until[who] = end_s
            heapq.heappush(free, (end_s, self.random.random(), who))
            logs[who].append(self._log(who, enqueued_s, start_s, end_s))
        return logs

    def _log(self, who: str, enqueued_s: float, start_s: float, end_s: float) -> SearchLog:
        behind = timedelta(seconds=self.slow_clocks.get(who, 0.0))
        return SearchLog(
            request_id=f"{who}-{start_s:g}",
            worker_id=f"gpu-{who}",
            cluster=Cluster.AWS,
            instance_id=who,
            enqueued_at=instant(enqueued_s) - behind,
            started_at=instant(start_s) - behind,
            finished_at=instant(end_s) - behind,
            status=self.status(who),
        )

    def _ship(self, logs: Mapping[str, Iterable[SearchLog]]) -> None:
        """Send the logs of what is finished by now, a message for each instance."""
        for who, mine in logs.items():
            self.unsent[who] += mine
        for who, mine in self.unsent.items():
            now = instant(self.now_s) - timedelta(seconds=self.slow_clocks.get(who, 0.0))
            done = [log for log in mine if log.finished_at <= now]
            if done:
                self.table.add(digest(done, instant(self.now_s), "ocr"))
            self.unsent[who] = [log for log in mine if log.finished_at > now]
        old = [
            key
            for key in self.table.items
            if self.table.items[key].sent_at < instant(self.now_s - 3600)
        ]
        for key in old:
            del self.table.items[key]

    def _turns(self) -> None:
        records = [*self.turn(self.minute).records]
        report = check_availability([self.fleet], self.ports, instant(self.now_s + 1))
        if report.defects:
            raise ExceptionGroup(f"the turn of minute {self.minute}", report.defects)
        self.records += [*records, *report.records]
        self.on_demand_hours += len(self.cloud.group("on-demand").instances) / 60
        self.spot_hours += len(self.cloud.group("spot").instances) / 60

    def in_service(self, group: str) -> list[str]:
        """The instances of a group that are in service."""
        return [i.instance_id for i in self.cloud.group(group).instances if i.state == "InService"]

    def lose(self) -> None:
        """Have AWS take all spot instances, which are warned two minutes before."""
        self.cloud.reclaim(self.in_service("spot"), self.now_s + 121)

    @property
    def alarms(self) -> set[str]:
        """Every alarm since the records were last cleared."""
        return {alarm for record in self.records for alarm in record.alarms}

    @property
    def replaced(self) -> float:
        return sum(record.seen.get("WorkersReplaced", 0) for record in self.records)
