"""mode, pause, resume and stop on a stack that works, and what its turns do then."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from typer.testing import CliRunner

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG, GROUP_TAG, MARKS
from spotkeeper.adapters.stacks import Stack
from spotkeeper_cli.main import app
from spotkeeper_operator.aws import Aws
from tests.functions.conftest import PATH, TABLE, Stage, document
from tests.operator.command import STACK, answered, deploy, intercept, record, refused, run


def turned(stage: Stage) -> None:
    """Let a minute pass and both controllers turn."""
    stage.at(stage.cloud.now_s + 60)
    stage.call(check_health)
    stage.call(check_availability)


def test_stop_waits_for_spot_and_then_leaves_nothing_of_its_own(deployed: Stage) -> None:
    assert refused("stop", "main", "--yes") == (
        "error: 1 of 4 spot instances do not serve, and 1 on demand replace them: "
        "wait, or give --anyway"
    )
    assert deployed.cloud.group("main-spot").suspensions.keys() == {"AZRebalance"}
    code, out, _ = run("stop", "main", "--yes", "--anyway")
    assert code == 0
    assert out.splitlines()[:6] == [
        "did   main only observes from now on",
        "did   main-on-demand: desired 1 -> 0",
        "did   main-on-demand: AZRebalance resumed",
        "did   main-on-demand: the tag spotkeeper:owner removed",
        "did   main-spot: AZRebalance resumed",
        "did   main-spot: the tag spotkeeper:owner removed",
    ]
    assert {name: deployed.cloud.group(name).tags for name in deployed.cloud.groups()} == {
        "main-spot": {}, "main-on-demand": {},
    }  # fmt: skip
    assert deployed.cloud.group("main-on-demand").desired == 0
    assert deployed.cloud.group("main-spot").suspensions == {}
    turned(deployed)
    assert deployed.cloud.group("main-on-demand").desired == 0
    assert deployed.cloud.group("main-spot").suspensions == {}


def test_stop_ends_no_on_demand_that_nothing_serves_in_place_of(deployed: Stage) -> None:
    """Of a fleet that only observed, its owner requested it, not Spotkeeper."""
    cloud = deployed.cloud
    cloud.set_desired("main-spot", 0)
    cloud.set_desired("main-on-demand", 4)
    deployed.at(cloud.now_s + 600)
    deployed.call(check_availability)
    assert refused("stop", "main", "--yes") == (
        "error: 0 spot instances serve, and 4 on demand: wait until spot serves that many, or give "
        "--anyway"
    )
    answered("mode", "main", "observe")
    out = answered("stop", "main", "--yes")
    assert "left  main-on-demand: desired 4, Spotkeeper no longer sets it" in out
    assert cloud.group("main-on-demand").desired == 4


@pytest.mark.parametrize(
    ("serving", "age_s", "told"),
    [
        (2, 30, "1 of 3 spot instances do not serve, and 1 on demand replace them"),
        (0, 30, "3 of 3 spot instances do not serve, and 1 on demand replace them"),
        (3, 900, "no availability turn has succeeded lately, so it is unknown whether spot serves"),
        (3, 30, ""),
    ],
    ids=["one hangs", "all hang", "no turn", "all serve"],
)
def test_stop_counts_what_serves_and_not_what_is_in_service(
    deployed: Stage, serving: int, age_s: int, told: str
) -> None:
    """Turns know which workers hang; a group only knows that their instances run."""
    deployed.cloud.set_desired("main-spot", 3)
    deployed.at(deployed.cloud.now_s + 1800)
    assert len(deployed.cloud.group("main-spot").instances) == 3
    at = deployed.now - timedelta(seconds=age_s)
    newest = {**deployed.records("main")[-1], "controller": "availability", "at": at.isoformat()}
    record(
        deployed,
        "availability",
        newest | {"availability": {"spot_serving": serving}, "health": None},
    )
    code, _, err = run("stop", "main", "--yes")
    assert (code, told in " ".join(err.split())) == (2 if told else 0, True)
    assert deployed.cloud.group("main-on-demand").desired == (1 if told else 0)


def test_a_stop_that_fails_half_way_says_what_is_left_and_how_to_go_on(
    deployed: Stage, denied: Callable[..., None]
) -> None:
    """The backfill goes on, and is paid for: a second stop without --anyway would leave it."""
    denied("SetDesiredCapacity", "Throttling")
    told = refused("stop", "main", "--anyway", "--yes")
    assert "not allowed to SetDesiredCapacity. Done: main only observes from now on. " in told
    assert "Not done: main-on-demand: desired 1 -> 0; main-on-demand: AZRebalance" in told
    assert told.endswith("Stop it again: spotkeeper stop main --anyway")
    denied("nothing any more")
    assert run("stop", "main", "--anyway", "--yes")[0] == 0
    assert deployed.cloud.group("main-on-demand").desired == 0


HOOKS = {"LifecycleHooks": [{"LifecycleHookName": name} for name in ("spotkeeper-drain", "own")]}


def test_a_stopped_fleet_does_not_act_in_a_new_stack_of_the_name(deployed: Stage) -> None:
    """The table, which has the mode, goes with the stack; documents made by hand stay."""
    written = {
        "main.overrides": {"mode": "act", "sizing": {"window_s": 60}},
        "night": document("night"),
        "night.overrides": {"sizing": {"window_s": 60}},
    }
    boto3.client("cloudformation").delete_stack(StackName=STACK)
    deploy(FleetDocumentName=f"{PATH}/main")
    for name, text in written.items():
        deployed.put(name, json.dumps(text))
    left = ""
    for fleet in ("main", "night"):
        left += answered("stop", fleet, "--yes", "--anyway", "--json")
    ssm = boto3.client("ssm")
    for name, text in written.items():
        kept = json.loads(ssm.get_parameter(Name=f"{PATH}/{name}")["Parameter"]["Value"])
        assert kept == text | ({} if name == "night.overrides" else {"mode": "observe"})
        assert f"aws ssm delete-parameter --name {PATH}/{name}" in left
    own = json.loads(ssm.get_parameter(Name=f"{PATH}/main")["Parameter"]["Value"])
    assert "mode" not in own


@pytest.fixture
def hooked(
    stage_of: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> tuple[Stage, list[str]]:
    """A whole fleet with a hook of ours and one of its owner's; with it, the hooks deleted."""
    stage = stage_of(("main",))
    deploy()
    deleted: list[str] = []

    def answered_too(_: BaseClient, operation: str, arguments: Any) -> Any:
        # moto does not know the simulated cloud's groups.
        if operation == "DescribeLifecycleHooks":
            return HOOKS
        if operation == "DeleteLifecycleHook":
            deleted.append(f"{arguments['AutoScalingGroupName']} {arguments['LifecycleHookName']}")
            return {}
        return None

    intercept(monkeypatch, answered_too)
    return stage, deleted


def test_stop_deletes_hooks_of_ours_and_leaves_those_of_others(
    hooked: tuple[Stage, list[str]],
) -> None:
    """They stay while something waits in them, or when it is requested."""
    stage, deleted = hooked
    kept = run("stop", "main", "--yes", "--keep-hooks")[1]
    assert "unless workers complete them" in kept
    stage.cloud.set_desired("main-spot", 5)
    waits = run("stop", "main", "--yes")[1]
    assert "left  main-spot: hooks spotkeeper-drain; 1 instances launch" in waits
    assert deleted == ["main-on-demand spotkeeper-drain"]
    stage.at(stage.cloud.now_s + 600)
    out = answered("stop", "main", "--yes")
    assert deleted[1:] == ["main-on-demand spotkeeper-drain", "main-spot spotkeeper-drain"]
    assert "did   main-spot: hooks spotkeeper-drain deleted" in out


def test_hooks_of_groups_that_the_stack_made_go_with_it(
    hooked: tuple[Stage, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, deleted = hooked
    outputs = {"SpotGroup": "main-spot", "OnDemandGroup": "main-on-demand", "TableName": TABLE}
    parameters = {"LaunchTemplateId": "lt-1"}
    made = Stack(name="test", outputs=outputs, parameters=parameters, resources={})
    monkeypatch.setattr(Aws, "stack", lambda *_: made)
    assert "deleting the stack deletes them and the group" in run("stop", "main", "--yes")[1]
    assert deleted == []


def test_marks_are_removed_and_what_was_detached_is_named(hooked: tuple[Stage, list[str]]) -> None:
    stage, _ = hooked
    spot = [i.instance_id for i in stage.cloud.group("main-spot").instances]
    tags = [
        {"Key": DRAINING_TAG, "Value": (stage.now + timedelta(minutes=2)).isoformat()},
        {"Key": GROUP_TAG, "Value": "main-spot"},
    ]
    boto3.client("ec2").create_tags(Resources=spot[:2], Tags=tags)  # type: ignore[arg-type]
    stage.cloud.detach("main-spot", spot[:1])
    stage.at(stage.cloud.now_s + 300)
    out = run("stop", "main", "--yes")[1]
    assert f"left  {spot[0]}: detached from main-spot early and running" in out
    assert f"{' and '.join(MARKS)} removed from {spot[1]}" in out


def test_before_turns_act_the_operator_sees_what_they_would_request(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spot is short by two: a fleet that observes, or is paused, wishes for on-demand."""
    assert answered("mode", "main", "act").startswith("main: act"), "it acts, and changes nothing"
    answered("mode", "main", "observe")
    deployed.cloud.set_desired("main-spot", 6)
    deployed.at(deployed.cloud.now_s + 180)
    turned(deployed)
    wish = "would  availability (0 s ago): main-on-demand: desired 3\n"
    for line in ("mode main act", "resume main"):
        if line == "resume main":
            answered("mode", "main", "act", "--yes")
            answered("pause", "main", "--for", "1h", "--why", "x")
            turned(deployed)
        before = deployed.items("main", "control")
        code, out, err = run(*line.split())
        assert (code, out, wish in err) == (2, "", True), line
        assert "cannot ask for confirmation: give --yes" in err
        assert deployed.items("main", "control") == before
    deployed.at(deployed.cloud.now_s + 600)
    assert "availability: not known, no turn has succeeded for 10 min" in run("resume", "main")[2]
    monkeypatch.setattr("spotkeeper_cli.stack_commands._asks", lambda: True)
    result = CliRunner(env={"SPOTKEEPER_STACK": "test"}).invoke(app, ["resume", "main"], "n\n")
    assert (result.exit_code, deployed.items("main", "control")) == (1, before)
    result = CliRunner(env={"SPOTKEEPER_STACK": "test"}).invoke(app, ["resume", "main"], "y\n")
    assert (result.exit_code, "not paused any more" in result.stdout) == (0, True)


def test_before_a_fleet_is_stopped_the_operator_sees_every_step(deployed: Stage) -> None:
    before = deployed.items("main", "control")
    code, out, err = run("stop", "main", "--anyway")
    assert (code, out, deployed.items("main", "control")) == (2, "", before)
    shown = [line.removeprefix("would  ") for line in err.splitlines() if "would  " in line]
    done = json.loads(answered("stop", "main", "--anyway", "--yes", "--json"))["did"]
    assert shown == done
    assert "main-on-demand: desired 1 -> 0" in done
