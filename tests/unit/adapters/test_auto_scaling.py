"""What the reader makes of AWS's real answers, and how little of them it reads."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import batched
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG, GROUP_TAG, AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.adapters.errors import SPOT_TROUBLED_STATUSES
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Phase
from tests.builders import at

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client

SINCE = at(-300)
REFUSED = (
    "There is no Spot capacity available that matches your request. Launching EC2 instance failed."
)


def test_an_instance_in_a_reservation_is_marked() -> None:
    ec2 = boto3.client("ec2")
    instance = {
        "InstanceId": "i-1", "InstanceType": "g5.xlarge", "State": {"Name": "running"},
        "Placement": {"AvailabilityZone": "us-east-1a"}, "LaunchTime": at(0),
        "CapacityReservationId": "cr-1",
    }  # fmt: skip
    with Stubber(ec2) as stub:
        stub.add_response("describe_instances", {"Reservations": [{"Instances": [instance]}]})
        assert InstanceLives(ec2).of(["i-1"], at(0))["i-1"].reservation == "cr-1"


class Aws:
    """Two clients whose answers are given in advance."""

    def __init__(self) -> None:
        self._autoscaling: AutoScalingClient = boto3.client("autoscaling")
        self._ec2: EC2Client = boto3.client("ec2")
        self.autoscaling, self.ec2 = Stubber(self._autoscaling), Stubber(self._ec2)
        self.reader = AutoScalingReader(self._autoscaling, self._ec2)

    def activities(self, *activities: dict[str, Any], token: str | None = None) -> None:
        page: dict[str, Any] = {"Activities": list(activities)}
        self.autoscaling.add_response(
            "describe_scaling_activities", page | ({"NextToken": token} if token else {})
        )

    def spot_requests(self, ids: list[str], *answered: dict[str, Any]) -> None:
        """Expect a look at these spot requests."""
        filters = [{"Name": "spot-instance-request-id", "Values": ids}]
        self.ec2.add_response(
            "describe_spot_instance_requests",
            {"SpotInstanceRequests": list(answered)},
            {"Filters": filters, "MaxResults": 500},
        )


@pytest.fixture
def aws() -> Iterator[Aws]:
    both = Aws()
    with both.autoscaling, both.ec2:
        yield both
        both.autoscaling.assert_no_pending_responses()
        both.ec2.assert_no_pending_responses()


def activity(start: datetime, **changes: object) -> dict[str, Any]:
    """A real failed launch (aws-parallelcluster#1944): it ends before it starts."""
    values = {
        "ActivityId": "9ed5d008-ff94-0b3a-bf41-a72d4f2581f0",
        "AutoScalingGroupName": "spot",
        "Description": f"Launching a new EC2 instance.  Status Reason: {REFUSED}",
        "Cause": "At 2020-08-18T15:46:11Z an instance was started in response to a difference "
        "between desired and actual capacity, increasing the capacity from 0 to 2.",
        "StartTime": start,
        "EndTime": start.replace(microsecond=0),
        "StatusCode": "Failed",
        "StatusMessage": REFUSED,
        "Progress": 100,
        "Details": '{"Subnet ID":"subnet-085761edd247da7b9","Availability Zone":"eu-west-2c"}',
    } | changes
    return {name: value for name, value in values.items() if value is not None}


def test_a_launch_that_began_a_launch_deadline_ago_is_read_when_it_fails(aws: Aws) -> None:
    """A hook of hours gives up now what began hours ago."""
    begun = activity(at(-7200), EndTime=at(-10))
    aws.activities(begun)
    assert aws.reader.failures("spot", SINCE) == ()
    aws.activities(begun)
    (failure,) = aws.reader.failures("spot", SINCE, timedelta(hours=3))
    assert failure.at == at(-10)


HOOK = "Instance failed to complete user's Lifecycle Action"
GIVEN_UP = {"StatusCode": "Cancelled", "Description": "Launching a new EC2 instance: i-0f"}


@pytest.mark.parametrize(
    ("changes", "failure_class"),
    [
        ({}, FailureClass.CAPACITY),
        ({"StatusMessage": None}, FailureClass.CAPACITY),
        ({"Details": ""}, FailureClass.CAPACITY),
        ({"Details": "[]"}, FailureClass.CAPACITY),
        (GIVEN_UP | {"StatusMessage": HOOK}, FailureClass.BOOTSTRAP),
        ({"Description": "Placing Spot instance request.  Status Reason"}, FailureClass.CAPACITY),
        # No failed launches: one that was cancelled for no known reason may not have failed.
        (GIVEN_UP | {"StatusMessage": None}, None),
        ({"StatusCode": "Successful"}, None),
        ({"StatusCode": "InProgress"}, None),
        ({"StatusCode": "WaitingForSomethingNew"}, None),
        ({"Description": "Terminating EC2 instance: i-0f"}, None),
        ({"StatusCode": "PendingSpotBidPlacement", "StatusMessage": "Placing it"}, None),
    ],
)
def test_a_failed_launch_is_recognised_and_read_with_any_fields(
    aws: Aws, changes: dict[str, object], failure_class: FailureClass | None
) -> None:
    aws.activities(activity(at(-5.062), **changes))
    found = aws.reader.failures("spot", SINCE)
    assert [failure.failure_class for failure in found] == [failure_class] * bool(failure_class)
    if not changes:
        assert (found[0].at, found[0].known) == (at(-5.062), True)
        assert (found[0].message, found[0].pool) == (REFUSED, "eu-west-2c")


def test_reading_stops_at_the_first_old_activity(aws: Aws) -> None:
    aws.activities(activity(at(0)), activity(at(-1501)), token="more")
    assert len(aws.reader.failures("spot", SINCE)) == 1


def test_a_launch_counts_by_when_it_was_given_up(aws: Aws) -> None:
    given_up = activity(at(-900), EndTime=at(-200), StatusCode="Cancelled", StatusMessage=HOOK)
    long_ago = activity(at(-1000), EndTime=at(-400))
    aws.activities(given_up, long_ago)
    (failure,) = aws.reader.failures("spot", SINCE)
    assert (failure.at, failure.failure_class) == (at(-200), FailureClass.BOOTSTRAP)


def test_reading_stops_after_two_hundred_activities(aws: Aws) -> None:
    for page in range(2):
        aws.activities(*(activity(at(-n)) for n in range(100)), token=f"page-{page}")
    assert len(aws.reader.failures("spot", SINCE)) == 200


def spot_request(status: str) -> dict[str, Any]:
    code = {"Code": status, "UpdateTime": at(-10)}
    return {"SpotInstanceRequestId": "sir-1a2b3c4d", "CreateTime": at(-3600), "Status": code}


def test_a_launch_that_waits_for_spot_is_looked_up_by_its_request(aws: Aws) -> None:
    text = "Placed Spot instance request: sir-1a2b3c4d. Waiting for instance(s)"
    aws.activities(
        activity(at(0), StatusCode="WaitingForSpotInstanceId", StatusMessage=text, Progress=30)
    )
    aws.spot_requests(["sir-1a2b3c4d"], spot_request("capacity-not-available"))
    (failure,) = aws.reader.failures("spot", SINCE)
    assert (failure.failure_class, failure.at) == (FailureClass.CAPACITY, at(-10))
    assert failure.message == "spot request sir-1a2b3c4d: capacity-not-available"


def test_spot_requests_of_the_given_instances_are_read_in_pages(aws: Aws) -> None:
    filters = [
        {"Name": "instance-id", "Values": ["i-0a", "i-0b"]},
        {"Name": "status-code", "Values": sorted(SPOT_TROUBLED_STATUSES)},
    ]
    for page, token in (({}, "more"), ({"NextToken": "more"}, "")):
        aws.ec2.add_response(
            "describe_spot_instance_requests",
            {"SpotInstanceRequests": [spot_request("price-too-low")], "NextToken": token},
            {"Filters": filters, "MaxResults": 500, **page},
        )
    assert len(aws.reader.troubled_spot_requests(["i-0b", "i-0a"], SINCE)) == 2


def test_a_look_up_asks_for_as_many_as_a_filter_takes(aws: Aws) -> None:
    """Of a group of hundreds, more launches may wait than one filter has values."""
    ids = [f"sir-{number:08x}" for number in range(250)]
    text = "Placed Spot instance requests: {}, {}. Waiting for instance(s)"
    waiting = [
        activity(at(-60), StatusCode="WaitingForSpotInstanceId", StatusMessage=text.format(*two))
        for two in batched(ids, 2, strict=True)
    ]
    aws.activities(*waiting)
    for some in (ids[:200], ids[200:]):
        aws.spot_requests(some)
    assert aws.reader.failures("spot", SINCE) == ()


MEMBER = {
    "InstanceId": "i-0a", "AvailabilityZone": "us-east-1a", "LifecycleState": "InService",
    "HealthStatus": "Healthy", "ProtectedFromScaleIn": False,
}  # fmt: skip


def test_the_groups_of_instances_are_read_page_by_page(aws: Aws) -> None:
    """A page may have fewer than it could."""
    for one, token in (("i-0a", {"NextToken": "more"}), ("i-0b", {})):
        member = {**MEMBER, "InstanceId": one, "AutoScalingGroupName": "spot"}
        answer = {"AutoScalingInstances": [member], **token}
        aws.autoscaling.add_response("describe_auto_scaling_instances", answer)
    assert aws.reader.groups_of(["i-0a", "i-0b"]) == {"i-0a": "spot", "i-0b": "spot"}


@pytest.mark.parametrize("gone_at", ["soon", "2026-11-20T12:00:00"])
def test_a_mark_without_an_instant_is_passed_over(aws: Aws, gone_at: str) -> None:
    """Whoever may tag an instance writes the mark."""
    tags = [{"Key": DRAINING_TAG, "Value": gone_at}, {"Key": GROUP_TAG, "Value": "spot"}]
    marked = {"InstanceId": "i-0a", "Tags": tags}
    aws.ec2.add_response("describe_instances", {"Reservations": [{"Instances": [marked]}]})
    assert aws.reader.marked(["spot"]) == ()


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        *((f"Pending{step}", Phase.LAUNCHING) for step in ("", ":Wait", ":Proceed")),
        ("InService", Phase.IN_SERVICE),
        *((f"Terminating{step}", Phase.LEAVING) for step in ("", ":Wait")),
        *((it, Phase.LEAVING) for it in ("Detaching", "Standby", "Warmed:Stopped")),
        *((it, Phase.LEAVING) for it in ("Quarantined", "SomethingNew")),
    ],
)
def test_a_lifecycle_state_that_nobody_knows_is_not_serving(
    aws: Aws, state: str, phase: Phase
) -> None:
    instance = {**MEMBER, "InstanceType": "g5.xlarge", "LifecycleState": state}
    group = {
        "AutoScalingGroupName": "spot", "MinSize": 0, "MaxSize": 9, "DesiredCapacity": 1,
        "DefaultCooldown": 300, "AvailabilityZones": ["us-east-1a"], "HealthCheckType": "EC2",
        "CreatedTime": at(0), "Instances": [instance],
    }  # fmt: skip
    aws.autoscaling.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [group]})
    (read,) = aws.reader.describe(["spot"])["spot"].instances
    assert (read.phase, read.pool, read.healthy) == (phase, "us-east-1a/g5.xlarge", True)


def test_groups_are_described_fifty_a_call_and_each_once(aws: Aws) -> None:
    names = sorted(f"group-{n}" for n in range(75))
    for some in (names[:50], names[50:]):
        aws.autoscaling.add_response(
            "describe_auto_scaling_groups",
            {"AutoScalingGroups": []},
            {"AutoScalingGroupNames": some, "MaxRecords": 50},
        )
    assert aws.reader.describe([*names, *names]) == {}
