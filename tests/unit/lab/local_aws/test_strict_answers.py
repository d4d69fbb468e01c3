"""moto's mends refuse and show what AWS does."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ParamValidationError

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.local_aws.context import VirtualTime, answering, local_aws
from spotkeeper_lab.local_aws.wire import WireAction
from spotkeeper_lab.traces.market import market_of

POOL = "us-east-1a/g5.xlarge"
GONE_AT = "2026-01-05T00:20:00+00:00"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """Sixty groups, the first of which has two instances in service."""
    specs = [
        GroupSpec(
            name=f"g{number:02d}",
            purchase=Purchase.SPOT,
            minimum=0,
            maximum=5,
            desired=0 if number else 2,
            pools=(POOL,),
        )
        for number in range(60)
    ]
    cloud = Cloud(market_of("m", 7200.0, {POOL: [(0.0, 9)]}), specs, Physics())
    cloud.advance(600.0)
    with local_aws(cloud, VirtualTime(datetime(2026, 1, 5, tzinfo=UTC))):
        yield cloud


def test_more_names_than_a_page_are_refused(cloud: Cloud) -> None:
    client, names = boto3.client("autoscaling"), list(cloud.groups())
    with pytest.raises(ClientError, match="limited to 50"):
        client.describe_auto_scaling_groups(AutoScalingGroupNames=names)
    asked = client.describe_auto_scaling_groups(AutoScalingGroupNames=names, MaxRecords=100)
    assert len(asked["AutoScalingGroups"]) == 60
    assert len(client.describe_auto_scaling_groups()["AutoScalingGroups"]) == 50


def test_tags_of_an_instance_are_those_that_it_has(cloud: Cloud) -> None:
    ec2 = boto3.client("ec2")
    first, second = (i.instance_id for i in cloud.group("g00").instances)
    ec2.create_tags(Resources=[first], Tags=[{"Key": DRAINING_TAG, "Value": GONE_AT}])

    def marked() -> list[str]:
        answer = ec2.describe_instances(
            Filters=[
                {"Name": "tag-key", "Values": [DRAINING_TAG]},
                {"Name": "instance-state-name", "Values": ["running"]},
            ]
        )
        return [i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]]

    assert marked() == [first]
    ec2.delete_tags(Resources=[first], Tags=[{"Key": DRAINING_TAG}])
    assert marked() == []
    ec2.create_tags(Resources=[second], Tags=[{"Key": DRAINING_TAG, "Value": GONE_AT}])
    ec2.terminate_instances(InstanceIds=[second])
    (found,) = ec2.describe_instances(InstanceIds=[second])["Reservations"]
    assert found["Instances"][0]["State"]["Name"] == "terminated"
    assert found["Instances"][0].get("Tags", []) == []


def test_a_suspension_tells_its_reason(cloud: Cloud) -> None:
    cloud.suspend("g00", "Launch")
    answer = boto3.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["g00"])
    assert answer["AutoScalingGroups"][0]["SuspendedProcesses"] == [
        {"ProcessName": "Launch", "SuspensionReason": "User suspended"}
    ]


def test_what_aws_has_no_word_for_is_neither_asked_nor_answered() -> None:
    action = WireAction(lambda _: {"Groups": []})
    with answering({"autoscaling": {"describe_auto_scaling_groups": action}}):
        client: Any = boto3.Session().client("autoscaling")
        with pytest.raises(ParamValidationError, match="Names"):
            client.describe_auto_scaling_groups(Names=["g00"])
        with pytest.raises(KeyError, match="Groups"):
            client.describe_auto_scaling_groups()
