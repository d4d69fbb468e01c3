"""CloudWatch in the lab, against its user guide."""

import json
from typing import Any

import pytest

from spotkeeper_lab.alarms import Alarm, Metric, Metrics, State, calculate, state_of
from tests.builders import evidence

GUIDE = evidence("alarm_states")
TREATED = ("missing", "ignore", "breaching", "notBreaching")


@pytest.mark.parametrize("row", GUIDE, ids=lambda row: "/".join([*row.values()][:3]))
@pytest.mark.parametrize("treat", TREATED)
@pytest.mark.parametrize("before", State)
def test_the_guides_tables(row: dict[str, str], treat: str, before: State) -> None:
    breaching = [{"0": False, "X": True, "-": None}[one] for one in row["points"]]
    periods, datapoints = int(row["evaluation_periods"]), int(row["datapoints_to_alarm"])
    state = state_of(breaching, periods, datapoints, treat, before)
    match row[treat]:
        case "RETAIN":
            assert state is before
        case "WAIT":
            assert state is not State.ALARM
        case known:
            assert state == known


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        # The guide: "Missing values in a time series are treated as 0".
        ("m1 * m2", [None, 0.0, 6.0]),
        ("2 * m1 + m2", [None, 2.0, 7.0]),
        ("m1 - 1", [None, 0.0, 1.0]),
        ("SUM(METRICS())", [None, 1.0, 5.0]),
        ("MAX([m1, m2])", [None, 1.0, 3.0]),
        ("DIFF(FILL(m2, 0))", [None, 0.0, 3.0]),
    ],
)
def test_metric_math(expression: str, result: list[float | None]) -> None:
    assert calculate(expression, {"m1": [None, 1.0, 2.0], "m2": [None, None, 3.0]}) == result


def test_an_expression_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="ANOMALY_DETECTION_BAND"):
        calculate("ANOMALY_DETECTION_BAND(m1)", {"m1": []})


def log_line(fleet: str, value: float) -> str:
    names = [{"Name": "Short", "Unit": "Count"}]
    dimensions = [["service", "fleet"]]
    directive = {"Namespace": "Spotkeeper", "Dimensions": dimensions, "Metrics": names}
    of = {"service": "ocr", "fleet": fleet, "Short": [value]}
    return json.dumps({"_aws": {"CloudWatchMetrics": [directive]}, **of})


def short(**changes: Any) -> Alarm:
    query = "SELECT MAX(Short) FROM SCHEMA(Spotkeeper, service, fleet) WHERE service = 'ocr'"
    expression = f"{query} GROUP BY fleet"
    return Alarm(
        {
            "AlarmName": "short",
            "Metrics": [{"Id": "q", "Period": 60, "Expression": expression}],
            "EvaluationPeriods": 2,
            "Threshold": 0,
            "ComparisonOperator": "GreaterThanThreshold",
            "TreatMissingData": "notBreaching",
        }
        | changes
    )


def test_each_fleet_of_a_query_rings_by_itself_and_goes_back_by_itself() -> None:
    metrics, alarm = Metrics(), short()
    said: list[tuple[int, str, State]] = []
    for minute, (a, b) in enumerate([(1, 0), (1, 0), (1, 1), (0, 1), (0, 0)]):
        for fleet, value in (("a", a), ("b", b), ("other", 0)):
            metrics.put_log(log_line(fleet, value), 60.0 * minute)
        metrics.put_log("START RequestId: 1", 60.0 * minute)
        said += [(minute, c.contributor, c.state) for c in alarm.evaluate(metrics, minute)]
    assert said == [
        (0, "", State.OK), (1, "a", State.ALARM), (1, "", State.ALARM), (3, "a", State.OK),
        (3, "b", State.ALARM), (4, "b", State.OK), (4, "", State.OK),
    ]  # fmt: skip


def test_a_query_that_finds_nothing_has_no_data_and_a_fleet_that_is_gone_is_fine() -> None:
    """The guide, "Missing data in CloudWatch Metrics Insights alarms"."""
    metrics, alarm = Metrics(), short(TreatMissingData="breaching")
    for minute in range(2):
        metrics.put_log(log_line("a", 1), 60.0 * minute)
        alarm.evaluate(metrics, minute)
    assert alarm.ringing == ("a",)
    said = alarm.evaluate(metrics, 9)
    assert [(c.contributor, c.state) for c in said] == [("a", State.OK), ("", State.NO_DATA)]


def test_a_period_is_a_window_that_slides_with_each_minute() -> None:
    """The guide, "Evaluating an alarm": after minute 6 it is minutes 2 to 6."""
    metrics, metric = Metrics(), Metric("N", "m", frozenset({("d", "v")}))
    for minute in range(7):
        metrics.put(metric, 60.0 * minute, float(minute))
    assert metrics.points(metric, "Sum", 300, 5, 1) == [15.0]
    assert metrics.points(metric, "Sum", 300, 6, 1) == [20.0]
