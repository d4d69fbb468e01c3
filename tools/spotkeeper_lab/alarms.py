"""CloudWatch as its user guide describes it: metrics, metric math, queries, and states of alarms.

An alarm is evaluated every minute. It looks at its evaluation range: its periods and two more, as
in the guide's tables. Held by `tests/evidence/alarm_states.tsv`.
"""

import ast
import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MINUTE_S = 60
EXTRA_PERIODS = 2
"""A belief beyond the guide's example, which looks at five datapoints for three."""
QUERIED_MINUTES = 180
"""A query of an alarm sees the last three hours."""


class State(StrEnum):
    OK = "OK"
    ALARM = "ALARM"
    NO_DATA = "INSUFFICIENT_DATA"


type Points = list[float | None]
"""Datapoints, the latest at the end; None where one is missing."""


@dataclass(frozen=True, slots=True)
class Metric:
    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Metric":
        """Return the metric that an API or a template describes."""
        dimensions = frozenset((one["Name"], one["Value"]) for one in described["Dimensions"])
        return cls(described["Namespace"], described["MetricName"], dimensions)


class Metrics:
    """The values of all metrics by their minute."""

    def __init__(self) -> None:
        self._minutes: defaultdict[Metric, dict[int, list[float]]] = defaultdict(dict)

    def put(self, metric: Metric, at_s: float, value: float) -> None:
        self._minutes[metric].setdefault(int(at_s // MINUTE_S), []).append(value)

    def put_log(self, line: str, at_s: float) -> None:
        """Take the metrics of a log line in the embedded metric format; other lines have none."""
        try:
            document = json.loads(line)
            directives = document["_aws"]["CloudWatchMetrics"]
        except (ValueError, LookupError, TypeError):
            return
        for each in directives:
            for names in each["Dimensions"]:
                dimensions = frozenset((name, str(document[name])) for name in names)
                for one in each["Metrics"]:
                    values = document[one["Name"]]
                    metric = Metric(each["Namespace"], one["Name"], dimensions)
                    for value in values if isinstance(values, list) else [values]:
                        self.put(metric, at_s, float(value))

    def points(self, metric: Metric, stat: str, period_s: int, minute: int, count: int) -> Points:
        """Return the last `count` datapoints before the end of a minute."""
        minutes, long = self._minutes.get(metric), period_s // MINUTE_S
        if not minutes:
            return [None] * count
        starts = range(minute - long * count + 1, minute + 1, long)
        windows = [[v for m in range(s, s + long) for v in minutes.get(m, ())] for s in starts]
        return [_STATS[stat](values) if values else None for values in windows]

    def grouped(
        self, namespace: str, name: str, where: tuple[str, str], by: str
    ) -> Mapping[str, list[Metric]]:
        """Return the metrics of a query by the value of a dimension, or all of them as one."""
        groups: defaultdict[str, list[Metric]] = defaultdict(list)
        for metric in self._minutes:
            if (metric.namespace, metric.name) == (namespace, name) and where in metric.dimensions:
                groups[dict(metric.dimensions)[by] if by else ""].append(metric)
        return groups


_STATS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Sum": sum,
    "Maximum": max,
    "Minimum": min,
    "SampleCount": len,
    "Average": lambda values: sum(values) / len(values),
}
_OF_QUERY = {"SUM": "Sum", "MAX": "Maximum", "MIN": "Minimum", "AVG": "Average"}
_QUERY = re.compile(
    r"SELECT (?P<stat>\w+)\((?P<name>\w+)\) FROM SCHEMA\((?P<namespace>\w+),[\w, ]+\) "
    r"WHERE (?P<key>\w+) = '(?P<value>[^']+)'( GROUP BY (?P<by>\w+))?"
)
_BREACHES: Mapping[str, Callable[[float, float], bool]] = {
    "GreaterThanThreshold": operator.gt,
    "GreaterThanOrEqualToThreshold": operator.ge,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}


def state_of(
    breaching: Sequence[bool | None], periods: int, datapoints: int, treat: str, before: State
) -> State:
    """Return the state for the datapoints of an evaluation range, the latest at the end.

    The guide, "Configuring how CloudWatch alarms treat missing data".
    """
    real = [one for one in breaching if one is not None]
    if len(real) >= periods:
        return State.ALARM if sum(real[-periods:]) >= datapoints else State.OK
    if treat in ("missing", "ignore"):
        unknown = before if treat == "ignore" else State.NO_DATA
        if not real:
            return unknown
        if all(real):
            age = len(breaching) - breaching.index(True)
            early = State.ALARM if treat == "missing" else before
            return early if age >= datapoints else unknown
    filled = (periods - len(real)) * (treat == "breaching")
    return State.ALARM if sum(real) + filled >= datapoints else State.OK


# --- metric math ----------------------------------------------------------------------------------


def _each(combine: Callable[[list[float]], float], lines: Sequence[Points]) -> Points:
    """Combine lines point by point; a value that is missing in all lines is missing."""
    columns = ([v for v in column if v is not None] for column in zip(*lines, strict=True))
    return [combine(column) if column else None for column in columns]


def _arithmetic(combine: Callable[[float, float], float], left: Any, right: Any) -> Any:
    """Combine two lines, or a line and a number; what one of two lines lacks counts as 0."""
    if not isinstance(left, list):
        return [None if one is None else combine(left, one) for one in right]
    if not isinstance(right, list):
        return [None if one is None else combine(one, right) for one in left]
    return [
        None if a is None and b is None else combine(a or 0.0, b or 0.0)
        for a, b in zip(left, right, strict=True)
    ]


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def calculate(expression: str, lines: Mapping[str, Points]) -> Points:
    """Work an expression out; raises ValueError for one that this does not know."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return lines[name]
            case ast.Constant(value=number):
                return number
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(_OPERATORS[type(op)], value(left), value(right))
            case ast.Call(func=ast.Name(id="METRICS")):
                return list(lines.values())
            case ast.Call(func=ast.Name(id="SUM"), args=[many]):
                return _each(sum, value(many))
        raise ValueError(f"not an expression that is known here: {expression}")

    result: Points = value(ast.parse(expression, mode="eval").body)
    return result


# --- alarms ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an alarm's state, or of that of one of its contributors, such as a fleet."""

    alarm: str
    contributor: str
    state: State


@dataclass(slots=True)
class Alarm:
    """An alarm as a template or an API describes it, and its state."""

    described: Mapping[str, Any]
    state: State = State.NO_DATA
    contributors: dict[str, State] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.described["AlarmName"])

    @property
    def ringing(self) -> tuple[str, ...]:
        """The contributors that ring, of an alarm on a query that groups."""
        rings = (name for name, state in self.contributors.items() if state is State.ALARM)
        return tuple(sorted(rings))

    def evaluate(self, metrics: Metrics, minute: int) -> list[Change]:
        """Look at the metrics at the end of a minute; return what changed, contributors first."""
        lines, changes = self._lines(metrics, minute), list[Change]()
        if "GROUP BY" not in str(self.described.get("Metrics")):
            state = self._judged(lines.get("", [None]), self.state)
        else:
            for name in sorted(self.contributors.keys() | lines.keys()):
                before = self.contributors.get(name, State.OK)
                # One of which the query returns nothing is OK, whatever missing data means.
                after = self._judged(lines[name], before) if name in lines else State.OK
                self.contributors[name] = after
                if after is not before:
                    changes.append(Change(self.name, name, after))
            state = State.ALARM if self.ringing else State.OK if lines else State.NO_DATA
        if state is not self.state:
            self.state = state
            changes.append(Change(self.name, "", state))
        return changes

    def _judged(self, points: Points, before: State) -> State:
        of, threshold = self.described, float(self.described["Threshold"])
        breaches = _BREACHES[of["ComparisonOperator"]]
        periods = int(of["EvaluationPeriods"])
        return state_of(
            [None if one is None else breaches(one, threshold) for one in points],
            periods,
            int(of.get("DatapointsToAlarm") or periods),
            of.get("TreatMissingData") or "missing",
            before,
        )

    def _lines(self, metrics: Metrics, minute: int) -> dict[str, Points]:
        """Return the datapoints by contributor; by the empty name of an alarm without groups."""
        of = self.described
        count = int(of["EvaluationPeriods"]) + EXTRA_PERIODS
        if "Metrics" not in of:
            line = metrics.points(Metric.of(of), of["Statistic"], int(of["Period"]), minute, count)
            return {"": line}
        parts = of["Metrics"]
        [returned] = [one for one in parts if one.get("ReturnData", True)]
        if query := _QUERY.fullmatch(returned.get("Expression", "")):
            return self._queried(metrics, query, int(returned["Period"]), minute, count)
        stats = {one["Id"]: one["MetricStat"] for one in parts if "MetricStat" in one}
        lines = {
            name: metrics.points(Metric.of(of["Metric"]), of["Stat"], of["Period"], minute, count)
            for name, of in stats.items()
        }
        expression = returned.get("Expression", returned["Id"])
        return {"": calculate(expression, lines)}

    @staticmethod
    def _queried(
        metrics: Metrics, query: re.Match[str], period_s: int, minute: int, count: int
    ) -> dict[str, Points]:
        stat = _OF_QUERY[query["stat"]]
        count = min(count, QUERIED_MINUTES * MINUTE_S // period_s)
        where, by = (query["key"], query["value"]), query["by"] or ""
        lines: dict[str, Points] = {}
        for name, many in metrics.grouped(query["namespace"], query["name"], where, by).items():
            each = [metrics.points(one, stat, period_s, minute, count) for one in many]
            line = _each(_STATS[stat], each)
            if any(one is not None for one in line):
                lines[name] = line
        return lines


def evaluate_all(alarms: Iterable[Alarm], metrics: Metrics, minute: int) -> list[Change]:
    """Evaluate alarms at the end of a minute; return the changes."""
    return [change for alarm in alarms for change in alarm.evaluate(metrics, minute)]
