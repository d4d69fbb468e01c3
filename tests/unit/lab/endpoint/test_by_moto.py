from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.parsers import create_parser

from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.endpoint.by_moto import PROTOCOLS, ByMoto
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.answers import VirtualTime

POOL = "us-east-1a/g5.xlarge"


@pytest.fixture
def by_moto() -> ByMoto:
    groups = [
        GroupSpec(name=name, purchase=Purchase.SPOT, minimum=0, maximum=5, desired=1, pools=(POOL,))
        for name in ("one", "two")
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
