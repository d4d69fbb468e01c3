"""As much of CloudWatch's metric math as the dashboard uses; anything else is refused.

Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics" and "Search
expression syntax". A line is a value for each period by its start, in seconds.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

type Line = dict[float, float]
type Found = list[tuple[str, Line]]
"""What a search finds: lines with their metrics' names."""
type Samples = Mapping[str, Sequence[tuple[float, float]]]
"""What was sent of each metric: (second, value)."""

STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "Maximum": max,
    "Minimum": min,
    "Sum": sum,
}
_SEARCH = re.compile(r"\{Spotkeeper,service,fleet\} service=\"[^\"]+\" MetricName=(.+)")
_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class UnknownExpression(ValueError):
    """An expression that is not understood here; CloudWatch may understand it."""


def binned(
    sent: Sequence[tuple[float, float]], statistic: str, period_s: float, since_s: float = 0.0
) -> Line:
    """One value for each period in which something was sent."""
    bins: dict[float, list[float]] = {}
    for at_s, value in sent:
        if at_s >= since_s:
            bins.setdefault(at_s // period_s * period_s, []).append(value)
    return {at_s: STATISTICS[statistic](values) for at_s, values in sorted(bins.items())}


@dataclass(slots=True, kw_only=True)
class Maths:
    """Works expressions out, one after the other: `lines` are those that have an id."""

    samples: Samples
    since_s: float
    until_s: float
    period_s: float
    lines: dict[str, Line | Found] = field(default_factory=dict)

    def answer(self, expression: str) -> Line | Found:
        """What an expression comes to; raises `UnknownExpression`."""
        try:
            result = self._of(ast.parse(expression, mode="eval").body)
        except SyntaxError as error:
            raise UnknownExpression(f"{expression}: cannot be read") from error
        if not isinstance(result, dict | list):
            raise UnknownExpression(f"{expression}: a number is no line")
        return result

    def _of(self, node: ast.expr) -> Line | Found | float:
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(id=name) if name in self.lines:
                return self.lines[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _joined(self._of(left), self._of(right), _ARITHMETIC[type(op)])
            case ast.Call(func=ast.Name(id="SEARCH"), args=args):
                return self._search(*(ast.literal_eval(arg) for arg in args))
            case ast.Call(func=ast.Name(id="FILL"), args=[inner, ast.Constant(value=0)]):
                return self._filled(self._of(inner))
            case ast.Call(func=ast.Name(id="SUM"), args=[inner]):
                return _total(self._of(inner))
            case ast.Call(func=ast.Name(id="RUNNING_SUM"), args=[inner]):
                line = _line(self._of(inner))
                return dict(zip(line, accumulate(line.values()), strict=True))
        raise UnknownExpression(f"{ast.unparse(node)}: not understood")

    def _search(self, what: str, statistic: str, period_s: float) -> Found:
        found = _SEARCH.fullmatch(what)
        if found is None:
            raise UnknownExpression(f"{what}: not a search for metrics of a stack's fleets")
        self.period_s = period_s
        return [
            (name, binned(self.samples[name], statistic, period_s, self.since_s))
            for name in re.findall(r'"(\w+)"', found[1])
            if name in self.samples
        ]

    def _filled(self, found: Line | Found | float) -> Found:
        if not isinstance(found, list):
            raise UnknownExpression("FILL is understood of a search only")
        first = self.since_s // self.period_s
        steps = range(int(first), int(-(-self.until_s // self.period_s)))
        times = [step * self.period_s for step in steps]
        return [(name, dict.fromkeys(times, 0.0) | line) for name, line in found]


def _line(found: Line | Found | float) -> Line:
    if not isinstance(found, dict):
        raise UnknownExpression("only one line can be added up over time")
    return found


def _total(found: Line | Found | float) -> Line:
    if not isinstance(found, list):
        raise UnknownExpression("SUM is understood of a search only")
    times = sorted({at_s for _, line in found for at_s in line})
    return {at_s: sum(line.get(at_s, 0.0) for _, line in found) for at_s in times}


def _joined(
    left: Line | Found | float, right: Line | Found | float, how: Callable[[float, float], float]
) -> Line:
    """Both sides at every time at which both have a value, and nothing is divided by zero."""
    if isinstance(left, list) or isinstance(right, list):
        raise UnknownExpression("arithmetic is understood of lines and numbers only")
    lines = [side for side in (left, right) if isinstance(side, dict)]
    times = sorted(set.intersection(*(set(line) for line in lines)))
    joined: Line = {}
    for at_s in times:
        one, two = (side[at_s] if isinstance(side, dict) else side for side in (left, right))
        if how is not operator.truediv or two:
            joined[at_s] = how(one, two)
    return joined
