"""From an interruption warning to SetDesiredCapacity: which of the package's code runs.

The function handles the event as Lambda calls it, on a simulated AWS, in an environment that has
run before. What is counted is what a reader would have to read: the files of the package and the
functions in them, named ones and the expressions that Python runs as functions.
"""

import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench._figures import Figure, show
from bench._stack import START, deployed, invoke, on_each_call, output, warning
from spotkeeper_lab.world import Context

ROOT = Path(__file__).parents[1]
OURS = (str(ROOT / "layers"), str(ROOT / "functions"))
MOST_FILES, MOST_FUNCTIONS = 30, 120
CALL = "SetDesiredCapacity"


class Trail:
    """The code of the package that runs until an operation is called, in order."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self.complete = False

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; registered with the interpreter."""
        if event == "call" and not self.complete and frame.f_code.co_filename.startswith(OURS):
            self.codes.append(frame.f_code)

    def end(self, model: Any, **_: object) -> None:
        """End at the operation; registered with botocore."""
        self.complete = self.complete or model.name == CALL

    @property
    def files(self) -> list[str]:
        """The files, in the order in which they are entered first."""
        return list(dict.fromkeys(str(Path(c.co_filename).relative_to(ROOT)) for c in self.codes))

    @property
    def functions(self) -> list[CodeType]:
        """The functions, in the order in which they are called first."""
        return list(dict.fromkeys(self.codes))


def main() -> None:
    """Print the figures; with `-v` every function, too."""
    path = measured()
    if "-v" in sys.argv:
        for name in path.files:
            mine = [c.co_qualname for c in path.functions if c.co_filename.endswith(name)]
            print(name, *mine, sep="\n    ")  # noqa: T201
    show(
        f"a warning to {CALL}",
        [
            Figure("files", len(path.files), limit=MOST_FILES),
            Figure("functions", len(path.functions), limit=MOST_FUNCTIONS),
        ],
    )


def measured() -> Trail:
    """Warn an instance of a fleet at rest, and follow the function that handles the event."""
    path = Trail()
    with deployed(["ocr"], 4, 100) as cloud, output():
        handler = import_module("functions.handle_interruption.app").handler
        on_each_call(path.end)
        for minute in (10, 11):
            cloud.advance(60.0 * minute)
            invoke("check_health", {})
            invoke("check_availability", {})
        first = cloud.group("ocr-spot").instances[0].instance_id
        event = warning(first, START + timedelta(seconds=cloud.now_s))
        sys.setprofile(path.note)
        try:
            handler(event, Context())
        finally:
            sys.setprofile(None)
        assert path.complete
        assert cloud.group("ocr-on-demand").desired == 1
    return path


if __name__ == "__main__":
    main()
