"""A health turn: what it reads, asks for, records, and what it leaves alone when AWS balks."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from spotkeeper.domain.decision import Action, Controller
from spotkeeper.domain.load.digest import Status, digest
from spotkeeper.domain.load.load import Cluster, LoadDigest
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.domain.sizing.decide import HealthAssessment, HealthPlan, plan
from spotkeeper_lab.fakes import FakeLoadTable, instant
from tests.unit.turns.stage import START_S, Stage, hung, served


def test_less_load_ends_the_least_busy_instances() -> None:
    stage = Stage(sizing=SizingPolicy(scale_in_after_s=0))
    busy, *idle = stage.spot
    for minute in range(6):
        stage.serve(minute, {busy: 0.6} | dict.fromkeys(idle, 0.25))
        assert stage.cloud.group("spot").desired == 4
        stage.turn(minute)
    assert stage.cloud.group("spot").desired == 2
    assert busy in stage.spot
    assert len(set(idle) & set(stage.spot)) == 1


def test_what_nobody_foresaw_stops_one_fleet_and_is_raised_when_all_had_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    met = replace(stage.fleet, name="met")

    def failing(seen: HealthAssessment) -> HealthPlan:
        assert seen.snapshot.fleet.name != "met"
        return plan(seen)

    monkeypatch.setattr("spotkeeper.turns.check_health.plan", failing)
    with pytest.raises(ExceptionGroup) as caught:
        stage.turn(0, [met, stage.fleet])
    [error] = caught.value.exceptions
    assert isinstance(error, AssertionError)
    assert error.__notes__ == ["in the turn of fleet met"]
    assert stage.cloud.group("spot").desired == 6
    assert stage.states.acquire("met", Controller.HEALTH, instant(START_S), None) is not None


def test_stale_logs_change_nothing_and_raise_an_alarm() -> None:
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(4).records
    assert (record.rule, record.alarms) == ("stale search logs", ("stale-search-logs",))
    assert (record.seen["StaleSearchLogs"], record.seen["SearchLogAge"]) == (1, 240)
    assert (record.outcomes, stage.cloud.group("spot").desired) == ((), 4)


def test_logs_that_stopped_long_ago_are_not_called_never_come() -> None:
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    stage.turn(0)
    (record,) = stage.turn(60).records
    assert "the newest is 3600 s old" in record.reason
    assert record.seen["SearchLogAge"] == 3600


def test_stale_logs_ring_nobody_where_no_one_sizes_by_them() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(4).records
    assert (record.alarms, record.seen["StaleSearchLogs"]) == ((), 0)


def test_with_sizing_off_the_group_is_someone_elses() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(0).records
    assert (record.action, record.rule, record.outcomes) == (Action.HOLD, "sizing is off", ())
    assert record.seen["WorkersNeeded"] == 6


def test_a_hung_worker_is_replaced_after_two_observations() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim = hung(stage)
    assert victim in stage.spot
    (record,) = stage.turn(7).records
    assert victim not in stage.spot
    assert record.seen["WorkersReplaced"] == 1
    assert record.outcomes[0].asked.startswith(f"replace {victim}: finished nothing for 360 s")


def test_a_worker_that_never_reports_has_until_the_launch_deadline() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim, *well = stage.spot
    for minute in (0, 9, 10, 11):
        stage.serve(minute, dict.fromkeys(well, 0.9))
        record = stage.turn(minute).records[0]
        assert (victim in record.reason) is (minute >= 10)
        assert ("bootstrap" in record.alarms) is (minute >= 10)
    assert record.seen["ConfigurationFailure"] == 1
    assert record.outcomes[0].asked == (
        f"replace {victim}: never reported in 660 s: its workers do not start"
    )
    assert victim not in stage.spot


def test_failing_workers_on_premises_are_named_and_alarmed_about() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    stage.fleet = replace(stage.fleet, onprem_workers=1)
    for minute, due in ((0, 0), (1, 1)):
        stage.serve(minute, dict.fromkeys(stage.spot, 0.9))
        now_s = START_S + 60 * minute
        ill = [
            replace(served("", now_s - n, 0.5, Status.ERROR), cluster=Cluster.ONPREM)
            for n in range(6)
        ]
        stage.table.add(digest(ill, instant(now_s), "ocr"))
        (record,) = stage.turn(minute).records
        assert "on-premises gpu- " in record.reason
        assert record.seen["OnPremWorkersSuspect"] == due
        assert ("onprem-workers" in record.alarms) is bool(due)
    assert record.outcomes == ()


class _LastWord(FakeLoadTable):
    """A load table into which one more digest arrives between two readings."""

    def __init__(self, before: FakeLoadTable, late: Sequence[LoadDigest]) -> None:
        super().__init__()
        self._before, self._late, self._reads = before, late, 0

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        self._reads += 1
        late = self._late if self._reads > 1 else ()
        return (*self._before.since(fleet, since), *late)


def test_the_last_check_reads_the_logs_once_more() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim = hung(stage)
    now_s = START_S + 7 * 60
    late = digest([served(victim, now_s, 5.0, Status.OK)], instant(now_s), "ocr")
    stage.ports = replace(stage.ports, load=_LastWord(stage.table, late))
    (record,) = stage.turn(7).records
    assert (record.seen["WorkersReplaced"], record.outcomes) == (0, ())
    assert victim in stage.spot


def test_an_instance_that_is_scaled_in_is_not_replaced_as_well() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim = hung(stage)
    sized = SizingPolicy(scale_in_after_s=0, target_load_rate=1.0)
    (record,) = stage.turn(7, [replace(stage.fleet, sizing=sized)]).records
    asked = [outcome.asked for outcome in record.outcomes]
    assert f"end {victim}" in asked
    assert not any(each.startswith(f"replace {victim}") for each in asked)
    assert not any(outcome.error for outcome in record.outcomes)
