"""What every stand-in shares: parameters in, answers and events out, pages, virtual time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from spotkeeper_lab.cloud.values import CloudEvent, EventKind

REGION = "us-east-1"
ACCOUNT = "123456789012"

type Params = Mapping[str, Any]
type Answer = Mapping[str, object]
type Respond = Callable[[Params], Answer]
"""What answers to the parameters of a call."""


@dataclass(frozen=True, slots=True)
class VirtualTime:
    """Virtual seconds as instants: second 0 is `start`, an aware datetime."""

    start: datetime

    def at(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=seconds)

    def seconds(self, instant: datetime) -> float:
        return (instant - self.start).total_seconds()


def paged(respond: Respond, usual: int, most: int, asked_by: str = "MaxRecords") -> Respond:
    """Answer a list in pages of a usual and a largest size; the token is where the next begins."""

    def one_page(params: Params) -> Answer:
        ((name, items),) = respond(params).items()
        assert isinstance(items, list)
        first = int(params.get("NextToken") or 0)
        stop = first + min(most, int(params.get(asked_by) or usual))
        token = {"NextToken": str(stop)} if stop < len(items) else {}
        return {name: items[first:stop], **token}

    return one_page


def group_arn(name: str) -> str:
    return (
        f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:"
        f"00000000-0000-0000-0000-000000000000:autoScalingGroupName/{name}"
    )


def aws_time(instant: datetime) -> str:
    """An instant as AWS writes it in events: whole seconds, UTC."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


type Event = dict[str, object]


class Events:
    """Writes events in virtual time, each with an id of its own."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._written = 0

    def scheduled(self, at_s: float) -> Event:
        return self._event("aws.scheduler", "Scheduled Event", at_s, [], "{}")

    def of_cloud(self, event: CloudEvent) -> Event:
        """The event of EC2 or Auto Scaling for something that happened."""
        instance = [instance_arn(event.instance_id)]
        detail: dict[str, object] = {"instance-id": event.instance_id}
        match event.kind:
            case EventKind.WARNING:
                name = "EC2 Spot Instance Interruption Warning"
                detail["instance-action"] = "terminate"
            case EventKind.REBALANCE:
                name = "EC2 Instance Rebalance Recommendation"
            case EventKind.FULFILLED:
                name = "EC2 Spot Instance Request Fulfillment"
                detail["spot-instance-request-id"] = f"sir-{event.instance_id[-8:]}"
            case EventKind.TERMINATED if not event.group:
                name, detail["state"] = "EC2 Instance State-change Notification", "shutting-down"
            case _:
                return self._of_group(event)
        return self._event("aws.ec2", name, event.at_s, instance, detail)

    def _of_group(self, event: CloudEvent) -> Event:
        name = {
            EventKind.LAUNCH_SUCCESSFUL: "EC2 Instance Launch Successful",
            EventKind.LAUNCH_UNSUCCESSFUL: "EC2 Instance Launch Unsuccessful",
            EventKind.REFRESH_STARTED: "EC2 Auto Scaling Instance Refresh Started",
        }.get(event.kind, "EC2 Instance Terminate Successful")
        activity = event.activity
        start_s = activity.start_s if activity else event.at_s
        failed = event.kind is EventKind.LAUNCH_UNSUCCESSFUL
        detail: dict[str, object] = {
            "AutoScalingGroupName": event.group,
            "EC2InstanceId": event.instance_id,
            "ActivityId": activity.activity_id if activity else f"Terminating-{event.instance_id}",
            "RequestId": activity.activity_id if activity else f"Terminating-{event.instance_id}",
            "StatusCode": "Failed" if failed else "InProgress",
            "StatusMessage": activity.message if activity else "",
            "Description": activity.description if activity else "Terminating EC2 instance",
            "Cause": activity.cause if activity else "",
            "Details": {"Availability Zone": activity.zone if activity else ""},
            "StartTime": aws_time(self._time.at(start_s)),
            "EndTime": aws_time(self._time.at(event.at_s)),
        }
        resources = [group_arn(event.group), instance_arn(event.instance_id)]
        return self._event("aws.autoscaling", name, event.at_s, resources, detail)

    def _event(
        self, source: str, name: str, at_s: float, resources: list[str], detail: object
    ) -> Event:
        self._written += 1
        return {
            "version": "0",
            "id": str(UUID(int=self._written)),
            "detail-type": name,
            "source": source,
            "account": ACCOUNT,
            "time": aws_time(self._time.at(at_s)),
            "region": REGION,
            "resources": resources,
            "detail": detail,
        }


def instance_arn(instance_id: str) -> str:
    return f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{instance_id}"
