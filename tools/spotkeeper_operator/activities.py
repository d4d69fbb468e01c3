"""What a group did and what befell it, as its scaling activities tell it."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.ec2.answers import ended_by_request, instances_of, is_failed_launch
from spotkeeper.adapters.errors import aws_errors
from spotkeeper_operator.aws import Aws

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import ActivityTypeDef

# A group in trouble logs an activity every 15 s.
AT_MOST = 500
# How a cause begins: with the time that `at` has, too.
_AT = re.compile(r"^At \S+Z ")
# What AWS writes when a check of its own fails, or it takes a spot instance. A user's check is set
# by SetInstanceHealth.
_ON_ITS_OWN = re.compile(r"(?<!user )(health|status)[ -]checks?\b|interruption", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One activity: a launch, or an end.

    `failed` launches have the error in `cause`. AWS ended what is `taken`, and nobody asked it to.
    """

    group: str
    at: datetime
    what: str
    cause: str
    instances: tuple[str, ...]
    failed: bool = False
    taken: bool = False


def read_activities(aws: Aws, group: str, first: datetime, last: datetime) -> tuple[Activity, ...]:
    """Read a group's activities that began between two instants, oldest first."""
    pages = aws.autoscaling.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName=group,
        Filters=[{"Name": "StartTimeLowerBound", "Values": [first.isoformat()]}],
        PaginationConfig={"MaxItems": AT_MOST, "PageSize": 100},
    )
    with aws_errors(f"reading the scaling activities of {group}"):
        found = [activity for page in pages for activity in page["Activities"]]
    there = (one for one in found if first <= one["StartTime"] <= last)
    return tuple(sorted(map(_activity, there), key=lambda one: one.at))


def _activity(activity: "ActivityTypeDef") -> Activity:
    failed = is_failed_launch(activity)
    cause = _AT.sub("", activity["Cause"])
    return Activity(
        group=activity["AutoScalingGroupName"],
        at=activity["StartTime"],
        what=activity.get("Description", ""),
        cause=activity.get("StatusMessage", cause) if failed else cause,
        instances=tuple(instances_of(activity)),
        failed=failed,
        taken=_taken(activity),
    )


def _taken(activity: "ActivityTypeDef") -> bool:
    """Say whether AWS ended an instance on its own: its health check found it gone, for one."""
    ends = "terminating" in activity.get("Description", "").lower()
    on_its_own = _ON_ITS_OWN.search(activity["Cause"]) is not None
    return ends and on_its_own and not ended_by_request(activity)
