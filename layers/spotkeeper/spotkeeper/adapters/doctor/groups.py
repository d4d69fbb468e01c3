"""Auto Scaling groups as they are set up, with their launch templates."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import batched
from typing import TYPE_CHECKING

from spotkeeper.adapters.doctor.looking import look
from spotkeeper.adapters.doctor.machines import ImageReader, Template, TemplateReader
from spotkeeper.adapters.ec2.auto_scaling import GROUPS_A_CALL
from spotkeeper.domain.doctor.facts import GroupFacts, Hook, Machine, Unseen

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_autoscaling.type_defs import (
        AutoScalingGroupTypeDef,
        LaunchTemplateSpecificationTypeDef,
        MixedInstancesPolicyOutputTypeDef,
    )
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient

_LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClients:
    """The services that know groups and how their instances start."""

    autoscaling: "AutoScalingClient"
    ec2: "EC2Client"
    iam: "IAMClient"
    metadata_defaults: Mapping[str, str] | Unseen = field(default_factory=dict)


def group_facts(clients: GroupClients, names: Iterable[str]) -> Mapping[str, GroupFacts] | Unseen:
    """Look at groups by name; those that do not exist are left out."""
    wanted = sorted(set(names))
    found = look("autoscaling:DescribeAutoScalingGroups", lambda: _describe(clients, wanted))
    if isinstance(found, Unseen):
        return found
    return {group["AutoScalingGroupName"]: _facts(clients, group) for group in found}


def _describe(clients: GroupClients, names: list[str]) -> "list[AutoScalingGroupTypeDef]":
    """Describe groups, 50 a call, and without any name none: AWS would answer all of them."""
    pages = clients.autoscaling.get_paginator("describe_auto_scaling_groups")
    return [
        group
        for some in batched(names, GROUPS_A_CALL, strict=False)
        for page in pages.paginate(AutoScalingGroupNames=list(some))
        for group in page["AutoScalingGroups"]
    ]


def _facts(clients: GroupClients, group: "AutoScalingGroupTypeDef") -> GroupFacts:
    name, mixed = group["AutoScalingGroupName"], group.get("MixedInstancesPolicy")
    template = _template(clients, group, mixed)
    distribution = (mixed or {}).get("InstancesDistribution", {})
    retention = group.get("InstanceLifecyclePolicy", {}).get("RetentionTriggers", {})
    return GroupFacts(
        name=name,
        spot_share=_spot_share(group, mixed, template),
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        desired=group["DesiredCapacity"],
        zones=frozenset(group["AvailabilityZones"]),
        types=_types(mixed, template),
        allocation=distribution.get("SpotAllocationStrategy", "lowest-price") if mixed else "",
        max_price=distribution.get("SpotMaxPrice", ""),
        protected_instances=tuple(
            one["InstanceId"] for one in group.get("Instances", []) if one["ProtectedFromScaleIn"]
        ),
        retains_abandoned=retention.get("TerminateHookAbandon") == "retain",
        deletion_protection=group.get("DeletionProtection", "none"),
        capacity_rebalance=group.get("CapacityRebalance", False),
        protected_from_scale_in=group.get("NewInstancesProtectedFromScaleIn", False),
        weighted=_is_weighted(group, mixed),
        suspended={
            p["ProcessName"]: p.get("SuspensionReason", "")
            for p in group.get("SuspendedProcesses", [])
        },
        hooks=look("autoscaling:DescribeLifecycleHooks", lambda: _hooks(clients, name)),
        policies=look("autoscaling:DescribePolicies", lambda: _policies(clients, name)),
        scheduled_actions=look(
            "autoscaling:DescribeScheduledActions", lambda: _schedules(clients, name)
        ),
        warm_pool="WarmPoolConfiguration" in group,
        tag_keys=tuple(t["Key"] for t in group.get("Tags", []) if t.get("PropagateAtLaunch")),
        machine=_machine(clients, template, mixed is not None),
    )


def _template(
    clients: GroupClients,
    group: "AutoScalingGroupTypeDef",
    mixed: "MixedInstancesPolicyOutputTypeDef | None",
) -> Template | Unseen:
    """Read the launch template that a group, or its mixed instances policy, starts from."""
    spec: LaunchTemplateSpecificationTypeDef | None = group.get("LaunchTemplate")
    if mixed is not None:
        spec = mixed["LaunchTemplate"]["LaunchTemplateSpecification"]
    if spec is None:
        return Unseen(
            action="ec2:DescribeLaunchTemplateVersions", why="the group has no launch template"
        )
    return TemplateReader(clients.ec2).read(
        spec["LaunchTemplateId"], spec.get("Version") or "$Default"
    )


def _machine(clients: GroupClients, template: Template | Unseen, mixed: bool) -> Machine | Unseen:
    if isinstance(template, Unseen):
        return template
    reader = ImageReader(clients.ec2, clients.iam, clients.metadata_defaults)
    return reader.machine(template, mixed=mixed)


def _spot_share(
    group: "AutoScalingGroupTypeDef",
    mixed: "MixedInstancesPolicyOutputTypeDef | None",
    template: Template | Unseen,
) -> float | None:
    if mixed is None:
        return float(template.spot) if isinstance(template, Template) else None
    distribution = mixed.get("InstancesDistribution", {})
    above = 1 - distribution.get("OnDemandPercentageAboveBaseCapacity", 100) / 100
    most = max(1, group["MaxSize"])
    return above * (1 - min(1.0, distribution.get("OnDemandBaseCapacity", 0) / most))


def _is_weighted(
    group: "AutoScalingGroupTypeDef", mixed: "MixedInstancesPolicyOutputTypeDef | None"
) -> bool:
    overrides = mixed["LaunchTemplate"].get("Overrides", []) if mixed else []
    weights = {override.get("WeightedCapacity", "1") for override in overrides}
    return bool(weights - {"1"}) or group.get("DesiredCapacityType", "units") != "units"


def _types(
    mixed: "MixedInstancesPolicyOutputTypeDef | None", template: Template | Unseen
) -> tuple[str, ...]:
    overrides = mixed["LaunchTemplate"].get("Overrides", []) if mixed else []
    if any("InstanceRequirements" in override for override in overrides):
        return ()
    named = tuple(o["InstanceType"] for o in overrides if "InstanceType" in o)
    if named or isinstance(template, Unseen):
        return named
    return (template.instance_type,) if template.instance_type else ()


def _hooks(clients: GroupClients, name: str) -> tuple[Hook, ...]:
    answer = clients.autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)
    return tuple(
        Hook(
            name=hook["LifecycleHookName"],
            launching=hook["LifecycleTransition"] == _LAUNCHING,
            heartbeat_s=hook.get("HeartbeatTimeout", 3600),
        )
        for hook in answer["LifecycleHooks"]
    )


def _policies(clients: GroupClients, name: str) -> tuple[str, ...]:
    pages = clients.autoscaling.get_paginator("describe_policies").paginate(
        AutoScalingGroupName=name
    )
    return tuple(
        policy["PolicyName"]
        for page in pages
        for policy in page["ScalingPolicies"]
        if policy.get("Enabled", True)
    )


def _schedules(clients: GroupClients, name: str) -> tuple[str, ...]:
    pages = clients.autoscaling.get_paginator("describe_scheduled_actions").paginate(
        AutoScalingGroupName=name
    )
    return tuple(
        action["ScheduledActionName"]
        for page in pages
        for action in page["ScheduledUpdateGroupActions"]
    )
