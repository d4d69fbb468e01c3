"""Auto Scaling groups, their activities and spot requests, behind the group ports."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import (
    SPOT_AT_RISK_STATUSES,
    SPOT_TROUBLED_STATUSES,
    by_a_user,
    classify,
    classify_spot_status,
    translated,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import Gone, SpotRequest

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_autoscaling.type_defs import (
        ActivityTypeDef,
        AutoScalingGroupTypeDef,
        InstanceTypeDef,
    )
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import SpotInstanceRequestTypeDef

# AWS's own limits of one call; more names than 50 are refused where MaxRecords does not say so.
GROUPS_A_CALL = 50
INSTANCES_A_CALL = 50
DETACHED_A_CALL = 20
# Without a size the region's requests come in one answer, which may be throttled or time out.
REQUESTS_A_PAGE = 500
DRAINING_TAG = "spotkeeper:draining"
# A group that fails every 15 s logs 20 activities in the five minutes that a turn looks back at.
ACTIVITIES_AT_MOST = 200

# Everything else, known or not yet invented, is not serving.
_PHASES = {
    "Pending": Phase.COMING,
    "Pending:Wait": Phase.COMING,
    "Pending:Proceed": Phase.COMING,
    "InService": Phase.IN_SERVICE,
}
_FAILED = frozenset({"Failed", "Cancelled"})
_WAITING_FOR_SPOT = frozenset({"PendingSpotBidPlacement", "WaitingForSpotInstanceRequestId",
                               "WaitingForSpotInstanceId"})  # fmt: skip
_REQUEST_ID = re.compile(r"\bsir-[0-9a-z]+")


class AutoScalingReader:
    """Reads groups; never more pages than the question needs."""

    def __init__(self, autoscaling: "AutoScalingClient", ec2: "EC2Client") -> None:
        """Take typed clients; nothing is called yet."""
        self._autoscaling = autoscaling
        self._ec2 = ec2

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        """Describe groups, 50 a call; a name that AWS does not know is left out."""
        groups: dict[str, Group] = {}
        pages = self._autoscaling.get_paginator("describe_auto_scaling_groups")
        for some in batched(sorted(set(names)), GROUPS_A_CALL, strict=False):
            with translated("describing Auto Scaling groups"):
                for page in pages.paginate(
                    AutoScalingGroupNames=list(some),
                    PaginationConfig={"PageSize": GROUPS_A_CALL},
                ):
                    for group in page["AutoScalingGroups"]:
                        groups[group["AutoScalingGroupName"]] = _group(group)
        return groups

    def failures(self, group: str, since: datetime) -> tuple[LaunchFailure, ...]:
        """List failed launches since an instant, and spot requests that still wait in vain.

        Activities come newest first; AWS filters by start time, and the reading stops by itself.
        """
        found: list[LaunchFailure] = []
        waiting: list[str] = []
        pages = self._autoscaling.get_paginator("describe_scaling_activities").paginate(
            AutoScalingGroupName=group,
            Filters=[{"Name": "StartTimeLowerBound", "Values": [since.isoformat()]}],
            PaginationConfig={"MaxItems": ACTIVITIES_AT_MOST, "PageSize": 100},
        )
        with translated(f"reading the scaling activities of {group}"):
            for page in pages:
                recent = [a for a in page["Activities"] if a["StartTime"] >= since]
                found += [_failure(a) for a in recent if _is_failed_launch(a)]
                waiting += [r for a in recent for r in _awaited_requests(a)]
                if len(recent) < len(page["Activities"]):
                    break
        return (*found, *self._failed_requests(waiting))

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Name the group of each instance, 50 a call; instances in no group are left out."""
        groups: dict[str, str] = {}
        for some in batched(instance_ids, INSTANCES_A_CALL, strict=False):
            with translated("looking up the groups of instances"):
                answer = self._autoscaling.describe_auto_scaling_instances(InstanceIds=list(some))
            for instance in answer["AutoScalingInstances"]:
                groups[instance["InstanceId"]] = instance["AutoScalingGroupName"]
        return groups

    def troubled_spot_requests(self, since: datetime) -> tuple[SpotRequest, ...]:
        """List the region's spot requests whose status tells of trouble since an instant."""
        pages = self._ec2.get_paginator("describe_spot_instance_requests").paginate(
            Filters=[{"Name": "status-code", "Values": sorted(SPOT_TROUBLED_STATUSES)}],
            PaginationConfig={"PageSize": REQUESTS_A_PAGE},
        )
        with translated("describing spot requests"):
            requests = [r for page in pages for r in page["SpotInstanceRequests"]]
        return tuple(_spot_request(r) for r in requests if _updated(r) >= since)

    def _failed_requests(self, request_ids: Sequence[str]) -> tuple[LaunchFailure, ...]:
        """Look up awaited requests: older groups fail there and not in their activities."""
        if not request_ids:
            return ()
        with translated("describing awaited spot requests"):
            answer = self._ec2.describe_spot_instance_requests(
                Filters=[{"Name": "spot-instance-request-id", "Values": sorted(set(request_ids))}]
            )
        requests = (_spot_request(r) for r in answer["SpotInstanceRequests"])
        return tuple(r.failure for r in requests if r.failure)


class AutoScalingWriter:
    """Changes groups and their instances; each method is one call."""

    def __init__(self, autoscaling: "AutoScalingClient", ec2: "EC2Client") -> None:
        """Take typed clients; nothing is called yet."""
        self._autoscaling = autoscaling
        self._ec2 = ec2

    def set_desired(self, group: str, desired: int) -> None:
        """Ask a group for a capacity; a cooldown of the group does not delay it."""
        with translated(f"setting the desired capacity of {group}"):
            self._autoscaling.set_desired_capacity(
                AutoScalingGroupName=group, DesiredCapacity=desired, HonorCooldown=False
            )

    def end(self, instance_id: str) -> None:
        """End an instance and lower its group's desired capacity by one."""
        with translated(f"ending {instance_id}"):
            self._autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=instance_id, ShouldDecrementDesiredCapacity=True
            )

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out of their group, 20 a call; the group replaces them at once."""
        for some in batched(instance_ids, DETACHED_A_CALL, strict=False):
            with translated(f"detaching from {group}"):
                self._autoscaling.detach_instances(
                    AutoScalingGroupName=group,
                    InstanceIds=list(some),
                    ShouldDecrementDesiredCapacity=False,
                )

    def suspend_az_rebalance(self, group: str) -> None:
        """Stop a group from ending busy instances only to even out its zones."""
        with translated(f"suspending AZRebalance of {group}"):
            self._autoscaling.suspend_processes(
                AutoScalingGroupName=group, ScalingProcesses=["AZRebalance"]
            )

    def resume_launch(self, group: str) -> None:
        """Let a group launch again after AWS stopped it."""
        with translated(f"resuming Launch of {group}"):
            self._autoscaling.resume_processes(
                AutoScalingGroupName=group, ScalingProcesses=["Launch"]
            )

    def drain(self, instance_ids: Sequence[str], gone_at: datetime) -> None:
        """Tag instances with when they will be gone; workers read it from instance metadata."""
        with translated("tagging instances as draining"):
            self._ec2.create_tags(
                Resources=list(instance_ids),
                Tags=[{"Key": DRAINING_TAG, "Value": gone_at.isoformat()}],
            )

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End detached instances that AWS left running; those already gone are well gone."""
        for instance_id in instance_ids:
            try:
                with translated(f"terminating {instance_id}"):
                    self._ec2.terminate_instances(InstanceIds=[instance_id])
            except Gone:
                continue

    def replace(self, instance_id: str) -> None:
        """Mark an instance unhealthy; its group replaces it, whatever its grace period."""
        with translated(f"marking {instance_id} unhealthy"):
            self._autoscaling.set_instance_health(
                InstanceId=instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
            )


def _group(group: "AutoScalingGroupTypeDef") -> Group:
    reasons = {
        process.get("ProcessName", ""): process.get("SuspensionReason", "")
        for process in group.get("SuspendedProcesses", [])
    }
    return Group(
        name=group["AutoScalingGroupName"],
        desired=group["DesiredCapacity"],
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        instances=tuple(_instance(i) for i in group.get("Instances", [])),
        suspended=frozenset(reasons),
        suspended_by_aws=frozenset(name for name, why in reasons.items() if not by_a_user(why)),
    )


def _instance(instance: "InstanceTypeDef") -> Instance:
    return Instance(
        instance_id=instance["InstanceId"],
        pool=f"{instance['AvailabilityZone']}/{instance.get('InstanceType', '')}",
        phase=_PHASES.get(instance["LifecycleState"], Phase.LEAVING),
        healthy=instance["HealthStatus"].lower() == "healthy",
    )


def _is_failed_launch(activity: "ActivityTypeDef") -> bool:
    description = activity.get("Description", "Launching").lower()
    return activity["StatusCode"] in _FAILED and "launching" in description


def _failure(activity: "ActivityTypeDef") -> LaunchFailure:
    message = activity.get("StatusMessage") or activity.get("Description", "")
    failure_class, known = classify(message)
    return LaunchFailure(
        at=activity["StartTime"],
        failure_class=failure_class,
        message=message,
        pool=_zone(activity.get("Details", "")),
        known=known,
    )


def _zone(details: str) -> str:
    """Read the zone from an activity's details, a JSON text that older groups leave empty."""
    try:
        return str(json.loads(details).get("Availability Zone", ""))
    except (json.JSONDecodeError, AttributeError):
        return ""


def _awaited_requests(activity: "ActivityTypeDef") -> list[str]:
    if activity["StatusCode"] not in _WAITING_FOR_SPOT:
        return []
    return _REQUEST_ID.findall(activity.get("StatusMessage", ""))


def _updated(request: "SpotInstanceRequestTypeDef") -> datetime:
    return request["Status"].get("UpdateTime", request["CreateTime"])


def _spot_request(request: "SpotInstanceRequestTypeDef") -> SpotRequest:
    status, at = request["Status"].get("Code", ""), _updated(request)
    failure = None
    if failure_class := classify_spot_status(status):
        message = f"spot request {request['SpotInstanceRequestId']}: {status}"
        failure = LaunchFailure(at=at, failure_class=failure_class, message=message)
    return SpotRequest(
        request_id=request["SpotInstanceRequestId"],
        instance_id=request.get("InstanceId", ""),
        failure=failure,
        at_risk_since=at if status in SPOT_AT_RISK_STATUSES else None,
    )
