"""From an interruption warning to SetDesiredCapacity: which of the package's code runs.

The function handles the event as Lambda calls it, on a simulated AWS, in an environment that has
run before. What is counted is what a reader would have to read: the files of the package and the
functions in them, named ones and the expressions that Python runs as functions.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench._figures import Figure, show
from bench._stack import deployed, invoke, on_each_call, output, warning
from spotkeeper_lab.world import Context

ROOT = Path(__file__).parents[1]
OURS = (str(ROOT / "layers"), str(ROOT / "functions"))
MOST_FILES, MOST_FUNCTIONS = 27, 112
CALL = "SetDesiredCapacity"


def main() -> None:
    """Print the figures; with `-v` every function, too."""
    functions_by_file = measured()
    if "-v" in sys.argv:
        for name, functions in functions_by_file.items():
            print(name, *functions, sep="\n    ")  # noqa: T201
    count = sum(map(len, functions_by_file.values()))
    show(
        f"a warning to {CALL}",
        [
            Figure("files", len(functions_by_file), limit=MOST_FILES),
            Figure("functions", count, limit=MOST_FUNCTIONS),
        ],
    )


def measured() -> dict[str, list[str]]:
    """Warn an instance of a fleet at rest, and follow the function that handles the event.

    Returns the functions by file, in the order in which they are entered first.
    """
    codes: dict[CodeType, None] = {}
    done: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not done and frame.f_code.co_filename.startswith(OURS):
            codes[frame.f_code] = None

    def end(model: Any, **_: object) -> None:
        if model.name == CALL:
            done.append(CALL)

    with deployed(["ocr"], 4, 100) as cloud, output():
        handler = import_module("functions.handle_interruption.app").handler
        on_each_call(end)
        for minute in (10, 11):
            cloud.advance(60.0 * minute)
            invoke("check_health", {})
            invoke("check_availability", {})
        first = cloud.group("ocr-spot").instances[0].instance_id
        event = warning(first, cloud.now_s)
        sys.setprofile(note)
        try:
            handler(event, Context())
        finally:
            sys.setprofile(None)
        assert done
        assert cloud.group("ocr-on-demand").desired == 1
    by_file: dict[str, list[str]] = {}
    for code in codes:
        name = str(Path(code.co_filename).relative_to(ROOT))
        by_file.setdefault(name, []).append(code.co_qualname)
    return by_file
