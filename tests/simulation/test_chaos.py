"""Random faults: what broke once, and a few seeds; `make chaos` draws hundreds."""

from pathlib import Path

import pytest

from spotkeeper_lab.run.chaos import run, story_of
from spotkeeper_lab.scenario import Scenario, draw, read

KEPT = {path.stem: path for path in sorted((Path(__file__).parent / "chaos").glob("*.json"))}
# One for each thing that fails: a run takes seconds, so `make e2e` runs the others.
QUICK = {
    "01-on-demand-is-adopted",
    "09-a-detached-instance-that-aws-took",
    "23-all-workers-hang-beside-waiting-requests",
    "33-killed-while-it-replaces",
}


def holds(scenario: Scenario) -> None:
    """Run a scenario; a broken promise is shown with the story that led to it."""
    result = run(scenario)
    assert not result.violations, "\n".join(story_of(result))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.make_e2e)
        for name in sorted(KEPT)
    ],
)
def test_kept_stories_hold(name: str) -> None:
    holds(read(KEPT[name]))


def test_every_promise_holds_under_random_faults() -> None:
    holds(draw(1))
