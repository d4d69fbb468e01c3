"""What the simulated cloud and request queues answer to calls, in AWS's words."""

import json
from datetime import datetime
from functools import lru_cache

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Activity, CloudError, GroupView, InstanceView, WarmPool
from spotkeeper_lab.cloud.words import CANCELLED, FAILED, PROCESSES, SUCCESSFUL
from spotkeeper_lab.local_aws.ec2_answers import Ec2Answers
from spotkeeper_lab.local_aws.wire import (
    ACCOUNT,
    REGION,
    Answer,
    Get,
    Meters,
    Page,
    VirtualTime,
    WireAction,
    aws_time,
    group_arn,
    page,
)

__all__ = [
    "ACCOUNT",
    "REGION",
    "Answer",
    "Answers",
    "Get",
    "Meters",
    "VirtualTime",
    "WireAction",
    "aws_time",
    "group_arn",
    "instance_answer",
    "page",
    "pool_answer",
    "request_queues",
]

# AWS keeps activities for six weeks; without a filter it answers all of them.
SIX_WEEKS_S = 42 * 86_400.0

GROUPS = Page(usual=50, most=100)
INSTANCES = Page(usual=50, most=50)
ACTIVITIES = Page(usual=100, most=100)


class Answers:
    """What the cloud answers, in AWS's words; each method takes a reader of parameters."""

    def __init__(self, cloud: Cloud, time: VirtualTime) -> None:
        self._cloud = cloud
        self._time = time

    def auto_scaling(self) -> dict[str, WireAction]:
        """The actions of Auto Scaling that the cloud answers."""
        return {
            "describe_auto_scaling_groups": WireAction(self._describe_groups, GROUPS),
            "describe_auto_scaling_instances": WireAction(self._describe_instances, INSTANCES),
            "describe_scaling_activities": WireAction(self._describe_activities, ACTIVITIES),
            "set_desired_capacity": WireAction(self._set_desired),
            "terminate_instance_in_auto_scaling_group": WireAction(self._end),
            "detach_instances": WireAction(self._detach),
            "set_instance_health": WireAction(self._set_health),
            "suspend_processes": WireAction(self._suspend),
            "resume_processes": WireAction(self._resume),
        }

    def ec2(self, *, over_the_wire: bool = False) -> dict[str, WireAction]:
        """The actions of EC2 that the cloud answers."""
        answers = Ec2Answers(self._cloud, self._time)
        return answers.actions() | (answers.over_the_wire() if over_the_wire else {})

    # --- Auto Scaling ---------------------------------------------------------------------------

    def _describe_groups(self, get: Get) -> Answer:
        known = self._cloud.groups()
        names = get("AutoScalingGroupNames", []) or known
        most = int(get("MaxRecords") or GROUPS.usual)
        if len(get("AutoScalingGroupNames", [])) > most:
            message = f"The number of group names that may be passed in is limited to {most}"
            raise CloudError("ValidationError", message)
        views = (self._cloud.group(name) for name in names if name in known)
        return {"AutoScalingGroups": [self._group(view) for view in views]}

    def _describe_instances(self, get: Get) -> Answer:
        wanted = set(get("InstanceIds", []))
        views = (view for view in self._cloud.instances() if view.group)
        return {
            "AutoScalingInstances": [
                {**instance_answer(view), "AutoScalingGroupName": view.group}
                for view in views
                if not wanted or view.instance_id in wanted
            ]
        }

    def _describe_activities(self, get: Get) -> Answer:
        group = get("AutoScalingGroupName")
        filters = {item["Name"]: item["Values"] for item in get("Filters", [])}
        since_s = self._cloud.now_s - SIX_WEEKS_S
        for text in filters.get("StartTimeLowerBound", []):
            since_s = self._time.seconds(datetime.fromisoformat(text))
        names = [group] if group else self._cloud.groups()
        until_s = self._cloud.now_s
        for text in filters.get("StartTimeUpperBound", []):
            until_s = self._time.seconds(datetime.fromisoformat(text))
        found = [
            activity_answer(activity, self._time)
            for name in names
            for activity in self._cloud.activities(name, since_s)
            if activity.start_s <= until_s
        ] + [
            self._detachment(name, instance_id, at_s)
            for name in names
            for at_s, instance_id in self._cloud.detached(name)
            if since_s <= at_s <= until_s
        ]
        return {"Activities": sorted(found, key=_started, reverse=True)}

    def _detachment(self, group: str, instance_id: str, at_s: float) -> Answer:
        at = self._time.at(at_s)
        return {
            "ActivityId": f"detach-{instance_id}",
            "AutoScalingGroupName": group,
            "Description": f"Detaching EC2 instance: {instance_id}",
            "Cause": f"At {aws_time(at)} instance {instance_id} was detached in response to a "
            "user request.",
            "StartTime": at,
            "EndTime": at,
            "StatusCode": "Successful",
            "Progress": 100,
        }

    def _set_desired(self, get: Get) -> Answer:
        self._cloud.set_desired(get("AutoScalingGroupName"), int(get("DesiredCapacity")))
        return {}

    def _end(self, get: Get) -> Answer:
        instance_id = get("InstanceId")
        view = self._cloud.member(instance_id)
        if not get("ShouldDecrementDesiredCapacity"):
            raise CloudError("ValidationError", "only ending with a decrement is simulated")
        self._cloud.end(instance_id)
        return {"Activity": self._ending(view)}

    def _detach(self, get: Get) -> Answer:
        if get("ShouldDecrementDesiredCapacity"):
            raise CloudError("ValidationError", "only detaching without a decrement is simulated")
        self._cloud.detach(get("AutoScalingGroupName"), get("InstanceIds"))
        return {"Activities": []}

    def _set_health(self, get: Get) -> Answer:
        if get("HealthStatus") != "Unhealthy":
            raise CloudError("ValidationError", "only unhealthy instances are simulated")
        after_grace = get("ShouldRespectGracePeriod") is not False
        self._cloud.set_unhealthy(get("InstanceId"), after_grace=after_grace)
        return {}

    def _suspend(self, get: Get) -> Answer:
        for process in get("ScalingProcesses") or PROCESSES:
            self._cloud.suspend(get("AutoScalingGroupName"), process)
        return {}

    def _resume(self, get: Get) -> Answer:
        for process in get("ScalingProcesses") or PROCESSES:
            self._cloud.resume(get("AutoScalingGroupName"), process)
        return {}

    def _group(self, view: GroupView) -> Answer:
        zones = sorted({instance.pool.partition("/")[0] for instance in view.instances})
        pool, _ = self._cloud.warm_pool(view.name)
        return {
            "AutoScalingGroupName": view.name,
            "AutoScalingGroupARN": group_arn(view.name),
            "MinSize": view.minimum,
            "MaxSize": view.maximum,
            "DesiredCapacity": view.desired,
            "DefaultCooldown": 300,
            "AvailabilityZones": zones,
            "HealthCheckType": "EC2",
            "HealthCheckGracePeriod": int(view.grace_s),
            "NewInstancesProtectedFromScaleIn": view.protect_new,
            "CreatedTime": self._time.start,
            **({"WarmPoolConfiguration": pool_answer(pool)} if pool else {}),
            "Instances": [instance_answer(instance) for instance in view.instances],
            "SuspendedProcesses": [
                {"ProcessName": name, "SuspensionReason": reason}
                for name, reason in sorted(view.suspensions.items())
            ],
        }

    def _ending(self, view: InstanceView) -> Answer:
        now = self._time.at(self._cloud.now_s)
        return {
            "ActivityId": f"end-{view.instance_id}",
            "AutoScalingGroupName": view.group,
            "Description": f"Terminating EC2 instance: {view.instance_id}",
            "Cause": f"At {aws_time(now)} instance {view.instance_id} was taken out of service "
            "in response to a user request.",
            "StartTime": now,
            "StatusCode": "InProgress",
            "Progress": 0,
        }


def _started(activity: Answer) -> datetime:
    start = activity["StartTime"]
    assert isinstance(start, datetime)
    return start


def request_queues(meters: Meters) -> dict[str, WireAction]:
    """The actions of SQS that meters answer."""

    def attributes(get: Get) -> Answer:
        url = get("QueueUrl")
        if url not in meters:
            code = "AWS.SimpleQueueService.NonExistentQueue"
            raise CloudError(code, "The specified queue does not exist.")
        waiting, in_flight = meters[url]()
        counts = {"": waiting, "Delayed": 0, "NotVisible": in_flight}
        known = {f"ApproximateNumberOfMessages{kind}": str(n) for kind, n in counts.items()}
        return {"Attributes": {name: known[name] for name in get("AttributeNames", [])}}

    return {"get_queue_attributes": WireAction(attributes)}


@lru_cache(maxsize=1_000)
def activity_answer(activity: Activity, time: VirtualTime) -> Answer:
    """A launch; each turn asks for those of the last minutes again."""
    start = time.at(activity.start_s)
    details = {"Subnet ID": "subnet-12345678", "Availability Zone": activity.zone}
    answer = {
        "ActivityId": activity.activity_id,
        "AutoScalingGroupName": activity.group,
        "Description": activity.description,
        "Cause": f"At {aws_time(start)} {activity.cause}",
        "StartTime": start,
        "StatusCode": activity.status_code,
        "Progress": 100 if activity.status_code in (FAILED, SUCCESSFUL, CANCELLED) else 50,
        "Details": json.dumps(details),
    }
    if activity.end_s is not None:
        answer["EndTime"] = time.at(activity.end_s)
    if activity.message:
        answer["StatusMessage"] = activity.message
    return answer


def instance_answer(view: InstanceView) -> dict[str, object]:
    """An instance of a group, or of its warm pool."""
    zone, _, kind = view.pool.partition("/")
    return {
        "InstanceId": view.instance_id,
        "AvailabilityZone": zone,
        "InstanceType": kind,
        "LifecycleState": view.state,
        "HealthStatus": "Healthy" if view.healthy else "Unhealthy",
        "ProtectedFromScaleIn": view.protected,
    }


def pool_answer(pool: WarmPool) -> dict[str, object]:
    """How a group's warm pool is set up."""
    return {
        "MinSize": pool.minimum,
        "PoolState": pool.state,
        "InstanceReusePolicy": {"ReuseOnScaleIn": pool.reuse},
        **({} if pool.prepared is None else {"MaxGroupPreparedCapacity": pool.prepared}),
    }
