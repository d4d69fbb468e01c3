"""docs/rollouts.md on a simulated cloud: roll a version out, see it, end it; what AWS refuses."""

from datetime import timedelta
from typing import Any

import boto3
import pytest

from functions.check_availability.app import handler as check_availability
from spotkeeper_operator import rollout
from spotkeeper_operator.rollout import Step
from tests.builders import NOON
from tests.functions.conftest import Stage
from tests.operator import conftest
from tests.operator.command import answered, refused, run, sleeps
from tests.operator.conftest import Days

# There is spot again, two minutes later.
pytestmark = pytest.mark.parametrize("deployed", [((1200.0, 200),)], indirect=True)
GROUPS = ("main-spot", "main-on-demand")


@pytest.fixture
def of_version_7(deployed: Stage) -> Stage:
    for name in GROUPS:
        group = deployed.cloud._group(name)
        group.template = "7"
        for machine in group.members.values():
            machine.template = "7"
        group.touch()
    Days(deployed).minutes(12)
    return deployed


def versions(stage: Stage) -> set[str]:
    views = [stage.cloud.group(name) for name in GROUPS]
    return {view.template for view in views} | {i.template for v in views for i in v.instances}


def test_a_version_is_rolled_out_and_status_shows_it(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days, seen = Days(of_version_7), set[str]()

    def sleep(seconds: float) -> None:
        days.sleep(seconds)
        seen.add(" ".join(run("status")[1].split()))

    sleeps(monkeypatch, sleep)
    line = ("rollout", "main", "--template-version", "8", "--canary", "0")
    would = "would replace the others of main-spot: nothing is compared"
    assert refused(*line).startswith(f"{would} error: cannot ask for confirmation")
    code, out, _ = run(*line, "--yes")
    assert (code, out) == (0, "main: done: every instance has version 8\n")
    assert versions(of_version_7) == {"8"}
    assert any("instance refresh to version 8 since 12:" in one for one in seen)
    assert run(*line, "--yes")[1].startswith("main: done")


def test_no_canary_begins_while_a_controller_has_no_turns(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(of_version_7)
    monkeypatch.setattr(conftest, "check_health", check_availability)
    days.minutes(4)
    line = ("rollout", "main", "--template-version", "8", "--yes")
    sleeps(monkeypatch, lambda _: days.minutes(1))
    code, out, _ = run(*line, "--bake", "1m")
    assert (code, "whether workers serve is not known" in out) == (1, True), out


def test_somebody_elses_refresh_is_shown_and_left_alone_and_one_is_cancelled_or_rolled_back(
    of_version_7: Stage,
) -> None:
    client = boto3.client("autoscaling")
    theirs: Any = {"LaunchTemplate": {"LaunchTemplateId": "lt-0123456789abcdef0", "Version": "9"}}
    client.start_instance_refresh(AutoScalingGroupName="main-spot", DesiredConfiguration=theirs)
    assert "instance refresh to version 9 since" in " ".join(run("status")[1].split())
    code, out, _ = run("rollout", "main", "--template-version", "8", "--yes")
    assert (code, "somebody else's instance refresh" in out) == (1, True)
    assert answered("rollout", "main", "--cancel") == "main: cancel main-spot\n"
    # What the cancelled refresh has replaced goes back, too.
    Days(of_version_7).minutes(3)
    assert versions(of_version_7) == {"7", "9"}
    assert answered("rollout", "main", "--roll-back") == "main: roll back main-spot\n"
    Days(of_version_7).minutes(20)
    assert versions(of_version_7) == {"7"}
    assert answered("rollout", "main", "--roll-back") == "main: roll back: nothing to do\n"


@pytest.mark.parametrize(
    ("version", "overrides", "why"),
    [
        ("", [], "it launches no numbered version"),
        ("$Latest", [], "it launches no numbered version"),
        ("7", [{"InstanceRequirements": {}}], "its types are chosen by attributes"),
        ("7", [{"LaunchTemplateSpecification": {}}], "its types are chosen by attributes"),
    ],
)
def test_what_an_instance_refresh_cannot_roll_out_is_said(
    of_version_7: Stage,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    overrides: list[Any],
    why: str,
) -> None:
    template = {"Overrides": overrides, "LaunchTemplateSpecification": {"Version": version}}
    answer = {"AutoScalingGroupName": "spot", "MixedInstancesPolicy": {"LaunchTemplate": template}}
    monkeypatch.setattr(rollout, "read_versions", lambda *_: (rollout.GroupVersions(answer, None),))
    assert why in refused("rollout", "main", "--template-version", "8", "--yes")


def test_a_version_is_one_of_both_groups(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [
        {"AutoScalingGroupName": of, "LaunchTemplate": {"LaunchTemplateId": of, "Version": "7"}}
        for of in ("spot", "on-demand")
    ]
    read = tuple(rollout.GroupVersions(answer, None) for answer in two)
    monkeypatch.setattr(rollout, "read_versions", lambda *_: read)
    said = refused("rollout", "main", "--template-version", "8", "--yes")
    assert "spot and on-demand have two launch templates" in said


CANARY, WHOLE = (7, 8), (8, 8)


@pytest.mark.parametrize(
    ("status", "canary", "versions", "missing", "step"),
    [
        ("InProgress", True, CANARY, 0, Step.HOLD),
        ("Cancelling", True, CANARY, 0, Step.WAIT),
        ("RollbackInProgress", True, CANARY, 0, Step.WAIT),
        ("RollbackSuccessful", True, CANARY, 0, Step.FAILED),
        # Nothing is replaced while the fleet is short, or may be.
        ("Cancelled", True, (7, 7), 0, Step.CANARY),
        ("Cancelled", True, (7, 7), 1, Step.WAIT),
        ("Cancelled", True, (7, 7), None, Step.WAIT),
        # What the group launches meanwhile would have the new version.
        ("InProgress", True, (7, 0), 0, Step.HOLD),
        ("InProgress", True, (7, 7), 0, Step.WAIT),
        ("Cancelled", True, (7, 7, 0), 0, Step.WAIT),
        # On-demand beside it may be released: the canary would be alone.
        ("Cancelled", True, (7,), 0, Step.WAIT),
        # What a sleeping fleet launches next would have a version that nothing has proven.
        ("Cancelled", True, (), 0, Step.WAIT),
        ("InProgress", True, (0, 8), 0, Step.HOLD),
        ("Successful", False, WHOLE, 1, Step.DONE),
        ("InProgress", False, CANARY, 0, Step.WAIT),
        ("InProgress", False, CANARY, 1, Step.HOLD),
        ("InProgress", False, CANARY, None, Step.WAIT),
    ],
)
def test_what_follows(
    deployed: Stage,
    status: str,
    canary: bool,
    versions: tuple[int, ...],
    missing: int | None,
    step: Step,
) -> None:
    del deployed
    refresh = rollout.Refresh(
        status=status, started=NOON, version="8", percentage=10, to_update=9, why="", canary=canary
    )
    instances = [
        {
            "InstanceId": f"i-{n}",
            "LifecycleState": "InService",
            "HealthStatus": "Healthy" if version else "Unhealthy",
            "LaunchTemplate": {"Version": str(version)},
        }
        for n, version in enumerate(versions)
    ]
    desired = len(versions)
    answer = {"AutoScalingGroupName": "spot", "DesiredCapacity": desired, "Instances": instances}
    launches = {"LaunchTemplate": {"Version": "8" if versions == WHOLE else "7"}}
    group = rollout.GroupVersions({**answer, **launches}, refresh)
    bake, now = timedelta(minutes=10), NOON + timedelta(minutes=2)
    wish = rollout.Wish(version="8", canary=1, bake=bake, began=NOON, until=NOON + 9 * bake)
    one = {"AutoScalingGroupName": "on-demand", "DesiredCapacity": 1, "Instances": instances[:1]}
    groups = [group, rollout.GroupVersions({**one, **launches}, None)]
    short = "1 serves nowhere" if missing else ""
    risk = "1 are at risk" if missing is None else ""
    assert rollout.next_step(wish, groups, None, now, short, risk).step is step
