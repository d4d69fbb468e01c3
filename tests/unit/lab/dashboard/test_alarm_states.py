"""When the template's alarms would have rung."""

from typing import Any

import pytest

from spotkeeper_lab.dashboard.alarms import rang, watched
from spotkeeper_lab.dashboard.board import board
from tests.template.stack import Stack

ALARMS = board({"FleetName": "demo"}).alarms
END_S = 1800.0


def sent(name: str, *minutes: int) -> dict[str, list[tuple[float, float]]]:
    return {name: [(60.0 * minute, 1.0) for minute in minutes]}


@pytest.mark.parametrize(
    ("alarm", "samples", "spans"),
    [
        pytest.param("BothShortAlarm", sent("BothShort", 3), [], id="one period of two"),
        pytest.param(
            "BothShortAlarm", sent("BothShort", 3, 4), [(300.0, 360.0)], id="two in a row"
        ),
        pytest.param("BothShortAlarm", sent("BothShort", 3, 5), [], id="with one missing between"),
        pytest.param(
            "ConfigurationFailureAlarm",
            sent("ConfigurationFailure", 1, 2, 9),
            [(120.0, 240.0), (600.0, 660.0)],
            id="one is enough, and again",
        ),
        pytest.param("OnDemandTooLongAlarm", sent("OnDemandDesired", *range(30)), [], id="hours"),
        pytest.param("ErrorsAlarm", {}, None, id="AWS's own metric"),
    ],
)
def test_an_alarm_rang(
    alarm: str, samples: dict[str, Any], spans: list[tuple[float, float]] | None
) -> None:
    assert rang(ALARMS[alarm], samples, END_S) == spans


def test_the_board_is_the_templates() -> None:
    """Two readers of the template, the one of the tests and the lab's, read the same."""
    stack = Stack.with_parameters({"LaunchTemplateId": "lt-0"})
    expected = stack.resources("AWS::CloudWatch::Alarm")
    assert ALARMS.keys() == expected.keys()
    for name, alarm in expected.items():
        assert ALARMS[name]["AlarmDescription"] == alarm["AlarmDescription"]
        assert str(ALARMS[name]["EvaluationPeriods"]) == str(alarm["EvaluationPeriods"])


def test_every_alarm_on_our_metrics_is_understood() -> None:
    ours = {name for name, alarm in ALARMS.items() if "Spotkeeper" in str(alarm)}
    assert {name for name, alarm in ALARMS.items() if watched(alarm)} == ours
