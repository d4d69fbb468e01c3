"""Random faults: what broke once, and twenty seeds of `make chaos`."""

from pathlib import Path

import pytest

from spotkeeper_lab.chaos.__main__ import story_of
from spotkeeper_lab.chaos.run import run
from spotkeeper_lab.chaos.story.draw import draw
from spotkeeper_lab.chaos.story.kept import read
from spotkeeper_lab.chaos.story.scenario import Scenario

KEPT = sorted((Path(__file__).parent / "chaos").glob("*.json"))


def holds(scenario: Scenario) -> None:
    """Run a scenario; a promise that breaks is told with what led to it."""
    result = run(scenario)
    assert not result.violations, "\n".join(story_of(result))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_broke_once_holds(path: Path) -> None:
    holds(read(path))


@pytest.mark.parametrize("seed", range(1, 21))
def test_every_promise_holds_under_random_faults(seed: int) -> None:
    holds(draw(seed))
