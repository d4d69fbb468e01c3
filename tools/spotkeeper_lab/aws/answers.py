"""What the simulated cloud answers to calls of Auto Scaling and EC2."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG
from spotkeeper_lab.aws.wire import (
    Answer,
    Get,
    Page,
    VirtualTime,
    WireAction,
    aws_time,
    group_arn,
)
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CANCELLED,
    FAILED,
    PENDING,
    PROCESSES,
    SUCCESSFUL,
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

_EC2_STATES = {PENDING: "pending"}
THOUSAND = Page(usual=1000, most=1000, asked_by="MaxResults")
GROUPS = Page(usual=50, most=100)
MEMBERS = Page(usual=50, most=50)
ACTIVITIES = Page(usual=100, most=100)
SPOT_USD = 0.35
"""An hour of spot, whatever the type."""
TERMINATED_FOR_S = 3600.0
"""How long a terminated instance is still listed."""
SIX_WEEKS_S = 42 * 86_400.0
"""How long AWS keeps activities; without a filter it answers all of them."""
NOT_CHANGED = (
    "AvailabilityZones", "AvailabilityZoneDistribution", "CapacityRebalance", "Context",
    "DefaultCooldown", "DefaultInstanceWarmup", "DesiredCapacityType", "HealthCheckType",
    "InstanceMaintenancePolicy", "LaunchConfigurationName", "LaunchTemplate", "MaxInstanceLifetime",
    "MixedInstancesPolicy", "NewInstancesProtectedFromScaleIn", "PlacementGroup",
    "ServiceLinkedRoleARN", "TerminationPolicies", "VPCZoneIdentifier",
)  # fmt: skip
"""What of a group cannot be changed over the wire: it would have no effect here."""


class Answers:
    """What the cloud answers, in AWS's words; a method takes a reader of parameters."""

    def __init__(self, cloud: Cloud, time: VirtualTime) -> None:
        self._cloud = cloud
        self._time = time

    # --- Auto Scaling ---------------------------------------------------------------------------

    def auto_scaling(self) -> dict[str, WireAction]:
        """The actions of Auto Scaling that the product and its operators call."""
        cloud = self._cloud
        return {
            "describe_auto_scaling_groups": WireAction(self._describe_groups, GROUPS),
            "describe_auto_scaling_instances": WireAction(self._describe_members, MEMBERS),
            "describe_scaling_activities": WireAction(self._describe_activities, ACTIVITIES),
            "set_desired_capacity": _does(
                lambda get: cloud.set_desired(_named(get), int(get("DesiredCapacity")))
            ),
            "terminate_instance_in_auto_scaling_group": WireAction(self._end),
            "detach_instances": WireAction(self._detach),
            "set_instance_health": _does(self._set_health),
            "suspend_processes": _does(lambda get: _each_process(get, cloud.suspend)),
            "resume_processes": _does(lambda get: _each_process(get, cloud.resume)),
            "create_or_update_tags": _does(self._tag_groups),
            "delete_tags": _does(lambda get: self._tag_groups(get, keep=False)),
        }

    def lifecycle(self) -> dict[str, WireAction]:
        """The actions of Auto Scaling that agents, stacks and users call besides."""
        cloud = self._cloud
        return {
            "put_lifecycle_hook": _does(lambda get: cloud.put_hook(_named(get), hook_of(get))),
            "delete_lifecycle_hook": _does(
                lambda get: cloud.delete_hook(_named(get), get("LifecycleHookName"))
            ),
            "describe_lifecycle_hooks": WireAction(self._describe_hooks),
            "complete_lifecycle_action": _does(
                lambda get: cloud.complete(*_action(get), Result(get("LifecycleActionResult")))
            ),
            "record_lifecycle_action_heartbeat": _does(lambda get: cloud.beat(*_action(get))),
            "put_warm_pool": _does(lambda get: cloud.put_warm_pool(_named(get), warm_pool_of(get))),
            "delete_warm_pool": _does(lambda get: cloud.delete_warm_pool(_named(get))),
            "describe_warm_pool": WireAction(self._describe_warm_pool),
            "update_auto_scaling_group": _does(self._update),
            "describe_policies": WireAction(lambda _: {"ScalingPolicies": []}),
            "describe_scheduled_actions": WireAction(lambda _: {"ScheduledUpdateGroupActions": []}),
            "describe_tags": WireAction(lambda _: {"Tags": []}),
        }

    def _describe_groups(self, get: Get) -> Answer:
        known = self._cloud.groups()
        asked = get("AutoScalingGroupNames", [])
        most = int(get("MaxRecords") or GROUPS.usual)
        if len(asked) > most:
            message = f"The number of group names that may be passed in is limited to {most}"
            raise CloudError("ValidationError", message)
        views = (self._cloud.group(name) for name in asked or known if name in known)
        return {"AutoScalingGroups": [self._group(view) for view in views]}

    def _describe_members(self, get: Get) -> Answer:
        wanted = set(get("InstanceIds", []))
        return {
            "AutoScalingInstances": [
                {**instance_answer(view), "AutoScalingGroupName": view.group}
                for view in self._cloud.instances()
                if view.group and (not wanted or view.instance_id in wanted)
            ]
        }

    def _describe_activities(self, get: Get) -> Answer:
        filters = {item["Name"]: item["Values"] for item in get("Filters", [])}
        since_s, until_s = self._cloud.now_s - SIX_WEEKS_S, self._cloud.now_s
        for text in filters.get("StartTimeLowerBound", []):
            since_s = self._time.seconds(datetime.fromisoformat(text))
        for text in filters.get("StartTimeUpperBound", []):
            until_s = self._time.seconds(datetime.fromisoformat(text))
        group = get("AutoScalingGroupName")
        names = [group] if group else self._cloud.groups()
        found = [
            activity_answer(activity, self._time)
            for name in names
            for activity in self._cloud.activities(name, since_s)
            if activity.start_s <= until_s
        ] + [
            self._request(name, f"detach-{instance_id}", at_s, instance_id)
            for name in names
            for at_s, instance_id in self._cloud.detached(name)
            if since_s <= at_s <= until_s
        ]
        return {"Activities": sorted(found, key=_started, reverse=True)}

    def _request(self, group: str, activity_id: str, at_s: float, instance_id: str) -> Answer:
        """The activity of an instance that somebody detached or ended."""
        at, detached = self._time.at(at_s), activity_id.startswith("detach")
        done, doing = ("was detached", "Detaching") if detached else (
            "was taken out of service", "Terminating"
        )  # fmt: skip
        return {
            "ActivityId": activity_id,
            "AutoScalingGroupName": group,
            "Description": f"{doing} EC2 instance: {instance_id}",
            "Cause": f"At {aws_time(at)} instance {instance_id} {done} in response to a "
            "user request.",
            "StartTime": at,
            "StatusCode": SUCCESSFUL if detached else "InProgress",
            "Progress": 100 if detached else 0,
            **({"EndTime": at} if detached else {}),
        }

    def _end(self, get: Get) -> Answer:
        view = self._cloud.member(get("InstanceId"))
        if not get("ShouldDecrementDesiredCapacity"):
            raise CloudError("ValidationError", "only ending with a decrement is simulated")
        self._cloud.end(view.instance_id)
        number, now_s = view.instance_id, self._cloud.now_s
        return {"Activity": self._request(view.group, f"end-{number}", now_s, number)}

    def _detach(self, get: Get) -> Answer:
        if get("ShouldDecrementDesiredCapacity"):
            raise CloudError("ValidationError", "only detaching without a decrement is simulated")
        self._cloud.detach(_named(get), get("InstanceIds"))
        return {"Activities": []}

    def _set_health(self, get: Get) -> None:
        if get("HealthStatus") != "Unhealthy":
            raise CloudError("ValidationError", "only unhealthy instances are simulated")
        after_grace = get("ShouldRespectGracePeriod") is not False
        self._cloud.set_unhealthy(get("InstanceId"), after_grace=after_grace)

    def _tag_groups(self, get: Get, *, keep: bool = True) -> None:
        for tag in get("Tags", []):
            self._cloud.tag_group(tag["ResourceId"], tag["Key"], tag["Value"] if keep else None)

    def _group(self, view: GroupView) -> Answer:
        pool, _ = self._cloud.warm_pool(view.name)
        return {
            "AutoScalingGroupName": view.name,
            "AutoScalingGroupARN": group_arn(view.name),
            "MinSize": view.minimum,
            "MaxSize": view.maximum,
            "DesiredCapacity": view.desired,
            "DefaultCooldown": 300,
            "AvailabilityZones": sorted({one.pool.partition("/")[0] for one in view.instances}),
            "HealthCheckType": "EC2",
            "HealthCheckGracePeriod": int(view.grace_s),
            "NewInstancesProtectedFromScaleIn": False,
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

    def _describe_hooks(self, get: Get) -> Answer:
        group, names = _named(get), get("LifecycleHookNames", [])
        return {
            "LifecycleHooks": [
                {
                    "LifecycleHookName": hook.name,
                    "AutoScalingGroupName": group,
                    "LifecycleTransition": hook.transition.value,
                    "HeartbeatTimeout": int(hook.heartbeat_s),
                    "GlobalTimeout": int(hook.longest_s),
                    "DefaultResult": hook.default.value,
                }
                for hook in self._cloud.hooks(group)
                if not names or hook.name in names
            ]
        }

    def _describe_warm_pool(self, get: Get) -> Answer:
        pool, instances = self._cloud.warm_pool(_named(get))
        answer: dict[str, object] = {"Instances": [instance_answer(one) for one in instances]}
        return answer | ({"WarmPoolConfiguration": pool_answer(pool)} if pool else {})

    def _update(self, get: Get) -> None:
        if other := [name for name in NOT_CHANGED if get(name) is not None]:
            message = f"{', '.join(other)} of a group: not simulated by the local AWS"
            raise CloudError("ValidationError", message)
        view = self._cloud.group(_named(get))
        minimum, maximum, desired = (get(n) for n in ("MinSize", "MaxSize", "DesiredCapacity"))
        self._cloud.set_bounds(
            view.name,
            view.minimum if minimum is None else int(minimum),
            view.maximum if maximum is None else int(maximum),
        )
        if (grace_s := get("HealthCheckGracePeriod")) is not None:
            self._cloud.set_grace(view.name, float(grace_s))
        if desired is not None:
            self._cloud.set_desired(view.name, int(desired))

    # --- EC2 ------------------------------------------------------------------------------------

    def ec2(self, *, over_the_wire: bool = False) -> dict[str, WireAction]:
        """The actions of EC2 that the cloud answers; over the wire those of moto's, too."""
        known = {
            "describe_spot_instance_requests": WireAction(self._describe_spot_requests, THOUSAND),
            "create_tags": _does(self._create_tags),
            "delete_tags": _does(self._delete_tags),
            "describe_instances": WireAction(self._describe_instances, THOUSAND),
            "terminate_instances": WireAction(self._terminate),
            # This account sets no defaults; moto does not know the call.
            "get_instance_metadata_defaults": WireAction(lambda _: {"AccountLevel": {}}),
        }
        if over_the_wire:
            known["describe_tags"] = WireAction(self._describe_tags, THOUSAND)
            known["describe_spot_price_history"] = WireAction(self._describe_prices, THOUSAND)
        return known

    def _describe_spot_requests(self, get: Get) -> Answer:
        filters = {item["Name"]: item.get("Values", item.get("Value")) for item in filters_of(get)}
        asked = [
            (filters.get("status-code"), "status_code"),
            (filters.get("spot-instance-request-id"), "request_id"),
        ]
        ids = filters.get("instance-id")
        return {
            "SpotInstanceRequests": [
                self._spot_request(view)
                for view in self._cloud.spot_requests(None if ids is None else set(ids))
                if all(values is None or getattr(view, name) in values for values, name in asked)
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

    def _create_tags(self, get: Get) -> None:
        tags = {tag["Key"]: tag["Value"] for tag in get("Tags", [])}
        if gone_at := tags.pop(DRAINING_TAG, ""):
            gone_s = self._time.seconds(datetime.fromisoformat(gone_at))
            self._cloud.drain(get("Resources", []), gone_s)
        self._cloud.tag(get("Resources", []), tags)

    def _delete_tags(self, get: Get) -> None:
        keys = {tag["Key"] for tag in get("Tags", [])}
        if DRAINING_TAG in keys:
            self._cloud.undrain(get("Resources", []))
        self._cloud.untag(get("Resources", []), keys)

    def _describe_instances(self, get: Get) -> Answer:
        wanted: Sequence[str] = get("InstanceIds", [])
        views = [self._cloud.instance(i) for i in wanted] if wanted else self._visible()
        found = [self._instance(view) for view in views]
        for item in filters_of(get):
            found = [one for one in found if passes(one, item["Name"], item["Values"])]
        return {"Reservations": [{"Instances": [one]} for one in found]}

    def _visible(self) -> list[InstanceView]:
        """All that run, and those that ended within the last hour (docs/truth.md)."""
        since_s = self._cloud.now_s - TERMINATED_FOR_S
        return [v for v in self._cloud.history() if v.ended_s is None or v.ended_s >= since_s]

    def _instance(self, view: InstanceView) -> Answer:
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

    def _tags(self, view: InstanceView) -> list[dict[str, str]]:
        return [{"Key": key, "Value": value} for key, value in self.tags_of(view).items()]

    def tags_of(self, view: InstanceView) -> dict[str, str]:
        """The tags of an instance, AWS's own and its mark among them."""
        group = {"aws:autoscaling:groupName": view.group} if view.group else {}
        mark = {} if view.gone_s is None else {DRAINING_TAG: self._time.at(view.gone_s).isoformat()}
        return {**view.tags, **group, **mark}

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

    def _describe_tags(self, get: Get) -> Answer:
        found = [
            dict[str, object](ResourceId=view.instance_id, ResourceType="instance", **tag)
            for view in self._cloud.instances()
            for tag in self._tags(view)
        ]
        names = {"key": "Key", "resource-type": "ResourceType", "resource-id": "ResourceId"}
        for item in filters_of(get):
            if item["Name"] not in names:
                raise _unknown_filter(item["Name"])
            found = [one for one in found if one[names[item["Name"]]] in item["Values"]]
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


# --- parameters -----------------------------------------------------------------------------------


def _does(change: Any) -> WireAction:
    """An action that changes something and answers nothing."""

    def answer(get: Get) -> Answer:
        change(get)
        return {}

    return WireAction(answer)


def _each_process(get: Get, change: Callable[[str, str], None]) -> None:
    for process in get("ScalingProcesses") or PROCESSES:
        change(_named(get), process)


def _named(get: Get) -> str:
    return str(get("AutoScalingGroupName"))


def _action(get: Get) -> tuple[str, str, str]:
    if not get("InstanceId"):
        raise CloudError("ValidationError", "only actions named by their instance are simulated")
    return _named(get), get("LifecycleHookName"), get("InstanceId")


def filters_of(get: Get) -> Sequence[Mapping[str, Any]]:
    filters: Sequence[Mapping[str, Any]] = get("Filters", [])
    return filters


def _unknown_filter(name: str) -> CloudError:
    return CloudError("InvalidParameterValue", f"The filter '{name}' is not simulated")


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
            raise _unknown_filter(name)


SHORTEST_S, LONGEST_S = 30, 7200


def hook_of(get: Get) -> LifecycleHook:
    """A hook as a call or a template asks for it; raises CloudError for what AWS refuses."""
    if not get("LifecycleHookName"):
        raise CloudError("ValidationError", "Lifecycle hook: LifecycleHookName is missing")
    heartbeat_s = float(get("HeartbeatTimeout", 3600))
    if not SHORTEST_S <= heartbeat_s <= LONGEST_S:
        message = f"Heartbeat Timeout must be between {SHORTEST_S} and {LONGEST_S} seconds"
        raise CloudError("ValidationError", message)
    try:
        return LifecycleHook(
            name=get("LifecycleHookName"),
            transition=Transition(get("LifecycleTransition")),
            heartbeat_s=heartbeat_s,
            default=Result(get("DefaultResult", "ABANDON")),
        )
    except ValueError as error:
        raise CloudError("ValidationError", f"Lifecycle hook: {error}") from error


def warm_pool_of(get: Get) -> WarmPool:
    prepared = get("MaxGroupPreparedCapacity")
    reuse = get("InstanceReusePolicy", {}).get("ReuseOnScaleIn", False)
    return WarmPool(
        minimum=int(get("MinSize", 0)),
        prepared=None if prepared is None or int(prepared) < 0 else int(prepared),
        state=get("PoolState", "Stopped"),
        reuse=str(reuse).lower() == "true",
    )


# --- answers --------------------------------------------------------------------------------------


def _started(activity: Answer) -> datetime:
    start = activity["StartTime"]
    assert isinstance(start, datetime)
    return start


@lru_cache(maxsize=1_000)
def activity_answer(activity: Activity, time: VirtualTime) -> Answer:
    """A launch or an end; each turn asks for those of the last minutes again."""
    start = time.at(activity.start_s)
    answer: dict[str, object] = {
        "ActivityId": activity.activity_id,
        "AutoScalingGroupName": activity.group,
        "Description": activity.description,
        "Cause": f"At {aws_time(start)} {activity.cause}",
        "StartTime": start,
        "StatusCode": activity.status_code,
        "Progress": 100 if activity.status_code in (FAILED, SUCCESSFUL, CANCELLED) else 50,
        "Details": json.dumps({"Subnet ID": "subnet-12345678", "Availability Zone": activity.zone}),
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
        "ProtectedFromScaleIn": False,
    }


def pool_answer(pool: WarmPool) -> dict[str, object]:
    """How a group's warm pool is set up."""
    return {
        "MinSize": pool.minimum,
        "PoolState": pool.state,
        "InstanceReusePolicy": {"ReuseOnScaleIn": pool.reuse},
        **({} if pool.prepared is None else {"MaxGroupPreparedCapacity": pool.prepared}),
    }
