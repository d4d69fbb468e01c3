"""Auto Scaling groups as they are set up, with their launch templates, images and roles."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import batched
from types import MappingProxyType
from typing import Any

from botocore import xform_name

from spotkeeper.adapters.doctor.looking import Clients, look, names, pages
from spotkeeper.adapters.ec2.auto_scaling import GROUPS_A_CALL
from spotkeeper.domain.doctor.facts import GONE, GroupFacts, Hook, Machine, Unseen, known

_LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
# What EC2 uses where the template says nothing; an image with ImdsSupport v2.0 asks for more
# (EC2 user guide, "Order of precedence for instance metadata options").
_DEFAULT_HOPS, _HOPS_OF_V2 = 1, 2
# The values of a filter that EC2 takes.
FILTERED_A_CALL = 200

type Defaults = Mapping[str, str] | Unseen


def metadata_defaults(ec2: Any) -> Defaults:
    """Read the account's defaults for instance metadata."""
    answer = look("ec2:GetInstanceMetadataDefaults", ec2.get_instance_metadata_defaults)
    if isinstance(answer, Unseen):
        return answer
    level = answer.get("AccountLevel", {})
    # -1 and no-preference say that the account leaves it open.
    return {k: str(v) for k, v in level.items() if str(v) not in ("-1", "no-preference")}


def group_facts(
    client: Clients, wanted: Iterable[str], defaults: Defaults = MappingProxyType({})
) -> Mapping[str, GroupFacts] | Unseen:
    """Look at groups by name; groups that do not exist are left out.

    What AWS tells of many at once is read once for all of them: 40 fleets are 80 groups.
    """
    autoscaling = client("autoscaling")
    found = look(
        "autoscaling:DescribeAutoScalingGroups",
        lambda: [
            group
            # Without any name AWS would return all groups.
            for some in batched(sorted(set(wanted)), GROUPS_A_CALL, strict=False)
            for group in pages(
                autoscaling,
                "describe_auto_scaling_groups",
                "AutoScalingGroups",
                AutoScalingGroupNames=list(some),
            )
        ],
    )
    if isinstance(found, Unseen):
        return found
    template = cache(lambda spec: template_of(client, *spec))
    selected = cache(lambda *asked: _selected(client("ec2"), *asked))
    templates = [template(_spec(group)) for group in found]
    machines = Machines(client, [t for t in templates if not isinstance(t, Unseen)])
    policies = _by_group(
        autoscaling, "DescribePolicies", "ScalingPolicies", "PolicyName", bool(found)
    )
    actions = _by_group(
        autoscaling,
        "DescribeScheduledActions",
        "ScheduledUpdateGroupActions",
        "ScheduledActionName",
        bool(found),
    )
    return {
        (name := group["AutoScalingGroupName"]): replace(
            _facts(autoscaling, group, template, machines, known(defaults, {}), selected),
            policies=policies if isinstance(policies, Unseen) else tuple(policies[name]),
            scheduled_actions=actions if isinstance(actions, Unseen) else tuple(actions[name]),
        )
        for group, template in zip(found, templates, strict=True)
    }


def _by_group(
    autoscaling: Any, action: str, key: str, name: str, wanted: bool
) -> Mapping[str, Sequence[str]] | Unseen:
    """Read what all groups of the account have of a kind, by group: its names."""
    operation = xform_name(action)

    def read() -> Mapping[str, Sequence[str]]:
        found = defaultdict[str, list[str]](list)
        for each in pages(autoscaling, operation, key) if wanted else ():
            if each.get("Enabled", True):
                found[each["AutoScalingGroupName"]].append(each[name])
        return found

    return look(f"autoscaling:{action}", read)


def _facts(
    autoscaling: Any,
    group: Mapping[str, Any],
    template: Mapping[str, Any] | Unseen,
    machines: "Machines",
    defaults: Mapping[str, str],
    selected: Callable[[str, str], tuple[str, ...] | Unseen],
) -> GroupFacts:
    name, mixed = group["AutoScalingGroupName"], group.get("MixedInstancesPolicy")
    distribution = (mixed or {}).get("InstancesDistribution", {})
    overrides = mixed["LaunchTemplate"].get("Overrides", []) if mixed else []
    machine: Machine | Unseen
    if isinstance(template, Unseen):
        machine = template
    else:
        machine = machines.of(template, defaults, mixed=mixed is not None)
    architecture = machine.architecture if isinstance(machine, Machine) else ""
    wanted = sorted(
        json.dumps(each["InstanceRequirements"], sort_keys=True)
        for each in overrides
        if "InstanceRequirements" in each
    )
    answers = [selected(each, architecture) for each in wanted]
    unseen = next((each for each in answers if isinstance(each, Unseen)), None)
    chosen = tuple(dict.fromkeys(kind for each in answers for kind in known(each, ())))
    retention = group.get("InstanceLifecyclePolicy", {}).get("RetentionTriggers", {})
    return GroupFacts(
        name=name,
        spot_share=_spot_share(group, mixed, template),
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        desired=group["DesiredCapacity"],
        zones=frozenset(group["AvailabilityZones"]),
        types=chosen if wanted else _types(overrides, template),
        selected=(unseen or chosen) if wanted else None,
        allocation=distribution.get("SpotAllocationStrategy", "lowest-price") if mixed else "",
        max_price=distribution.get("SpotMaxPrice", ""),
        protected_instances=tuple(
            each["InstanceId"]
            for each in group.get("Instances", [])
            if each["ProtectedFromScaleIn"]
        ),
        retains_abandoned=retention.get("TerminateHookAbandon") == "retain",
        deletion_protection=group.get("DeletionProtection", "none"),
        capacity_rebalance=group.get("CapacityRebalance", False),
        protected_from_scale_in=group.get("NewInstancesProtectedFromScaleIn", False),
        weighted=group.get("DesiredCapacityType", "units") != "units"
        or any(override.get("WeightedCapacity", "1") != "1" for override in overrides),
        suspended={
            p["ProcessName"]: p.get("SuspensionReason", "")
            for p in group.get("SuspendedProcesses", [])
        },
        hooks=look(
            "autoscaling:DescribeLifecycleHooks",
            lambda: tuple(
                Hook(
                    name=hook["LifecycleHookName"],
                    launching=hook["LifecycleTransition"] == _LAUNCHING,
                    heartbeat_s=hook.get("HeartbeatTimeout", 3600),
                )
                for hook in autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)[
                    "LifecycleHooks"
                ]
            ),
        ),
        warm_pool="WarmPoolConfiguration" in group,
        tag_keys=tuple(t["Key"] for t in group.get("Tags", []) if t.get("PropagateAtLaunch")),
        machine=machine,
    )


def _spec(group: Mapping[str, Any]) -> tuple[str, str]:
    """Return the launch template that a group, or its mixed instances policy, starts from."""
    mixed = group.get("MixedInstancesPolicy")
    spec = mixed["LaunchTemplate"]["LaunchTemplateSpecification"] if mixed else None
    spec = spec or group.get("LaunchTemplate") or {}
    return spec.get("LaunchTemplateId", ""), spec.get("Version") or "$Default"


def template_of(client: Clients, template_id: str, version: str) -> dict[str, Any] | Unseen:
    """Read a version of a launch template."""
    action = "ec2:DescribeLaunchTemplateVersions"
    if not template_id:
        return Unseen(action=action, why="the group has no launch template")
    asked = {"LaunchTemplateId": template_id, "Versions": [version]}
    return look(
        action,
        lambda: client("ec2").describe_launch_template_versions(**asked)["LaunchTemplateVersions"][
            0
        ]["LaunchTemplateData"],
    )


def _spot_share(
    group: Mapping[str, Any], mixed: Any, template: Mapping[str, Any] | Unseen
) -> float | None:
    if mixed is None:
        if isinstance(template, Unseen):
            return None
        return float(template.get("InstanceMarketOptions", {}).get("MarketType") == "spot")
    distribution = mixed.get("InstancesDistribution", {})
    above = 1 - distribution.get("OnDemandPercentageAboveBaseCapacity", 100) / 100
    most = max(1, group["MaxSize"])
    return float(above * (1 - min(1.0, distribution.get("OnDemandBaseCapacity", 0) / most)))


def _types(overrides: list[Any], template: Mapping[str, Any] | Unseen) -> tuple[str, ...]:
    named = tuple(o["InstanceType"] for o in overrides if "InstanceType" in o)
    own = known(template, {}).get("InstanceType")
    return named or ((own,) if own else ())


def _selected(ec2: Any, requirements: str, architecture: str) -> tuple[str, ...] | Unseen:
    """Read which types AWS selects for attributes, as Auto Scaling does for the image."""
    asked = {
        "ArchitectureTypes": [architecture or "x86_64"],
        "VirtualizationTypes": ["hvm"],
        "InstanceRequirements": json.loads(requirements),
    }
    operation = "get_instance_types_from_instance_requirements"
    return names(
        "ec2:GetInstanceTypesFromInstanceRequirements",
        lambda: sorted(
            it["InstanceType"] for it in pages(ec2, operation, "InstanceTypes", **asked)
        ),
    )


class Machines:
    """How the instances of launch templates start: their images, disks and roles read together."""

    def __init__(self, client: Clients, templates: Iterable[Mapping[str, Any]]) -> None:
        """Read the images of all templates, and the snapshots of those that are encrypted."""
        ec2 = client("ec2")
        ids = {template.get("ImageId", "") for template in templates}
        ids = {image_id for image_id in ids if image_id.startswith("ami-")}
        self._images = look("ec2:DescribeImages", lambda: _described(ec2, "image", ids))
        snapshots = {s for image in known(self._images, {}).values() for s in _snapshots(image)}
        self._snapshots = look(
            "ec2:DescribeSnapshots", lambda: _described(ec2, "snapshot", snapshots)
        )
        self._policies = cache(lambda profile: _policies(client("iam"), profile))

    def of(
        self, template: Mapping[str, Any], defaults: Mapping[str, str], *, mixed: bool
    ) -> Machine | Unseen:
        """Tell how a template's instances start; `mixed` groups refuse market options."""
        image_id, images = template.get("ImageId", ""), self._images
        if isinstance(images, Unseen):
            return images
        if image_id.startswith("ami-") and image_id not in images:
            why = f"{GONE}: the image {image_id} does not exist"
            return Unseen(action="ec2:DescribeImages", why=why)
        image = images.get(image_id, {})
        if isinstance(self._snapshots, Unseen) and _snapshots(image):
            return self._snapshots
        # The template's options, else the account's defaults, else the image's, else EC2's.
        options: dict[str, Any] = {**defaults, **template.get("MetadataOptions", {})}
        v2 = image.get("ImdsSupport") == "v2.0"
        hops = _HOPS_OF_V2 if v2 else _DEFAULT_HOPS
        market = template.get("InstanceMarketOptions", {})
        profile = template.get("IamInstanceProfile", {})
        return Machine(
            market_options=mixed and "InstanceMarketOptions" in template,
            max_price=market.get("SpotOptions", {}).get("MaxPrice", ""),
            metadata_enabled=options.get("HttpEndpoint", "enabled") == "enabled",
            architecture=image.get("Architecture", ""),
            tokens_required=options.get("HttpTokens", "required" if v2 else "") == "required",
            hop_limit=int(options.get("HttpPutResponseHopLimit", hops)),
            tags_in_metadata=options.get("InstanceMetadataTags") == "enabled",
            profile_policies=self._policies(
                profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
            ),
            keys=self._keys(template, image),
            tag_keys=tuple(
                tag["Key"]
                for each in template.get("TagSpecifications", [])
                if each.get("ResourceType") == "instance"
                for tag in each.get("Tags", [])
            ),
        )

    def _keys(self, template: Mapping[str, Any], image: Mapping[str, Any]) -> tuple[str, ...]:
        """Find the keys of all disks: named by the template, or those of the image's snapshots."""
        disks = [mapping.get("Ebs", {}) for mapping in template.get("BlockDeviceMappings", [])]
        disks += [known(self._snapshots, {}).get(s, {}) for s in _snapshots(image)]
        return tuple(dict.fromkeys(disk["KmsKeyId"] for disk in disks if disk.get("KmsKeyId")))


def _described(ec2: Any, what: str, ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
    """Describe images or snapshots by id; unknown ones are left out, as EC2 filters."""
    key = f"{what.capitalize()}s"
    # A filter hides a deprecated image of somebody else, which can be launched.
    options = {"IncludeDeprecated": True} if what == "image" else {}
    return {
        each[f"{what.capitalize()}Id"]: each
        for some in batched(sorted(ids), FILTERED_A_CALL, strict=False)
        for each in pages(
            ec2,
            f"describe_{what}s",
            key,
            Filters=[{"Name": f"{what}-id", "Values": list(some)}],
            **options,
        )
    }


def _snapshots(image: Mapping[str, Any]) -> list[str]:
    """Name the snapshots of an image's encrypted disks."""
    disks = [m["Ebs"] for m in image.get("BlockDeviceMappings", []) if "Ebs" in m]
    return [disk["SnapshotId"] for disk in disks if disk.get("Encrypted") and "SnapshotId" in disk]


def _policies(iam: Any, name: str) -> frozenset[str] | Unseen | None:
    if not name:
        return None
    return look(
        "iam:GetInstanceProfile, iam:ListAttachedRolePolicies",
        lambda: frozenset(
            policy["PolicyArn"]
            for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"][
                "Roles"
            ]
            for policy in pages(
                iam, "list_attached_role_policies", "AttachedPolicies", RoleName=role["RoleName"]
            )
        ),
    )
