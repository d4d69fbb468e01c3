"""The walk of docs/architecture.md is the way that the code takes from a warning to the action.

Three moments are looked at, each by its call stack: the event is understood, the action is
decided, AWS is asked. What lies on a stack is what a reader must read.
"""

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from functions.handle_interruption.app import handler
from spotkeeper.domain.availability.actions import Backfill
from spotkeeper.domain.interruption import Interruption
from tests.functions.conftest import Stage
from tests.functions.test_handle_interruption import event, first_spot
from tests.template.stack import ROOT

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = ROOT / "layers/spotkeeper/spotkeeper"
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\d\. `(?P<file>[\w/]+\.py)`: (?P<chain>`\w+`(?:\s+->\s+`\w+`)*)", re.MULTILINE)
MOST_FILES = 6

type Steps = dict[str, list[str]]


def written() -> Steps:
    """The walk as the document has it: the functions of each file, in order."""
    _, _, walk = ARCHITECTURE.partition("## From a warning to the action\n")
    walk, _, _ = walk.partition("\n## ")
    return {step["file"]: re.findall(r"\w+", step["chain"]) for step in STEP.finditer(walk)}


def note_stack(walked: Steps) -> None:
    """Add the package's functions that are being called now, the outermost first."""
    calls: list[tuple[str, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            calls.append((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_name))
        frame = frame.f_back
    for file, function in reversed(calls):
        if function not in walked.setdefault(file, []):
            walked[file].append(function)


def note_when_made(cls: type, walked: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the stack whenever a value of a class is made."""
    make: Callable[..., None] = vars(cls)["__init__"]

    def noted(self: object, *args: Any, **kwargs: Any) -> None:
        note_stack(walked)
        make(self, *args, **kwargs)

    monkeypatch.setattr(cls, "__init__", noted)


def test_a_warning_goes_the_way_that_is_written(
    stage_of: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of(("ocr",))
    walked: Steps = {}
    note_when_made(Interruption, walked, monkeypatch)
    note_when_made(Backfill, walked, monkeypatch)
    stage.during["SetDesiredCapacity"] = lambda: note_stack(walked)
    stage.call(handler, event("spot_interruption_warning", first_spot(stage)))
    assert stage.cloud.group("ocr-on-demand").desired == 1
    assert walked == written()
    assert len(walked) <= MOST_FILES
