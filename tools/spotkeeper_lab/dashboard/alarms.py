"""When an alarm of the template would have rung, from what was sent.

Source: CloudWatch user guide, "Using Amazon CloudWatch alarms": M of the last N periods, missing
ones not breaching. Alarms on metrics of AWS's own are not worked out: no demo sends those.
"""

import re
from collections.abc import Mapping
from typing import Any

from spotkeeper_lab.dashboard.metric_math import Samples, binned

_STATISTICS = {"MAX": "Maximum", "SUM": "Sum"}
_QUERY = re.compile(r"SELECT (MAX|SUM)\((\w+)\) FROM SCHEMA\(Spotkeeper, service, fleet\)")


def watched(alarm: Mapping[str, Any]) -> tuple[str, str, float] | None:
    """The metric of ours that an alarm watches, its statistic and period; None for AWS's own."""
    if alarm.get("Namespace") == "Spotkeeper":
        return alarm["MetricName"], alarm["Statistic"], float(alarm["Period"])
    for metric in alarm.get("Metrics", []):
        if found := _QUERY.match(metric.get("Expression", "")):
            return found[2], _STATISTICS[found[1]], float(metric["Period"])
    return None


def rang(
    alarm: Mapping[str, Any], samples: Samples, until_s: float
) -> list[tuple[float, float]] | None:
    """When it rang, from and to; None where that is not known."""
    if (what := watched(alarm)) is None:
        return None
    name, statistic, period_s = what
    line = binned(samples.get(name, ()), statistic, period_s)
    count = int(alarm["EvaluationPeriods"])
    needed = int(alarm.get("DatapointsToAlarm", count))
    times = [n * period_s for n in range(int(-(-until_s // period_s)))]
    over = [line.get(at_s, 0.0) > float(alarm["Threshold"]) for at_s in times]
    rings = [sum(over[max(0, n + 1 - count) : n + 1]) >= needed for n in range(len(over))]
    return _spans(rings, period_s)


def _spans(rings: list[bool], period_s: float) -> list[tuple[float, float]]:
    """Periods in a row as one; the state is known when a period is over."""
    spans: list[tuple[float, float]] = []
    for n, ringing in enumerate(rings):
        if not ringing:
            continue
        start, end = (n + 1) * period_s, (n + 2) * period_s
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans
