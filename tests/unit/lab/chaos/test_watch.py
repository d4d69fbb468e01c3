"""The watch excuses only what functions can know nothing of, and sees what a broken product does.

Kept stories break nothing without the bugs: `tests/simulation/test_chaos.py` runs them.
"""

from pathlib import Path

import pytest

from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import WHOLE_AFTER_S, Evidence, Promise, evidence_of, is_budget_spent
from spotkeeper_lab.run.chaos import run
from spotkeeper_lab.scenario import Scenario, read

CHAOS = Path(__file__).parents[3] / "simulation/chaos"
ADOPTED = read(CHAOS / "01-on-demand-is-adopted.json")
ALL_HANG = read(CHAOS / "34-all-workers-hang-without-a-queue.json")
BAD_IMAGE = Scenario(
    seed=7,
    loads=((0.0, 3.0),),
    faults=(Fault(kind=Kind.BAD_SPOT_IMAGE, at_s=1600.0, length_s=1800.0, value=0.9),),
)
DECIDE, DIAGNOSIS = "spotkeeper.domain.availability.decide", "spotkeeper.domain.health.diagnosis"


@pytest.mark.parametrize(
    ("scenario", "rule", "answer", "promise"),
    [
        (ADOPTED, f"{DECIDE}.adopt", None, Promise.MAKE_BEFORE_BREAK),
        (ALL_HANG, f"{DIAGNOSIS}.nobody_serves", "", Promise.ALARMED),
        (BAD_IMAGE, f"{DIAGNOSIS}.late", (), Promise.CURED),
    ],
    ids=["a fleet is ended", "no alarm says that nobody serves", "what never worked stays"],
)
def test_a_bug_breaks_its_promise(
    monkeypatch: pytest.MonkeyPatch, scenario: Scenario, rule: str, answer: object, promise: Promise
) -> None:
    monkeypatch.setattr(rule, lambda *_: answer)
    assert promise in {violation.promise for violation in run(scenario).violations}


# 4 erlangs of 6 s; later as much as three, or one, of four workers would serve alone.
STEADY = Scenario(seed=1, loads=((0.0, 4.0),), queue_known=False)
QUEUE = Scenario(seed=1, loads=((0.0, 4.0),), queue_known=True)
FELL = Scenario(seed=1, loads=((0.0, 3.6), (3000.0, 0.6)), queue_known=False)
NIGHT = Scenario(seed=1, loads=((0.0, 4.0), (1500.0, 0.0)), queue_known=False)


@pytest.mark.parametrize(
    ("scenario", "now_s", "there", "idle", "reported", "expected"),
    [
        pytest.param(STEADY, 2000.0, 8, 1, True, (5.0, False), id="one in eight"),
        pytest.param(STEADY, 2000.0, 8, 4, False, (5.0, False), id="half never began"),
        pytest.param(STEADY, 2000.0, 4, 4, True, (10.0, True), id="all hang: rather their logs"),
        pytest.param(QUEUE, 2000.0, 4, 4, True, (10.0, False), id="all hang, as a queue shows"),
        pytest.param(STEADY, 2000.0, 4, 4, False, (10.0, False), id="none of them ever served"),
        pytest.param(NIGHT, 2000.0, 4, 4, True, (0.0, True), id="a night shows nothing"),
        pytest.param(FELL, 2000.0, 4, 2, True, (10.0, False), id="half, busy"),
        pytest.param(FELL, 3600.0, 4, 2, True, (10.0, True), id="half, at ease as the load fell"),
        pytest.param(FELL, 8000.0, 4, 2, True, (10.0, False), id="half, it fell long ago"),
        pytest.param(FELL, 3600.0, 4, 1, True, (10.0, False), id="a quarter, at ease"),
    ],
)
def test_requests_of_a_minute_that_pass_an_idle_instance(
    scenario: Scenario, now_s: float, there: int, idle: int, *, reported: bool, expected: object
) -> None:
    assert evidence_of(scenario, now_s, there, idle, 40, reported=reported) == expected


def test_patience_ends_a_while_after_requests_have_certainly_passed() -> None:
    evidence = Evidence()
    evidence.add({"i-0a"}, CERTAIN - 1, 60.0)
    assert evidence.unseen(1e6, 0.0) == {"i-0a"}
    evidence.add({"i-0a", "i-0b"}, 1.0, 120.0)
    evidence.add({"i-0a", "i-0b"}, 0.0, 1000.0)
    assert evidence.unseen(420.0, 300.0) == {"i-0a", "i-0b"}
    assert evidence.unseen(421.0, 300.0) == {"i-0b"}
    evidence.add({"i-0b"}, 0.0, 1060.0)
    evidence.add({"i-0a"}, 0.0, 1120.0)
    assert evidence.unseen(1e6, 0.0) == {"i-0a"}


@pytest.mark.parametrize(
    ("ages_s", "short", "spent"),
    [
        ([100.0, 200.0], 2, True),
        ([100.0, 200.0], 3, False),
        ([100.0], 1, False),
        ([100.0, 3600.0], 1, True),
        ([100.0, 3600.0 + WHOLE_AFTER_S], 1, False),
    ],
)
def test_a_spent_budget_excuses_as_many_as_were_just_replaced(
    ages_s: list[float], short: int, *, spent: bool
) -> None:
    assert is_budget_spent(ages_s, short, 2) is spent
