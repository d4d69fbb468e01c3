"""Nights and hours without a request queue: what a fleet costs, and who is found."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import inf
from random import Random
from typing import TYPE_CHECKING

import pytest

from spotkeeper.domain.health.reports import nobody_serves, with_silence
from spotkeeper.domain.health_memory import HealthMemory, Silence
from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import Load, histogram
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper.turns.check_availability import check_availability
from spotkeeper_lab.fakes import instant
from tests.builders import at
from tests.unit.turns.stage import START_S, Stage, served

if TYPE_CHECKING:
    from spotkeeper.domain.decision import DecisionRecord

MINUTE_S = 60


class Hours(Stage):
    """A stage on which time passes minute by minute; requests arrive at a given rate.

    Requests wait in one line, which Spotkeeper cannot see, and take `service_s`. An instance in
    `hung` takes a request and never finishes it. Each minute the logs are sent, and both
    controllers take their turns. `slow_clocks` holds how many seconds each instance is behind.
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
        self.turned = True

    @property
    def now_s(self) -> float:
        return START_S + MINUTE_S * self.minute

    def pass_minutes(self, minutes: int, rate: float = 0.0, every_s: float = 0.0) -> None:
        """Let minutes pass with random requests at `rate` a second, or one every `every_s`."""
        for _ in range(minutes):
            began_s = self.now_s
            self.minute += 1
            self._arrive(began_s, rate, every_s)
            self.cloud.advance(self.now_s)
            self._ship(self._serve(began_s))
            if self.turned:
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
            finished_s = end_s - self.slow_clocks.get(who, 0.0)
            waited_s = start_s - enqueued_s
            logs[who].append(served(who, finished_s, self.service_s, self.status(who), waited_s))
        return logs

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


# --- Nights without requests, for a fleet whose request queue Spotkeeper cannot see ---


@pytest.mark.parametrize(("size", "objective"), [(1, True), (6, False)])
def test_a_night_without_requests_costs_no_on_demand_and_replaces_nobody(
    size: int, objective: bool
) -> None:
    night = Hours(size, objective=objective)
    night.pass_minutes(90, rate=0.11 * size)
    night.records.clear()
    night.on_demand_hours = 0.0
    night.pass_minutes(60)
    night.lose()
    night.pass_minutes(120)
    night.lose()
    night.pass_minutes(120)
    assert night.replaced == 0
    assert "bootstrap" not in night.alarms
    assert night.on_demand_hours <= 0.2 * size


def test_on_demand_that_is_met_again_in_a_known_night_is_given_back() -> None:
    """Turns stopped for longer than a fleet is remembered; no log arrives until the morning."""
    night = Hours(4, objective=True)
    night.pass_minutes(90, rate=0.44)
    night.pass_minutes(30)
    night.turned = False
    night.cloud.set_desired("on-demand", 2)
    night.pass_minutes(30)
    night.turned = True
    night.pass_minutes(1)
    night.pass_minutes(30)
    assert night.cloud.group("on-demand").desired == 0


@pytest.mark.parametrize(("every_s", "objective"), [(240, False), (420, True)])
def test_a_request_every_few_minutes_lets_the_fleet_shrink(objective: bool, every_s: float) -> None:
    """Each pause between two requests renewed the need of the day."""
    day = Hours(12, objective=objective)
    day.pass_minutes(10, rate=1.6)
    assert len(day.in_service("spot")) > 8
    day.spot_hours = 0.0
    day.pass_minutes(150, every_s=every_s)
    assert day.spot_hours < 20
    assert len(day.in_service("spot")) <= 2


@pytest.mark.parametrize(("slow", "behind_s", "objective"), [(2, 600, False), (5, 240, True)])
def test_slow_clocks_of_some_workers_hide_no_load(
    slow: int, behind_s: float, objective: bool
) -> None:
    """What half of the workers served lay before the window, and the fleet was scaled in."""
    day = Hours(10, objective=objective)
    day.slow_clocks = dict.fromkeys(day.in_service("spot")[:slow], behind_s)
    day.records.clear()
    day.pass_minutes(60, rate=1.2)
    assert len(day.in_service("spot")) >= 10 - (1 if objective else 0)
    assert any("are their clocks right?" in record.reason for record in day.records)
    assert day.replaced == 0


@pytest.mark.parametrize(("service_s", "objective"), [(20.0, True), (60.0, False)])
def test_three_of_four_that_hang_are_suspected_within_ten_minutes(
    service_s: float, objective: bool
) -> None:
    """They are few and slow: what tells is that requests wait for the one that works."""
    day = Hours(4, service_s=service_s, objective=objective)
    day.fleet = replace(day.fleet, bounds=Bounds(spot_min=4, spot_max=4, on_demand_max=0))
    day.pass_minutes(60, rate=2.8 / service_s)
    day.hung = set(day.in_service("spot")[:3])
    day.records.clear()
    day.pass_minutes(10, rate=2.8 / service_s)
    told = " ".join(record.reason for record in day.records)
    assert {i for i in day.hung if i in told} == day.hung
    assert not {i for i in day.in_service("spot") if i in told} - day.hung


def test_nobody_serves_is_reported_within_ten_minutes_and_until_somebody_does() -> None:
    day = Hours(4, service_s=20.0, objective=True)
    day.fleet = replace(day.fleet, bounds=Bounds(spot_min=4, spot_max=4, on_demand_max=0))
    day.pass_minutes(60, rate=0.1)
    assert "nobody-serves" not in day.alarms
    day.hung = set(day.in_service("spot"))
    day.pass_minutes(10, rate=0.1)
    assert "nobody-serves" in day.alarms
    day.records.clear()
    day.pass_minutes(60, rate=0.1)
    health = [r for r in day.records if r.controller == "health"]
    assert all("nobody-serves" in record.alarms for record in health)
    assert all(record.seen["NobodyServes"] for record in health)
    assert day.replaced == 0
    day.hung.clear()
    day.busy_until.clear()
    day.pass_minutes(3, rate=0.1)
    assert "nobody-serves" not in day.records[-2].alarms


def test_a_silence_at_a_time_that_was_quiet_before_is_no_news() -> None:
    def silent_at(hours: float, *silences: Silence) -> str:
        flow = LogFlow(known_since=at(0), newest=at(3600 * hours - 900), rate=1.0)
        known = HealthMemory(flow=flow, in_service_since={"i-a": at(0)}, silences=silences)
        return nobody_serves(known, at(3600 * hours))

    night = Silence(since=at(8 * 3600), until=at(18 * 3600))
    assert silent_at(24 + 12, night) == ""
    assert silent_at(3 * 24 + 7.5, night) == ""
    assert "nobody serves, or requests have stopped" in silent_at(24 + 12)
    assert "nobody serves, or requests have stopped" in silent_at(24 + 5, night)


@pytest.mark.parametrize(("waited_s", "quiet"), [(0.5, 1), (900.0, 0)])
def test_a_silence_after_which_requests_had_waited_was_none(waited_s: float, quiet: int) -> None:
    before = LogFlow(known_since=at(0), newest=at(3600), rate=1.0)
    after = HealthMemory(flow=LogFlow(known_since=at(7200), newest=at(7260), rate=1.0))
    waits = histogram([round(1000 * waited_s)] * 9)
    seen = Load(at=at(7260), window_s=300, waits=waits)
    assert len(with_silence(after, before, seen, at(7260)).silences) == quiet


def test_a_group_whose_own_minimum_binds_is_named() -> None:
    """Adopted groups have one that no document shows: the size read as wanted."""
    day = Hours(3, objective=True)
    day.pass_minutes(30, rate=0.02)
    day.cloud.set_bounds("spot", 3, 40)
    day.pass_minutes(3, rate=0.02)
    record = [r for r in day.records if r.controller == "health" and "erlangs" in r.reason][-1]
    assert record.rule == "spot minimum"
    assert "; the group's MinSize is 3: spot " in record.reason
