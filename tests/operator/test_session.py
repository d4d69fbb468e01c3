"""An operator's session with a stack, each answer beside the one that is kept in kept/session.

The clock and the cloud are virtual, so instants and ids are the same each time. moto has no FIS,
no quotas, no list prices and only spot prices of 2006: a stand-in for FIS interrupts the simulated
cloud's instances, quotas and list prices are the tests', and an hour of spot costs next to nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import boto3
import pytest

from functions.keep_ledger.app import handler as keep_ledger
from tests.functions.conftest import Stage
from tests.operator.command import KEPT, STACK, deploy, matches, run
from tests.operator.conftest import Days
from tests.operator.fis import ROLE, Experiments

SPOT_COMES_BACK = ((1530.0, 200),)


class Session:
    """The stack, and what happens to it between two commands."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.days = stage, Days(stage)

    def pass_minutes(self, count: int) -> None:
        """Run both controllers and the ledger's function each minute."""
        for _ in range(count):
            self.days.minutes(1)
            self.stage.call(keep_ledger)

    def nothing(self) -> None:
        """The next command is given at once."""

    def a_minute(self) -> None:
        """Both controllers turn once more."""
        self.pass_minutes(1)

    def spot_is_short(self) -> None:
        """More spot is wanted than there is, for six minutes."""
        self.stage.cloud.set_desired("main-spot", 6)
        self.pass_minutes(6)

    def spot_is_back(self) -> None:
        """There is spot again, and what stood in for it goes."""
        self.pass_minutes(8)

    def drills_are_allowed(self) -> None:
        """The stack is deployed with Drills=true."""
        boto3.client("cloudformation").delete_stack(StackName=STACK)
        deploy(DrillRole=ROLE)
        self.pass_minutes(2)


@dataclass(frozen=True)
class Step:
    """A command, the names of its kept answers, what happened before it, and its exit code.

    It is given once for each answer; what can be done only once has one. Without any it is given
    once, and only its exit code counts.
    """

    line: str
    kept: tuple[str, ...]
    after: Callable[[Session], None] = Session.nothing
    code: int = 0


def both(name: str) -> tuple[str, ...]:
    return (f"{name}.txt", f"{name}.json")


PAUSE = "pause main --for 2h --why new-image"

STEPS = (
    Step("status", both("status"), code=1),
    Step("explain --since 5m", both("explain")),
    Step("doctor", both("doctor"), code=2),
    Step("mode main observe", both("observe")),
    Step("status", ("status_observing.txt",), Session.spot_is_short, code=1),
    Step("observe report --since 1h", both("observe_report")),
    Step("mode main act --yes", both("act")),
    Step("explain --since 1m", ("explain_acting.txt",), Session.a_minute),
    Step(PAUSE, both("pause"), Session.spot_is_back),
    Step("status", ("status_paused.txt",), Session.a_minute, code=1),
    Step("resume main --yes", ("resume.txt",)),
    Step(PAUSE, (), Session.a_minute),
    Step("resume main --yes", ("resume.json",)),
    Step("stop main --yes", ("stop.txt",)),
    Step("status", ("status_stopped.txt",), Session.a_minute, code=1),
    Step("mode main act --yes", ()),
    Step("stop main --yes", ("stop.json",), Session.a_minute),
    Step("cost --since 2h --by zone", both("cost")),
    Step("mode main act --yes", ()),
    # A drill interrupts real instances, so it runs once; kept/drill.txt is its text.
    Step("drill main", ("drill.json",), Session.drills_are_allowed),
)


@pytest.mark.parametrize("deployed", [SPOT_COMES_BACK], indirect=True)
def test_a_session(kept: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    Experiments(kept, monkeypatch)
    session = Session(kept)
    monkeypatch.setattr("spotkeeper_cli.stack_commands.time.sleep", session.days.sleep)
    for step in STEPS:
        step.after(session)
        for name in step.kept or ("",):
            code, out, err = run(*step.line.split(), *["--json"] * name.endswith(".json"))
            assert code == step.code, (name, out, err)
            # A drill tells its progress there.
            assert not err or name == "drill.json", (name, err)
            if name:
                matches(f"session/{name}", out)


def test_nothing_is_kept_that_no_step_answers() -> None:
    kept = {path.name for path in (KEPT / "session").iterdir()}
    assert kept == {name for step in STEPS for name in step.kept}
