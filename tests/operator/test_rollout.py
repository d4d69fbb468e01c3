"""docs/rollouts.md on a simulated cloud: roll a version out, see it, end it; what AWS refuses."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import boto3
import pytest
from moto.ec2.models import ec2_backends

from functions.check_availability.app import handler as check_availability
from spotkeeper.domain.decision import NewVersion, Verdict
from spotkeeper.domain.fleet import Fleet
from spotkeeper_lab.aws.answers import LAUNCH_TEMPLATE
from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from spotkeeper_lab.cloud.values import SPOT_DRY
from spotkeeper_operator import rollout
from spotkeeper_operator.rollout import Step
from tests.builders import NOON
from tests.functions.conftest import Stage, document
from tests.operator import conftest
from tests.operator.command import answered, refused, run, sleeps
from tests.operator.conftest import Days

# There is spot again, two minutes later.
pytestmark = pytest.mark.parametrize("deployed", [((1200.0, 200),)], indirect=True)
GROUPS = ("main-spot", "main-on-demand")
ACTIVE = rollout.Refresh(
    status="InProgress", started=NOON, version="8", percentage=10, to_update=9, why="", canary=True
)


@pytest.fixture
def of_version_7(deployed: Stage) -> Stage:
    ec2, named = boto3.client("ec2"), LAUNCH_TEMPLATE["LaunchTemplateName"]
    made: Any = {"LaunchTemplateName": named, "LaunchTemplateData": {"ImageId": "ami-1"}}
    ec2.create_launch_template(**made)
    for _ in range(8):
        ec2.create_launch_template_version(**made)
    here = ec2_backends[ACCOUNT][REGION].launch_templates
    here[LAUNCH_TEMPLATE["LaunchTemplateId"]] = here.pop(next(iter(here)))
    for name in GROUPS:
        for machine in deployed.cloud._group(name).members.values():
            machine.template = "7"
    launches(deployed, "7")
    Days(deployed).minutes(12)
    return deployed


def launches(stage: Stage, version: str) -> None:
    for group in map(stage.cloud._group, GROUPS):
        group.template = version
        group.touch()


def versions(stage: Stage) -> set[str]:
    views = [stage.cloud.group(name) for name in GROUPS]
    return {view.template for view in views} | {i.template for v in views for i in v.instances}


def test_a_version_is_rolled_out_and_shown_also_when_the_command_is_run_again(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days, seen = Days(of_version_7), list[str]()

    def sleep(seconds: float) -> None:
        # A refresh is pending first, and moves nothing.
        days.sleep(max(seconds, 20))
        if not seen:
            seen.append(" ".join(run("status")[1].split()))
        if {i.template for i in of_version_7.cloud.group("main-spot").instances} == {"8"}:
            interrupt(seconds)

    sleeps(monkeypatch, sleep)
    line = ("rollout", "main", "--template-version", "8")
    would = "would replace the others of main-spot: nothing is compared"
    assert refused(*line, "--canary", "0").startswith(f"{would} error: cannot ask for confirmation")
    run(*line, "--canary", "0", "--yes")
    assert "instance refresh to version 8 since 12:" in seen[0]
    wish = of_version_7.cloud.refreshes("main-spot")[-1].preferences
    # It goes back also where nobody runs the command any more.
    assert (wish.alarms, wish.auto_rollback) == ((f"test-{rollout.ALARM}",), True)
    assert versions(of_version_7) == {"7", "8"}
    # The larger group is done: no canary is needed.
    sleeps(monkeypatch, days.sleep)
    code, out, err = run(*line, "--yes")
    assert (code, out) == (0, "main: done: every instance has version 8\n")
    assert ("canary" in err, versions(of_version_7)) == (False, {"8"})


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "why", ["whether workers serve is not known", "it does not exist", "of spot do not serve"]
)
def test_no_canary_begins_without_turns_or_a_group_or_while_on_demand_stands_in(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    days, cloud = Days(of_version_7), of_version_7.cloud
    if "known" in why:
        monkeypatch.setattr(conftest, "check_health", check_availability)
    elif "exist" in why:
        read = rollout.read_versions
        monkeypatch.setattr(rollout, "read_versions", lambda *of: read(*of)[:1])
    else:
        cloud.fail_launches("main-spot", cloud.now_s, 1e6, SPOT_DRY)
        for one in cloud.group("main-spot").instances[1:]:
            cloud.kill(one.instance_id)
    days.minutes(6)
    line = ("rollout", "main", "--template-version", "8", "--yes")
    sleeps(monkeypatch, lambda _: days.minutes(1))
    code, out, err = run(*line, "--bake", "1m")
    assert (code, why in out + err) == (1, True), err


def test_somebody_elses_refresh_is_shown_and_left_alone_and_one_is_cancelled_or_rolled_back(
    of_version_7: Stage,
) -> None:
    refresh("9")
    Days(of_version_7).sleep(20)
    assert "instance refresh to version 9 since" in " ".join(run("status")[1].split())
    code, out, _ = run("rollout", "main", "--template-version", "8", "--yes")
    assert (code, "somebody else's instance refresh" in out) == (1, True)
    assert answered("rollout", "main", "--cancel") == "main: cancel main-spot\n"
    # What the cancelled refresh has replaced goes back, too.
    Days(of_version_7).minutes(3)
    assert versions(of_version_7) == {"7", "9"}
    assert run("rollout", "main", "--roll-back")[:2] == (0, "main: roll back main-spot\n")
    Days(of_version_7).minutes(20)
    assert versions(of_version_7) == {"7"}
    assert run("rollout", "main", "--roll-back")[:2] == (0, "main: done: nothing to do\n")


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("The security group 'sg-1' does not exist.",
         "The security group 'sg-1' does not exist: correct the launch template or the group"),
        ("", "There is no Spot capacity available that matches your request: more instance types"),
    ],
    ids=["configuration", "capacity"],
)  # fmt: skip
def test_a_refresh_whose_launches_fail_is_shown_although_nothing_moves(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch, lacks: str, said: str
) -> None:
    cloud = of_version_7.cloud
    refresh("8", MinHealthyPercentage=100, MaxHealthyPercentage=110)
    cloud.lacks = lambda *_: lacks
    if not lacks:
        cloud.fail_launches("main-spot", cloud.now_s, 1e6, SPOT_DRY)
    Days(of_version_7).minutes(2)
    assert versions(of_version_7) == {"7"}
    text = " ".join(run("status")[1].split())
    assert "main whole: 4 wanted" in text
    assert "instance refresh of main-spot: the last launch FAILED at 12:3" in text
    assert said in text
    assert "instance refresh to version 8 since" in text
    # The command says so, too, while it waits.
    sleeps(monkeypatch, interrupt)
    assert said in run("rollout", "main", "--template-version", "8", "--yes")[2]


def refresh(version: str, **preferences: Any) -> None:
    """Start an instance refresh of the spot group, as somebody else does."""
    spec = {"LaunchTemplateId": "lt-0123456789abcdef0", "Version": version}
    wish: Any = {"DesiredConfiguration": {"LaunchTemplate": spec}, "Preferences": preferences}
    boto3.client("autoscaling").start_instance_refresh(AutoScalingGroupName="main-spot", **wish)


def compared(monkeypatch: pytest.MonkeyPatch, version: str, of: str = "main") -> None:
    """Let a fleet's turns find a version worse than the others."""
    turns = rollout.Rollout._turns
    worse = NewVersion(version=f"lt/{version}", instances=1, since=NOON, verdict=Verdict.WORSE)

    def found(self: rollout.Rollout, fleet: Fleet | None = None) -> Any:
        turn, health = turns(self)
        mine = (fleet or self.fleet).name == of
        return turn, replace(health, new_version=worse) if mine else health

    monkeypatch.setattr(rollout.Rollout, "_turns", found)


def test_no_roll_out_begins_beside_a_worse_version(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(monkeypatch, "8")
    sleeps(monkeypatch, interrupt)
    code, out, _ = run("rollout", "main", "--template-version", "9", "--yes")
    assert (code, "version 8 on 1 instance is worse" in out) == (1, True)
    assert versions(of_version_7) == {"7"}


@pytest.mark.parametrize("trouble", ["a refresh", "a worse version"])
@pytest.mark.parametrize("canary", ["0", "1"])
def test_a_roll_out_waits_for_another_fleets(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch, trouble: str, canary: str
) -> None:
    of_version_7.put("other", json.dumps(document("other")))
    read, other = rollout.read_versions, [rollout.GroupVersions({}, ACTIVE)]
    if trouble == "a refresh":
        monkeypatch.setattr(rollout, "read_versions", lambda *of: read(*of) or other)
    else:
        compared(monkeypatch, "8", "other")
    sleeps(monkeypatch, interrupt)
    _, _, err = run("rollout", "main", "--template-version", "8", "--canary", canary, "--yes")
    assert "main-spot: wait: fleet other is rolled out, or has a version that is worse" in err


@pytest.fixture
def launches_8(of_version_7: Stage) -> Stage:
    """Both groups launch version 8; one instance has it already."""
    next(iter(of_version_7.cloud._group("main-spot").members.values())).template = "8"
    launches(of_version_7, "8")
    Days(of_version_7).minutes(2)
    return of_version_7


@pytest.mark.parametrize("line", ["--template-version 8 --yes", "--roll-back"])
@pytest.mark.parametrize("launched", ["8", "8 by a refresh", "$Default"])
def test_a_version_that_is_launched_already_is_rolled_back_to_the_one_of_before(
    launches_8: Stage, monkeypatch: pytest.MonkeyPatch, line: str, launched: str
) -> None:
    days = Days(launches_8)
    if launched == "8 by a refresh":
        refresh("8")
    elif launched == "$Default":
        launches(launches_8, launched)
        line = "--roll-back"
    compared(monkeypatch, "8")
    sleeps(monkeypatch, days.sleep)
    code, out, err = run("rollout", "main", *line.split())
    assert (code, "roll back main-spot" in out) == (int("8" in line), True), (out, err)
    days.minutes(30)
    assert versions(launches_8) == {"7"}


def test_on_demand_of_the_new_version_covers_its_canary_until_that_is_proven(
    of_version_7: Stage,
) -> None:
    """Whoever set both groups to a version, or moved the `$Default` that they launch."""
    cloud, desired = of_version_7.cloud, list[int]()
    launches(of_version_7, "8")
    cloud.kill(cloud.group("main-spot").instances[0].instance_id)
    for _ in range(25):
        Days(of_version_7).minutes(1)
        desired.append(cloud.group("main-on-demand").desired)
    # A launch, its cover of 15 minutes, and the time in which spot settles.
    assert desired == [1] * 19 + [0] * 6


def test_what_served_before_a_worse_version_needs_no_canary(
    launches_8: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(monkeypatch, "8")
    launches_8.cloud.ringing.add(f"test-{rollout.ALARM}")
    sleeps(monkeypatch, Days(launches_8).sleep)
    code, out, err = run("rollout", "main", "--template-version", "7", "--yes")
    assert (code, versions(launches_8)) == (0, {"7"}), (out, err)


def test_a_group_that_was_replaced_is_rolled_back_too(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(of_version_7)

    def sleep(seconds: float) -> None:
        days.sleep(seconds)
        if of_version_7.cloud._group("main-spot").template == "8":
            compared(monkeypatch, "8")

    sleeps(monkeypatch, sleep)
    line = ("rollout", "main", "--template-version", "8", "--canary", "0", "--yes")
    assert run(*line)[:1] == (1,)
    days.minutes(30)
    assert versions(of_version_7) == {"7"}


def test_a_roll_back_waits_for_what_is_being_cancelled_and_a_canary_is_asked_for(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(of_version_7)
    sleeps(monkeypatch, days.sleep)
    for line in ("--template-version 8 --canary 0", "--roll-back"):
        refresh("8", MinHealthyPercentage=100, MaxHealthyPercentage=110)
        days.sleep(30)
        assert answered("rollout", "main", "--cancel") == "main: cancel main-spot\n"
        code, out, err = run("rollout", "main", *line.split())
        asked = "roll-back" not in line
        assert "Cancelling" in err and asked == ("would  replace the others" in err)
        assert (code, out) == ((2, "") if asked else (0, "main: roll back main-spot\n"))
    days.minutes(30)
    assert versions(of_version_7) == {"7"}


def test_a_refresh_that_was_taken_over_and_fails_is_not_begun_again(
    of_version_7: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh("8")
    Days(of_version_7).sleep(30)
    (theirs,) = of_version_7.cloud.refreshes("main-spot")

    def sleep(_: float) -> None:
        theirs.fail(of_version_7.cloud._group("main-spot"), of_version_7.cloud.now_s, "stuck")
        Days(of_version_7).sleep(5)

    sleeps(monkeypatch, sleep)
    code, out, _ = run("rollout", "main", "--template-version", "8", "--canary", "0", "--yes")
    begun = [one.template for one in of_version_7.cloud.refreshes("main-spot")]
    assert (code, "Failed" in out, begun) == (1, True, ["7", "8"])


SEVEN = {"LaunchTemplateId": "lt-1", "Version": "7"}


@pytest.mark.parametrize(
    ("specs", "overrides", "why"),
    [
        ([{}], {}, "spot cannot be rolled out: it launches no version: name"),
        ([{"Version": "$Latest"}], {}, "it launches $Latest: name the number of a version"),
        ([SEVEN], {"InstanceRequirements": {}}, "its types are chosen by attributes"),
        ([SEVEN], {"LaunchTemplateSpecification": {}}, "its types are chosen by attributes"),
        ([SEVEN, SEVEN | {"LaunchTemplateId": "lt-2"}], {}, "have two launch templates"),
    ],
)
def test_what_an_instance_refresh_cannot_roll_out_is_said(
    of_version_7: Stage,
    monkeypatch: pytest.MonkeyPatch,
    specs: list[Any],
    overrides: dict[str, Any],
    why: str,
) -> None:
    templates = [{"Overrides": [overrides], "LaunchTemplateSpecification": spec} for spec in specs]
    policies = [{"MixedInstancesPolicy": {"LaunchTemplate": each}} for each in templates]
    read = [rollout.GroupVersions({"AutoScalingGroupName": "spot", **of}, None) for of in policies]
    assert "VersionNotFound" in refused("rollout", "main", "--template-version", "99", "--yes")
    monkeypatch.setattr(rollout, "read_versions", lambda *_: read)
    assert why in refused("rollout", "main", "--template-version", "8", "--yes")
    monkeypatch.setattr(rollout, "read_versions", lambda *_: ())
    assert "no group" in refused("rollout", "main", "--template-version", "8", "--yes")


CANARY, WHOLE = (7, 8), (8, 8)


@pytest.mark.parametrize(
    ("status", "canary", "versions", "missing", "step"),
    [
        ("InProgress", True, CANARY, 0, Step.HOLD),
        ("Cancelling", True, CANARY, 0, Step.WAIT),
        ("RollbackInProgress", True, CANARY, 0, Step.WAIT),
        ("RollbackSuccessful", True, CANARY, 0, Step.ROLL_BACK),
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
        # It launches the version, and has none of it: nothing has proven that one.
        ("Successful", False, (7, 7), 0, Step.CANARY),
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
    refresh = replace(ACTIVE, status=status, canary=canary)
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
    launches = {"LaunchTemplate": {"Version": "8" if status == "Successful" else "7"}}
    group = rollout.GroupVersions({**answer, **launches}, refresh)
    bake, now = timedelta(minutes=10), NOON + timedelta(minutes=2)
    wish = rollout.Wish(version="8", canary=1, bake=bake, began=NOON, until=NOON + 9 * bake)
    one = {"AutoScalingGroupName": "on-demand", "DesiredCapacity": 1, "Instances": instances[:1]}
    groups = [group, rollout.GroupVersions({**one, **launches}, None)]
    short = "1 serves nowhere" if missing else ""
    risk = "1 are at risk" if missing is None else ""
    assert rollout.next_step(wish, groups, None, now, short, risk).step is step
    if step is Step.CANARY:
        # None begins that could not be proven in time.
        late = replace(wish, until=now + bake)
        assert rollout.next_step(late, groups, None, now).step is Step.ROLL_BACK
