"""The promises see what a broken product does; `python -m bench oracle` plants more of them.

Kept stories break nothing without the faults: `tests/simulation/test_chaos.py` runs them.
"""

from pathlib import Path

import pytest

from bench.oracle import FAULTS, Planted, planted
from spotkeeper_lab import rings
from spotkeeper_lab.alarms import Alarm
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import Promise, Watch, workers_for
from spotkeeper_lab.run.chaos import run
from spotkeeper_lab.scenario import Scenario, read

CHAOS = Path(__file__).parents[3] / "simulation/chaos"
ADOPTED = read(CHAOS / "01-on-demand-is-adopted.json")
ALL_HANG = read(CHAOS / "34-all-workers-hang-without-a-queue.json")
HANG = Scenario(
    seed=7, loads=((0.0, 5.0),), faults=(Fault(kind=Kind.HANG, at_s=1600.0, value=0.1),)
)
DRY = Scenario(
    seed=7,
    loads=((0.0, 5.0),),
    faults=(Fault(kind=Kind.SPOT_DRY, at_s=1600.0, length_s=3600.0, value=0.6),),
)
FALLS = Scenario(seed=7, loads=((0.0, 6.0), (1600.0, 1.0)))
LOSS = Scenario(
    seed=7, loads=((0.0, 4.0),), faults=(Fault(kind=Kind.LOSS, at_s=1600.0, value=0.5),)
)


@pytest.mark.parametrize(
    ("name", "scenario", "promise"),
    [
        ("twice the backfill", DRY, Promise.RELEASED),
        ("half of the shortfall", DRY, Promise.REPLACED),
        ("backfill ten minutes late", DRY, Promise.REPLACED),
        ("a fleet that never shrinks", FALLS, Promise.SIZED),
        ("warned workers never drained", LOSS, Promise.DRAINED),
        ("a met fleet is not adopted", ADOPTED, Promise.MAKE_BEFORE_BREAK),
        ("nobody serves, and no alarm", ALL_HANG, Promise.ALARMED),
        ("hung workers stay", HANG, Promise.CURED),
    ],
)
def test_a_planted_fault_breaks_its_promise(
    name: str, scenario: Scenario, promise: Promise
) -> None:
    (fault,) = [one for one in FAULTS if one.name == name]
    with planted(fault):
        assert promise in {violation.promise for violation in run(scenario).violations}


STOPPED = Scenario(faults=(Fault(kind=Kind.NO_TURNS, at_s=1600.0, length_s=900.0),))


@pytest.mark.parametrize(
    ("alarm", "changed", "promise"),
    [
        ("checker-not-running", {"EvaluationPeriods": 12}, Promise.RINGS),
        ("checker-not-running", {"TreatMissingData": "notBreaching"}, Promise.RINGS),
        ("errors", {"Threshold": -1}, Promise.QUIET),
        ("", {}, None),
    ],
)
def test_an_alarm_that_is_late_or_rings_for_nothing_is_seen(
    alarm: str, changed: dict[str, object], promise: Promise | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rings.of_template
    monkeypatch.setattr(rings, "of_template", lambda: [
        Alarm({**one.described, **changed} if one.name == f"lab-{alarm}" else one.described)
        for one in original()
    ])  # fmt: skip
    broken = {violation.promise for violation in run(STOPPED).violations}
    assert broken == ({promise} if promise else set())


def test_a_fault_excuses_its_promise_for_a_time_and_no_other() -> None:
    faults = (Fault(kind=Kind.THROTTLED, at_s=1000.0, length_s=60.0),)
    watch = Watch(Scenario(faults=faults))
    for at_s in (900.0, 1100.0, 1290.0, 1310.0):
        watch.world.cloud.advance(at_s)
        watch.found.clear()
        watch.broken(Promise.DRAINED, "no mark")
        assert (not watch.found) is (1000.0 <= at_s <= 1300.0)
    watch.broken(Promise.BOUNDS, "too many")
    assert watch.found.keys() == {Promise.DRAINED, Promise.BOUNDS}
    assert watch.excused == {(Promise.DRAINED, Kind.THROTTLED): {18, 21}}


def test_the_reference_for_a_size_is_erlang_c() -> None:
    # M/M/c of 6 s: P(wait > 10 s) <= 5 %.
    assert [workers_for(load, Scenario()) for load in (0.3, 2.0, 5.0)] == [2, 4, 7]
    assert workers_for(4.0, Scenario(objective=False)) == 6


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_planted(fault: Planted) -> None:
    """The product still has what it changes."""
    with planted(fault):
        pass
