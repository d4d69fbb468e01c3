"""What an invocation leaves behind: metrics by name, one log line a fleet, and one error."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spotkeeper.domain.decision import Action, DecisionRecord, Half, Outcome
from spotkeeper.observability import METRICS, TurnFailed, emit, report
from spotkeeper.ports import FleetError, Throttled
from spotkeeper.turn import TurnReport
from tests.builders import at

type Lines = Callable[[], list[dict[str, Any]]]
type Told = Callable[[int], list[dict[str, Any]]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """The metric documents that were written so far."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The log records of a level, as they are given to the formatter."""
    caplog.set_level(logging.INFO)
    return lambda level: [vars(each) for each in caplog.records if each.levelno == level]


def metrics(written: list[dict[str, Any]], fleet: str = "ocr") -> dict[str, float]:
    """The metrics of a fleet; several documents of one name would be a fault."""
    values: dict[str, float] = {}
    for line in written:
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", []):
            assert directive["Namespace"] == "Spotkeeper"
            assert set(directive["Dimensions"][0]) == {"service", "fleet"}
            if line["fleet"] == fleet:
                named = [metric["Name"] for metric in directive["Metrics"]]
                assert values.keys().isdisjoint(named)
                values |= {name: line[name][0] for name in named}
    return values


def record(**changes: Any) -> DecisionRecord:
    values: dict[str, Any] = {
        "fleet": "ocr",
        "half": Half.AVAILABILITY,
        "at": at(0),
        "action": Action.HOLD,
        "rule": "at target",
        "reason": "spot 4 of 4 serving; nothing is missing",
        "seen": {"SpotDesired": 4, "SpotServing": 4},
    }
    return DecisionRecord(**values | changes)


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "spotkeeper-test")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Spotkeeper")


def test_a_record_becomes_metrics_and_one_line(lines: Lines, told: Told) -> None:
    assert report(TurnReport(records=(record(),))) == {
        "ocr": "spot 4 of 4 serving; nothing is missing"
    }
    assert metrics(lines()) == {
        "SpotDesired": 4,
        "SpotServing": 4,
        "DecisionHold": 1,
        "ConfigurationFailure": 0,
        "QuotaReached": 0,
        "BothShort": 0,
        "BreakerOpen": 0,
    }
    (line,) = told(logging.INFO)
    assert (line["fleet"], line["rule"], line["reason"]) == (
        "ocr",
        "at target",
        "spot 4 of 4 serving; nothing is missing",
    )


@pytest.mark.parametrize(
    ("alarm", "metric"),
    [
        ("configuration", "ConfigurationFailure"),
        ("permission", "ConfigurationFailure"),
        ("bootstrap", "ConfigurationFailure"),
        ("quota", "QuotaReached"),
        ("both_short", "BothShort"),
        ("breaker", "BreakerOpen"),
    ],
)
def test_an_alarm_is_a_metric_while_it_is_raised(alarm: str, metric: str, lines: Lines) -> None:
    report(TurnReport(records=(record(alarms=(alarm,)),)))
    raised = {name for name in ("ConfigurationFailure", "QuotaReached", "BothShort", "BreakerOpen")}
    values = metrics(lines())
    assert {name for name in raised if values[name]} == {metric}


@pytest.mark.parametrize("action", Action)
def test_every_action_is_counted(action: Action, lines: Lines) -> None:
    report(TurnReport(records=(record(action=action),)))
    counted = {name for name in metrics(lines()) if name.startswith("Decision")}
    assert counted == {f"Decision{action.capitalize()}"}


def test_the_health_half_raises_no_alarm_of_the_other(lines: Lines) -> None:
    report(TurnReport(records=(record(half=Half.HEALTH, seen={"WorkersNeeded": 3}),)))
    assert metrics(lines()) == {"WorkersNeeded": 3, "DecisionHold": 1}


def test_an_unknown_failure_is_logged_with_its_text_and_counted(lines: Lines, told: Told) -> None:
    unknown = record(seen={"UnknownFailures": 1}, unknown_failures=("The moon is wrong.",))
    report(TurnReport(records=(unknown,)))
    assert metrics(lines())["UnknownFailures"] == 1
    (warning,) = told(logging.WARNING)
    assert (warning["fleet"], warning["text"]) == ("ocr", "The moon is wrong.")


def test_a_busy_fleet_is_told_and_is_no_error(lines: Lines) -> None:
    assert report(TurnReport(busy=("ocr",))) == {}
    assert metrics(lines()) == {"TurnBusy": 1}


def test_errors_are_raised_together_after_all_was_told(lines: Lines, told: Told) -> None:
    turn = TurnReport(
        records=(record(fleet="search", outcomes=(Outcome(asked="x", error="y"),)),),
        failed=("ocr",),
        errors=(Throttled("fleet ocr: slow down"),),
    )
    with pytest.raises(TurnFailed) as caught:
        report(turn, [FleetError("fleet document other: version: wrong")])
    assert [str(error) for error in caught.value.exceptions] == [
        "fleet document other: version: wrong",
        "fleet ocr: slow down",
    ]
    told_alone = "not every fleet was turned: fleet document other: version: wrong; fleet ocr: slow"
    assert str(caught.value).startswith(told_alone)
    written = lines()
    assert metrics(written) == {"TurnFailed": 1}
    assert metrics(written, "search")["DecisionHold"] == 1
    assert [line["kind"] for line in told(logging.ERROR)] == ["FleetError", "Throttled"]


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(KeyError):
        emit("ocr", {"Moonphase": 1.0})


def test_a_metric_has_its_unit(lines: Lines) -> None:
    health: Mapping[str, float] = {"LoadRate": 70.0, "WaitP95": 1.5}
    emit("ocr", health)
    (written,) = lines()
    units = {m["Name"]: m["Unit"] for m in written["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
    assert units == {"LoadRate": "Percent", "WaitP95": "Seconds"}
    assert set(health) <= METRICS.keys()
