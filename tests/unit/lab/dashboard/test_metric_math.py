"""Metric math as the dashboard uses it, worked out by hand beside it."""

import pytest

from spotkeeper_lab.dashboard.metric_math import Line, Maths, UnknownExpression, binned

SENT = {
    "SpotServing": [(0.0, 3.0), (60.0, 2.0), (130.0, 2.0), (170.0, 1.0)],
    "OnDemandServing": [(65.0, 1.0)],
    "Saved": [(10.0, 1.0), (3590.0, 2.0), (3610.0, 4.0)],
}


def search(names: str, statistic: str = "Maximum", period: int = 60) -> str:
    schema = '{Spotkeeper,service,fleet} service="demo" MetricName='
    return f"SEARCH('{schema}{names}', '{statistic}', {period})"


SPOT = search('"SpotServing"')
BOTH = search('("SpotServing" OR "OnDemandServing" OR "NeverSent")')


def maths(since_s: float = 0.0) -> Maths:
    return Maths(samples=SENT, since_s=since_s, until_s=180.0, period_s=60.0)


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        pytest.param(f"SUM({SPOT})", {0.0: 3.0, 60.0: 2.0, 120.0: 2.0}, id="highest of a period"),
        pytest.param(f"SUM({BOTH})", {0.0: 3.0, 60.0: 3.0, 120.0: 2.0}, id="what is there"),
        pytest.param(
            f"100 * SUM({SPOT}) / SUM({BOTH})",
            {0.0: 100.0, 60.0: pytest.approx(200 / 3), 120.0: 100.0},
            id="a share",
        ),
        pytest.param(
            f"RUNNING_SUM(SUM({search('"Saved"', 'Sum', 3600)}))",
            {0.0: 3.0, 3600.0: 7.0},
            id="added up",
        ),
        pytest.param(f"SUM({SPOT}) / (SUM({SPOT}) - SUM({SPOT}))", {}, id="nothing over nothing"),
    ],
)
def test_an_expression_comes_to(expression: str, line: Line) -> None:
    assert maths().answer(expression) == line


def test_a_search_answers_what_was_sent_by_name_and_filling_knows_every_period() -> None:
    assert maths().answer(BOTH) == [
        ("SpotServing", {0.0: 3.0, 60.0: 2.0, 120.0: 2.0}),
        ("OnDemandServing", {60.0: 1.0}),
    ]
    found = maths().answer(f"FILL({BOTH}, 0)")
    assert isinstance(found, list)
    assert found[1][1] == {0.0: 0.0, 60.0: 1.0, 120.0: 0.0}


def test_what_missed_a_period_has_no_result_in_it() -> None:
    on_demand = f"SUM({search('"OnDemandServing"')})"
    assert maths().answer(f"SUM({SPOT}) + {on_demand}") == {60.0: 3.0}


def test_a_line_has_the_time_of_its_widget_only() -> None:
    assert maths(since_s=60.0).answer(f"SUM({SPOT})") == {60.0: 2.0, 120.0: 2.0}


@pytest.mark.parametrize(
    "expression",
    [
        "AVG(METRICS())",
        "100",
        "unknown / 2",
        f"{SPOT} / 2",
        f"FILL({SPOT}, REPEAT)",
        "SEARCH('{AWS/EC2,InstanceId} MetricName=\"CPUUtilization\"', 'Average', 60)",
        "SUM(",
    ],
)
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(UnknownExpression):
        maths().answer(expression)


def test_a_period_without_a_sample_is_no_zero() -> None:
    assert binned([(0.0, 1.0), (120.0, 2.0)], "Sum", 60.0) == {0.0: 1.0, 120.0: 2.0}
