"""Logs Insights as the dashboard uses it."""

from typing import Any

import pytest

from spotkeeper_lab.dashboard.insights import UnknownQuery, answer

LINES: list[dict[str, Any]] = [
    {"@timestamp": at, "message": "turned", "controller": "health", "rule": rule, "load": load}
    for at, rule, load in [
        (60.0, "at target", 1.0),
        (120.0, "at target", 3.0),
        (180.0, "stale", None),
        (3600.0, "at target", 5.0),
    ]
] + [{"@timestamp": 90.0, "message": "counted", "controller": "health", "rule": "-"}]


def test_runs_of_a_rule_within_the_hour_are_told_since_when_and_how_often() -> None:
    rows = answer(
        "SOURCE 'logs' | filter message = 'turned' | stats min(@timestamp) as since, "
        "count(*) as turns, latest(load) as load by rule, bin(1h) | sort since desc | limit 2",
        LINES,
    )
    assert rows == [
        {"rule": "at target", "bin(1h)": 3600.0, "since": 3600.0, "turns": 1, "load": 5.0},
        {"rule": "stale", "bin(1h)": 0.0, "since": 180.0, "turns": 1, "load": None},
    ]


def test_a_mean_leaves_out_what_is_not_there() -> None:
    rows = answer(
        "filter rule = 'stale' and controller = 'health' | stats avg(load) by bin(5m)", LINES
    )
    assert rows == [{"bin(5m)": 0.0, "avg(load)": None}]
    rows = answer("filter message = 'turned' | stats avg(load) by bin(5m)", LINES)
    assert [row["avg(load)"] for row in rows] == [2.0, 5.0]


@pytest.mark.parametrize(
    "query",
    [
        "fields @message",
        "filter rule like 'a'",
        "stats pct(load, 95) by controller",
        "sort load asc",
    ],
)
def test_what_is_not_understood_is_refused(query: str) -> None:
    with pytest.raises(UnknownQuery):
        answer(query, LINES)
