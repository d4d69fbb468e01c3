"""What the simulated cloud and request queues answer to calls of Auto Scaling, EC2 and SQS."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    Activity,
    CloudError,
    GroupView,
    InstanceView,
    LifecycleHook,
    Purchase,
    Result,
    SpotRequestView,
    Transition,
    WarmPool,
)
from spotkeeper_lab.cloud.words import CANCELLED, FAILED, PENDING, PROCESSES, SUCCESSFUL
from spotkeeper_lab.local_aws.wire import (
    Answer,
    Get,
    Meters,
    Page,
    VirtualTime,
    WireAction,
    aws_time,
    group_arn,
)


def passes(instance: Answer, name: str, values: Sequence[str]) -> bool:
    """Whether an instance passes a filter of EC2's; `CloudError` for one not simulated."""
    state, tags = instance["State"], instance["Tags"]
    assert isinstance(state, dict)
    assert isinstance(tags, list)
    by_key = {tag["Key"]: tag["Value"] for tag in tags}
    match name.split(":", 1):
        case ["instance-state-name"]:
            return state["Name"] in values
        case ["instance-id"]:
            return instance["InstanceId"] in values
        case ["tag-key"]:
            return not by_key.keys().isdisjoint(values)
        case ["tag", key]:
            return any(fnmatchcase(by_key.get(key, ""), value) for value in values)
        case _:
            raise CloudError("InvalidParameterValue", f"The filter '{name}' is not simulated")


def filters_of(get: Get) -> Sequence[Mapping[str, Any]]:
    """Give the filters of a call."""
    filters: Sequence[Mapping[str, Any]] = get("Filters", [])
    return filters


_EC2_STATES = {PENDING: "pending"}
SPOT_REQUESTS = Page(usual=1000, most=1000, asked_by="MaxResults")
INSTANCES = Page(usual=1000, most=1000, asked_by="MaxResults")

TAGS = Page(usual=1000, most=1000, asked_by="MaxResults")
PRICES = Page(usual=1000, most=1000, asked_by="MaxResults")
SPOT_USD = 0.35
"""An hour of spot, whatever the type."""

# How long a terminated instance is still listed.
TERMINATED_FOR_S = 3600.0


class Ec2Answers:
    """What the cloud answers; each method takes a reader of parameters."""

    def __init__(self, cloud: Cloud, time: VirtualTime) -> None:
        self._cloud = cloud
        self._time = time

    def actions(self) -> dict[str, WireAction]:
        """The actions of EC2 that the cloud answers."""
        return {
            "describe_spot_instance_requests": WireAction(
                self._describe_spot_requests, SPOT_REQUESTS
            ),
            "create_tags": WireAction(self._create_tags),
            "delete_tags": WireAction(self._delete_tags),
            "describe_instances": WireAction(self._describe_ec2_instances, INSTANCES),
            "terminate_instances": WireAction(self._terminate),
            # This account sets no defaults; moto does not know the call.
            "get_instance_metadata_defaults": WireAction(lambda _: {"AccountLevel": {}}),
        }

    def _describe_spot_requests(self, get: Get) -> Answer:
        filters = {item["Name"]: item.get("Values", item.get("Value")) for item in filters_of(get)}
        codes = filters.get("status-code")
        ids, instances = filters.get("spot-instance-request-id"), filters.get("instance-id")
        return {
            "SpotInstanceRequests": [
                self._spot_request(view)
                for view in self._cloud.spot_requests()
                if (codes is None or view.status_code in codes)
                and (ids is None or view.request_id in ids)
                and (instances is None or view.instance_id in instances)
            ]
        }

    def _spot_request(self, view: SpotRequestView) -> Answer:
        at = self._time.at(view.updated_s)
        return {
            "SpotInstanceRequestId": view.request_id,
            "InstanceId": view.instance_id,
            "State": "closed" if view.status_code.startswith("instance-terminated") else "active",
            "CreateTime": at,
            "Status": {"Code": view.status_code, "UpdateTime": at, "Message": view.status_code},
        }

    def _create_tags(self, get: Get) -> Answer:
        tags = {tag["Key"]: tag["Value"] for tag in get("Tags", [])}
        if gone_at := tags.pop(DRAINING_TAG, ""):
            gone_s = self._time.seconds(datetime.fromisoformat(gone_at))
            self._cloud.drain(get("Resources", []), gone_s)
        self._cloud.tag(get("Resources", []), tags)
        return {}

    def _delete_tags(self, get: Get) -> Answer:
        keys = {tag["Key"] for tag in get("Tags", [])}
        if DRAINING_TAG in keys:
            self._cloud.undrain(get("Resources", []))
        self._cloud.untag(get("Resources", []), keys)
        return {}

    def _describe_ec2_instances(self, get: Get) -> Answer:
        wanted: Sequence[str] = get("InstanceIds", [])
        views = [self._cloud.instance(i) for i in wanted] if wanted else self._visible()
        found = [self._ec2_instance(view) for view in views]
        for item in filters_of(get):
            found = [one for one in found if passes(one, item["Name"], item["Values"])]
        return {"Reservations": [{"Instances": [one]} for one in found]}

    def over_the_wire(self) -> dict[str, WireAction]:
        """The actions that moto has its own answers to, which know nothing of the cloud."""
        return {
            "describe_tags": WireAction(self._describe_tags, TAGS),
            "describe_spot_price_history": WireAction(self._describe_prices, PRICES),
        }

    def _describe_tags(self, get: Get) -> Answer:
        found = [
            dict[str, object](ResourceId=view.instance_id, ResourceType="instance", **tag)
            for view in self._cloud.instances()
            for tag in self._tags(view)
        ]
        for item in filters_of(get):
            name = {"key": "Key", "resource-type": "ResourceType", "resource-id": "ResourceId"}
            if item["Name"] not in name:
                message = f"The filter '{item['Name']}' is not simulated"
                raise CloudError("InvalidParameterValue", message)
            found = [one for one in found if one[name[item["Name"]]] in item["Values"]]
        return {"Tags": found}

    def _describe_prices(self, get: Get) -> Answer:
        """The price that was always in force, in every zone of the groups."""
        filters = {item["Name"]: item["Values"] for item in filters_of(get)}
        pools = {view.pool for view in self._cloud.history()}
        return {
            "SpotPriceHistory": [
                {
                    "AvailabilityZone": zone,
                    "InstanceType": kind,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{SPOT_USD:.6f}",
                    "Timestamp": self._time.start,
                }
                for zone, _, kind in (pool.partition("/") for pool in sorted(pools))
                if kind in filters.get("instance-type", [kind])
            ]
        }

    def _visible(self) -> list[InstanceView]:
        """All that run, and those that ended within the last hour (docs/truth.md)."""
        since_s = self._cloud.now_s - TERMINATED_FOR_S
        return [v for v in self._cloud.history() if v.ended_s is None or v.ended_s >= since_s]

    def _ending(self, view: InstanceView) -> Answer:
        """When and by whom an instance was ended; nothing while it runs."""
        if view.ended_s is None:
            return {}
        at = f"({self._time.at(view.ended_s):%Y-%m-%d %H:%M:%S} GMT)"
        code = "Server.SpotInstanceTermination" if view.lost else "Client.UserInitiatedShutdown"
        told = f"{'Service' if view.lost else 'User'} initiated {at}"
        if view.lost and self._cloud.physics.ends_untold:
            told = f"{code}: Spot instance termination"
        return {"StateTransitionReason": told, "StateReason": {"Code": code, "Message": code}}

    def _ec2_instance(self, view: InstanceView) -> Answer:
        zone, _, kind = view.pool.partition("/")
        state = "terminated" if view.ended_s is not None else _EC2_STATES.get(view.state, "running")
        return {
            "InstanceId": view.instance_id,
            "InstanceType": kind,
            "State": {"Name": state, "Code": 48 if state == "terminated" else 16},
            "Placement": {"AvailabilityZone": zone},
            "LaunchTime": self._time.at(view.launched_s),
            "Tags": self._tags(view) if view.ended_s is None else [],
            **self._ending(view),
            **({"InstanceLifecycle": "spot"} if view.purchase is Purchase.SPOT else {}),
        }

    def _tags(self, view: InstanceView) -> list[dict[str, str]]:
        tags = dict(view.tags)
        if view.group:
            tags["aws:autoscaling:groupName"] = view.group
        if view.gone_s is not None:
            tags[DRAINING_TAG] = self._time.at(view.gone_s).isoformat()
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _terminate(self, get: Get) -> Answer:
        instance_ids: Sequence[str] = get("InstanceIds", [])
        self._cloud.terminate(instance_ids)
        state = {"Code": 32, "Name": "shutting-down"}
        return {
            "TerminatingInstances": [
                {"InstanceId": instance_id, "CurrentState": state, "PreviousState": state}
                for instance_id in instance_ids
            ]
        }


# AWS keeps activities for six weeks; without a filter it answers all of them.
SIX_WEEKS_S = 42 * 86_400.0

GROUPS = Page(usual=50, most=100)
MEMBERS = Page(usual=50, most=50)
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
            "describe_auto_scaling_instances": WireAction(self._describe_instances, MEMBERS),
            "describe_scaling_activities": WireAction(self._describe_activities, ACTIVITIES),
            "set_desired_capacity": WireAction(self._set_desired),
            "terminate_instance_in_auto_scaling_group": WireAction(self._end),
            "detach_instances": WireAction(self._detach),
            "set_instance_health": WireAction(self._set_health),
            "suspend_processes": WireAction(self._suspend),
            "resume_processes": WireAction(self._resume),
            "create_or_update_tags": WireAction(self._tag),
            "delete_tags": WireAction(self._untag),
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

    def _tag(self, get: Get) -> Answer:
        for tag in get("Tags", []):
            self._cloud.tag_group(tag["ResourceId"], tag["Key"], tag["Value"])
        return {}

    def _untag(self, get: Get) -> Answer:
        for tag in get("Tags", []):
            self._cloud.tag_group(tag["ResourceId"], tag["Key"], None)
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
            "Tags": [
                {
                    "ResourceId": view.name,
                    "ResourceType": "auto-scaling-group",
                    "Key": key,
                    "Value": value,
                    "PropagateAtLaunch": False,
                }
                for key, value in view.tags.items()
            ],
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


SHORTEST_S, LONGEST_S = 30, 7200
NOT_CHANGED = (
    "AvailabilityZones", "AvailabilityZoneDistribution", "CapacityRebalance", "Context",
    "DefaultCooldown", "DefaultInstanceWarmup", "DesiredCapacityType", "HealthCheckType",
    "InstanceMaintenancePolicy", "LaunchConfigurationName", "LaunchTemplate", "MaxInstanceLifetime",
    "MixedInstancesPolicy", "PlacementGroup", "ServiceLinkedRoleARN", "TerminationPolicies",
    "VPCZoneIdentifier",
)  # fmt: skip
"""What of a group cannot be changed over the wire: it would have no effect here."""


class LifecycleAnswers:
    """What the cloud answers; each method takes a reader of parameters."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def actions(self) -> dict[str, WireAction]:
        """The actions of Auto Scaling that are answered."""
        return {
            "put_lifecycle_hook": WireAction(self._put_hook),
            "delete_lifecycle_hook": WireAction(self._delete_hook),
            "describe_lifecycle_hooks": WireAction(self._describe_hooks),
            "complete_lifecycle_action": WireAction(self._complete),
            "record_lifecycle_action_heartbeat": WireAction(self._beat),
            "put_warm_pool": WireAction(self._put_warm_pool),
            "delete_warm_pool": WireAction(self._delete_warm_pool),
            "describe_warm_pool": WireAction(self._describe_warm_pool),
            "enter_standby": WireAction(self._enter_standby),
            "exit_standby": WireAction(self._exit_standby),
            "set_instance_protection": WireAction(self._protect),
            "update_auto_scaling_group": WireAction(self._update),
            "describe_policies": WireAction(lambda _: {"ScalingPolicies": []}),
            "describe_scheduled_actions": WireAction(lambda _: {"ScheduledUpdateGroupActions": []}),
            "describe_tags": WireAction(lambda _: {"Tags": []}),
        }

    # --- hooks ----------------------------------------------------------------------------------

    def _put_hook(self, get: Get) -> Answer:
        self._cloud.put_hook(get("AutoScalingGroupName"), hook_of(_read(get, _HOOK)))
        return {}

    def _delete_hook(self, get: Get) -> Answer:
        self._cloud.delete_hook(get("AutoScalingGroupName"), get("LifecycleHookName"))
        return {}

    def _describe_hooks(self, get: Get) -> Answer:
        group, names = get("AutoScalingGroupName"), get("LifecycleHookNames", [])
        found = [h for h in self._cloud.hooks(group) if not names or h.name in names]
        return {"LifecycleHooks": [_hook(group, hook) for hook in found]}

    def _complete(self, get: Get) -> Answer:
        result = Result(get("LifecycleActionResult"))
        self._cloud.complete(*_action(get), result)
        return {}

    def _beat(self, get: Get) -> Answer:
        self._cloud.beat(*_action(get))
        return {}

    # --- warm pools -----------------------------------------------------------------------------

    def _put_warm_pool(self, get: Get) -> Answer:
        self._cloud.put_warm_pool(get("AutoScalingGroupName"), warm_pool_of(_read(get, _POOL)))
        return {}

    def _delete_warm_pool(self, get: Get) -> Answer:
        self._cloud.delete_warm_pool(get("AutoScalingGroupName"))
        return {}

    def _describe_warm_pool(self, get: Get) -> Answer:
        pool, instances = self._cloud.warm_pool(get("AutoScalingGroupName"))
        answer: dict[str, object] = {"Instances": [instance_answer(one) for one in instances]}
        return answer | ({"WarmPoolConfiguration": pool_answer(pool)} if pool else {})

    # --- standby, protection, bounds ------------------------------------------------------------

    def _enter_standby(self, get: Get) -> Answer:
        decrement = bool(get("ShouldDecrementDesiredCapacity"))
        self._cloud.enter_standby(
            get("AutoScalingGroupName"), get("InstanceIds", []), decrement=decrement
        )
        return {"Activities": []}

    def _exit_standby(self, get: Get) -> Answer:
        self._cloud.exit_standby(get("AutoScalingGroupName"), get("InstanceIds", []))
        return {"Activities": []}

    def _protect(self, get: Get) -> Answer:
        protected = bool(get("ProtectedFromScaleIn"))
        self._cloud.protect(
            get("AutoScalingGroupName"), get("InstanceIds", []), protected=protected
        )
        return {}

    def _update(self, get: Get) -> Answer:
        if other := [name for name in NOT_CHANGED if get(name) is not None]:
            message = f"{', '.join(other)} of a group: not simulated by the local AWS"
            raise CloudError("ValidationError", message)
        name = get("AutoScalingGroupName")
        view = self._cloud.group(name)
        minimum, maximum = get("MinSize"), get("MaxSize")
        self._cloud.set_bounds(
            name,
            view.minimum if minimum is None else int(minimum),
            view.maximum if maximum is None else int(maximum),
        )
        self._cloud.set_health(
            name, get("HealthCheckGracePeriod"), get("NewInstancesProtectedFromScaleIn")
        )
        if get("DesiredCapacity") is not None:
            self._cloud.set_desired(name, int(get("DesiredCapacity")))
        return {}


_HOOK = ("LifecycleHookName", "LifecycleTransition", "HeartbeatTimeout", "DefaultResult")
_POOL = ("MinSize", "MaxGroupPreparedCapacity", "PoolState", "InstanceReusePolicy")


def hook_of(asked: Mapping[str, Any]) -> LifecycleHook:
    """A hook as a call or a template asks for it; raises CloudError for what AWS refuses."""
    heartbeat_s = float(asked.get("HeartbeatTimeout", 3600))
    if not SHORTEST_S <= heartbeat_s <= LONGEST_S:
        message = f"Heartbeat Timeout must be between {SHORTEST_S} and {LONGEST_S} seconds"
        raise CloudError("ValidationError", message)
    try:
        return LifecycleHook(
            name=asked["LifecycleHookName"],
            transition=Transition(asked["LifecycleTransition"]),
            heartbeat_s=heartbeat_s,
            default=Result(asked.get("DefaultResult", "ABANDON")),
        )
    except (KeyError, ValueError) as error:
        raise CloudError("ValidationError", f"Lifecycle hook: {error}") from error


def warm_pool_of(asked: Mapping[str, Any]) -> WarmPool:
    """A warm pool as a call or a template asks for it."""
    prepared = asked.get("MaxGroupPreparedCapacity")
    reuse = asked.get("InstanceReusePolicy", {}).get("ReuseOnScaleIn", False)
    return WarmPool(
        minimum=int(asked.get("MinSize", 0)),
        prepared=None if prepared is None or int(prepared) < 0 else int(prepared),
        state=asked.get("PoolState", "Stopped"),
        reuse=str(reuse).lower() == "true",
    )


def _read(get: Get, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := get(name)) is not None}


def _action(get: Get) -> tuple[str, str, str]:
    if not get("InstanceId"):
        raise CloudError("ValidationError", "only actions named by their instance are simulated")
    return get("AutoScalingGroupName"), get("LifecycleHookName"), get("InstanceId")


def _hook(group: str, hook: LifecycleHook) -> dict[str, object]:
    return {
        "LifecycleHookName": hook.name,
        "AutoScalingGroupName": group,
        "LifecycleTransition": hook.transition.value,
        "HeartbeatTimeout": int(hook.heartbeat_s),
        "GlobalTimeout": int(hook.longest_s),
        "DefaultResult": hook.default.value,
    }
