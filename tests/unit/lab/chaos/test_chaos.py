"""A run is what its seed says; a broken promise is found, made smaller, told, and kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import Promise, Watched
from spotkeeper_lab.run.chaos import minimise, run, story_of
from spotkeeper_lab.scenario import Scenario, draw, read, write

SHORT = Scenario(seed=1, queue_known=True, loads=((0.0, 2.0),))


@pytest.fixture(autouse=True)
def soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about becoming whole again."""
    monkeypatch.setattr("spotkeeper_lab.scenario.TAIL_S", 300.0)


def test_the_same_seed_is_the_same_run() -> None:
    scenario = replace(SHORT, faults=(Fault(kind=Kind.SLOW, at_s=1500.0, length_s=300.0),))
    assert run(scenario) == run(scenario)


def test_calls_that_take_time_make_turns_meet() -> None:
    slow = Fault(kind=Kind.SLOW, at_s=600.0, length_s=3000.0)
    story = run(replace(SHORT, faults=(slow,))).story
    assert any("ran into its time-out" in line for line in story)


def test_a_broken_promise_is_found_and_its_cause_is_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug is made up: something breaks while a certain fault lasts."""
    faults = tuple(
        Fault(kind=kind, at_s=1500.0, length_s=60.0, value=0.1)
        for kind in (Kind.COLD, Kind.EMPTY_WARNING, Kind.FOREIGN_EVENTS)
    )
    broken = replace(SHORT, faults=faults)

    def break_it(world: Watched) -> None:
        if Kind.EMPTY_WARNING in world.active:
            world.watch.broken(Promise.COST, "as told")

    minute = Watched.minute

    def and_breaks(world: Watched) -> None:
        break_it(world)
        minute(world)

    monkeypatch.setattr(Watched, "minute", and_breaks)
    smallest = minimise(broken, Promise.COST)
    assert [fault.kind for fault in smallest.faults] == [Kind.EMPTY_WARNING]
    story = story_of(run(smallest), Promise.COST)
    assert story[-1].startswith("BROKEN at 25")
    assert story[-1].endswith("as told")


def test_scenarios_are_kept_as_files(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "one.json"
    write(draw(7), path)
    assert read(path) == draw(7)
