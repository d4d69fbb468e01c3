"""An operator's session with a stack, each answer beside the one that is kept in kept/session.

The clock and the cloud are virtual, so instants and ids are the same each time. moto has no FIS,
no quotas, no list prices and only spot prices of 2006: a stub of FIS interrupts the simulated
cloud's instances, quotas and list prices are the tests', and an hour of spot costs next to nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import boto3
import pytest

from functions.keep_ledger.app import handler as keep_ledger
from tests.functions.conftest import Stage
from tests.operator.command import STACK, deploy, run
from tests.operator.days import Days
from tests.operator.fis import ROLE, Experiments
from tests.operator.golden import FOLDER, matches

SPOT_COMES_BACK = ((1530.0, 200),)


class Session:
    """The stack, and what happens to it between two commands."""

    def __init__(self, stage: Stage, fis: Experiments) -> None:
        self.stage, self.fis, self.days = stage, fis, Days(stage)

    def pass_minutes(self, count: int) -> None:
        """Let both controllers turn each minute; instances are noted in the ledger as they come."""
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
        """The stack is deployed with Drills=true; FIS takes one instance."""
        boto3.client("cloudformation").delete_stack(StackName=STACK)
        deploy(DrillRole=ROLE)
        self.pass_minutes(2)
        spot = sorted(i.instance_id for i in self.stage.cloud.group("main-spot").instances)
        self.fis.expect(spot[0])


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, what happened before it, its exit code, and the name of its kept answers.

    With `text` and `as_json` it is given twice; what can be done only once is kept in one of them.
    Without either it is given once, and only its exit code counts.
    """

    name: str
    line: str
    after: Callable[[Session], None] = Session.nothing
    code: int = 0
    text: bool = True
    as_json: bool = True

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Name the kept answers, each with the options that ask for it."""
        found: dict[str, tuple[str, ...]] = {f"{self.name}.txt": ()} if self.text else {}
        return found | ({f"{self.name}.json": ("--json",)} if self.as_json else {})


PAUSE = "pause main --for 2h --why new-image"

STEPS = (
    Step(name="status", line="status", code=1),
    Step(name="explain", line="explain --since 5m"),
    Step(name="doctor", line="doctor", code=2),
    Step(name="observe", line="mode main observe"),
    Step(
        name="status_observing",
        line="status",
        after=Session.spot_is_short,
        code=1,
        as_json=False,
    ),
    Step(name="observe_report", line="observe report --since 1h"),
    Step(name="act", line="mode main act --yes"),
    Step(name="explain_acting", line="explain --since 1m", after=Session.a_minute, as_json=False),
    Step(name="pause", line=PAUSE, after=Session.spot_is_back),
    Step(name="status_paused", line="status", after=Session.a_minute, code=1, as_json=False),
    Step(name="resume", line="resume main --yes", as_json=False),
    Step(name="pause_again", line=PAUSE, after=Session.a_minute, text=False, as_json=False),
    Step(name="resume", line="resume main --yes", text=False),
    Step(name="stop", line="stop main --yes", as_json=False),
    Step(name="status_stopped", line="status", after=Session.a_minute, code=1, as_json=False),
    Step(name="act_again", line="mode main act --yes", text=False, as_json=False),
    Step(name="stop", line="stop main --yes", after=Session.a_minute, text=False),
    Step(name="cost", line="cost --since 2h --by zone"),
    Step(name="act_at_last", line="mode main act --yes", text=False, as_json=False),
    # It interrupts in earnest, so it is asked once; kept/drill.txt is its text.
    Step(name="drill", line="drill main", after=Session.drills_are_allowed, text=False),
)


@pytest.mark.parametrize("deployed", [SPOT_COMES_BACK], indirect=True)
def test_a_session(kept: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fis = Experiments(kept, STACK)
    fis.stand_in(monkeypatch)
    session = Session(kept, fis)
    monkeypatch.setattr("spotkeeper_cli.stack_commands.time.sleep", session.days.sleep)
    for step in STEPS:
        step.after(session)
        for name, options in (step.answers() or {"": ()}).items():
            code, out, err = run(*step.line.split(), *options)
            assert code == step.code, (name, out, err)
            # A drill tells its progress there.
            assert not err or step.name == "drill", (name, err)
            if name:
                matches(f"session/{name}", out)


def test_nothing_is_kept_that_no_step_answers() -> None:
    kept = {path.name for path in (FOLDER / "session").iterdir()}
    assert kept == {name for step in STEPS for name in step.answers()}


def test_every_kept_text_holds_80_columns() -> None:
    texts = sorted(FOLDER.rglob("*.txt"))
    assert texts
    wide = {
        f"{path.relative_to(FOLDER)}:{number}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 80
    }
    assert wide == set()
