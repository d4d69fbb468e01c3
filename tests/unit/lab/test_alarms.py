"""CloudWatch in the lab, against its user guide."""

import pytest

from spotkeeper_lab.alarms import Metric, Metrics, State, calculate, state_of
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
    ],
)
def test_metric_math(expression: str, result: list[float | None]) -> None:
    assert calculate(expression, {"m1": [None, 1.0, 2.0], "m2": [None, None, 3.0]}) == result


def test_an_expression_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="ANOMALY_DETECTION_BAND"):
        calculate("ANOMALY_DETECTION_BAND(m1)", {"m1": []})


def test_a_period_is_a_window_that_slides_with_each_minute() -> None:
    """The guide, "Evaluating an alarm": after minute 6 it is minutes 2 to 6."""
    metrics, metric = Metrics(), Metric("N", "m", frozenset({("d", "v")}))
    for minute in range(7):
        metrics.put(metric, 60.0 * minute, float(minute))
    assert metrics.points(metric, "Sum", 300, 5, 1) == [15.0]
    assert metrics.points(metric, "Sum", 300, 6, 1) == [20.0]
