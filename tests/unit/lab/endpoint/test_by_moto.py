from datetime import UTC, datetime
from typing import Any, cast
from unittest.mock import ANY
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.parsers import create_parser

from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.endpoint.cloud.by_moto import PROTOCOLS, ByMoto
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.wire import VirtualTime

POOL = "us-east-1a/g5.xlarge"


@pytest.fixture
def by_moto() -> ByMoto:
    groups = [
        GroupSpec(name=name, purchase=kind, minimum=0, maximum=5, desired=1, pools=(POOL,))
        for name, kind in (("one", Purchase.SPOT), ("two", Purchase.ON_DEMAND))
    ]
    time = VirtualTime(datetime(2026, 11, 20, tzinfo=UTC))
    return ByMoto(World(groups, {POOL: 9}, Physics(cold_start_s=0.0), time, lambda: 1.0))


def call(by_moto: ByMoto, service: str, action: str, **params: str) -> tuple[int, dict[str, Any]]:
    """What boto3 makes of the answer to a call as it goes over the wire."""
    body = urlencode({"Action": action, "Version": "x", **params}).encode()
    answer = by_moto(service, body)
    assert answer is not None
    status, headers, text = answer
    shape = botocore.session.get_session().get_service_model(service).operation_model(action)
    parsed = create_parser(PROTOCOLS[service]).parse(
        {"status_code": status, "headers": headers, "body": text},
        cast("Any", shape.output_shape),
    )
    return status, parsed


def test_lists_in_the_request_are_read(by_moto: ByMoto) -> None:
    _, answer = call(
        by_moto,
        "autoscaling",
        "DescribeAutoScalingGroups",
        **{"AutoScalingGroupNames.member.1": "two"},
    )
    (group,) = answer["AutoScalingGroups"]
    assert group["AutoScalingGroupName"] == "two"
    assert group["Instances"][0]["LifecycleState"] == "InService"


def test_numbers_in_the_request_are_read(by_moto: ByMoto) -> None:
    call(
        by_moto,
        "autoscaling",
        "SetDesiredCapacity",
        AutoScalingGroupName="one",
        DesiredCapacity="2",
        HonorCooldown="false",
    )
    _, answer = call(by_moto, "autoscaling", "DescribeAutoScalingGroups")
    assert [group["DesiredCapacity"] for group in answer["AutoScalingGroups"]] == [2, 1]


def test_answers_come_in_pages(by_moto: ByMoto) -> None:
    _, first = call(by_moto, "autoscaling", "DescribeAutoScalingGroups", MaxRecords="1")
    _, second = call(
        by_moto,
        "autoscaling",
        "DescribeAutoScalingGroups",
        MaxRecords="1",
        NextToken=first["NextToken"],
    )
    assert second["AutoScalingGroups"][0]["AutoScalingGroupName"] == "two"
    assert "NextToken" not in second


@pytest.mark.parametrize(
    ("service", "action", "params", "code"),
    [
        (
            "autoscaling",
            "SetDesiredCapacity",
            {"AutoScalingGroupName": "one", "DesiredCapacity": "6"},
            "ValidationError",
        ),
        (
            "ec2",
            "TerminateInstances",
            {"InstanceId.1": "i-0abc1234def567890"},
            "InvalidInstanceID.NotFound",
        ),
    ],
)
def test_refusals_carry_the_code_of_aws(
    by_moto: ByMoto, service: str, action: str, params: dict[str, str], code: str
) -> None:
    status, answer = call(by_moto, service, action, **params)
    assert status == 400
    assert answer["Error"]["Code"] == code


def test_tags_of_ec2_reach_the_cloud(by_moto: ByMoto) -> None:
    status, _ = call(
        by_moto,
        "ec2",
        "CreateTags",
        **{
            "ResourceId.1": "i-00000000000000001",
            "Tag.1.Key": "spotkeeper:draining",
            "Tag.1.Value": "2026-11-20T00:02:00+00:00",
        },
    )
    assert status == 200


def test_other_calls_are_left_to_the_endpoint(by_moto: ByMoto) -> None:
    assert by_moto("ec2", b"Action=DescribeVpcs&Version=x") is None


@pytest.mark.parametrize(
    ("service", "action"),
    [
        ("autoscaling", "PutScalingPolicy"),
        ("autoscaling", "StartInstanceRefresh"),
        ("ec2", "RunInstances"),
        ("ec2", "RequestSpotInstances"),
    ],
)
def test_what_would_be_accepted_and_forgotten_is_refused_by_its_name(
    by_moto: ByMoto, service: str, action: str
) -> None:
    status, answer = call(by_moto, service, action)
    assert (status, answer["Error"]["Code"]) == (400, "ValidationError")
    assert answer["Error"]["Message"].startswith(f"{action} is not simulated")


GROUP = {"AutoScalingGroupName": "two"}
HOOK = GROUP | {
    "LifecycleHookName": "ready",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
    "HeartbeatTimeout": "60",
}


def test_hooks_are_put_and_shown(by_moto: ByMoto) -> None:
    assert call(by_moto, "autoscaling", "PutLifecycleHook", **HOOK)[0] == 200
    _, answer = call(by_moto, "autoscaling", "DescribeLifecycleHooks", **GROUP)
    (hook,) = answer["LifecycleHooks"]
    assert (hook["LifecycleHookName"], hook["HeartbeatTimeout"]) == ("ready", 60)
    assert (hook["DefaultResult"], hook["GlobalTimeout"]) == ("ABANDON", 6000)
    call(by_moto, "autoscaling", "DeleteLifecycleHook", **GROUP, LifecycleHookName="ready")
    assert call(by_moto, "autoscaling", "DescribeLifecycleHooks", **GROUP)[1] == {
        "LifecycleHooks": [],
        "ResponseMetadata": ANY,
    }


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"HeartbeatTimeout": "10"}, "between 30 and 7200"),
        ({"DefaultResult": "MAYBE"}, "MAYBE"),
        ({"LifecycleTransition": "autoscaling:NONE"}, "NONE"),
    ],
)
def test_a_hook_that_aws_refuses_is_refused(
    by_moto: ByMoto, changed: dict[str, str], told: str
) -> None:
    status, answer = call(by_moto, "autoscaling", "PutLifecycleHook", **HOOK | changed)
    assert status == 400
    assert told in answer["Error"]["Message"]


@pytest.mark.parametrize(
    ("action", "more"),
    [
        ("CompleteLifecycleAction", {"LifecycleActionResult": "CONTINUE"}),
        ("RecordLifecycleActionHeartbeat", {}),
    ],
)
def test_what_no_hook_holds_is_refused_in_aws_s_words(
    by_moto: ByMoto, action: str, more: dict[str, str]
) -> None:
    named = {"LifecycleHookName": "ready", "InstanceId": "i-00000000000000001"}
    status, answer = call(by_moto, "autoscaling", action, **GROUP, **named, **more)
    assert status == 400
    assert "No active Lifecycle Action found" in answer["Error"]["Message"]


def test_a_warm_pool_is_put_shown_and_deleted(by_moto: ByMoto) -> None:
    asked = {"MaxGroupPreparedCapacity": "3", "InstanceReusePolicy.ReuseOnScaleIn": "true"}
    assert call(by_moto, "autoscaling", "PutWarmPool", **GROUP, **asked)[0] == 200
    _, answer = call(by_moto, "autoscaling", "DescribeWarmPool", **GROUP)
    assert len(answer["Instances"]) == 2
    setup = answer["WarmPoolConfiguration"]
    assert (setup["MaxGroupPreparedCapacity"], setup["PoolState"]) == (3, "Stopped")
    assert setup["InstanceReusePolicy"] == {"ReuseOnScaleIn": True}
    _, groups = call(
        by_moto,
        "autoscaling",
        "DescribeAutoScalingGroups",
        **{"AutoScalingGroupNames.member.1": "two"},
    )
    assert "WarmPoolConfiguration" in groups["AutoScalingGroups"][0]
    call(by_moto, "autoscaling", "DeleteWarmPool", **GROUP)
    assert call(by_moto, "autoscaling", "DescribeWarmPool", **GROUP)[1]["Instances"] == []


def test_instances_go_to_standby_and_are_protected(by_moto: ByMoto) -> None:
    (one,) = instances(by_moto)
    named = GROUP | {"InstanceIds.member.1": one["InstanceId"]}
    call(by_moto, "autoscaling", "SetInstanceProtection", **named, ProtectedFromScaleIn="true")
    assert instances(by_moto)[0]["ProtectedFromScaleIn"] is True
    call(by_moto, "autoscaling", "EnterStandby", **named, ShouldDecrementDesiredCapacity="true")
    assert [one["LifecycleState"] for one in instances(by_moto)] == ["Standby"]
    call(by_moto, "autoscaling", "ExitStandby", **named)
    assert [one["LifecycleState"] for one in instances(by_moto)] == ["InService"]


def instances(by_moto: ByMoto) -> list[dict[str, Any]]:
    _, answer = call(
        by_moto,
        "autoscaling",
        "DescribeAutoScalingGroups",
        **{"AutoScalingGroupNames.member.1": "two"},
    )
    found: list[dict[str, Any]] = answer["AutoScalingGroups"][0]["Instances"]
    return found


def test_a_group_is_changed_where_that_has_an_effect(by_moto: ByMoto) -> None:
    call(
        by_moto,
        "autoscaling",
        "UpdateAutoScalingGroup",
        **GROUP,
        MaxSize="7",
        DesiredCapacity="0",
        HealthCheckGracePeriod="90",
    )
    _, answer = call(by_moto, "autoscaling", "DescribeAutoScalingGroups")
    group = next(one for one in answer["AutoScalingGroups"] if one["MaxSize"] == 7)
    assert (group["DesiredCapacity"], group["HealthCheckGracePeriod"]) == (0, 90)
    status, refusal = call(
        by_moto, "autoscaling", "UpdateAutoScalingGroup", **GROUP, CapacityRebalance="true"
    )
    assert (status, "CapacityRebalance" in refusal["Error"]["Message"]) == (400, True)


@pytest.mark.parametrize(("respect", "replaced"), [("false", True), ("true", False)])
def test_the_grace_period_is_respected_unless_a_call_says_otherwise(
    by_moto: ByMoto, respect: str, replaced: bool
) -> None:
    call(by_moto, "autoscaling", "UpdateAutoScalingGroup", **GROUP, HealthCheckGracePeriod="90")
    (before,) = instances(by_moto)
    call(
        by_moto,
        "autoscaling",
        "SetInstanceHealth",
        InstanceId=before["InstanceId"],
        HealthStatus="Unhealthy",
        ShouldRespectGracePeriod=respect,
    )
    after = [one["InstanceId"] for one in instances(by_moto)]
    assert (before["InstanceId"] not in after) is replaced


def test_tags_and_prices_are_the_cloud_s(by_moto: ByMoto) -> None:
    (one,) = instances(by_moto)
    wanted = {"Filter.1.Name": "resource-id", "Filter.1.Value.1": one["InstanceId"]}
    _, tags = call(by_moto, "ec2", "DescribeTags", **wanted)
    assert [tag["Key"] for tag in tags["Tags"]] == ["aws:autoscaling:groupName"]
    _, prices = call(by_moto, "ec2", "DescribeSpotPriceHistory")
    (price,) = prices["SpotPriceHistory"]
    assert (price["InstanceType"], float(price["SpotPrice"])) == ("g5.xlarge", 0.35)
