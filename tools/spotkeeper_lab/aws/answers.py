"""What the simulated cloud answers to calls of Auto Scaling and EC2, in AWS's words."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG
from spotkeeper_lab.aws.wire import Answer, Params, Respond, VirtualTime, aws_time, group_arn, paged
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.refresh import Preferences, Refresh
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
    Invalid,
    LifecycleHook,
    Purchase,
    Result,
    Transition,
    WarmPool,
)

GROUPS_A_PAGE = 50
SPOT_USD = 0.35
"""An hour of spot, whatever the type."""
TERMINATED_FOR_S = 3600.0
"""How long a terminated instance is still listed."""
SIX_WEEKS_S = 42 * 86_400.0
"""How long AWS keeps activities; without a filter it answers all of them."""
SHORTEST_S, LONGEST_S = 30, 7200
"""The time-out of a lifecycle hook."""
CHANGED = frozenset({
    "AutoScalingGroupName", "DesiredCapacity", "HealthCheckGracePeriod", "MaxSize", "MinSize",
})  # fmt: skip
"""What of a group can be changed over the wire: all else would have no effect here."""


type _Filters = Mapping[str, Sequence[str]]


class Answers:
    """The operations of both services by boto3's names; each reads a call's parameters.

    Groups are those of the `region` of a call, where that is known.
    """

    def __init__(self, cloud: Cloud, time: VirtualTime, region: Callable[[], str] = str) -> None:
        self._cloud = cloud
        self._time = time
        self._region = region

    def auto_scaling(self) -> dict[str, Respond]:
        """What the product, its operators, agents and stacks call of Auto Scaling."""
        cloud = self._cloud
        return {
            "describe_auto_scaling_groups": paged(self._describe_groups, GROUPS_A_PAGE, 100),
            "describe_auto_scaling_instances": paged(self._describe_members, 50, 50),
            "describe_scaling_activities": paged(self._describe_activities, 100, 100),
            "describe_lifecycle_hooks": self._describe_hooks,
            "describe_warm_pool": self._describe_warm_pool,
            "describe_policies": lambda _: {"ScalingPolicies": []},
            "describe_scheduled_actions": lambda _: {"ScheduledUpdateGroupActions": []},
            "terminate_instance_in_auto_scaling_group": self._end,
            "detach_instances": self._detach,
            "set_instance_health": self._set_health,
            "update_auto_scaling_group": self._update,
            "set_desired_capacity": _does(
                lambda params: cloud.set_desired(_group(params), int(params["DesiredCapacity"]))
            ),
            "suspend_processes": _does(lambda params: _each_process(params, cloud.suspend)),
            "resume_processes": _does(lambda params: _each_process(params, cloud.resume)),
            "create_or_update_tags": _does(lambda params: self._tag_groups(params, keep=True)),
            "delete_tags": _does(lambda params: self._tag_groups(params, keep=False)),
            "put_lifecycle_hook": _does(
                lambda params: cloud.put_hook(_group(params), hook_of(params))
            ),
            "delete_lifecycle_hook": _does(
                lambda params: cloud.delete_hook(_group(params), params["LifecycleHookName"])
            ),
            "complete_lifecycle_action": _does(
                lambda params: cloud.complete(
                    *_action(params), Result(params["LifecycleActionResult"])
                )
            ),
            "record_lifecycle_action_heartbeat": _does(lambda params: cloud.beat(*_action(params))),
            "put_warm_pool": _does(
                lambda params: cloud.put_warm_pool(_group(params), warm_pool_of(params))
            ),
            "delete_warm_pool": _does(lambda params: cloud.delete_warm_pool(_group(params))),
            "start_instance_refresh": self._start_refresh,
            "describe_instance_refreshes": paged(self._describe_refreshes, 50, 100),
            "cancel_instance_refresh": lambda params: {
                "InstanceRefreshId": cloud.cancel_refresh(_group(params)).refresh_id
            },
            "rollback_instance_refresh": lambda params: {
                "InstanceRefreshId": cloud.roll_refresh_back(_group(params)).refresh_id
            },
        }

    def ec2(self) -> dict[str, Respond]:
        """What they call of EC2."""
        return {
            "describe_spot_instance_requests": _by_thousand(self._describe_spot_requests),
            "get_spot_placement_scores": lambda _: {"SpotPlacementScores": []},
            "describe_instances": _by_thousand(self._describe_instances),
            "create_tags": _does(self._create_tags),
            "delete_tags": _does(self._delete_tags),
            "terminate_instances": self._terminate,
            # This account sets no defaults; moto does not know the call.
            "get_instance_metadata_defaults": lambda _: {"AccountLevel": {}},
        }

    # --- Auto Scaling ---------------------------------------------------------------------------

    def _describe_groups(self, params: Params) -> Answer:
        known = self._cloud.groups()
        names = params.get("AutoScalingGroupNames", [])
        most = int(params.get("MaxRecords") or GROUPS_A_PAGE)
        if len(names) > most:
            raise Invalid(f"The number of group names that may be passed in is limited to {most}")
        views = (self._cloud.group(name) for name in names or known if name in known)
        here = (view for view in views if view.pools[0].startswith(self._region()))
        return {"AutoScalingGroups": [self._described(view) for view in here]}

    def _described(self, view: GroupView) -> Answer:
        pool, _ = self._cloud.warm_pool(view.name)
        own = {
            kind: {"LaunchTemplateSpecification": _template(version)}
            for kind, version in view.own_templates.items()
        }
        return {
            "AutoScalingGroupName": view.name,
            "AutoScalingGroupARN": group_arn(view.name),
            "MinSize": view.minimum,
            "MaxSize": view.maximum,
            "DesiredCapacity": view.desired,
            "DefaultCooldown": 300,
            "AvailabilityZones": sorted({pool.partition("/")[0] for pool in view.pools}),
            "MixedInstancesPolicy": {
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": _template(view.template),
                    "Overrides": [
                        {"InstanceType": kind} | own.get(kind, {})
                        for kind in dict.fromkeys(pool.partition("/")[2] for pool in view.pools)
                        if kind
                    ],
                },
                "InstancesDistribution": {
                    "OnDemandPercentageAboveBaseCapacity": int(view.purchase is Purchase.ON_DEMAND)
                    * 100,
                    "SpotAllocationStrategy": "price-capacity-optimized",
                },
            },
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

    def _describe_members(self, params: Params) -> Answer:
        wanted = set(params.get("InstanceIds", []))
        return {
            "AutoScalingInstances": [
                {**instance_answer(view), "AutoScalingGroupName": view.group}
                for view in self._cloud.instances()
                if view.group and (not wanted or view.instance_id in wanted)
            ]
        }

    def _describe_activities(self, params: Params) -> Answer:
        filters = _filters(params)
        since_s, until_s = self._cloud.now_s - SIX_WEEKS_S, self._cloud.now_s
        for text in filters.get("StartTimeLowerBound", []):
            since_s = self._time.seconds(datetime.fromisoformat(text))
        for text in filters.get("StartTimeUpperBound", []):
            until_s = self._time.seconds(datetime.fromisoformat(text))
        group = params.get("AutoScalingGroupName")
        activities: list[Activity] = []
        for name in [group] if group else self._cloud.groups():
            activities += self._cloud.activities(name, since_s)
        newest = sorted(activities, key=lambda activity: activity.start_s, reverse=True)
        shown = (one for one in newest if one.start_s <= until_s)
        return {"Activities": [activity_answer(one, self._time) for one in shown]}

    def _end(self, params: Params) -> Answer:
        replaced = str(params["ShouldDecrementDesiredCapacity"]).lower() == "false"
        ending = self._cloud.end(params["InstanceId"], replaced=replaced)
        return {"Activity": activity_answer(ending, self._time)}

    def _detach(self, params: Params) -> Answer:
        if params.get("ShouldDecrementDesiredCapacity"):
            raise Invalid("only detaching without a decrement is simulated")
        self._cloud.detach(_group(params), params["InstanceIds"])
        return {"Activities": []}

    def _set_health(self, params: Params) -> Answer:
        if params.get("HealthStatus") != "Unhealthy":
            raise Invalid("only unhealthy instances are simulated")
        after_grace = params.get("ShouldRespectGracePeriod") is not False
        self._cloud.set_unhealthy(params["InstanceId"], after_grace=after_grace)
        return {}

    def _tag_groups(self, params: Params, *, keep: bool) -> None:
        for tag in params.get("Tags", []):
            self._cloud.tag_group(tag["ResourceId"], tag["Key"], tag["Value"] if keep else None)

    def _describe_hooks(self, params: Params) -> Answer:
        group, names = _group(params), params.get("LifecycleHookNames", [])
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

    def _describe_warm_pool(self, params: Params) -> Answer:
        pool, instances = self._cloud.warm_pool(_group(params))
        answer: dict[str, object] = {"Instances": [instance_answer(one) for one in instances]}
        return answer | ({"WarmPoolConfiguration": pool_answer(pool)} if pool else {})

    def _start_refresh(self, params: Params) -> Answer:
        configuration = params.get("DesiredConfiguration") or {}
        mixed = configuration.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
        spec = mixed.get("LaunchTemplateSpecification") or configuration.get("LaunchTemplate") or {}
        if params.get("Strategy", "Rolling") != "Rolling":
            raise Invalid("only rolling instance refreshes are simulated")
        preferences = _preferences(params.get("Preferences") or {})
        refresh = self._cloud.start_refresh(
            _group(params), preferences, spec.get("Version") if configuration else None
        )
        return {"InstanceRefreshId": refresh.refresh_id}

    def _describe_refreshes(self, params: Params) -> Answer:
        group, ids = _group(params), params.get("InstanceRefreshIds")
        shown = [one for one in self._cloud.refreshes(group) if not ids or one.refresh_id in ids]
        return {"InstanceRefreshes": [_refresh_answer(one, group, self._time) for one in shown]}

    def _update(self, params: Params) -> Answer:
        given = {name: value for name, value in params.items() if value is not None}
        if other := sorted(given.keys() - CHANGED):
            raise Invalid(f"{', '.join(other)} of a group: not simulated by the local AWS")
        view = self._cloud.group(_group(params))
        minimum, maximum = given.get("MinSize", view.minimum), given.get("MaxSize", view.maximum)
        self._cloud.set_bounds(view.name, int(minimum), int(maximum))
        self._cloud.set_grace(view.name, float(given.get("HealthCheckGracePeriod", view.grace_s)))
        if "DesiredCapacity" in given:
            self._cloud.set_desired(view.name, int(given["DesiredCapacity"]))
        return {}

    # --- EC2 ------------------------------------------------------------------------------------

    def _describe_spot_requests(self, params: Params) -> Answer:
        filters = _filters(params)
        codes, requests = filters.get("status-code"), filters.get("spot-instance-request-id")
        ids = filters.get("instance-id")
        listed = self._cloud.spot_requests(None if ids is None else set(ids))
        return {
            "SpotInstanceRequests": [
                request
                for request in map(self._spot_request, listed)
                if (codes is None or request["Status"]["Code"] in codes)
                and (requests is None or request["SpotInstanceRequestId"] in requests)
            ]
        }

    def _spot_request(self, view: InstanceView) -> dict[str, Any]:
        taken, code = view.ended_s is not None, self._cloud.physics.spot_status
        at_s = view.status_s
        if taken and code.startswith("marked"):
            code, at_s = "instance-terminated-by-price", view.ended_s
        at = self._time.at(at_s or 0.0)
        return {
            "SpotInstanceRequestId": f"sir-{view.instance_id[-8:]}",
            "InstanceId": view.instance_id,
            "State": request_states().get((code, _state(view)), "closed"),
            "CreateTime": self._time.at(view.launched_s),
            "Status": {"Code": code, "UpdateTime": at, "Message": code},
        }

    def _create_tags(self, params: Params) -> None:
        tags = {tag["Key"]: tag["Value"] for tag in params.get("Tags", [])}
        mark = tags.pop(DRAINING_TAG, "")
        gone_s = self._time.seconds(datetime.fromisoformat(mark)) if mark else None
        self._cloud.tag(params["Resources"], tags, gone_s)

    def _delete_tags(self, params: Params) -> None:
        keys = {tag["Key"] for tag in params.get("Tags", [])}
        self._cloud.untag(params["Resources"], keys, unmark=DRAINING_TAG in keys)

    def _describe_instances(self, params: Params) -> Answer:
        """Those that run, and those that ended within the last hour (docs/truth.md)."""
        since_s = self._cloud.now_s - TERMINATED_FOR_S
        views = [self._cloud.instance(one) for one in params.get("InstanceIds", [])] or [
            view
            for view in self._cloud.history()
            if view.ended_s is None or view.ended_s >= since_s
        ]
        instances = [self._instance(view) for view in views if self._passes(view, _filters(params))]
        return {"Reservations": [{"Instances": [one]} for one in instances]}

    def _passes(self, view: InstanceView, filters: _Filters) -> bool:
        """Whether an instance has one of the values of each filter, which may have wildcards."""
        tags = self._shown_tags(view)
        had = {
            "instance-id": [view.instance_id],
            "instance-state-name": [_state(view)],
            "tag-key": tags.keys(),
            **{f"tag:{key}": [value] for key, value in tags.items()},
        }
        for name in filters:
            if name not in had and not name.startswith("tag:"):
                why = f"The filter '{name}' is not simulated"
                raise CloudError("InvalidParameterValue", why)
        return all(
            any(fnmatchcase(one, value) for one in had.get(name, ()) for value in values)
            for name, values in filters.items()
        )

    def _instance(self, view: InstanceView) -> Answer:
        zone, _, kind = view.pool.partition("/")
        state = _state(view)
        answer: dict[str, object] = {
            "InstanceId": view.instance_id,
            "InstanceType": kind,
            "State": {"Name": state, "Code": 48 if state == "terminated" else 16},
            "Placement": {"AvailabilityZone": zone},
            "LaunchTime": self._time.at(view.launched_s),
            "Tags": [{"Key": k, "Value": v} for k, v in self._shown_tags(view).items()],
        }
        if view.purchase is Purchase.SPOT:
            answer["InstanceLifecycle"] = "spot"
        if view.ended_s is not None:
            at = f"({self._time.at(view.ended_s):%Y-%m-%d %H:%M:%S} GMT)"
            code = "Server.SpotInstanceTermination" if view.lost else "Client.UserInitiatedShutdown"
            reason = f"{'Service' if view.lost else 'User'} initiated {at}"
            if view.lost and self._cloud.physics.ends_untold:
                reason = f"{code}: Spot instance termination"
            answer["StateTransitionReason"] = reason
            answer["StateReason"] = {"Code": code, "Message": code}
        return answer

    def _shown_tags(self, view: InstanceView) -> dict[str, str]:
        """AWS forgets the tags of what has ended."""
        return self.tags_of(view) if view.ended_s is None else {}

    def tags_of(self, view: InstanceView) -> dict[str, str]:
        """The tags of an instance, AWS's own and its mark among them."""
        group = {"aws:autoscaling:groupName": view.group} if view.group else {}
        mark = {} if view.gone_s is None else {DRAINING_TAG: self._time.at(view.gone_s).isoformat()}
        return {**view.tags, **group, **mark}

    def _terminate(self, params: Params) -> Answer:
        self._cloud.terminate(params["InstanceIds"])
        state = {"Code": 32, "Name": "shutting-down"}
        return {
            "TerminatingInstances": [
                {"InstanceId": one, "CurrentState": state, "PreviousState": state}
                for one in params["InstanceIds"]
            ]
        }

    def describe_prices(self, params: Params) -> Answer:
        """The price that was always in force, in every zone of the groups.

        In process it is moto that has prices.
        """
        filters = _filters(params)
        pools = sorted({view.pool for view in self._cloud.history()})
        return {
            "SpotPriceHistory": [
                {
                    "AvailabilityZone": zone,
                    "InstanceType": kind,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{SPOT_USD:.6f}",
                    "Timestamp": self._time.start,
                }
                for zone, _, kind in (pool.partition("/") for pool in pools)
                if kind in filters.get("instance-type", [kind])
            ]
        }


@cache
def request_states() -> Mapping[tuple[str, str], str]:
    """The state of a one-time spot request by its status code and its instance's state.

    Beside this module is AWS's table of all of them, each with its source.
    """
    table = Path(__file__).with_name("spot_request_statuses.tsv").read_text(encoding="utf-8")
    return {
        (row["status"], row["instance state"]): row["request state"].partition(" or ")[0]
        for row in csv.DictReader(table.splitlines(), dialect="excel-tab")
    }


# --- parameters -----------------------------------------------------------------------------------


def _does(change: Callable[[Params], None]) -> Respond:
    """An operation that changes something and answers nothing."""

    def respond(params: Params) -> Answer:
        change(params)
        return {}

    return respond


def _by_thousand(respond: Respond) -> Respond:
    return paged(respond, 1000, 1000, "MaxResults")


def _each_process(params: Params, change: Callable[[str, str], None]) -> None:
    for process in params.get("ScalingProcesses") or PROCESSES:
        change(_group(params), process)


def _group(params: Params) -> str:
    return str(params.get("AutoScalingGroupName"))


def _action(params: Params) -> tuple[str, str, str]:
    if not params.get("InstanceId"):
        raise Invalid("only actions named by their instance are simulated")
    return _group(params), params["LifecycleHookName"], params["InstanceId"]


def _filters(params: Params) -> _Filters:
    return {
        each["Name"]: each.get("Values", each.get("Value")) for each in params.get("Filters", [])
    }


def _state(view: InstanceView) -> str:
    """EC2's word for what an instance is in."""
    if view.ended_s is not None:
        return "terminated"
    return "pending" if view.state == PENDING else "running"


def _preferences(given: Mapping[str, Any]) -> Preferences:
    most, delay = given.get("MaxHealthyPercentage"), given.get("CheckpointDelay")
    if most is not None and "MinHealthyPercentage" not in given:
        raise Invalid("MaxHealthyPercentage needs MinHealthyPercentage")
    return Preferences(
        min_healthy=int(given.get("MinHealthyPercentage", 90)),
        max_healthy=None if most is None else int(most),
        warmup_s=float(given.get("InstanceWarmup", 0.0)),
        checkpoints=tuple(map(int, given.get("CheckpointPercentages", ()))),
        delay_s=None if delay is None else float(delay),
        skip_matching=_true(given.get("SkipMatching")),
        auto_rollback=_true(given.get("AutoRollback")),
        alarms=tuple(given.get("AlarmSpecification", {}).get("Alarms", ())),
        waits_for_standby=given.get("StandbyInstances", "Wait") == "Wait",
    )


def _true(given: object) -> bool:
    """Whether a flag is set, in process or over the wire."""
    return str(given).lower() == "true"


def hook_of(params: Params) -> LifecycleHook:
    """A hook as a call or a template asks for it; raises CloudError for what AWS refuses."""
    if not params.get("LifecycleHookName"):
        raise Invalid("Lifecycle hook: LifecycleHookName is missing")
    heartbeat_s = float(params.get("HeartbeatTimeout", 3600))
    if not SHORTEST_S <= heartbeat_s <= LONGEST_S:
        raise Invalid(f"Heartbeat Timeout must be between {SHORTEST_S} and {LONGEST_S} seconds")
    try:
        return LifecycleHook(
            name=params["LifecycleHookName"],
            transition=Transition(str(params.get("LifecycleTransition"))),
            heartbeat_s=heartbeat_s,
            default=Result(params.get("DefaultResult", "ABANDON")),
        )
    except ValueError as error:
        raise Invalid(f"Lifecycle hook: {error}") from error


def warm_pool_of(params: Params) -> WarmPool:
    prepared = params.get("MaxGroupPreparedCapacity")
    reuse = params.get("InstanceReusePolicy", {}).get("ReuseOnScaleIn", False)
    return WarmPool(
        minimum=int(params.get("MinSize", 0)),
        prepared=None if prepared is None or int(prepared) < 0 else int(prepared),
        state=params.get("PoolState", "Stopped"),
        reuse=_true(reuse),
    )


# --- answers --------------------------------------------------------------------------------------


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
        **({"LaunchTemplate": _template(view.template)} if view.template else {}),
    }


LAUNCH_TEMPLATE = {
    "LaunchTemplateId": "lt-0123456789abcdef0", "LaunchTemplateName": "gpu-workers",
}  # fmt: skip


def _template(version: str) -> dict[str, object]:
    """A version of the one launch template, or of another; nothing where a group has none."""
    other, _, number = version.rpartition("/")
    named = {"LaunchTemplateId": other} if other else LAUNCH_TEMPLATE
    return {**named, "Version": number} if version else {}


def _refresh_answer(refresh: Refresh, group: str, time: VirtualTime) -> dict[str, object]:
    wish = refresh.preferences
    answer: dict[str, object] = {
        "InstanceRefreshId": refresh.refresh_id,
        "AutoScalingGroupName": group,
        "Status": refresh.status.value,
        "StartTime": time.at(refresh.start_s),
        "PercentageComplete": refresh.percentage,
        "InstancesToUpdate": refresh.to_update,
        "Strategy": "Rolling",
        "Preferences": {
            "MinHealthyPercentage": wish.min_healthy,
            "InstanceWarmup": int(wish.warmup_s),
            "SkipMatching": wish.skip_matching,
            "AutoRollback": wish.auto_rollback,
            "CheckpointPercentages": list(wish.checkpoints),
            **({} if wish.delay_s is None else {"CheckpointDelay": int(wish.delay_s)}),
            "AlarmSpecification": {"Alarms": list(wish.alarms)},
        },
    }
    if refresh.reason:
        answer["StatusReason"] = refresh.reason
    if refresh.end_s is not None:
        answer["EndTime"] = time.at(refresh.end_s)
    if refresh.template is not None:
        launch = {"LaunchTemplateSpecification": _template(refresh.template)}
        answer["DesiredConfiguration"] = {"MixedInstancesPolicy": {"LaunchTemplate": launch}}
    return answer


def pool_answer(pool: WarmPool) -> dict[str, object]:
    """How a group's warm pool is set up."""
    return {
        "MinSize": pool.minimum,
        "PoolState": pool.state,
        "InstanceReusePolicy": {"ReuseOnScaleIn": pool.reuse},
        **({} if pool.prepared is None else {"MaxGroupPreparedCapacity": pool.prepared}),
    }
