"""Traces that are odd and ordinary: requests that take no time, one a day, weeks without any."""

import math

import numpy as np
import pytest

from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_lab.run.replay import RULE_NAMES, run_rule
from spotkeeper_lab.traces.requests import RequestTrace

HOUR_S, DAY_S = 3600.0, 86_400.0
EVERY_6_S = np.arange(600) * 6.0
ODD = {
    "no time at all": (EVERY_6_S, np.zeros(600), HOUR_S),
    # A trace that rounds to seconds has both.
    "no time at last": (EVERY_6_S, np.repeat([1.0, 0.0], 300), HOUR_S),
    "a single request": (np.array([100.0]), np.zeros(1), HOUR_S),
    "one a day": (HOUR_S + DAY_S * np.arange(2), np.full(2, 2.0), DAY_S + 2 * HOUR_S),
    "idle for 23 days": (
        np.concatenate([EVERY_6_S, 23 * DAY_S + EVERY_6_S]),
        np.ones(1200),
        23 * DAY_S + HOUR_S,
    ),
}


# Rules that look every few seconds, or judge each minute, take long for days.
CASES = [
    (rule, name)
    for rule in RULE_NAMES
    for name in ODD
    if rule == "load-rate" or name not in ("one a day", "idle for 23 days")
]


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_every_rule_replays_an_odd_trace(rule: str, name: str) -> None:
    arrival_s, service_s, end_s = ODD[name]
    trace = RequestTrace(name=name, arrival_s=arrival_s, service_s=service_s, end_s=end_s)
    row = run_rule(trace, rule, ReplaySettings()).row
    assert row.lost == 0
    assert math.isfinite(row.worker_hours)
    assert 0 <= row.share_in_time <= 1
