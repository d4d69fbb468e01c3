"""Random faults: what broke once, and a few seeds; `make chaos` draws hundreds."""

from pathlib import Path

import pytest

from spotkeeper_lab.run.chaos import run, story_of
from spotkeeper_lab.scenario import Scenario, draw, read

KEPT = sorted((Path(__file__).parent / "chaos").glob("*.json"))


def holds(scenario: Scenario) -> None:
    """Run a scenario; a promise that breaks is told with what led to it."""
    result = run(scenario)
    assert not result.violations, "\n".join(story_of(result))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_broke_once_holds(path: Path) -> None:
    holds(read(path))


@pytest.mark.parametrize("seed", range(1, 5))
def test_every_promise_holds_under_random_faults(seed: int) -> None:
    holds(draw(seed))
