"""The simulated AWS over the wire: one world in real time, its answers, and what stacks create.

The answers are those of the tests and of the demo. Here requests arrive by HTTP, and moto reads and
writes them.
"""

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from moto.core.exceptions import ServiceException
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import get_serializer_class
from moto.core.utils import camelcase_to_underscores, get_service_model
from werkzeug.datastructures import MultiDict

from spotkeeper_lab.aws.answers import Answers, hook_of, warm_pool_of
from spotkeeper_lab.aws.ministack import Response
from spotkeeper_lab.aws.wire import Answer, Event, Events, Params, Respond, VirtualTime, group_arn
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudError,
    CloudEvent,
    GroupSpec,
    Invalid,
    Physics,
    Purchase,
)
from spotkeeper_lab.traces.market import market_of

# The market of a cloud ends; no lab is up for a month.
A_MONTH_S = 30 * 86_400.0
# A market has one capacity at a time.
LEAST_S = 1e-6


class LiveWorld:
    """A cloud that many threads look at; every look first brings it up to now.

    `seconds` is a clock that counts from 0.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        capacities: dict[str, int],
        physics: Physics,
        time: VirtualTime,
        seconds: Callable[[], float],
    ) -> None:
        self.time = time
        self._clock = seconds
        self._ahead_s = 0.0
        self._events = Events(time)
        self._lock = threading.RLock()
        self.lacks: Callable[[str, str], str] = lambda _pool, _version: ""
        self.region: Callable[[], str] = str
        self.begin(groups, capacities, physics)

    def begin(
        self, groups: Sequence[GroupSpec], capacities: dict[str, int], physics: Physics
    ) -> None:
        """Begin anew, with these groups as they are when they were made just now."""
        with self._lock:
            self.capacities = dict(capacities)
            start = {pool: [(0.0, capacity)] for pool, capacity in capacities.items()}
            self._cloud = Cloud(market_of("lab", A_MONTH_S, start), groups, physics)
            self._cloud.lacks = lambda pool, version: self.lacks(pool, version)
            self._announced: list[CloudEvent] = []
            answers = Answers(self._cloud, self.time, lambda: self.region())
            self.actions: Mapping[str, Mapping[str, Respond]] = {
                "autoscaling": answers.auto_scaling(),
                "ec2": {**answers.ec2(), "describe_spot_price_history": answers.describe_prices},
            }

    @contextmanager
    def now(self) -> Iterator[Cloud]:
        with self._lock:
            self._advance()
            try:
                yield self._cloud
            finally:
                self._advance()

    def due(self) -> list[Event]:
        """The events that are to be delivered by now, in the order of their delivery."""
        with self.now() as cloud:
            due = sorted(
                (event for event in self._announced if event.deliver_s <= cloud.now_s),
                key=lambda event: event.deliver_s,
            )
            self._announced = [event for event in self._announced if event.deliver_s > cloud.now_s]
            return [self._events.of_cloud(event) for event in due]

    def set_capacity(self, pools: Iterable[str], capacity: int, in_s: float = 0.0) -> None:
        """Let each pool hold `capacity` in `in_s` seconds; AWS warns before a drop."""
        with self.now() as cloud:
            steps = {name: [(0.0, held)] for name, held in self.capacities.items()}
            for pool in pools:
                at_s = max(cloud.now_s + in_s, LEAST_S)
                steps.setdefault(pool, [(0.0, 0)]).append((at_s, capacity))
                self.capacities[pool] = capacity
            cloud.set_market(market_of("lab", A_MONTH_S, steps))

    def seconds(self) -> float:
        """The lab's clock."""
        return self._clock() + self._ahead_s

    def skip(self, seconds: float) -> None:
        """Move the lab's clock ahead; deployed functions keep the time that they have."""
        with self._lock:
            self._ahead_s += seconds
            self._advance()

    def _advance(self) -> None:
        self._announced.extend(self._cloud.advance(self.seconds()))


# --- instances as policies see them ---------------------------------------------------------------


def instance_tags(world: LiveWorld, instance_id: str) -> dict[str, str]:
    """The tags of an instance as policies see them; none for one that is not known."""
    with world.now() as cloud:
        try:
            return Answers(cloud, world.time).tags_of(cloud.instance(instance_id))
        except CloudError:
            return {}


# --- calls over the wire --------------------------------------------------------------------------

# Calls of EC2 that would make, change or show instances which no group and no market knows.
NOT_SIMULATED = frozenset({
    "RunInstances", "StartInstances", "StopInstances", "RebootInstances", "CreateFleet",
    "RequestSpotInstances", "CancelSpotInstanceRequests", "RequestSpotFleet",
    "ModifyInstanceAttribute", "DescribeInstanceStatus", "DescribeTags", "CreateVolume",
    "AttachVolume", "RegisterImage",
})  # fmt: skip
PROTOCOLS = {"autoscaling": "query", "ec2": "ec2"}
model_of = cache(get_service_model)


class ByMoto:
    """Answers the calls that the cloud knows; each is answered as of now.

    `more` are calls of EC2 beside the cloud's own.
    """

    def __init__(self, world: LiveWorld, more: Mapping[str, Respond]) -> None:
        self._world, self._more = world, more

    def __call__(self, service: str, body: bytes) -> Response | None:
        """Answer a call from its body, or None for an action that is not the cloud's to answer.

        An action that would be accepted and forgotten is refused by its name.
        """
        values = MultiDict(parse_qsl(body.decode(), keep_blank_values=True))
        name = values.get("Action", "")
        known = camelcase_to_underscores(name)
        respond = self._world.actions[service].get(known)
        if service == "ec2":
            respond = respond or self._more.get(known)
        if respond is None and service == "ec2" and name not in NOT_SIMULATED:
            return None
        protocol, operation = PROTOCOLS[service], model_of(service).operation_model(name)
        request: Any = {"values": values, "headers": {}, "body": b""}
        params = PROTOCOL_PARSERS[protocol](operation).parse(request)
        result: object
        with self._world.now():
            try:
                if respond is None:
                    raise Invalid(
                        f"{name} is not simulated by the local AWS (docs/lab.md says what is)"
                    )
                result = respond(params)
            except CloudError as refusal:
                # As moto writes errors.
                result = type("Refused", (ServiceException,), {})(refusal.code, refusal.message)
        written = get_serializer_class(service, protocol)(operation).serialize(result)
        return written["status_code"], dict(written["headers"]), str(written["body"]).encode()


# --- groups and warm pools that a stack creates ---------------------------------------------------

SIMULATED = frozenset({
    "AutoScalingGroupName", "AvailabilityZoneDistribution", "DesiredCapacity",
    "HealthCheckGracePeriod", "HealthCheckType", "LifecycleHookSpecificationList", "MaxSize",
    "MinSize", "MixedInstancesPolicy", "Tags", "VPCZoneIdentifier",
})  # fmt: skip
"""The properties of a group that have their effect here, or no visible one."""

type Made = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Groups:
    """CloudFormation's handlers for groups; `zone_of` answers the zone of a subnet.

    A pool that the market does not know holds `capacity` spot instances.
    """

    world: LiveWorld
    zone_of: Callable[[str], str]
    capacity: int

    def create(self, logical_id: str, properties: Params, stack: str) -> Made:
        """Make a group; raises CloudError when there is one of its name."""
        known = self.world.capacities
        spec = group_spec(logical_id, properties, stack, self.zone_of, known)
        if unknown := [pool for pool in spec.pools if pool not in known]:
            self.world.set_capacity(unknown, self.capacity)
        with self.world.now() as cloud:
            cloud.create_group(spec)
        return _made(spec.name)

    def update(self, group: str, _old: Params, new: Params, stack: str) -> Made:
        """Change a group's bounds, hooks and grace; what it launches stays."""
        spec = group_spec(group, new, stack, self.zone_of, self.world.capacities)
        with self.world.now() as cloud:
            cloud.set_bounds(group, spec.minimum, spec.maximum)
            cloud.set_grace(group, spec.grace_s)
            for hook in cloud.hooks(group):
                if hook not in spec.hooks:
                    cloud.delete_hook(group, hook.name)
            for hook in spec.hooks:
                cloud.put_hook(group, hook)
        return _made(group)

    def delete(self, group: str, _params: Params) -> None:
        with self.world.now() as cloud:
            cloud.delete_group(group)


def group_spec(
    logical_id: str,
    properties: Params,
    stack: str,
    zone_of: Callable[[str], str],
    market: Iterable[str] = (),
) -> GroupSpec:
    """The group that a template asks for; one that buys no on-demand buys spot.

    Attributes select among the types of the market's pools. Raises CloudError for a property that
    would have no effect; one that is off asks for nothing.
    """
    on = {name for name, value in properties.items() if str(value).lower() != "false"}
    _refuse(on - SIMULATED)
    policy = properties.get("MixedInstancesPolicy", {})
    distribution = policy.get("InstancesDistribution", {})
    types, own = list[str](), dict[str, str]()
    for one in policy.get("LaunchTemplate", {}).get("Overrides", []):
        attributes = one.get("InstanceRequirements")
        if attributes and distribution.get("OnDemandAllocationStrategy") == "prioritized":
            why = "prioritized allocation strategy is not compatible with instance requirements"
            raise Invalid(f"The {why}.")
        kinds = selected(attributes, market) if attributes else [one["InstanceType"]]
        types += kinds
        if spec := one.get("LaunchTemplateSpecification"):
            own |= dict.fromkeys(kinds, f"{spec['LaunchTemplateId']}/{spec['Version']}")
    subnets = properties.get("VPCZoneIdentifier", [])
    names = subnets.split(",") if isinstance(subnets, str) else subnets
    zones = dict.fromkeys(zone_of(subnet) for subnet in names)
    share = int(distribution.get("OnDemandPercentageAboveBaseCapacity", 100))
    return GroupSpec(
        name=properties.get("AutoScalingGroupName") or f"{stack}-{logical_id}",
        purchase=Purchase.SPOT if share == 0 else Purchase.ON_DEMAND,
        minimum=int(properties.get("MinSize", 0)),
        maximum=int(properties.get("MaxSize", 0)),
        desired=int(properties.get("DesiredCapacity", properties.get("MinSize", 0))),
        pools=tuple(f"{zone}/{kind}" for kind in types for zone in zones),
        grace_s=float(properties.get("HealthCheckGracePeriod", 0)),
        hooks=tuple(hook_of(one) for one in properties.get("LifecycleHookSpecificationList", [])),
        own_templates=own,
    )


def _refuse(unknown: set[str]) -> None:
    if unknown:
        raise Invalid(f"{', '.join(sorted(unknown))}: not simulated by the local AWS")


def _gpus(kind: Params, figure: str) -> list[Any]:
    return [gpu[figure] for gpu in kind.get("GpuInfo", {}).get("Gpus", [])]


# What moto's data says of an instance type: a figure, or the names of what it has.
ATTRIBUTES: Mapping[str, Callable[[Params], int | set[str]]] = {
    "VCpuCount": lambda kind: int(kind["VCpuInfo"]["DefaultVCpus"]),
    "MemoryMiB": lambda kind: int(kind["MemoryInfo"]["SizeInMiB"]),
    "AcceleratorCount": lambda kind: sum(_gpus(kind, "Count")),
    "AcceleratorTotalMemoryMiB": lambda kind: kind.get("GpuInfo", {}).get("TotalGpuMemoryInMiB", 0),
    "AcceleratorTypes": lambda kind: {"gpu" for _ in _gpus(kind, "Count")},
    "AcceleratorManufacturers": lambda kind: {n.lower() for n in _gpus(kind, "Manufacturer")},
    "AcceleratorNames": lambda kind: {name.lower() for name in _gpus(kind, "Name")},
}
PRICE_PROTECTION = frozenset(
    {"SpotMaxPricePercentageOverLowestPrice", "OnDemandMaxPricePercentageOverLowestPrice"}
)
"""Accepted without an effect: the market has one price."""


def offerings(params: Params, market: Iterable[str]) -> Answer:
    """The types that EC2 has, in each zone of the market: DescribeInstanceTypeOfferings."""
    wanted = {one["Name"]: one["Values"] for one in params.get("Filters", [])}
    zones = sorted({pool.partition("/")[0] for pool in market})
    return {
        "InstanceTypeOfferings": [
            {"InstanceType": kind, "LocationType": "availability-zone", "Location": zone}
            for kind in _asked_for(params)
            for zone in zones
            if zone in wanted.get("location", [zone])
        ]
    }


def described(params: Params) -> Answer:
    """What EC2 says of instance types, whichever the market has: DescribeInstanceTypes."""
    return {"InstanceTypes": [_kinds()[kind] for kind in _asked_for(params)]}


def _asked_for(params: Params) -> list[str]:
    filters = {one["Name"]: one["Values"] for one in params.get("Filters", [])}
    kinds = params.get("InstanceTypes") or filters.get("instance-type") or _kinds()
    return sorted(_kinds().keys() & set(kinds))


def _kinds() -> Mapping[str, Any]:
    """What moto knows of each instance type."""
    known: Mapping[str, Any] = importlib.import_module(
        "moto.ec2.models.instance_types"
    ).INSTANCE_TYPES
    return known


def selected(attributes: Params, market: Iterable[str]) -> list[str]:
    """The types of the market's pools that have the attributes.

    Raises CloudError for attributes that are not simulated, and where no type has them.
    """
    _refuse(attributes.keys() - ATTRIBUTES.keys() - PRICE_PROTECTION)
    if not (attributes.get("VCpuCount") and attributes.get("MemoryMiB")):
        raise Invalid("VCpuCount and MemoryMiB are required")
    known = _kinds()
    kinds = sorted({pool.partition("/")[2] for pool in market} & known.keys())
    wanted = [
        (ATTRIBUTES[name], values) for name, values in attributes.items() if name in ATTRIBUTES
    ]
    if matching := [
        kind for kind in kinds if all(_has(get(known[kind]), values) for get, values in wanted)
    ]:
        return matching
    raise Invalid("no type of the local market has these attributes")


def _has(has: int | set[str], wanted: Any) -> bool:
    if isinstance(has, set):
        return not has.isdisjoint(wanted)
    return int(wanted.get("Min", 0)) <= has <= int(wanted.get("Max", has))


@dataclass(frozen=True, slots=True)
class WarmPools:
    """CloudFormation's handlers for warm pools; each is named as its group."""

    world: LiveWorld

    def create(self, _logical_id: str, properties: Params, _stack: str) -> Made:
        """Give a group its warm pool; raises CloudError for a group that buys spot."""
        group = str(properties["AutoScalingGroupName"])
        with self.world.now() as cloud:
            cloud.put_warm_pool(group, warm_pool_of(properties))
        return group, {}

    def update(self, _group: str, _old: Params, new: Params, stack: str) -> Made:
        """Change a warm pool."""
        return self.create("", new, stack)

    def delete(self, group: str, _params: Params) -> None:
        """End a warm pool with what is in it, unless its group took it along."""
        with self.world.now() as cloud:
            if group in cloud.groups() and cloud.warm_pool(group)[0]:
                cloud.delete_warm_pool(group)


def _made(group: str) -> Made:
    arn = group_arn(group)
    return group, {"AutoScalingGroupARN": arn, "Arn": arn}
