"""Auto Scaling groups as they are set up, with their launch templates, images and roles."""

from collections.abc import Iterable, Mapping
from itertools import batched
from types import MappingProxyType
from typing import Any

from spotkeeper.adapters.doctor.looking import Clients, look, names, pages
from spotkeeper.adapters.ec2.auto_scaling import GROUPS_A_CALL
from spotkeeper.domain.doctor.facts import GroupFacts, Hook, Machine, Unseen, known

_LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
# What EC2 uses where the template says nothing; an image with ImdsSupport v2.0 asks for more
# (EC2 user guide, "Order of precedence for instance metadata options").
_DEFAULT_HOPS, _HOPS_OF_V2 = 1, 2

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
    """Look at groups by name, 50 a call; groups that do not exist are left out."""
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
    return {group["AutoScalingGroupName"]: _facts(client, group, defaults) for group in found}


def _facts(client: Clients, group: Mapping[str, Any], defaults: Defaults) -> GroupFacts:
    autoscaling, name = client("autoscaling"), group["AutoScalingGroupName"]
    mixed = group.get("MixedInstancesPolicy")
    distribution = (mixed or {}).get("InstancesDistribution", {})
    overrides = mixed["LaunchTemplate"].get("Overrides", []) if mixed else []
    retention = group.get("InstanceLifecyclePolicy", {}).get("RetentionTriggers", {})
    template = template_of(client, group, mixed)
    return GroupFacts(
        name=name,
        spot_share=_spot_share(group, mixed, template),
        minimum=group["MinSize"],
        maximum=group["MaxSize"],
        desired=group["DesiredCapacity"],
        zones=frozenset(group["AvailabilityZones"]),
        types=_types(overrides, template),
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
        policies=names(
            "autoscaling:DescribePolicies",
            lambda: (
                policy["PolicyName"]
                for policy in pages(
                    autoscaling, "describe_policies", "ScalingPolicies", AutoScalingGroupName=name
                )
                if policy.get("Enabled", True)
            ),
        ),
        scheduled_actions=names(
            "autoscaling:DescribeScheduledActions",
            lambda: (
                action["ScheduledActionName"]
                for action in pages(
                    autoscaling,
                    "describe_scheduled_actions",
                    "ScheduledUpdateGroupActions",
                    AutoScalingGroupName=name,
                )
            ),
        ),
        warm_pool="WarmPoolConfiguration" in group,
        tag_keys=tuple(t["Key"] for t in group.get("Tags", []) if t.get("PropagateAtLaunch")),
        machine=template
        if isinstance(template, Unseen)
        else machine_from(client, template, known(defaults, {}), mixed=mixed is not None),
    )


def template_of(client: Clients, group: Mapping[str, Any], mixed: Any) -> dict[str, Any] | Unseen:
    """Read the launch template that a group, or its mixed instances policy, starts from."""
    action = "ec2:DescribeLaunchTemplateVersions"
    spec = mixed["LaunchTemplate"]["LaunchTemplateSpecification"] if mixed else None
    spec = spec or group.get("LaunchTemplate")
    if spec is None:
        return Unseen(action=action, why="the group has no launch template")
    asked = {
        "LaunchTemplateId": spec["LaunchTemplateId"],
        "Versions": [spec.get("Version") or "$Default"],
    }
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
    if any("InstanceRequirements" in override for override in overrides):
        return ()
    named = tuple(o["InstanceType"] for o in overrides if "InstanceType" in o)
    own = known(template, {}).get("InstanceType")
    return named or ((own,) if own else ())


def machine_from(
    client: Clients, template: Mapping[str, Any], defaults: Mapping[str, str], *, mixed: bool
) -> Machine | Unseen:
    """Read how a template's instances start; `mixed` groups refuse market options."""
    ec2, image_id = client("ec2"), template.get("ImageId", "")
    images = look(
        "ec2:DescribeImages",
        lambda: (
            ec2.describe_images(ImageIds=[image_id])["Images"]
            if image_id.startswith("ami-")
            else []
        ),
    )
    if isinstance(images, Unseen):
        return images
    image = images[0] if images else {}
    keys = names("ec2:DescribeSnapshots", lambda: _keys(ec2, template, image))
    if isinstance(keys, Unseen):
        return keys
    # The template's options, else the account's defaults, else the image's, else EC2's.
    options: dict[str, Any] = {**defaults, **template.get("MetadataOptions", {})}
    v2 = image.get("ImdsSupport") == "v2.0"
    market = template.get("InstanceMarketOptions", {})
    return Machine(
        market_options=mixed and "InstanceMarketOptions" in template,
        max_price=market.get("SpotOptions", {}).get("MaxPrice", ""),
        metadata_enabled=options.get("HttpEndpoint", "enabled") == "enabled",
        architecture=image.get("Architecture", ""),
        tokens_required=options.get("HttpTokens", "required" if v2 else "") == "required",
        hop_limit=int(options.get("HttpPutResponseHopLimit", _HOPS_OF_V2 if v2 else _DEFAULT_HOPS)),
        tags_in_metadata=options.get("InstanceMetadataTags") == "enabled",
        profile_policies=_policies(client("iam"), template.get("IamInstanceProfile", {})),
        keys=keys,
        tag_keys=tuple(
            tag["Key"]
            for each in template.get("TagSpecifications", [])
            if each.get("ResourceType") == "instance"
            for tag in each.get("Tags", [])
        ),
    )


def _keys(ec2: Any, template: Mapping[str, Any], image: Mapping[str, Any]) -> Iterable[str]:
    """Find the keys of all disks: named by the template, or those of the image's snapshots."""
    own = [mapping.get("Ebs", {}) for mapping in template.get("BlockDeviceMappings", [])]
    disks = [m["Ebs"] for m in image.get("BlockDeviceMappings", []) if "Ebs" in m]
    snapshots = [d["SnapshotId"] for d in disks if d.get("Encrypted") and "SnapshotId" in d]
    if snapshots:
        own += ec2.describe_snapshots(SnapshotIds=snapshots)["Snapshots"]
    return dict.fromkeys(disk["KmsKeyId"] for disk in own if disk.get("KmsKeyId"))


def _policies(iam: Any, profile: Mapping[str, str]) -> frozenset[str] | Unseen | None:
    name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
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
