"""What AWS answers of groups, activities and spot requests, in the domain's words."""

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import (
    SPOT_MARKED_STATUSES,
    SPOT_TAKEN_STATUSES,
    by_a_user,
    classify,
    classify_spot_status,
    is_ended_by_request,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import OWNER_TAG, SpotRequest

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import (
        ActivityTypeDef,
        AutoScalingGroupTypeDef,
        InstanceTypeDef,
    )
    from mypy_boto3_ec2.type_defs import SpotInstanceRequestTypeDef

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
_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_REQUEST_ID = re.compile(r"\bsir-[0-9a-z]+")


def group_from(group: "AutoScalingGroupTypeDef") -> Group:
    """Read a group."""
    reasons = {
        process.get("ProcessName", ""): process.get("SuspensionReason", "")
        for process in group.get("SuspendedProcesses", [])
    }
    return Group(
        name=group["AutoScalingGroupName"],
        desired=group["DesiredCapacity"],
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        instances=tuple([_instance(i) for i in group.get("Instances", [])]),
        suspended=frozenset(reasons),
        owner={tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", [])}.get(
            OWNER_TAG, ""
        ),
        suspended_by_aws=frozenset([name for name, why in reasons.items() if not by_a_user(why)]),
    )


def _instance(instance: "InstanceTypeDef") -> Instance:
    return Instance(
        instance_id=instance["InstanceId"],
        pool=f"{instance['AvailabilityZone']}/{instance.get('InstanceType', '')}",
        phase=_PHASES.get(instance["LifecycleState"], Phase.LEAVING),
        healthy=instance["HealthStatus"].lower() == "healthy",
    )


def is_failed_launch(activity: "ActivityTypeDef") -> bool:
    """Say whether a launch failed; one that was cancelled did if its message is known to say so.

    A launch is cancelled too when the group is made smaller meanwhile, by us for example.
    """
    if "launching" not in activity.get("Description", "Launching").lower():
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
    return LaunchFailure(
        at=has_ended(activity),
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


def ended_by_request(activity: "ActivityTypeDef") -> list[str]:
    """Name the instance that a group ends on request, and replaces."""
    ends = "terminating" in activity.get("Description", "").lower()
    if not (ends and is_ended_by_request(activity["Cause"])):
        return []
    return instances_of(activity)


def instances_of(activity: "ActivityTypeDef") -> list[str]:
    """Name the instances that an activity's description names."""
    return _INSTANCE_ID.findall(activity.get("Description", ""))


def detached_by(activity: "ActivityTypeDef") -> list[str]:
    """Name the instance that an activity took out of the group and left running."""
    description = activity.get("Description", "")
    if not description.startswith("Detaching") or activity["StatusCode"] in _NOT_DONE:
        return []
    return _INSTANCE_ID.findall(description)


def awaited_requests(activity: "ActivityTypeDef") -> list[str]:
    """Name the spot requests that a launch still waits for."""
    if activity["StatusCode"] not in _WAITING_FOR_SPOT:
        return []
    return _REQUEST_ID.findall(activity.get("StatusMessage", ""))


def instant(text: str) -> datetime | None:
    """Read a mark's time; None for what is no time of ours."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else None


def updated_at(request: "SpotInstanceRequestTypeDef") -> datetime:
    """Say when a spot request's status changed last."""
    return request["Status"].get("UpdateTime", request["CreateTime"])


def spot_request_from(request: "SpotInstanceRequestTypeDef") -> SpotRequest:
    """Read a spot request, with what its status means for its instance."""
    status, at = request["Status"].get("Code", ""), updated_at(request)
    failure = None
    if failure_class := classify_spot_status(status):
        message = f"spot request {request['SpotInstanceRequestId']}: {status}"
        failure = LaunchFailure(at=at, failure_class=failure_class, message=message)
    return SpotRequest(
        request_id=request["SpotInstanceRequestId"],
        instance_id=request.get("InstanceId", ""),
        failure=failure,
        at_risk_since=at if status in SPOT_MARKED_STATUSES else None,
        taken=status in SPOT_TAKEN_STATUSES,
    )
