"""Groups that a stack creates: made, changed and deleted in the world as CloudFormation asks.

Launch templates and subnets are the endpoint's; a group's pools are its subnets' zones with its
instance types. What a group asks for and is not simulated is refused by its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotkeeper_lab.cloud.values import CloudError, GroupSpec, Purchase
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.answers import hook_of, warm_pool_of
from spotkeeper_lab.local_aws.wire import group_arn

type Properties = Mapping[str, Any]
SIMULATED = frozenset({
    "AutoScalingGroupName", "AvailabilityZoneDistribution", "DesiredCapacity",
    "HealthCheckGracePeriod", "HealthCheckType", "LifecycleHookSpecificationList", "MaxSize",
    "MinSize", "MixedInstancesPolicy", "NewInstancesProtectedFromScaleIn", "Tags",
    "VPCZoneIdentifier",
})  # fmt: skip
"""What of a group has its effect here, or none that anybody could see."""

type Made = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Groups:
    """CloudFormation's handlers for groups; `zone_of` answers the zone of a subnet.

    A pool that the market does not know holds `capacity` spot instances.
    """

    world: World
    zone_of: Callable[[str], str]
    capacity: int

    def create(self, logical_id: str, properties: Properties, stack: str) -> Made:
        """Make a group; raises CloudError when there is one of its name."""
        spec = group_spec(logical_id, properties, stack, self.zone_of)
        self.world.create_group(spec, self.capacity)
        return _made(spec.name)

    def update(self, group: str, _old: Properties, new: Properties, stack: str) -> Made:
        """Change a group's bounds, hooks and grace; what it launches stays."""
        spec = group_spec(group, new, stack, self.zone_of)
        with self.world.now() as cloud:
            cloud.set_bounds(group, spec.minimum, spec.maximum)
            cloud.set_health(group, spec.grace_s, spec.protect_new)
            for hook in cloud.hooks(group):
                if hook not in spec.hooks:
                    cloud.delete_hook(group, hook.name)
            for hook in spec.hooks:
                cloud.put_hook(group, hook)
        return _made(group)

    def delete(self, group: str, _properties: Properties) -> None:
        """Delete a group and end its instances."""
        self.world.delete_group(group)


def group_spec(
    logical_id: str, properties: Properties, stack: str, zone_of: Callable[[str], str]
) -> GroupSpec:
    """The group that a template asks for; one that buys no on-demand buys spot.

    Raises CloudError for a property that would have no effect.
    """
    if unknown := sorted(_asked(properties) - SIMULATED):
        raise CloudError("ValidationError", f"{', '.join(unknown)}: not simulated by the local AWS")
    policy = properties.get("MixedInstancesPolicy", {})
    share = int(
        policy.get("InstancesDistribution", {}).get("OnDemandPercentageAboveBaseCapacity", 100)
    )
    types = [one["InstanceType"] for one in policy.get("LaunchTemplate", {}).get("Overrides", [])]
    subnets = properties.get("VPCZoneIdentifier", [])
    names = subnets.split(",") if isinstance(subnets, str) else subnets
    minimum, maximum = _bounds(properties)
    zones = dict.fromkeys(zone_of(subnet) for subnet in names)
    return GroupSpec(
        name=properties.get("AutoScalingGroupName") or f"{stack}-{logical_id}",
        purchase=Purchase.SPOT if share == 0 else Purchase.ON_DEMAND,
        minimum=minimum,
        maximum=maximum,
        desired=int(properties.get("DesiredCapacity", minimum)),
        pools=tuple(f"{zone}/{kind}" for kind in types for zone in zones),
        grace_s=float(properties.get("HealthCheckGracePeriod", 0)),
        protect_new=_is_true(properties.get("NewInstancesProtectedFromScaleIn")),
        hooks=tuple(map(hook_of, properties.get("LifecycleHookSpecificationList", []))),
    )


@dataclass(frozen=True, slots=True)
class WarmPools:
    """CloudFormation's handlers for warm pools; each is named as its group."""

    world: World

    def create(self, _logical_id: str, properties: Properties, _stack: str) -> Made:
        """Give a group its warm pool; raises CloudError for a group that buys spot."""
        group = str(properties["AutoScalingGroupName"])
        with self.world.now() as cloud:
            cloud.put_warm_pool(group, warm_pool_of(properties))
        return group, {}

    def update(self, _group: str, _old: Properties, new: Properties, stack: str) -> Made:
        """Change a warm pool."""
        return self.create("", new, stack)

    def delete(self, group: str, _properties: Properties) -> None:
        """End a warm pool with what is in it, unless its group took it along."""
        with self.world.now() as cloud:
            if group in cloud.groups() and cloud.warm_pool(group)[0]:
                cloud.delete_warm_pool(group)


def _asked(properties: Properties) -> set[str]:
    """The properties that ask for something: those that are off ask for nothing."""
    return {name for name, value in properties.items() if str(value).lower() != "false"}


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _bounds(properties: Properties) -> tuple[int, int]:
    return int(properties.get("MinSize", 0)), int(properties.get("MaxSize", 0))


def _made(group: str) -> Made:
    arn = group_arn(group)
    return group, {"AutoScalingGroupARN": arn, "Arn": arn}
