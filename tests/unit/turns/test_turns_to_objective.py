"""Health turns of a fleet with an objective: what is read and kept, and what is said."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import pytest

from spotkeeper.domain.decision import Controller
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper_lab.fakes import FakeLoadHistories, instant
from tests.unit.turns.stage import START_S, Stage


class Writes(FakeLoadHistories):
    """Histories that count how often they are written."""

    written = 0

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Count, and keep."""
        self.written += 1
        super().write(fleet, history, now)


def promised(spot: int = 4, wait_s: float = 10.0) -> Stage:
    """A stage with an objective."""
    stage = Stage(spot)
    stage.fleet = replace(stage.fleet, objective=Objective(wait_s=wait_s, share=0.95))
    stage.ports = replace(stage.ports, histories=Writes())
    return stage


def serve(stage: Stage, minute: int, shares: Mapping[str, float]) -> None:
    """Serve for the minutes of a window."""
    for back in (10, 5, 0):
        stage.serve(minute - back, shares)


def test_the_promise_sizes_the_group_and_the_record_says_so() -> None:
    stage = promised()
    serve(stage, 0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(0).records
    assert record.rule == "objective"
    assert record.reason.startswith("load 3.6 erlangs needs ")
    assert "start 95% within 10 s" in record.reason
    assert stage.cloud.group("spot").desired == record.seen["WorkersNeeded"] > 4
    assert record.seen["ArrivalRate"] == pytest.approx(0.4, rel=0.05)
    assert record.seen["ServiceMean"] == pytest.approx(9.0, rel=0.05)
    assert record.seen.keys() >= {"Dispersion10s", "Dispersion60s", "ServiceP95", "WorkersMissing"}


def test_booting_workers_are_not_asked_for_again() -> None:
    stage = promised()
    serve(stage, 0, dict.fromkeys(stage.spot, 0.9))
    stage.turn(0)
    asked = stage.cloud.group("spot").desired
    for minute in (1, 2):
        stage.serve(minute, dict.fromkeys(stage.spot[:4], 0.9))
        stage.turn(minute)
        assert stage.cloud.group("spot").desired == asked


def test_the_history_is_written_once_a_step() -> None:
    stage = promised()
    histories = stage.ports.histories
    assert isinstance(histories, Writes)
    members = stage.spot
    for minute in range(21):
        stage.serve(minute, dict.fromkeys(members, 0.5))
        stage.turn(minute)
    history = histories.read("ocr")
    # The first five minutes were served before the first turn.
    assert histories.written == len(history.work_ms) / 5 == 4
    assert sum(history.work_ms[5:]) == pytest.approx(3 * 600_000, rel=0.02)


def test_a_bound_that_is_too_low_raises_an_alarm() -> None:
    stage = promised()
    bounds = replace(stage.fleet.bounds, spot_max=3)
    stage.fleet = replace(stage.fleet, bounds=bounds)
    serve(stage, 0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(0).records
    assert (record.rule, record.alarms) == ("spot maximum", ("objective-missed",))
    assert record.seen["WorkersMissing"] > 0
    assert "the bound of 3 is" in record.reason


def test_start_up_is_measured_from_launches() -> None:
    stage = promised()
    serve(stage, 0, dict.fromkeys(stage.spot, 0.9))
    stage.turn(0)
    first = stage.spot[:4]
    for minute in range(1, 8):
        stage.serve(minute, dict.fromkeys(first, 0.9))
        stage.turn(minute)
    lease = stage.states.acquire("ocr", Controller.HEALTH, instant(START_S + 480), None)
    assert lease
    cold_start_s = stage.cloud.physics.cold_start_s
    assert len(lease.health.start_ups) == stage.cloud.group("spot").desired - 4
    assert lease.health.start_ups[0] == pytest.approx(cold_start_s, abs=60)
