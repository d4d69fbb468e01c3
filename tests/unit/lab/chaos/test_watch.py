"""The watch sees what a broken product does: each bug here is made up.

Kept stories break nothing without the bug: `tests/simulation/test_chaos.py` runs them.
"""

from pathlib import Path

import pytest

from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.promises import Promise
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


@pytest.mark.parametrize(
    ("scenario", "rule", "answer", "promise"),
    [
        pytest.param(
            ADOPTED,
            "spotkeeper.domain.availability.decide.adopt",
            None,
            Promise.MAKE_BEFORE_BREAK,
            id="a running fleet is ended",
        ),
        pytest.param(
            ALL_HANG,
            "spotkeeper.domain.health.diagnosis.nobody_serves",
            "",
            Promise.ALARMED,
            id="nobody serves and no alarm says so",
        ),
        pytest.param(
            BAD_IMAGE,
            "spotkeeper.domain.health.diagnosis.late",
            (),
            Promise.CURED,
            id="an instance that never worked stays",
        ),
    ],
)
def test_a_bug_breaks_its_promise(
    monkeypatch: pytest.MonkeyPatch, scenario: Scenario, rule: str, answer: object, promise: Promise
) -> None:
    monkeypatch.setattr(rule, lambda *_: answer)
    assert promise in {violation.promise for violation in run(scenario).violations}
