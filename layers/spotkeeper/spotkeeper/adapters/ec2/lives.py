"""When instances started and stopped costing, and what ended them, by DescribeInstances.

A terminated instance stays visible for about an hour. Its StateTransitionReason has the time,
"User initiated (2026-09-14 19:04:44 GMT)" or "Server.SpotInstanceTermination: ...", and its
StateReason what ended it.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from spotkeeper.adapters.ec2.auto_scaling import (
    activities_of,
    described,
    has_ended,
    instances_of,
)
from spotkeeper.domain.money.ledger import EndedBy, Life
from spotkeeper.domain.purchase import PurchaseOption

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

# States in which compute costs nothing.
_OVER = frozenset({"shutting-down", "terminated", "stopping", "stopped"})
_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class InstanceLives:
    """Reads instances' lives."""

    def __init__(self, ec2: "EC2Client") -> None:
        """Take a typed client; nothing is called yet."""
        self._ec2 = ec2

    def of(
        self,
        instance_ids: Iterable[str],
        now: datetime,
        ends: Mapping[str, datetime] = MappingProxyType({}),
    ) -> Mapping[str, Life]:
        """Read instances by id; those that EC2 does not know any more are left out.

        `ends` are used where EC2 does not say when an instance ended.
        """
        return {
            instance["InstanceId"]: _life(instance, min(ends.get(instance["InstanceId"], now), now))
            for instance in described(self._ec2, {"instance-id": instance_ids})
        }


class ScalingActivities:
    """Reads when groups launched and terminated instances; AWS keeps that for six weeks."""

    def __init__(self, autoscaling: "AutoScalingClient") -> None:
        """Take a typed client; nothing is called yet."""
        self._autoscaling = autoscaling

    def ends(self, groups: Iterable[str], since: datetime) -> Mapping[str, datetime | None]:
        """Read which instances groups launched or terminated since an instant, and their ends."""
        ends: dict[str, datetime | None] = {}
        for group in groups:
            for activity in activities_of(self._autoscaling, group, since):
                terminated = activity.get("Description", "").startswith("Terminating")
                over = terminated and activity["StatusCode"] == "Successful"
                for instance_id in instances_of(activity):
                    ends[instance_id] = has_ended(activity) if over else ends.get(instance_id)
        return ends


def _life(instance: "InstanceTypeDef", now: datetime) -> Life:
    over = instance["State"]["Name"] in _OVER
    return Life(
        instance_id=instance["InstanceId"],
        pool=f"{instance['Placement']['AvailabilityZone']}/{instance['InstanceType']}",
        option=PurchaseOption.SPOT
        if instance.get("InstanceLifecycle") == "spot"
        else PurchaseOption.ON_DEMAND,
        since=instance["LaunchTime"],
        until=_ended(instance, now) if over else None,
        ended_by=_ended_by(instance) if over else EndedBy.NOBODY,
        reservation=instance.get("CapacityReservationId", ""),
    )


def _ended(instance: "InstanceTypeDef", now: datetime) -> datetime:
    """Read when it ended; where EC2 does not say, now is the latest that it can have been."""
    match = _AT.search(instance.get("StateTransitionReason", ""))
    if match is None:
        return now
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def _ended_by(instance: "InstanceTypeDef") -> EndedBy:
    code = instance.get("StateReason", {}).get("Code", "")
    transition = instance.get("StateTransitionReason", "")
    if code.startswith("Server.") or transition.startswith("Service initiated"):
        return EndedBy.AWS
    return EndedBy.US if code.startswith("Client.") else EndedBy.UNKNOWN
