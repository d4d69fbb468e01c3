"""A seed determines its run; a broken promise is found, made smaller, reported and kept."""

import re
from dataclasses import replace
from inspect import getsource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotkeeper_cli.lab_commands import lab
from spotkeeper_lab import troubles, world
from spotkeeper_lab.faults import ACTS, OF_AWS, WIDE, Fault, Kind, refusal_of
from spotkeeper_lab.promises import Promise, Watch
from spotkeeper_lab.run.chaos import minimise, run, story_of
from spotkeeper_lab.scenario import (
    Scenario,
    ScenarioError,
    _draw,
    draw,
    draw_wide,
    find,
    read,
    shipped,
    write,
)

SHORT = Scenario(seed=1, queue_known=True, loads=((0.0, 2.0),))


@pytest.fixture(autouse=True)
def soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a fleet that has settled, or becomes whole again."""
    monkeypatch.setattr("spotkeeper_lab.scenario.WARM_UP_S", 300.0)
    monkeypatch.setattr("spotkeeper_lab.scenario.TAIL_S", 300.0)


def test_calls_that_take_time_make_turns_meet() -> None:
    slow = replace(SHORT, faults=(Fault(kind=Kind.SLOW, at_s=600.0, length_s=3000.0),))
    met: list[bool] = []

    class Meetings(world.Observer):
        def done(self, invocation: world.Invocation) -> None:
            met.append(invocation.overlapped)

    watch = Watch(slow)
    watch.world.observers.append(Meetings())
    watch.run()
    assert any(met)
    assert run(slow) == run(slow)


def test_a_broken_promise_is_found_and_its_cause_is_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug is made up: something breaks while a certain fault lasts."""
    faults = tuple(
        Fault(kind=kind, at_s=600.0, length_s=60.0, value=0.1)
        for kind in (Kind.COLD, Kind.EMPTY_WARNING)
    )
    sample = Watch.sample

    def and_breaks(watch: Watch) -> None:
        if Kind.EMPTY_WARNING in watch.world.active:
            watch.broken(Promise.BOUNDS, "as told")
        sample(watch)

    monkeypatch.setattr(Watch, "sample", and_breaks)
    smallest = minimise(replace(SHORT, faults=faults), Promise.BOUNDS)
    assert [fault.kind for fault in smallest.faults] == [Kind.EMPTY_WARNING]
    story = story_of(run(smallest), Promise.BOUNDS)
    assert story[-1].startswith("BROKEN at 10")
    assert story[-1].endswith("as told")


def test_an_excuse_is_counted_by_its_fault_and_the_minutes_that_need_it() -> None:
    """No turn runs for an hour, and a workforce that was taken is not made up for."""
    faults = (
        Fault(kind=Kind.NO_TURNS, at_s=1500.0, length_s=3600.0),
        Fault(kind=Kind.SPOT_DRY, at_s=1560.0, length_s=3500.0, value=1.0),
    )
    result = run(replace(SHORT, faults=faults, event_lost=1.0))
    assert not result.violations
    assert 40 < result.excused[Promise.REPLACED, Kind.NO_TURNS] < 65
    assert 40 < result.excused_minutes < 65


def test_a_wide_run_is_drawn_beside_the_plain_one() -> None:
    drawn = [draw_wide(seed) for seed in range(1, 200)]
    assert {one.fleets for one in drawn} == {1, 2, 5, 12, 40}
    assert max(one.spot_max for one in drawn) == 1000
    assert any(load == 0 for one in drawn for _, load in one.loads)
    assert all(fault.kind not in WIDE for seed in range(1, 200) for fault in draw(seed).faults)


def test_scenarios_are_kept_as_files_and_come_with_the_lab(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "one.json"
    write(draw(7), path)
    assert read(path) == draw(7)
    assert "spot-dry" in shipped()
    assert all(it.about and it.faults for it in map(read, shipped().values()))
    with pytest.raises(ScenarioError, match="spot-dry"):
        find("no-such")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "no.yaml"),
        ("- a\n- b\n", "no.yaml"),
        ("colour: red\n", "colour"),
        ("faults: [{kind: earthquake, at_s: 1}]\n", "faults.0.kind"),
        ("faults: [{kind: workers hang, at_s: 1, cuont: 2}]\n", "faults.0.cuont"),
    ],
)
def test_a_wrong_file_is_refused_with_each_wrong_field(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "no.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=named):
        read(path)


def test_the_command_prints_every_promise_and_fails_when_one_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: Mine.\n")
    kept = CliRunner().invoke(lab, ["run", str(path)])
    assert kept.exit_code == 0, kept.output
    assert all(promise in kept.output for promise in Promise)
    monkeypatch.setattr(Watch, "sample", lambda watch: watch.broken(Promise.BOUNDS, "made up"))
    failed = CliRunner().invoke(lab, ["run", str(path)])
    assert (failed.exit_code, "made up" in failed.output) == (1, True)


def test_what_others_do_with_a_group_changes_no_other_fault_of_a_seed() -> None:
    """Its chances are its own, so that a seed keeps its story."""
    drawn = [draw(seed) for seed in range(1, 101, 2)]
    for each in drawn:
        plain = [fault for fault in each.faults if fault.kind not in ACTS]
        assert plain == list(_draw(each.seed).faults)
    assert {fault.kind for each in drawn for fault in each.faults} >= {*ACTS}
    assert {each.launch_first for each in drawn} == {True, False}


def test_every_fault_has_an_effect() -> None:
    """A kind that is drawn and does nothing would test nothing."""
    sources, refusals = getsource(troubles) + getsource(world), getsource(refusal_of)
    # A world asks `refusal_of` about the kinds of OF_AWS alone.
    effects = {k: sources + refusals * (k in OF_AWS) for k in Kind}
    without = [k.name for k, it in effects.items() if not re.search(rf"\bKind\.{k.name}\b", it)]
    assert without == [], "give these an effect in troubles.py, world.py or refusal_of"
