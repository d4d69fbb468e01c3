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
from typing import Any, cast
from urllib.parse import parse_qsl

from moto.core.exceptions import ServiceException
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import get_serializer_class
from moto.core.utils import camelcase_to_underscores, get_service_model
from werkzeug.datastructures import MultiDict

from spotkeeper_lab.aws.answers import Answers, hook_of, warm_pool_of
from spotkeeper_lab.aws.ministack import Response
from spotkeeper_lab.aws.wire import (
    Answer,
    Event,
    Events,
    Get,
    VirtualTime,
    WireAction,
    group_arn,
)
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudError,
    CloudEvent,
    GroupSpec,
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
        self.begin(groups, capacities, physics)

    def begin(
        self, groups: Sequence[GroupSpec], capacities: dict[str, int], physics: Physics
    ) -> None:
        """Begin anew, with these groups as they are when they were made just now."""
        with self._lock:
            self.capacities = dict(capacities)
            start = {pool: [(0.0, capacity)] for pool, capacity in capacities.items()}
            self._cloud = Cloud(market_of("lab", A_MONTH_S, start), groups, physics)
            self._told: list[CloudEvent] = []
            answers = Answers(self._cloud, self.time)
            self.actions: Mapping[str, Mapping[str, WireAction]] = {
                "autoscaling": answers.auto_scaling() | answers.lifecycle(),
                "ec2": answers.ec2(over_the_wire=True),
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
                (event for event in self._told if event.deliver_s <= cloud.now_s),
                key=lambda event: event.deliver_s,
            )
            self._told = [event for event in self._told if event.deliver_s > cloud.now_s]
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

    def create_group(self, spec: GroupSpec, capacity: int) -> None:
        """Make a group; a pool that was not known holds `capacity`."""
        if unknown := [pool for pool in spec.pools if pool not in self.capacities]:
            self.set_capacity(unknown, capacity)
        with self.now() as cloud:
            cloud.create_group(spec)

    def delete_group(self, group: str) -> None:
        with self.now() as cloud:
            cloud.delete_group(group)

    def seconds(self) -> float:
        """The lab's clock."""
        return self._clock() + self._ahead_s

    def skip(self, seconds: float) -> None:
        """Move the lab's clock ahead; deployed functions keep the time that they have."""
        with self._lock:
            self._ahead_s += seconds
            self._advance()

    def _advance(self) -> None:
        self._told.extend(self._cloud.advance(self.seconds()))


# --- instances as policies see them ---------------------------------------------------------------


def instance_tags(world: LiveWorld, instance_id: str) -> dict[str, str]:
    """The tags of an instance as policies see them; none for one that is not known."""
    with world.now() as cloud:
        try:
            return Answers(cloud, world.time).tags_of(cloud.instance(instance_id))
        except CloudError:
            return {}


def member_of(world: LiveWorld, instance_id: str) -> str:
    return instance_tags(world, instance_id).get("aws:autoscaling:groupName", "")


# --- calls over the wire --------------------------------------------------------------------------

# Calls of EC2 that would make or change instances which no group and no market knows.
NOT_SIMULATED = frozenset({
    "RunInstances", "StartInstances", "StopInstances", "RebootInstances", "CreateFleet",
    "RequestSpotInstances", "CancelSpotInstanceRequests", "RequestSpotFleet",
    "ModifyInstanceAttribute", "DescribeInstanceStatus",
})  # fmt: skip
PROTOCOLS = {"autoscaling": "query", "ec2": "ec2"}


class _Refused(ServiceException):
    """What the cloud refuses, as moto writes errors."""


class ByMoto:
    """Answers the calls that the cloud knows; each is answered as of now."""

    def __init__(self, world: LiveWorld) -> None:
        self._world = world

    def __call__(self, service: str, body: bytes) -> Response | None:
        """Answer a call from its body, or None for an action that is not the cloud's to answer."""
        values = MultiDict(parse_qsl(body.decode(), keep_blank_values=True))
        name = values.get("Action", "")
        action = self._world.actions[service].get(camelcase_to_underscores(name))
        if action is None and (service == "autoscaling" or name in NOT_SIMULATED):
            action = _refused(name)
        return None if action is None else self._answer(service, name, action, values)

    def _answer(
        self, service: str, name: str, action: WireAction, values: "MultiDict[str, str]"
    ) -> Response:
        operation = _model(service).operation_model(name)
        parser = PROTOCOL_PARSERS[PROTOCOLS[service]](operation)
        params: Mapping[str, Any] = parser.parse(
            cast("Any", {"values": values, "headers": {}, "body": b""})
        )
        written = get_serializer_class(service, PROTOCOLS[service])(operation).serialize(
            self._result(action, params)
        )
        return written["status_code"], dict(written["headers"]), str(written["body"]).encode()

    def _result(self, action: WireAction, params: Mapping[str, Any]) -> object:
        with self._world.now():
            try:
                return action.respond(params.get)
            except CloudError as refusal:
                return _Refused(refusal.code, refusal.message)


def _refused(name: str) -> WireAction:
    """An action that would be accepted and forgotten is refused by its name."""

    def answer(_: Get) -> Answer:
        message = f"{name} is not simulated by the local AWS (docs/lab.md says what is)"
        raise CloudError("ValidationError", message)

    return WireAction(answer)


@cache
def _model(service: str) -> Any:
    return get_service_model(service)


# --- groups and warm pools that a stack creates ---------------------------------------------------

type Properties = Mapping[str, Any]
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

    def create(self, logical_id: str, properties: Properties, stack: str) -> Made:
        """Make a group; raises CloudError when there is one of its name."""
        spec = group_spec(logical_id, properties, stack, self.zone_of, self.world.capacities)
        self.world.create_group(spec, self.capacity)
        return _made(spec.name)

    def update(self, group: str, _old: Properties, new: Properties, stack: str) -> Made:
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

    def delete(self, group: str, _properties: Properties) -> None:
        self.world.delete_group(group)


def group_spec(
    logical_id: str,
    properties: Properties,
    stack: str,
    zone_of: Callable[[str], str],
    market: Iterable[str] = (),
) -> GroupSpec:
    """The group that a template asks for; one that buys no on-demand buys spot.

    Attributes select among the types of the market's pools. Raises CloudError for a property that
    would have no effect.
    """
    if unknown := sorted(_asked(properties) - SIMULATED):
        raise CloudError("ValidationError", f"{', '.join(unknown)}: not simulated by the local AWS")
    policy = properties.get("MixedInstancesPolicy", {})
    share = int(
        policy.get("InstancesDistribution", {}).get("OnDemandPercentageAboveBaseCapacity", 100)
    )
    overrides = policy.get("LaunchTemplate", {}).get("Overrides", [])
    types: list[str] = []
    strategy = policy.get("InstancesDistribution", {}).get("OnDemandAllocationStrategy")
    for one in overrides:
        attributes = one.get("InstanceRequirements")
        if attributes and strategy == "prioritized":
            why = (
                "The prioritized allocation strategy is not compatible with instance requirements."
            )
            raise CloudError("ValidationError", why)
        types += selected(attributes, market) if attributes else [one["InstanceType"]]
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
        hooks=tuple(
            hook_of(one.get) for one in properties.get("LifecycleHookSpecificationList", [])
        ),
    )


ATTRIBUTES = frozenset({
    "VCpuCount", "MemoryMiB", "AcceleratorCount", "AcceleratorTypes", "AcceleratorManufacturers",
    "AcceleratorNames", "AcceleratorTotalMemoryMiB",
})  # fmt: skip
PRICE_PROTECTION = frozenset(
    {"SpotMaxPricePercentageOverLowestPrice", "OnDemandMaxPricePercentageOverLowestPrice"}
)
"""Accepted without an effect: the market has one price."""


def selected(attributes: Properties, market: Iterable[str]) -> list[str]:
    """The types of the market's pools that have the attributes, by the data of moto.

    Raises CloudError for attributes that are not simulated, and where no type has them.
    """
    if unknown := sorted(attributes.keys() - ATTRIBUTES - PRICE_PROTECTION):
        raise CloudError("ValidationError", f"{', '.join(unknown)}: not simulated by the local AWS")
    if not (attributes.get("VCpuCount") and attributes.get("MemoryMiB")):
        raise CloudError("ValidationError", "VCpuCount and MemoryMiB are required")
    known = importlib.import_module("moto.ec2.models.instance_types").INSTANCE_TYPES
    kinds = sorted({pool.partition("/")[2] for pool in market} & known.keys())
    if found := [kind for kind in kinds if _has(known[kind], attributes)]:
        return found
    raise CloudError("ValidationError", "no type of the local market has these attributes")


def _has(kind: Properties, attributes: Properties) -> bool:
    found = kind.get("GpuInfo", {})
    gpus = found.get("Gpus", [])
    figures = {
        "VCpuCount": kind["VCpuInfo"]["DefaultVCpus"],
        "MemoryMiB": kind["MemoryInfo"]["SizeInMiB"],
        "AcceleratorCount": sum(gpu["Count"] for gpu in gpus),
        "AcceleratorTotalMemoryMiB": found.get("TotalGpuMemoryInMiB", 0),
    }
    names = {
        "AcceleratorTypes": {"gpu" for _ in gpus},
        "AcceleratorManufacturers": {gpu["Manufacturer"].lower() for gpu in gpus},
        "AcceleratorNames": {gpu["Name"].lower() for gpu in gpus},
    }
    for name, figure in figures.items():
        bounds = attributes.get(name, {})
        if not int(bounds.get("Min", 0)) <= figure <= int(bounds.get("Max", figure)):
            return False
    return all(names[name] & set(attributes[name]) for name in names.keys() & attributes.keys())


@dataclass(frozen=True, slots=True)
class WarmPools:
    """CloudFormation's handlers for warm pools; each is named as its group."""

    world: LiveWorld

    def create(self, _logical_id: str, properties: Properties, _stack: str) -> Made:
        """Give a group its warm pool; raises CloudError for a group that buys spot."""
        group = str(properties["AutoScalingGroupName"])
        with self.world.now() as cloud:
            cloud.put_warm_pool(group, warm_pool_of(properties.get))
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


def _bounds(properties: Properties) -> tuple[int, int]:
    return int(properties.get("MinSize", 0)), int(properties.get("MaxSize", 0))


def _made(group: str) -> Made:
    arn = group_arn(group)
    return group, {"AutoScalingGroupARN": arn, "Arn": arn}
