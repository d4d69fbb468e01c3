"""The simulated AWS over the wire, and the groups that a stack makes in it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.parsers import create_parser

from spotkeeper_lab.aws import ministack
from spotkeeper_lab.aws.over_http import PROTOCOLS, ByMoto, Groups, LiveWorld, group_spec
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.values import CloudError, GroupSpec, Physics, Purchase, Transition
from spotkeeper_lab.run.job_machines import JOB, JobMachines
from spotkeeper_lab.run.serve import make_world
from spotkeeper_lab.run.up import LabSettings

POOL = "us-east-1a/g5.xlarge"
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
ONE, TWO = {"AutoScalingGroupName": "one"}, {"AutoScalingGroupName": "two"}


def world() -> LiveWorld:
    """A spot group and one on demand, of at most five; the pool holds nine."""
    groups = [
        GroupSpec(name=name, purchase=kind, minimum=0, maximum=5, desired=1, pools=(POOL,))
        for name, kind in (("one", Purchase.SPOT), ("two", Purchase.ON_DEMAND))
    ]
    return LiveWorld(groups, {POOL: 9}, Physics(cold_start_s=0.0), VirtualTime(START), lambda: 1.0)


# --- calls ----------------------------------------------------------------------------------------


class Wire:
    """Calls as they go over the wire; an answer is what boto3 makes of it."""

    def __init__(self) -> None:
        self.world = world()
        self.by_moto = ByMoto(self.world, {})

    def call(self, action: str, service: str = "autoscaling", **params: str) -> Any:
        """The answer to a call; its error where it is refused."""
        body = urlencode({"Action": action, "Version": "x", **params}).encode()
        answer = self.by_moto(service, body)
        assert answer is not None
        status, headers, text = answer
        model = botocore.session.get_session().get_service_model(service)
        parsed = create_parser(PROTOCOLS[service]).parse(
            {"status_code": status, "headers": headers, "body": text},
            cast("Any", model.operation_model(action).output_shape),
        )
        assert (status == 400) is ("Error" in parsed)
        return parsed

    def refused(self, action: str, service: str = "autoscaling", **params: str) -> tuple[str, str]:
        error = self.call(action, service, **params)["Error"]
        return error["Code"], error["Message"]

    def group(self, name: str = "two") -> Any:
        named = {"AutoScalingGroupNames.member.1": name}
        (group,) = self.call("DescribeAutoScalingGroups", **named)["AutoScalingGroups"]
        return group


@pytest.fixture
def wire() -> Wire:
    return Wire()


NO_INSTANCE = {"InstanceId.1": "i-0abc1234def567890"}
HOOK = TWO | {
    "LifecycleHookName": "ready",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
    "HeartbeatTimeout": "60",
}
HELD = TWO | {"LifecycleHookName": "ready", "InstanceId": "i-00000000000000001"}


@pytest.mark.parametrize(
    ("service", "action", "params", "code", "told"),
    [
        ("autoscaling", "SetDesiredCapacity", ONE | {"DesiredCapacity": "6"}, None, "6"),
        ("ec2", "TerminateInstances", NO_INSTANCE, "InvalidInstanceID.NotFound", ""),
        ("autoscaling", "PutScalingPolicy", {}, None, "PutScalingPolicy is not simulated"),
        ("autoscaling", "EnterStandby", {}, None, "EnterStandby is not simulated"),
        ("ec2", "RunInstances", {}, None, "RunInstances is not simulated"),
        ("ec2", "RequestSpotInstances", {}, None, "RequestSpotInstances is not simulated"),
        ("autoscaling", "UpdateAutoScalingGroup", TWO | {"CapacityRebalance": "true"}, None,
         "CapacityRebalance"),
        ("autoscaling", "PutLifecycleHook", HOOK | {"HeartbeatTimeout": "10"}, None, "30 and 7200"),
        ("autoscaling", "PutLifecycleHook", HOOK | {"DefaultResult": "MAYBE"}, None, "MAYBE"),
        ("autoscaling", "CompleteLifecycleAction", HELD | {"LifecycleActionResult": "CONTINUE"},
         None, "No active Lifecycle Action found"),
        ("autoscaling", "RecordLifecycleActionHeartbeat", HELD, None, "No active Lifecycle Action"),
    ],
)  # fmt: skip
def test_a_refusal_has_aws_s_code_and_says_what_is_wrong(
    wire: Wire, service: str, action: str, params: dict[str, str], code: str | None, told: str
) -> None:
    found, message = wire.refused(action, service, **params)
    assert found == (code or "ValidationError")
    assert told in message


def test_a_group_is_there_in_its_region_alone(wire: Wire) -> None:
    wire.world.region = lambda: "us-west-2"
    assert wire.call("DescribeAutoScalingGroups")["AutoScalingGroups"] == []
    wire.world.region = lambda: "us-east-1"
    assert wire.group("one")["DesiredCapacity"] == 1


def test_more_names_than_a_page_are_refused(wire: Wire) -> None:
    names = [f"g{number:02d}" for number in range(60)]
    with wire.world.now() as cloud:
        for name in names:
            cloud.create_group(
                GroupSpec(name=name, purchase=Purchase.SPOT, minimum=0, maximum=5, pools=(POOL,))
            )
    asked = {f"AutoScalingGroupNames.member.{n}": name for n, name in enumerate(names, 1)}
    assert "limited to 50" in wire.refused("DescribeAutoScalingGroups", **asked)[1]
    whole = wire.call("DescribeAutoScalingGroups", **asked, MaxRecords="100")
    assert len(whole["AutoScalingGroups"]) == 60
    assert len(wire.call("DescribeAutoScalingGroups")["AutoScalingGroups"]) == 50


def test_the_end_of_an_instance_is_answered_with_its_activity(wire: Wire) -> None:
    (instance,) = wire.group()["Instances"]
    asked = {"InstanceId": instance["InstanceId"], "ShouldDecrementDesiredCapacity": "true"}
    activity = wire.call("TerminateInstanceInAutoScalingGroup", **asked)["Activity"]
    assert activity["AutoScalingGroupName"] == "two"
    assert activity["StatusCode"] == "InProgress"
    assert activity["Description"] == f"Terminating EC2 instance: {instance['InstanceId']}"
    assert wire.group()["DesiredCapacity"] == 0


def test_other_calls_are_left_to_the_endpoint(wire: Wire) -> None:
    assert wire.by_moto("ec2", b"Action=DescribeVpcs&Version=x") is None


def test_a_warm_pool_is_put_shown_and_deleted(wire: Wire) -> None:
    asked = {"MaxGroupPreparedCapacity": "3", "InstanceReusePolicy.ReuseOnScaleIn": "true"}
    wire.call("PutWarmPool", **TWO, **asked)
    answer = wire.call("DescribeWarmPool", **TWO)
    setup = answer["WarmPoolConfiguration"]
    assert len(answer["Instances"]) == 2
    assert (setup["MaxGroupPreparedCapacity"], setup["PoolState"]) == (3, "Stopped")
    assert setup["InstanceReusePolicy"] == {"ReuseOnScaleIn": True}
    assert wire.group()["WarmPoolConfiguration"] == setup
    wire.call("DeleteWarmPool", **TWO)
    assert wire.call("DescribeWarmPool", **TWO)["Instances"] == []


@pytest.mark.parametrize(("respect", "replaced"), [("false", True), ("true", False)])
def test_a_group_is_changed_and_its_grace_is_respected_unless_a_call_says_otherwise(
    wire: Wire, respect: str, replaced: bool
) -> None:
    wire.call("UpdateAutoScalingGroup", **TWO, MaxSize="7", HealthCheckGracePeriod="90")
    (before,) = wire.group()["Instances"]
    assert (wire.group()["MaxSize"], wire.group()["HealthCheckGracePeriod"]) == (7, 90)
    wire.call(
        "SetInstanceHealth", InstanceId=before["InstanceId"], HealthStatus="Unhealthy",
        ShouldRespectGracePeriod=respect,
    )  # fmt: skip
    after = [one["InstanceId"] for one in wire.group()["Instances"]]
    assert (before["InstanceId"] not in after) is replaced


# --- groups that a stack makes --------------------------------------------------------------------

ZONES = {"subnet-1": "us-east-1a", "subnet-2": "us-east-1b"}
READY = {
    "LifecycleHookName": "spotkeeper-ready",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
    "HeartbeatTimeout": "300",
    "DefaultResult": "CONTINUE",
}


def properties(on_demand: int = 0, **more: Any) -> dict[str, Any]:
    """What the stack's template asks of CloudFormation."""
    return {
        "AutoScalingGroupName": "mine",
        "MinSize": "1",
        "MaxSize": 5,
        "VPCZoneIdentifier": ["subnet-1", "subnet-2"],
        "MixedInstancesPolicy": {
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": on_demand},
            "LaunchTemplate": {
                "Overrides": [{"InstanceType": "g5.xlarge"}, {"InstanceType": "g6.xlarge"}]
            },
        },
    } | more


def by_attributes(**attributes: Any) -> dict[str, Any]:
    """Overrides of types that AWS selects."""
    least = {"VCpuCount": {"Min": "1"}, "MemoryMiB": {"Min": 0}}
    overrides = [{"InstanceRequirements": {**least, **attributes}}]
    return {"MixedInstancesPolicy": {"LaunchTemplate": {"Overrides": overrides}}}


prioritized = by_attributes()
prioritized["MixedInstancesPolicy"]["InstancesDistribution"] = {
    "OnDemandAllocationStrategy": "prioritized"
}
MARKET = ("us-east-1a/g4dn.xlarge", "us-east-1b/g6.xlarge", "us-east-1a/g5.xlarge",
          "us-east-1a/g5.12xlarge", "us-east-1a/m5.large", "us-east-1a/of-the-lab")  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "selected"),
    [
        ({}, ["g4dn.xlarge", "g5.12xlarge", "g5.xlarge", "g6.xlarge", "m5.large"]),
        ({"AcceleratorCount": {"Min": 0, "Max": 0}}, ["m5.large"]),
        ({"AcceleratorCount": {"Min": 1}, "VCpuCount": {"Min": 5}}, ["g5.12xlarge"]),
        (
            {"AcceleratorCount": {"Min": 1, "Max": 1}, "AcceleratorTypes": ["gpu"],
             "AcceleratorManufacturers": ["nvidia"], "AcceleratorTotalMemoryMiB": {"Min": 22118},
             "SpotMaxPricePercentageOverLowestPrice": 100},
            ["g5.xlarge", "g6.xlarge"],
        ),
        ({"AcceleratorNames": ["a10g", "t4"], "VCpuCount": {"Max": 8}},
         ["g4dn.xlarge", "g5.xlarge"]),
    ],
)  # fmt: skip
def test_attributes_select_among_the_types_of_the_market(
    attributes: dict[str, Any], selected: list[str]
) -> None:
    spec = group_spec("Spot", properties(**by_attributes(**attributes)), "stack",
                      ZONES.__getitem__, MARKET)  # fmt: skip
    zones = ("us-east-1a", "us-east-1b")
    assert spec.pools == tuple(f"{zone}/{kind}" for kind in selected for zone in zones)


@pytest.fixture
def groups() -> Groups:
    world = make_world(LabSettings(desired=0), lambda: 1_800_000_000.0, lambda: 0.0)
    return Groups(world, ZONES.__getitem__, capacity=7)


def test_a_group_is_created_changed_and_deleted_with_its_instances(groups: Groups) -> None:
    asked = properties(LifecycleHookSpecificationList=[READY], HealthCheckGracePeriod="90")
    name, attributes = groups.create("Spot", asked, "stack")
    assert attributes["Arn"].endswith("autoScalingGroupName/mine")
    assert groups.world.capacities["us-east-1a/g6.xlarge"] == 7
    with groups.world.now() as cloud:
        (hook,) = cloud.hooks(name)
        assert (hook.transition, hook.heartbeat_s) == (Transition.LAUNCHING, 300.0)
        assert (len(cloud.group(name).instances), cloud.group(name).grace_s) == (1, 90.0)
    with pytest.raises(CloudError, match="AlreadyExists"):
        groups.create("Spot", properties(), "stack")
    hooks = [READY | {"LifecycleHookName": "other"}]
    changed = properties(MinSize=2, MaxSize=3, LifecycleHookSpecificationList=hooks)
    groups.update("mine", asked, changed, "stack")
    with groups.world.now() as cloud:
        view = cloud.group("mine")
        assert (view.minimum, view.maximum, view.desired) == (2, 3, 2)
        assert [one.name for one in cloud.hooks("mine")] == ["other"]
    groups.delete("mine", properties())
    with groups.world.now() as cloud:
        assert ("mine" in cloud.groups(), cloud.instances()) == (False, ())


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"CapacityRebalance": True}, "CapacityRebalance: not simulated"),
        ({"TargetGroupARNs": [""], "PlacementGroup": "p"}, "PlacementGroup, TargetGroupARNs: not"),
        (by_attributes(BareMetal="required"), "BareMetal: not simulated"),
        (by_attributes(VCpuCount=None), "VCpuCount and MemoryMiB are required"),
        (by_attributes(VCpuCount={"Min": 9999}), "no type of the local market"),
        (prioritized, "prioritized allocation strategy is not compatible"),
    ],
)
def test_a_fault_without_effect_is_refused_by_name(
    groups: Groups, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(CloudError, match=named):
        groups.create("Spot", properties(**asked), "stack")
    assert groups.create("Spot", properties(CapacityRebalance="false"), "stack")[0] == "mine"


def test_a_fleet_of_a_job_is_one_machine_outside_of_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes spot capacity as groups do; a token makes one; a lost one is gone at once."""
    wire = Wire()
    monkeypatch.setattr(ministack, "launch_template", lambda _: {})
    machines = JobMachines(wire.world, tmp_path, {}, lambda subnet: f"us-east-1{subnet}", 1)
    wire.by_moto = ByMoto(wire.world, machines.ec2())

    def fleet(token: str, capacity: str = "spot") -> Any:
        config = "LaunchTemplateConfigs.1"
        return wire.call("CreateFleet", "ec2", **{
            "ClientToken": token, "Type": "instant",
            f"{config}.LaunchTemplateSpecification.LaunchTemplateId": "lt-1",
            f"{config}.Overrides.1.InstanceType": "g6.xlarge",
            f"{config}.Overrides.1.SubnetId": "b",
            "TargetCapacitySpecification.TotalTargetCapacity": "1",
            "TargetCapacitySpecification.DefaultTargetCapacityType": capacity,
            "TagSpecification.1.ResourceType": "instance",
            "TagSpecification.1.Tag.1.Key": JOB, "TagSpecification.1.Tag.1.Value": "resnet",
        })  # fmt: skip

    made = fleet("1")["Instances"][0]["InstanceIds"]
    assert fleet("1")["Instances"][0]["InstanceIds"] == made
    (error,) = fleet("2")["Errors"]
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    assert fleet("3", "on-demand")["Instances"]
    with wire.world.now() as cloud:
        cloud.reclaim(made, cloud.now_s)
    (one,) = wire.call("DescribeInstances", "ec2", **{"InstanceId.1": made[0]})["Reservations"]
    assert one["Instances"][0]["State"]["Name"] == "terminated"
    assert fleet("4")["Instances"]
    offered = wire.call("DescribeInstanceTypeOfferings", "ec2", **{
        "Filter.1.Name": "instance-type", "Filter.1.Value.1": "g6.xlarge",
    })["InstanceTypeOfferings"]  # fmt: skip
    assert [one["Location"] for one in offered] == ["us-east-1a", "us-east-1b"]
