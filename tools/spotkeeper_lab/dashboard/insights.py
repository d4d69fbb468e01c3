"""As much of CloudWatch Logs Insights as the dashboard's queries use; anything else is refused.

Source: CloudWatch Logs user guide, "CloudWatch Logs Insights query syntax".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

type LogLine = Mapping[str, Any]
"""A log line's fields; `@timestamp` in seconds."""

UNITS = {"m": 60.0, "h": 3600.0}
_EQUAL = re.compile(r"(\w+) = '(\w+)'")
_FIGURE = re.compile(r"(\w+)\(([\w.@*]+)\)(?: as (\w+))?")
_BIN = re.compile(r"bin\((\d+)([mh])\)")


class UnknownQuery(ValueError):
    """A query that is not understood here; Logs Insights may understand it."""


def _newest(values: Sequence[tuple[float, Any]]) -> Any:
    return max(values, key=lambda value: value[0])[1]


FUNCTIONS: Mapping[str, Callable[[Sequence[tuple[float, Any]]], Any]] = {
    "avg": lambda values: sum(value for _, value in values) / len(values),
    "count": len,
    "latest": _newest,
    "min": lambda values: min(value for _, value in values),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    name: str
    function: str
    field: str


def answer(query: str, lines: Sequence[LogLine]) -> list[dict[str, Any]]:
    """The rows that a query finds; raises `UnknownQuery`."""
    rows: list[dict[str, Any]] = [dict(line) for line in lines]
    for command in query.split(" | "):
        name, _, text = command.strip().partition(" ")
        match name:
            case "SOURCE":
                pass
            case "filter":
                rows = _filtered(rows, text)
            case "stats":
                rows = _stats(rows, text)
            case "sort" if text.endswith(" desc"):
                field = text.removesuffix(" desc")
                rows.sort(key=lambda row, by=field: row[by], reverse=True)  # type: ignore[misc]
            case "limit":
                rows = rows[: int(text)]
            case _:
                raise UnknownQuery(f"{command}: not understood")
    return rows


def _filtered(rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    wanted = []
    for condition in text.split(" and "):
        found = _EQUAL.fullmatch(condition)
        if found is None:
            raise UnknownQuery(f"filter {condition}: not understood")
        wanted.append((found[1], found[2]))
    return [row for row in rows if all(row.get(name) == value for name, value in wanted)]


def _stats(rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    figures_text, _, by = text.partition(" by ")
    figures = [_figure(figure) for figure in figures_text.split(", ")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = by.split(", ")
    for row in rows:
        groups.setdefault(tuple(_key(row, name) for name in names), []).append(row)
    return [
        dict(zip(names, key, strict=True)) | {it.name: _worked_out(it, some) for it in figures}
        for key, some in groups.items()
    ]


def _figure(text: str) -> _Figure:
    found = _FIGURE.fullmatch(text)
    if found is None or found[1] not in FUNCTIONS:
        raise UnknownQuery(f"stats {text}: not understood")
    return _Figure(name=found[3] or text, function=found[1], field=found[2])


def _key(row: LogLine, name: str) -> Any:
    if found := _BIN.fullmatch(name):
        length_s = float(found[1]) * UNITS[found[2]]
        return row["@timestamp"] // length_s * length_s
    return row.get(name)


def _worked_out(figure: _Figure, rows: Sequence[LogLine]) -> Any:
    values = [
        (row["@timestamp"], row.get(figure.field))
        for row in rows
        if figure.field == "*" or row.get(figure.field) is not None
    ]
    return FUNCTIONS[figure.function](values) if values else None
