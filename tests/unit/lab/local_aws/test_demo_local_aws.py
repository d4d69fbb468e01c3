"""boto3 against the simulated cloud: answers and errors have AWS's shapes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.exceptions import ClientError

from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.cloud.words import ADMINISTRATIVE
from spotkeeper_lab.local_aws.context import local_aws
from spotkeeper_lab.local_aws.wire import VirtualTime
from spotkeeper_lab.traces.market import market_of

if TYPE_CHECKING:
    from mypy_boto3_sqs.literals import QueueAttributeNameType

TIME = VirtualTime(datetime(2026, 1, 5, tzinfo=UTC))
GONE_AT = "2026-01-05T00:10:00+00:00"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A spot group over two zones, the second of which is dry, behind boto3."""
    market = market_of("m", 7200.0, {"a/x": [(0.0, 2), (3600.0, 1)], "b/x": [(0.0, 0)]})
    specs = [
        GroupSpec(name=name, purchase=purchase, minimum=0, maximum=5, pools=market.pools)
        for name, purchase in (("spot", Purchase.SPOT), ("od", Purchase.ON_DEMAND))
    ]
    cloud = Cloud(market, specs, Physics(cold_start_s=100.0))
    with local_aws(cloud, TIME):
        yield cloud


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, str]:
    detail = error.value.response["Error"]
    return detail["Code"], detail["Message"]


def test_a_group_shows_its_instances_and_why_the_others_failed(cloud: Cloud) -> None:
    groups = boto3.client("autoscaling")
    groups.set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=3)
    cloud.advance(100.0)
    names = ["spot", "unknown"]
    (group,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=names)["AutoScalingGroups"]
    assert (group["DesiredCapacity"], group["MaxSize"]) == (3, 5)
    assert [i["LifecycleState"] for i in group["Instances"]] == ["InService", "InService"]
    assert {i["AvailabilityZone"] for i in group["Instances"]} == {"a"}
    since = TIME.at(90.0).isoformat()
    activities = groups.describe_scaling_activities(
        AutoScalingGroupName="spot", Filters=[{"Name": "StartTimeLowerBound", "Values": [since]}]
    )
    newest = activities["Activities"][0]
    assert newest["StatusCode"] == "Failed"
    assert newest["StatusMessage"].endswith("Launching EC2 instance failed.")
    assert newest["StartTime"] == TIME.at(90.0)
    assert json.loads(newest["Details"])["Availability Zone"] in {"a", "b"}


def test_more_group_names_than_aws_takes_are_refused(cloud: Cloud) -> None:
    groups = boto3.client("autoscaling")
    names = [f"group-{n}" for n in range(60)]
    with pytest.raises(ClientError) as error:
        groups.describe_auto_scaling_groups(AutoScalingGroupNames=names)
    told = "The number of group names that may be passed in is limited to 50"
    assert refusal(error) == ("ValidationError", told)
    groups.describe_auto_scaling_groups(AutoScalingGroupNames=names, MaxRecords=60)


def test_the_reader_describes_the_groups_of_thirty_fleets(cloud: Cloud) -> None:
    reader = AutoScalingReader(boto3.client("autoscaling"), boto3.client("ec2"))
    assert set(reader.describe([*(f"group-{n}" for n in range(58)), "od", "spot"])) == {
        "od",
        "spot",
    }


def test_who_suspended_a_process_is_seen(cloud: Cloud) -> None:
    reader = AutoScalingReader(boto3.client("autoscaling"), boto3.client("ec2"))
    cloud.suspend("spot", "Launch", ADMINISTRATIVE)
    cloud.suspend("spot", "AZRebalance")
    spot = reader.describe(["spot"])["spot"]
    assert spot.suspended == {"Launch", "AZRebalance"}
    assert spot.suspended_by_aws == {"Launch"}


def test_activities_come_in_pages(cloud: Cloud) -> None:
    groups = boto3.client("autoscaling")
    groups.set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=3)
    cloud.advance(1800.0)
    pages = groups.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName="spot", PaginationConfig={"PageSize": 100}
    )
    counts = [len(page["Activities"]) for page in pages]
    assert len(counts) > 1
    assert max(counts) == 100


def test_a_warned_instance_is_seen_drained_detached_and_ended(cloud: Cloud) -> None:
    groups, ec2 = boto3.client("autoscaling"), boto3.client("ec2")
    groups.set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=2)
    cloud.advance(3500.0)
    (request,) = ec2.describe_spot_instance_requests(
        Filters=[{"Name": "status-code", "Values": ["marked-for-termination"]}]
    )["SpotInstanceRequests"]
    instance_id = request["InstanceId"]
    ec2.create_tags(
        Resources=[instance_id], Tags=[{"Key": "spotkeeper:draining", "Value": GONE_AT}]
    )
    groups.detach_instances(
        AutoScalingGroupName="spot", InstanceIds=[instance_id], ShouldDecrementDesiredCapacity=False
    )
    assert cloud.instance(instance_id).draining
    assert not groups.describe_auto_scaling_instances(InstanceIds=[instance_id])[
        "AutoScalingInstances"
    ]
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert instance_id not in {view.instance_id for view in cloud.instances()}


def test_ending_lowers_desired_and_bad_health_does_not(cloud: Cloud) -> None:
    groups = boto3.client("autoscaling")
    groups.set_desired_capacity(AutoScalingGroupName="od", DesiredCapacity=2)
    cloud.advance(200.0)
    first, second = (view.instance_id for view in cloud.group("od").instances)
    groups.terminate_instance_in_auto_scaling_group(
        InstanceId=first, ShouldDecrementDesiredCapacity=True
    )
    assert cloud.group("od").desired == 1
    groups.set_instance_health(InstanceId=second, HealthStatus="Unhealthy")
    assert cloud.group("od").desired == 1
    groups.suspend_processes(AutoScalingGroupName="od", ScalingProcesses=["AZRebalance"])
    assert cloud.group("od").suspensions.keys() == {"AZRebalance"}


def test_refusals_carry_the_codes_of_aws(cloud: Cloud) -> None:
    groups, ec2 = boto3.client("autoscaling"), boto3.client("ec2")
    with pytest.raises(ClientError) as error:
        groups.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=1)
    assert refusal(error)[0] == "ValidationError"
    assert "not found" in refusal(error)[1]
    with pytest.raises(ClientError) as error:
        groups.set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=6)
    assert "above max value 5" in refusal(error)[1]
    with pytest.raises(ClientError) as error:
        ec2.terminate_instances(InstanceIds=["i-0123456789abcdef0"])
    assert refusal(error)[0] == "InvalidInstanceID.NotFound"


def test_a_request_queue_is_as_long_as_its_meter_says(cloud: Cloud) -> None:
    url, lengths = "https://sqs.us-east-1.amazonaws.com/123456789012/requests", [(3, 2), (0, 1)]
    names: list[QueueAttributeNameType] = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
    ]
    with local_aws(cloud, TIME, {url: lambda: lengths.pop(0)}):
        sqs = boto3.client("sqs")
        for known in ("3", "2"), ("0", "1"):
            answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
            assert tuple(answer["Attributes"][name] for name in names) == known
        with pytest.raises(ClientError) as error:
            sqs.get_queue_attributes(QueueUrl=f"{url}-2", AttributeNames=names)
        assert refusal(error)[0].endswith("NonExistentQueue")
