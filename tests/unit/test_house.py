"""The house stays one in which a newcomer finds the way: short files and functions, small rooms."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from tests.template.stack import ROOT

SHIPPED = ("layers/spotkeeper", "functions", "tools", "worker")
LONGEST_FILE, LONG_FILE = 300, 200
USUAL_FUNCTION, LONG_FUNCTION = 8, 20
MODULES_IN_A_ROOM = 12


def modules() -> list[Path]:
    found = (path for top in SHIPPED for path in (ROOT / top).rglob("*.py"))
    return [p for p in found if not {".venv", "build", "tests"}.intersection(p.parts)]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_is_too_long_and_few_are_long() -> None:
    sizes = {path.relative_to(ROOT): lines(path) for path in modules()}
    assert {path: size for path, size in sizes.items() if size > LONGEST_FILE} == {}
    assert quantiles(sizes.values(), n=10)[-1] <= LONG_FILE


def test_most_functions_are_a_few_lines() -> None:
    sizes = [size for path in modules() for size in functions(path)]
    assert median(sizes) <= USUAL_FUNCTION
    assert quantiles(sizes, n=10)[-1] <= LONG_FUNCTION


def test_no_room_is_crowded() -> None:
    rooms = Counter(path.parent.relative_to(ROOT) for path in modules() if path.stem != "__init__")
    assert {room: count for room, count in rooms.items() if count > MODULES_IN_A_ROOM} == {}


def test_no_class_of_the_package_has_a_namesake_in_the_tools() -> None:
    package, tools = ("layers/spotkeeper/", "tools/")
    named: dict[str, set[str]] = {package: set(), tools: set()}
    for path in modules():
        root = next((it for it in named if str(path.relative_to(ROOT)).startswith(it)), None)
        if root:
            named[root] |= classes(path)
    assert named[package] & named[tools] == set()


def classes(path: Path) -> set[str]:
    found = (it.name for it in ast.parse(path.read_text(encoding="utf-8")).body
             if isinstance(it, ast.ClassDef))  # fmt: skip
    return {name for name in found if not name.startswith("_")}
