"""The house stays one in which a newcomer finds the way: short files and functions, small rooms."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.template.stack import ROOT

SHIPPED = ("layers/spotkeeper", "functions", "tools", "worker")
LONGEST_FILE, LONG_FILE = 300, 200
# A bench tells its set-up beside its figures, and a test's cases stand row by row in its file.
BESIDE = {"bench": (300, 260), "tests": (360, 260)}
USUAL_FUNCTION, LONG_FUNCTION, LONGEST_FUNCTION = 8, 20, 48
MODULES_IN_A_ROOM = 12


def modules(*tops: str) -> list[Path]:
    found = (path for top in tops or SHIPPED for path in (ROOT / top).rglob("*.py"))
    return [p for p in found if not {".venv", "build"}.intersection(p.parts)]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


HELD = [(SHIPPED, (LONGEST_FILE, LONG_FILE)), *(((top,), at) for top, at in BESIDE.items())]


@pytest.mark.parametrize(("tops", "limits"), HELD, ids=["shipped", *BESIDE])
def test_no_file_is_too_long_and_few_are_long(
    tops: tuple[str, ...], limits: tuple[int, int]
) -> None:
    longest, long = limits
    sizes = {path.relative_to(ROOT): lines(path) for path in modules(*tops)}
    assert {path: size for path, size in sizes.items() if size > longest} == {}
    assert quantiles(sizes.values(), n=10)[-1] <= long


@pytest.mark.parametrize("tops", [SHIPPED, *((top,) for top in BESIDE)], ids=["shipped", *BESIDE])
def test_most_functions_are_a_few_lines(tops: tuple[str, ...]) -> None:
    sizes = [(size, path) for path in modules(*tops) for size in functions(path)]
    assert [each for each in sizes if each[0] > LONGEST_FUNCTION] == []
    assert median(size for size, _ in sizes) <= USUAL_FUNCTION
    assert quantiles((size for size, _ in sizes), n=10)[-1] <= LONG_FUNCTION


def test_no_room_is_crowded() -> None:
    rooms = Counter(path.parent.relative_to(ROOT) for path in modules() if path.stem != "__init__")
    assert {room: count for room, count in rooms.items() if count > MODULES_IN_A_ROOM} == {}


def test_no_class_of_the_package_has_a_namesake_in_the_tools() -> None:
    assert classes("layers/spotkeeper").keys() & classes("tools").keys() == set()


def test_no_two_classes_of_the_package_have_one_name() -> None:
    assert {name for name, count in classes("layers/spotkeeper").items() if count > 1} == set()


def classes(top: str) -> Counter[str]:
    bodies = (ast.parse(path.read_text(encoding="utf-8")).body for path in modules(top))
    names = (it.name for body in bodies for it in body if isinstance(it, ast.ClassDef))
    return Counter(name for name in names if not name.startswith("_"))
