"""Turns on a load that is known in part: late logs, gaps, outages, broken shippers, adoption."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.load.digest import SearchLog, digest
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.turns.check_availability import check_availability
from spotkeeper_lab.fakes import instant
from tests.unit.turns.stage import START_S, Stage, served


@dataclass(slots=True)
class Poisson:
    """A stage on which any idle worker serves Poisson requests, and logs reach the table late.

    The first turn is at minute 0; The logs of the instances in `dark` never arrive.
    """

    stage: Stage
    erlangs: float
    service_s: float = 2.0
    late_s: float = 0.0
    dark: set[str] = field(default_factory=set)
    random: Random = field(default_factory=lambda: Random(7))
    desired: list[int] = field(default_factory=list)
    records: list[DecisionRecord] = field(default_factory=list)

    def minutes(
        self, first: int, last: int, *, logged: bool = True, turned: bool = True
    ) -> DecisionRecord | None:
        """Let minutes pass, with or without turns. Their logs arrive or are lost."""
        for minute in range(first, last):
            for ten in range(6):
                end_s = START_S + 60 * (minute - 1) + 10 * (ten + 1)
                if logged:
                    self._serve(end_s)
            if turned:
                self._turn(minute)
        return self.records[-1] if self.records else None

    def _serve(self, end_s: float) -> None:
        """Serve ten seconds of requests; the message is sent `late_s` after its logs."""
        who = [i for i in self.stage.spot]
        if not who:
            return
        mean = self.erlangs / self.service_s * 10
        count = sum(self.random.random() < mean / 200 for _ in range(200))
        logs = [
            self._log(self.random.choice(who), end_s - 10 * self.random.random())
            for _ in range(count)
        ]
        logs = [log for log in logs if log.instance_id not in self.dark]
        if logs:
            self.stage.table.add(digest(logs, instant(end_s + self.late_s), "ocr"))

    def _log(self, instance_id: str, finished_s: float) -> SearchLog:
        log = served(instance_id, finished_s, self.service_s, waited_s=0.1)
        return replace(log, request_id=f"{self.random.random()}")

    def _turn(self, minute: int) -> None:
        (record,) = self.stage.turn(minute).records
        self.records.append(record)
        self.desired.append(self.stage.cloud.group("spot").desired)


def fleet_of(spot: int, erlangs: float, *, objective: bool = False, late_s: float = 0.0) -> Poisson:
    stage = Stage(spot=spot, sizing=SizingPolicy(scale_in_after_s=60))
    if objective:
        stage.fleet = replace(stage.fleet, objective=Objective(wait_s=10, share=0.95))
    return Poisson(stage=stage, erlangs=erlangs, late_s=late_s)


BOTH = pytest.mark.parametrize("objective", [False, True], ids=["load rate", "objective"])


@BOTH
def test_late_logs_are_no_less_load(objective: bool) -> None:
    fleet = fleet_of(15, 10.0, late_s=155.0, objective=objective)
    fleet.minutes(-20, 0, turned=False)
    fleet.minutes(0, 30)
    assert min(fleet.desired) >= 11


def test_a_gap_in_the_logs_gives_nothing_back() -> None:
    fleet = fleet_of(15, 10.0, objective=True)
    fleet.minutes(-20, 0, turned=False)
    fleet.minutes(0, 15)
    fleet.minutes(15, 18, logged=False)
    fleet.minutes(18, 40)
    assert min(fleet.desired[13:33]) >= 11
    assert min(fleet.desired[33:]) >= 10


def test_an_outage_of_the_turns_and_the_logs_gives_nothing_back() -> None:
    fleet = fleet_of(15, 10.0, objective=True)
    fleet.minutes(-20, 0, turned=False)
    fleet.minutes(0, 15)
    before = fleet.desired[-1]
    fleet.minutes(15, 40, logged=False, turned=False)
    fleet.minutes(40, 42)
    assert fleet.desired[-2:] == [before, before]
    fleet.minutes(42, 60)
    assert min(fleet.desired) >= 10


def test_an_adopted_fleet_is_not_cut_to_what_a_minute_of_logs_tells() -> None:
    fleet = fleet_of(12, 8.0, objective=True)
    fleet.minutes(0, 4)
    assert set(fleet.desired) == {12}


@BOTH
def test_a_load_that_falls_is_followed_once_a_whole_window_is_known(objective: bool) -> None:
    fleet = fleet_of(15, 10.0, objective=objective)
    fleet.minutes(-20, 0, turned=False)
    fleet.minutes(0, 15)
    fleet.erlangs = 2.0
    fleet.minutes(15, 60)
    assert fleet.desired[-1] <= 6


def test_half_of_the_shippers_broken_does_not_shrink_and_tries_whether_a_successor_reports() -> (
    None
):
    fleet = fleet_of(12, 8.0, objective=True)
    fleet.minutes(-20, 0, turned=False)
    fleet.minutes(0, 10)
    before = fleet.desired[-1]
    fleet.dark = set(fleet.stage.spot[::2])
    for minute in range(10, 60):
        there = set(fleet.stage.spot)
        fleet.minutes(minute, minute + 1)
        # Their network is broken: the successors' logs are lost, too.
        fleet.dark |= set(fleet.stage.spot) - there
    assert min(fleet.desired[10:]) >= before - 1
    replaced = [record.seen["WorkersReplaced"] for record in fleet.records]
    assert (sum(replaced[:40]), sum(replaced)) == (0, 2)
    assert "search-logs-missing" in fleet.records[-1].alarms
    assert fleet.records[-1].rule == "partly known load"
    fleet.dark = set()
    fleet.minutes(60, 90)
    assert min(fleet.desired[60:]) >= 8


def test_healthy_workers_at_little_load_are_left_alone() -> None:
    fleet = fleet_of(4, 4 * 2.0 / 300)
    fleet.stage.fleet = replace(fleet.stage.fleet, sizing=SizingPolicy(enabled=False))
    fleet.minutes(0, 12 * 60)
    assert sum(record.seen["WorkersReplaced"] for record in fleet.records) == 0


def test_a_hung_worker_at_little_load_is_found_in_the_end() -> None:
    fleet = fleet_of(4, 20 * 2.0 / 300)
    fleet.stage.fleet = replace(fleet.stage.fleet, sizing=SizingPolicy(enabled=False))
    fleet.minutes(0, 60)
    hung = fleet.stage.spot[0]
    fleet.dark = {hung}
    fleet.minutes(60, 120)
    assert hung not in fleet.stage.spot
    assert sum(record.seen["WorkersReplaced"] for record in fleet.records) == 1


def test_the_minimum_rules_in_silence_too() -> None:
    stage = Stage(spot=0)
    stage.fleet = replace(stage.fleet, bounds=Bounds(spot_min=2, spot_max=10, on_demand_max=10))
    (record,) = stage.turn(0).records
    assert (record.rule, stage.cloud.group("spot").desired) == ("spot minimum", 2)


def test_the_maximum_rules_with_spares_and_in_silence() -> None:
    stage = Stage(spot=12)
    stage.fleet = replace(stage.fleet, bounds=Bounds(spot_min=0, spot_max=10, on_demand_max=10))
    stage.turn(0)
    assert stage.cloud.group("spot").desired == 10


def onprem_logs(minute: int) -> list[SearchLog]:
    """A worker on premises serves all the time."""
    return [served("", START_S + 60 * minute - n, 1.0, waited_s=0) for n in range(0, 60, 4)]


def test_on_premises_workers_that_die_while_spot_is_zero_wake_a_worker() -> None:
    stage = Stage(spot=0)
    stage.fleet = replace(stage.fleet, onprem_workers=2)
    for minute in range(8):
        if minute < 3:
            stage.table.add(digest(onprem_logs(minute), instant(START_S + 60 * minute), "ocr"))
        stage.turn(minute)
    assert stage.cloud.group("spot").desired == 1


def test_on_demand_goes_where_machines_on_premises_carry_the_load() -> None:
    """Spot already has the size that the load needs, so nothing is ever requested of it."""
    stage = Stage(spot=0)
    stage.cloud.set_desired("on-demand", 3)
    stage.fleet = replace(stage.fleet, onprem_workers=2)
    for minute in range(15):
        logs = onprem_logs(minute)
        members = stage.cloud.group("on-demand").instances
        working = [i.instance_id for i in members if i.state == "InService"]
        logs += [served(i, START_S + 60 * minute - n, 1.0) for i in working for n in (3, 33)]
        stage.table.add(digest(logs, instant(START_S + 60 * minute), "ocr"))
        stage.turn(minute)
        check_availability([stage.fleet], stage.ports, instant(START_S + 60 * minute))
    assert (stage.cloud.group("spot").desired, stage.cloud.group("on-demand").desired) == (0, 0)


def test_no_on_demand_goes_while_the_turns_of_the_health_controller_have_stopped() -> None:
    """Whether the instances in service since then work is not known."""
    fleet = fleet_of(4, 2.0)
    stage = fleet.stage
    stage.cloud.set_desired("on-demand", 2)
    on_demand = []
    for minute in range(60):
        fleet.minutes(minute, minute + 1, turned=minute < 10 or minute >= 40)
        if minute >= 18:
            check_availability([stage.fleet], stage.ports, instant(START_S + 60 * minute))
        on_demand.append(stage.cloud.group("on-demand").desired)
    assert set(on_demand[:40]) == {2}
    assert on_demand[-1] == 0


def test_a_turn_that_was_missed_makes_no_pace_slower() -> None:
    """The last request arrived before the worker hung; the pace is no slower two turns later."""
    rates = []
    for missed in range(3):
        fleet = fleet_of(1, 0.1)
        fleet.minutes(-20, 0, turned=False)
        fleet.minutes(0, 30)
        fleet.minutes(30, 31, turned=not missed)
        fleet.minutes(31, 31 + missed, logged=False, turned=False)
        fleet.stage.turn(30 + missed)
        minute = instant(START_S + 60 * (31 + missed))
        lease = fleet.stage.states.acquire("ocr", Controller.HEALTH, minute, None)
        assert lease is not None
        rates.append(lease.health.flow.rate)
    assert min(rates) > max(rates) / 2
