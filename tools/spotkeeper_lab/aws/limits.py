"""How much a call may carry: by botocore's own models, and by what AWS says on its pages."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from botocore.model import OperationModel, Shape


class Limit(NamedTuple):
    """The most of a parameter: items of a list, letters of a text, or the number itself.

    In a `path`, "[]" is each item of a list, and "{}" each value of a map.
    """

    path: tuple[str, ...]
    most: int


@cache
def of_pages() -> Mapping[tuple[str, str], list[Limit]]:
    """The limits that no model has, by service and operation: limits.tsv, each with its source."""
    text = Path(__file__).with_name("limits.tsv").read_text(encoding="utf-8")
    limits: dict[tuple[str, str], list[Limit]] = {}
    for row in csv.DictReader(text.splitlines(), dialect="excel-tab"):
        limit = Limit(tuple(row["parameter"].split(".")), int(row["most"]))
        limits.setdefault((row["service"], row["operation"]), []).append(limit)
    return limits


_known: dict[tuple[str, str], list[Limit]] = {}


def limits_of(operation: OperationModel) -> list[Limit]:
    """All limits of an operation; each session has a model of its own, of the same limits."""
    shape, key = operation.input_shape, (operation.service_model.service_name, operation.name)
    if key not in _known:
        _known[key] = [*(of_model(shape, (), ()) if shape else ()), *of_pages().get(key, ())]
    return _known[key]


def of_model(shape: Shape, path: tuple[str, ...], within: tuple[str, ...]) -> Iterator[Limit]:
    """The limits of a shape and of all in it."""
    if shape.name in within:
        return
    if "max" in shape.metadata:
        yield Limit(path, shape.metadata["max"])
    within = (*within, shape.name)
    match shape.type_name:
        case "structure":
            for name, member in shape.members.items():  # type: ignore[attr-defined]
                yield from of_model(member, (*path, name), within)
        case "list":
            yield from of_model(shape.member, (*path, "[]"), within)  # type: ignore[attr-defined]
        case "map":
            yield from of_model(shape.value, (*path, "{}"), within)  # type: ignore[attr-defined]


def beyond(operation: OperationModel, params: Mapping[str, Any]) -> str:
    """Say which limit a call exceeds; empty where it keeps all."""
    for path, most in limits_of(operation):
        for value in _at(params, path):
            size = value if isinstance(value, int) else len(value)
            if size > most:
                return f"{operation.name}: {'.'.join(path)} has {size}, and {most} at most"
    return ""


def _at(value: Any, path: tuple[str, ...]) -> Iterable[Any]:
    """What is at a path of parameters."""
    if not path:
        return [value] if isinstance(value, int | str | bytes | list | dict) else []
    first, rest = path[0], path[1:]
    if first == "[]":
        return [found for each in value for found in _at(each, rest)]
    if first == "{}":
        return [found for each in value.values() for found in _at(each, rest)]
    return _at(value[first], rest) if first in value else []
