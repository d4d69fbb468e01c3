"""Auto Scaling groups, their activities, instances and spot requests, behind the reader port."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import batched, takewhile
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.errors import (
    SPOT_CLASSES,
    SPOT_FINAL_STATUSES,
    SPOT_MARKED_STATUSES,
    SPOT_TROUBLED_STATUSES,
    aws_errors,
    by_a_user,
    classify,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import LONGEST_LAUNCH, OWNER_TAG, Mark, SpotRequest

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_autoscaling.type_defs import ActivityTypeDef, AutoScalingGroupTypeDef
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef, SpotInstanceRequestTypeDef

# AWS's own limits of one call; more names than 50 are refused where MaxRecords does not say so.
GROUPS_A_CALL = 50
INSTANCES_A_CALL = 50
# Without a page size AWS returns all requests of the region, and may throttle or time out.
A_PAGE: Any = {"PaginationConfig": {"PageSize": 500}}
# AWS's own tag of an instance that is in a group; only AWS sets tags that begin with aws:.
MEMBER_TAG = "aws:autoscaling:groupName"
DRAINING_TAG = "spotkeeper:draining"
# The group that a detached instance was in: detaching removes the tag of Auto Scaling.
GROUP_TAG = "spotkeeper:group"
# Which stack marked it: the role that ends detached instances has the same value as a condition.
NONCE_TAG = "spotkeeper:nonce"
MARKS = (DRAINING_TAG, GROUP_TAG, NONCE_TAG)
# EC2's limit for the values of one filter.
VALUES_A_FILTER = 200
_SERVING = ("pending", "running")
_RUNNING = (*_SERVING, "stopping", "stopped")
# An instance is detached within the lifetime of its warning, which is a quarter of an hour.
DETACHED_WITHIN = timedelta(hours=1)
DETACHMENTS_AT_MOST = 1_000
# A group that fails every 15 s logs 20 activities in the five minutes that a turn looks back at.
ACTIVITIES_AT_MOST = 200


# Everything else, known or not yet invented, is not serving.
_PHASES = {
    "Pending": Phase.LAUNCHING,
    "Pending:Wait": Phase.LAUNCHING,
    "Pending:Proceed": Phase.LAUNCHING,
    "InService": Phase.IN_SERVICE,
}
_WAITING_FOR_SPOT = frozenset({"PendingSpotBidPlacement", "WaitingForSpotInstanceRequestId",
                               "WaitingForSpotInstanceId"})  # fmt: skip
_NOT_DONE = frozenset({"Failed", "Cancelled"})
# A group whose spot request failed (aws-parallelcluster#340) began no launch.
_LAUNCHES = re.compile("launching|placing spot", re.IGNORECASE)
_REQUESTS = ("describe_spot_instance_requests", "SpotInstanceRequests")
_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_REQUEST_ID = re.compile(r"\bsir-[0-9a-z]+")


def pages(client: Any, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Read the items of all pages of an operation, of which some have one."""
    if not client.can_paginate(operation):
        yield from getattr(client, operation)(**arguments)[key]
        return
    for page in client.get_paginator(operation).paginate(**arguments):
        yield from page[key]


def filtered(
    ec2: Any, operation: str, key: str, by: Mapping[str, Iterable[str]], **arguments: Any
) -> Iterator[Any]:
    """Read what EC2 describes by filters. The first may have any number of values; none is no call.

    Values that EC2 does not know are left out: as a parameter, one of them fails the whole call.
    """
    first, *_ = by
    for some in batched(sorted(set(by[first])), VALUES_A_FILTER, strict=False):
        filters = [{"Name": n, "Values": sorted(v)} for n, v in {**by, first: some}.items()]
        yield from pages(ec2, operation, key, Filters=filters, **arguments)


def activities_of(
    autoscaling: "AutoScalingClient",
    group: str,
    since: datetime,
    at_most: int | None = None,
    until: datetime | None = None,
) -> "Iterator[ActivityTypeDef]":
    """Read the activities of a group that began in a time, the newest first, page by page."""
    bounds = {"StartTimeLowerBound": since} | ({"StartTimeUpperBound": until} if until else {})
    with aws_errors(f"reading the scaling activities of {group}"):
        yield from pages(
            autoscaling,
            "describe_scaling_activities",
            "Activities",
            AutoScalingGroupName=group,
            Filters=[{"Name": n, "Values": [at.isoformat()]} for n, at in bounds.items()],
            PaginationConfig={"PageSize": 100, "MaxItems": at_most},
        )


def described_groups(autoscaling: Any, names: Iterable[str]) -> Iterator[Any]:
    """Describe groups, 50 a call; a name that AWS does not know is left out."""
    # Without any name AWS would return all groups.
    for some in batched(sorted(set(names)), GROUPS_A_CALL, strict=False):
        of = {"AutoScalingGroupNames": list(some), "PaginationConfig": {"PageSize": GROUPS_A_CALL}}
        yield from pages(autoscaling, "describe_auto_scaling_groups", "AutoScalingGroups", **of)


def described(ec2: "EC2Client", by: Mapping[str, Iterable[str]]) -> "Iterator[InstanceTypeDef]":
    """Describe the instances that pass some filters."""
    with aws_errors("describing instances"):
        for reservation in filtered(ec2, "describe_instances", "Reservations", by, **A_PAGE):
            yield from reservation["Instances"]


class AutoScalingReader:
    """Reads groups; never more pages than the question needs."""

    def __init__(
        self,
        autoscaling: "AutoScalingClient",
        ec2: "EC2Client",
        nonce: str | None = None,
        activities: "AutoScalingClient | None" = None,
    ) -> None:
        """Take typed clients, and the nonce of this stack's marks: without it, any mark is read.

        `activities` reads scaling activities, which a turn can do without: it waits less long.
        """
        self._autoscaling = autoscaling
        self._ec2 = ec2
        self._nonce = nonce
        self._optional_autoscaling = activities or autoscaling

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        """Describe groups, 50 a call; a name that AWS does not know is left out."""
        with aws_errors("describing Auto Scaling groups"):
            groups = map(group_from, described_groups(self._autoscaling, names))
            return {group.name: group for group in groups}

    def failures(
        self, group: str, since: datetime, longest: timedelta = LONGEST_LAUNCH
    ) -> tuple[LaunchFailure, ...]:
        """List failed launches since an instant, and spot requests that still wait in vain.

        AWS lists the newest activity first and filters by start time. Those that ended since count.
        """
        failures: list[LaunchFailure] = []
        waiting: list[str] = []
        earliest = since - max(longest, LONGEST_LAUNCH)
        activities = activities_of(self._optional_autoscaling, group, earliest, ACTIVITIES_AT_MOST)
        for activity in takewhile(lambda a: a["StartTime"] >= earliest, activities):
            if is_failed_launch(activity) and has_ended(activity) >= since:
                failures.append(failure_from(activity))
            waiting += awaited_requests(activity)
        # Older groups fail there, and not in their activities.
        by = {"spot-instance-request-id": waiting}
        with aws_errors("describing spot requests"):
            awaited = map(spot_request_from, filtered(self._ec2, *_REQUESTS, by, **A_PAGE))
            failures += [one.failure for one in awaited if one.failure]
        return tuple(failures)

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Name the group of each instance, 50 a call; instances in no group are left out."""
        of = self._autoscaling, "describe_auto_scaling_instances", "AutoScalingInstances"
        with aws_errors("looking up the groups of instances"):
            return {
                instance["InstanceId"]: instance["AutoScalingGroupName"]
                for some in batched(instance_ids, INSTANCES_A_CALL, strict=False)
                for instance in pages(*of, InstanceIds=list(some))
            }

    def troubled_spot_requests(
        self, instance_ids: Sequence[str], since: datetime
    ) -> tuple[SpotRequest, ...]:
        """List the spot requests of some instances whose status shows trouble since an instant."""
        by = {"instance-id": instance_ids, "status-code": SPOT_TROUBLED_STATUSES}
        with aws_errors("describing spot requests"):
            requests = [*filtered(self._ec2, *_REQUESTS, by, **A_PAGE)]
        return tuple([spot_request_from(r) for r in requests if updated_at(r) >= since])

    def running(self, instance_ids: Sequence[str]) -> Mapping[str, bool]:
        """Name those of some instances that have not ended; false for one that stops.

        An unknown one has ended.
        """
        some = self._instances({"instance-id": instance_ids})
        return {one["InstanceId"]: one["State"]["Name"] in _SERVING for one in some}

    def oldest_launch(self, instance_ids: Sequence[str]) -> datetime | None:
        """Say when the oldest of some instances was launched, or started anew from a warm pool."""
        some = self._instances({"instance-id": instance_ids})
        return min((one["LaunchTime"] for one in some), default=None)

    def marked(self, groups: Sequence[str]) -> tuple[Mark, ...]:
        """List the running instances that carry this stack's mark, or no stack's, of some groups.

        For those in no group the history of the group that the mark names is read, at most
        `DETACHMENTS_AT_MOST` activities of the time of the marks.
        """
        marks: dict[str, tuple[datetime, str]] = {}
        without: set[str] = set()
        for instance in self._instances({f"tag:{GROUP_TAG}": groups}):
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
            if self._nonce and tags.get(NONCE_TAG, self._nonce) != self._nonce:
                continue
            if NONCE_TAG not in tags:
                without.add(instance["InstanceId"])
            try:
                gone_at = datetime.fromisoformat(tags.get(DRAINING_TAG, ""))
            except ValueError:
                continue
            if gone_at.tzinfo is None:
                continue
            outside = MEMBER_TAG not in tags and instance.get("InstanceLifecycle") == "spot"
            marks[instance["InstanceId"]] = (gone_at, tags[GROUP_TAG] if outside else "")
        proven = self._detached(marks)
        return tuple(
            Mark(instance_id=i, gone_at=gone_at, detached=i in proven, ours=i not in without)
            for i, (gone_at, _) in marks.items()
        )

    def _detached(self, marks: Mapping[str, tuple[datetime, str]]) -> set[str]:
        """Name those that their group's history lists as detached at about the time of the mark."""
        detached: set[str] = set()
        for group in sorted({group for _, group in marks.values() if group}):
            times = {i: at for i, (at, of) in marks.items() if of == group}
            first = min(times.values()) - DETACHED_WITHIN
            last = max(times.values()) + DETACHED_WITHIN
            history = activities_of(
                self._optional_autoscaling, group, first, DETACHMENTS_AT_MOST, last
            )
            detached |= {i for a in history for i in detached_by(a)} & times.keys()
        return detached

    def _instances(self, by: Mapping[str, Iterable[str]]) -> "Iterator[InstanceTypeDef]":
        """Describe the instances that have not ended and pass some filters."""
        return described(self._ec2, {**by, "instance-state-name": _RUNNING})


# --- what AWS answers, in the domain's words ------------------------------------------------------


def group_from(group: "AutoScalingGroupTypeDef") -> Group:
    """Read a group."""
    reasons = {
        process.get("ProcessName", ""): process.get("SuspensionReason", "")
        for process in group.get("SuspendedProcesses", [])
    }
    tags = {tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", [])}
    template = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    overrides = template.get("Overrides", [])
    # These differ by their types, not by version: nothing of them is a new version of another.
    own = {o.get("LaunchTemplateSpecification", {}).get("LaunchTemplateId") for o in overrides}
    return Group(
        name=group["AutoScalingGroupName"],
        desired=group["DesiredCapacity"],
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        instances=tuple(
            [
                Instance(
                    instance_id=each["InstanceId"],
                    pool=f"{each['AvailabilityZone']}/{each.get('InstanceType', '')}",
                    phase=_PHASES.get(each["LifecycleState"], Phase.LEAVING),
                    healthy=each["HealthStatus"].lower() == "healthy",
                    # Its id, and the version's number.
                    template=f"{spec.get('LaunchTemplateId', '')}/{spec.get('Version', '')}"
                    if (spec := each.get("LaunchTemplate"))
                    and spec.get("LaunchTemplateId") not in own
                    else "",
                )
                for each in group.get("Instances", [])
            ]
        ),
        suspended=frozenset(reasons),
        owner=tags.get(OWNER_TAG, ""),
        suspended_by_aws=frozenset([name for name, why in reasons.items() if not by_a_user(why)]),
        offers=tuple(
            [
                f"{zone}/{one['InstanceType']}"
                for one in overrides
                if "InstanceType" in one
                for zone in group.get("AvailabilityZones", [])
            ]
        ),
    )


def is_failed_launch(activity: "ActivityTypeDef") -> bool:
    """Say whether a launch failed; one that was cancelled did if its message is known to say so.

    A launch is cancelled too when the group is made smaller meanwhile, by us for example.
    """
    if not _LAUNCHES.search(activity.get("Description", "Launching")):
        return False
    if activity["StatusCode"] == "Cancelled":
        return classify(activity.get("StatusMessage", ""))[1]
    return activity["StatusCode"] == "Failed"


def has_ended(activity: "ActivityTypeDef") -> datetime:
    """Say when a launch was given up; AWS writes some ends as whole seconds before their start."""
    return max(activity["StartTime"], activity.get("EndTime", activity["StartTime"]))


def failure_from(activity: "ActivityTypeDef") -> LaunchFailure:
    """Read why a launch failed."""
    message = activity.get("StatusMessage") or activity.get("Description", "")
    failure_class, known = classify(message)
    try:
        # Older groups leave these empty.
        zone = str(json.loads(activity.get("Details", "")).get("Availability Zone", ""))
    except (json.JSONDecodeError, AttributeError):
        zone = ""
    return LaunchFailure(
        at=has_ended(activity), failure_class=failure_class, message=message, pool=zone, known=known
    )


def instances_of(activity: "ActivityTypeDef") -> list[str]:
    """Name the instances that an activity's description names."""
    return _INSTANCE_ID.findall(activity.get("Description", ""))


def detached_by(activity: "ActivityTypeDef") -> list[str]:
    """Name the instance that an activity took out of the group and left running."""
    left = activity.get("Description", "").startswith("Detaching")
    return instances_of(activity) if left and activity["StatusCode"] not in _NOT_DONE else []


def awaited_requests(activity: "ActivityTypeDef") -> list[str]:
    """Name the spot requests that a launch still waits for."""
    waits = activity["StatusCode"] in _WAITING_FOR_SPOT
    return _REQUEST_ID.findall(activity.get("StatusMessage", "")) if waits else []


def updated_at(request: "SpotInstanceRequestTypeDef") -> datetime:
    """Say when a spot request's status changed last."""
    return request["Status"].get("UpdateTime", request["CreateTime"])


def spot_request_from(request: "SpotInstanceRequestTypeDef") -> SpotRequest:
    """Read a spot request, with what its status means for its instance."""
    status, at = request["Status"].get("Code", ""), updated_at(request)
    failure = None
    if failure_class := SPOT_CLASSES.get(status):
        message = f"spot request {request['SpotInstanceRequestId']}: {status}"
        failure = LaunchFailure(at=at, failure_class=failure_class, message=message)
    return SpotRequest(
        instance_id=request.get("InstanceId", ""),
        failure=failure,
        at_risk_since=at if status in SPOT_MARKED_STATUSES | SPOT_FINAL_STATUSES else None,
        final=status in SPOT_FINAL_STATUSES,
    )
