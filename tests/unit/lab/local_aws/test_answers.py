"""boto3 against the simulated cloud: answers and errors have AWS's shapes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError, ParamValidationError

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG, AutoScalingReader
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.cloud.words import ADMINISTRATIVE
from spotkeeper_lab.local_aws.context import answering, local_aws
from spotkeeper_lab.local_aws.wire import VirtualTime, WireAction
from spotkeeper_lab.traces.market import market_of

if TYPE_CHECKING:
    from mypy_boto3_sqs.literals import QueueAttributeNameType

TIME = VirtualTime(datetime(2026, 1, 5, tzinfo=UTC))
POOL = "us-east-1a/g5.xlarge"
GONE_AT = "2026-01-05T00:20:00+00:00"


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


@pytest.fixture
def sixty() -> Iterator[Cloud]:
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
    with local_aws(cloud, TIME):
        yield cloud


def test_more_names_than_a_page_are_refused(sixty: Cloud) -> None:
    client, names = boto3.client("autoscaling"), list(sixty.groups())
    with pytest.raises(ClientError, match="limited to 50"):
        client.describe_auto_scaling_groups(AutoScalingGroupNames=names)
    asked = client.describe_auto_scaling_groups(AutoScalingGroupNames=names, MaxRecords=100)
    assert len(asked["AutoScalingGroups"]) == 60
    assert len(client.describe_auto_scaling_groups()["AutoScalingGroups"]) == 50


def test_tags_of_an_instance_are_those_that_it_has(sixty: Cloud) -> None:
    ec2 = boto3.client("ec2")
    first, second = (i.instance_id for i in sixty.group("g00").instances)
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


def test_what_aws_has_no_word_for_is_neither_asked_nor_answered() -> None:
    action = WireAction(lambda _: {"Groups": []})
    with answering({"autoscaling": {"describe_auto_scaling_groups": action}}):
        client: Any = boto3.Session().client("autoscaling")
        with pytest.raises(ParamValidationError, match="Names"):
            client.describe_auto_scaling_groups(Names=["g00"])
        with pytest.raises(KeyError, match="Groups"):
            client.describe_auto_scaling_groups()
