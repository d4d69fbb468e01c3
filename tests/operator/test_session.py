"""An operator's session with a stack, each answer beside the one that is kept in kept/session.

The clock and the cloud are virtual, so instants and ids are the same each time. moto has no FIS,
no quotas, no list prices and only spot prices of 2006: a stand-in for FIS interrupts the simulated
cloud's instances, quotas and list prices are the tests', and an hour of spot costs next to nothing.
"""

import boto3
import pytest

from functions.keep_ledger.app import handler as keep_ledger
from tests.functions.conftest import Stage
from tests.operator.command import KEPT, STACK, deploy, matches, run, sleeps
from tests.operator.conftest import Days
from tests.operator.fis import ROLE, Experiments

SPOT_COMES_BACK = ((1530.0, 200),)
PAUSE = "pause main --for 2h --why new-image"


@pytest.mark.parametrize("deployed", [SPOT_COMES_BACK], indirect=True)
def test_a_session(kept: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    Experiments(kept, monkeypatch)
    days = Days(kept)
    sleeps(monkeypatch, days.sleep)
    answers: set[str] = set()

    def pass_minutes(count: int) -> None:
        """Run both controllers and the ledger's function each minute."""
        for _ in range(count):
            days.minutes(1)
            kept.call(keep_ledger)

    def give(line: str, *names: str, code: int = 0) -> None:
        """Give a command once for each of its kept answers, and once without any."""
        for name in names or ("",):
            exit_code, out, err = run(*line.split(), *["--json"] * name.endswith(".json"))
            assert exit_code == code, (name, out, err)
            # A drill tells its progress there.
            assert not err or name == "drill.json", (name, err)
            if name:
                answers.add(name)
                matches(f"session/{name}", out)

    give("status", "status.txt", "status.json", code=1)
    give("explain --since 5m", "explain.txt", "explain.json")
    give("doctor", "doctor.txt", "doctor.json", code=2)
    give("mode main observe", "observe.txt", "observe.json")
    # More spot is wanted than there is, for six minutes.
    kept.cloud.set_desired("main-spot", 6)
    pass_minutes(6)
    give("status", "status_observing.txt", code=1)
    give("observe report --since 1h", "observe_report.txt", "observe_report.json")
    give("mode main act --yes", "act.txt", "act.json")
    pass_minutes(1)
    give("explain --since 1m", "explain_acting.txt")
    # There is spot again, and what stood in for it goes.
    pass_minutes(8)
    give(PAUSE, "pause.txt", "pause.json")
    pass_minutes(1)
    give("status", "status_paused.txt", code=1)
    give("resume main --yes", "resume.txt")
    pass_minutes(1)
    give(PAUSE)
    give("resume main --yes", "resume.json")
    give("stop main --yes", "stop.txt")
    pass_minutes(1)
    give("status", "status_stopped.txt", code=1)
    give("mode main act --yes")
    pass_minutes(1)
    give("stop main --yes", "stop.json")
    give("cost --since 2h --by zone", "cost.txt", "cost.json")
    give("mode main act --yes")
    # The stack is deployed with Drills=true.
    boto3.client("cloudformation").delete_stack(StackName=STACK)
    deploy(DrillRole=ROLE)
    pass_minutes(2)
    # A drill interrupts real instances, so it runs once; kept/drill.txt is its text.
    give("drill main", "drill.json")
    assert answers == {path.name for path in (KEPT / "session").iterdir()}
