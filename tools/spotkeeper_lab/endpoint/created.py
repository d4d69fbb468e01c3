"""Groups that a stack creates: made, changed and deleted in the world as CloudFormation asks.

Launch templates and subnets are the endpoint's; a group's pools are its subnets' zones with its
instance types. Lifecycle hooks and warm pools are accepted and not simulated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotkeeper_lab.cloud.values import GroupSpec, Purchase
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.answers import group_arn

type Properties = Mapping[str, Any]
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
        """Change a group's bounds; what it launches stays."""
        self.world.change_bounds(group, *_bounds(new))
        return _made(group)

    def delete(self, group: str, _properties: Properties) -> None:
        """Delete a group and end its instances."""
        self.world.delete_group(group)


def group_spec(
    logical_id: str, properties: Properties, stack: str, zone_of: Callable[[str], str]
) -> GroupSpec:
    """The group that a template asks for; one that buys no on-demand buys spot."""
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
    )


def accepted(logical_id: str, _properties: Properties, stack: str) -> Made:
    """Make nothing of a resource that is not simulated."""
    return f"{stack}-{logical_id}", {}


def _bounds(properties: Properties) -> tuple[int, int]:
    return int(properties.get("MinSize", 0)), int(properties.get("MaxSize", 0))


def _made(group: str) -> Made:
    arn = group_arn(group)
    return group, {"AutoScalingGroupARN": arn, "Arn": arn}
