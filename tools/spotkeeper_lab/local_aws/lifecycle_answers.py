"""What the cloud answers of hooks, warm pools, standby and protection, over the wire only.

moto has calls of these names that change its own groups; where the cloud is behind moto, they are
left to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError, LifecycleHook, Result, Transition, WarmPool
from spotkeeper_lab.local_aws.answers import instance_answer, pool_answer
from spotkeeper_lab.local_aws.wire import Answer, Get, WireAction

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
