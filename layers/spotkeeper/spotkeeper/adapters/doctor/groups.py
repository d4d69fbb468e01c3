"""Auto Scaling groups as they are set up, with their launch templates, images and roles."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from botocore import xform_name

from spotkeeper.adapters.doctor.looking import Clients, look, names
from spotkeeper.adapters.ec2.auto_scaling import described_groups, filtered, pages
from spotkeeper.domain.doctor.facts import GONE, GroupFacts, LaunchTemplate, Unseen, known

# What EC2 uses where the template says nothing; an image with ImdsSupport v2.0 asks for more
# (EC2 user guide, "Order of precedence for instance metadata options").
_DEFAULT_HOPS, _HOPS_OF_V2 = 1, 2

type Defaults = Mapping[str, str] | Unseen
type Template = Mapping[str, Any]
type ByGroup = Mapping[str, list[str]] | Unseen


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

    Answers about many groups are read once for all: 40 fleets have 80 groups.
    """
    autoscaling = client("autoscaling")
    action = "autoscaling:DescribeAutoScalingGroups"
    described = look(action, lambda: list(described_groups(autoscaling, wanted)))
    if isinstance(described, Unseen):
        return described
    if not described:
        return {}
    template = cache(partial(template_of, client))
    selected = cache(partial(_selected, client("ec2")))
    templates = [template(*_spec(group)) for group in described]
    further = [
        {spec: (template(*spec), types) for spec, types in _further(group).items()}
        for group in described
    ]
    every = [*templates, *(its for specs in further for its, _ in specs.values())]
    launches = LaunchTemplates(client, [t for t in every if not isinstance(t, Unseen)], described)
    policies = _by_group(autoscaling, "DescribePolicies", "ScalingPolicies", "PolicyName")
    scheduled = ("DescribeScheduledActions", "ScheduledUpdateGroupActions", "ScheduledActionName")
    actions = _by_group(autoscaling, *scheduled)
    facts = {}
    for group, its, others in zip(described, templates, further, strict=True):
        mixed = "MixedInstancesPolicy" in group
        launch = its if isinstance(its, Unseen) else launches.of(its, defaults, mixed=mixed)
        name = group["AutoScalingGroupName"]
        facts[name] = GroupFacts(
            aws=group,
            **_types(group, its, launch, selected),
            spot_share=_spot_share(group, its),
            hooks=_hooks(autoscaling, name),
            policies=policies if isinstance(policies, Unseen) else tuple(policies[name]),
            scheduled_actions=actions if isinstance(actions, Unseen) else tuple(actions[name]),
            missing=launches.missing(group),
            full=launches.full_subnets(group),
            launch_template=launch,
            further_templates=tuple(
                each
                if isinstance(each, Unseen)
                else launches.of(each, defaults, mixed=mixed, types=types)
                for each, types in others.values()
            ),
        )
    return facts


def _further(group: Mapping[str, Any]) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return the launch templates of single overrides, each with its types."""
    specs: dict[tuple[str, str], tuple[str, ...]] = {}
    for each in _overrides(group):
        if own := each.get("LaunchTemplateSpecification"):
            spec = (own.get("LaunchTemplateId", ""), own.get("Version") or "$Default")
            specs[spec] = (*specs.get(spec, ()), each.get("InstanceType", ""))
    return specs


def _by_group(autoscaling: Any, action: str, key: str, name: str) -> ByGroup:
    """Read the names of one kind of thing that the account's groups have, by group."""

    def read() -> Mapping[str, list[str]]:
        by_group = defaultdict[str, list[str]](list)
        for each in pages(autoscaling, xform_name(action), key):
            if each.get("Enabled", True):
                by_group[each["AutoScalingGroupName"]].append(each[name])
        return by_group

    return look(f"autoscaling:{action}", read)


def _overrides(group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    policy = group.get("MixedInstancesPolicy")
    return policy["LaunchTemplate"].get("Overrides", []) if policy else []


def _hooks(autoscaling: Any, group: str) -> tuple[Mapping[str, Any], ...] | Unseen:
    arguments = {"AutoScalingGroupName": group}
    answer = look(
        "autoscaling:DescribeLifecycleHooks",
        lambda: autoscaling.describe_lifecycle_hooks(**arguments),
    )
    return answer if isinstance(answer, Unseen) else tuple(answer["LifecycleHooks"])


def _spec(group: Mapping[str, Any]) -> tuple[str, str]:
    """Return the launch template that a group, or its mixed instances policy, starts from."""
    mixed = group.get("MixedInstancesPolicy")
    spec = mixed["LaunchTemplate"].get("LaunchTemplateSpecification") if mixed else None
    spec = spec or group.get("LaunchTemplate") or {}
    return spec.get("LaunchTemplateId", ""), spec.get("Version") or "$Default"


def template_of(client: Clients, template_id: str, version: str) -> dict[str, Any] | Unseen:
    """Read a version of a launch template."""
    action = "ec2:DescribeLaunchTemplateVersions"
    if not template_id:
        return Unseen(action=action, why="the group has no launch template")
    arguments = {"LaunchTemplateId": template_id, "Versions": [version]}
    versions = look(action, lambda: client("ec2").describe_launch_template_versions(**arguments))
    if isinstance(versions, Unseen):
        return versions
    template: dict[str, Any] = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return template


def _spot_share(group: Mapping[str, Any], template: Template | Unseen) -> float | None:
    mixed = group.get("MixedInstancesPolicy")
    if mixed is None:
        if isinstance(template, Unseen):
            return None
        return float(template.get("InstanceMarketOptions", {}).get("MarketType") == "spot")
    distribution = mixed.get("InstancesDistribution", {})
    # Segments name reservations and on-demand, and no spot.
    if distribution.get("DistributionSegments"):
        return 0.0
    above = 1 - distribution.get("OnDemandPercentageAboveBaseCapacity", 100) / 100
    most = max(1, group["MaxSize"])
    return float(above * (1 - min(1.0, distribution.get("OnDemandBaseCapacity", 0) / most)))


def _types(
    group: Mapping[str, Any],
    template: Template | Unseen,
    launch: LaunchTemplate | Unseen,
    selected: Callable[[str, str], tuple[str, ...] | Unseen],
) -> dict[str, Any]:
    """Return the types that a group names, or those that AWS selects for the attributes."""
    kinds = {"InstanceType", "InstanceRequirements"}
    named = [each for each in _overrides(group) if kinds & each.keys()] or [known(template, {})]
    wanted = sorted(
        json.dumps(each["InstanceRequirements"], sort_keys=True)
        for each in named
        if "InstanceRequirements" in each
    )
    if wanted:
        architecture = launch.architecture if isinstance(launch, LaunchTemplate) else ""
        answers = [selected(each, architecture) for each in wanted]
        unseen = next((each for each in answers if isinstance(each, Unseen)), None)
        chosen = tuple(dict.fromkeys(kind for each in answers for kind in known(each, ())))
        return {"types": chosen, "selected": unseen or chosen}
    return {"types": tuple(each["InstanceType"] for each in named if "InstanceType" in each)}


def _selected(ec2: Any, requirements: str, architecture: str) -> tuple[str, ...] | Unseen:
    """Read which types AWS selects for attributes, as Auto Scaling does for the image."""
    arguments = {
        "ArchitectureTypes": [architecture or "x86_64"],
        "VirtualizationTypes": ["hvm"],
        "InstanceRequirements": json.loads(requirements),
    }
    operation = "get_instance_types_from_instance_requirements"
    return names(
        "ec2:GetInstanceTypesFromInstanceRequirements",
        lambda: sorted(
            i["InstanceType"] for i in pages(ec2, operation, "InstanceTypes", **arguments)
        ),
    )


class LaunchTemplates:
    """How the instances of launch templates start: their images, disks and roles read together."""

    def __init__(
        self,
        client: Clients,
        templates: Collection[Template],
        groups: Collection[Mapping[str, Any]] = (),
    ) -> None:
        """Read the images of all templates, and the snapshots of those that are encrypted."""
        ids = {template.get("ImageId", "") for template in templates}
        self._images = _existing(client, "image", {i for i in ids if i.startswith("ami-")})
        snapshots = {s for image in known(self._images, {}).values() for s in _snapshots(image)}
        self._snapshots = _existing(client, "snapshot", snapshots)
        action = "ec2:GetEbsEncryptionByDefault, ec2:GetEbsDefaultKmsKeyId"
        self._default_key = known(look(action, partial(_default_key, client("ec2"))), "")
        self._policies = cache(lambda profile: _policies(client("iam"), profile))
        self._named = {
            what: _existing(client, what, {n for t in (*templates, *groups) for n in names_in(t)})
            for what, names_in in _NAMED.items()
        }

    def of(
        self, template: Template, defaults: Defaults, *, mixed: bool, types: tuple[str, ...] = ()
    ) -> LaunchTemplate | Unseen:
        """Tell how a template's instances start; `mixed` groups refuse market options."""
        image_id, images = template.get("ImageId", ""), self._images
        if isinstance(images, Unseen):
            return images
        if image_id.startswith("ami-") and image_id not in images:
            why = f"{GONE}: the image {image_id} does not exist"
            return Unseen(action="ec2:DescribeImages", why=why, kind=GONE)
        image = images.get(image_id, {})
        if isinstance(self._snapshots, Unseen) and _snapshots(image):
            return self._snapshots
        # The template's options, else the account's defaults, else the image's, else EC2's.
        options: dict[str, Any] = {**known(defaults, {}), **template.get("MetadataOptions", {})}
        v2 = image.get("ImdsSupport") == "v2.0"
        market = template.get("InstanceMarketOptions", {})
        profile = template.get("IamInstanceProfile", {})
        return LaunchTemplate(
            market_options=mixed and "InstanceMarketOptions" in template,
            max_price=market.get("SpotOptions", {}).get("MaxPrice", ""),
            metadata_enabled=options.get("HttpEndpoint", "enabled") == "enabled",
            architecture=image.get("Architecture", ""),
            tokens_required=options.get("HttpTokens", "required" if v2 else "") == "required",
            hop_limit=int(
                options.get("HttpPutResponseHopLimit", _HOPS_OF_V2 if v2 else _DEFAULT_HOPS)
            ),
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
            missing=self.missing(template),
            small_disks=tuple(_small_disks(template, image)),
            kept_disks=tuple(
                each.get("DeviceName", "")
                for each in template.get("BlockDeviceMappings", [])
                if each.get("Ebs", {}).get("DeleteOnTermination") is False
            ),
            not_for_spot=tuple(what for what, has in _NOT_FOR_SPOT.items() if has(template)),
            reservations_only=_only_reserved(template.get("CapacityReservationSpecification", {})),
            types=types,
        )

    def missing(self, it: Mapping[str, Any]) -> tuple[str, ...]:
        """Name what a template, or a group, needs and AWS does not list.

        What cannot be read is not missing.
        """
        return tuple(
            f"the {what} {name}"
            for what, names_in in _NAMED.items()
            for name in names_in(it)
            if not isinstance(there := self._named[what], Unseen) and name not in there
        )

    def full_subnets(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the subnets of a group without a free address."""
        there = known(self._named["subnet"], {})
        free = {name: each.get("AvailableIpAddressCount") for name, each in there.items()}
        return tuple(name for name in _subnets(group) if free.get(name) == 0)

    def _keys(self, template: Template, image: Mapping[str, Any]) -> tuple[str, ...]:
        """Find the keys of all disks: named by the template, or those of the image's snapshots.

        The account may have one for disks that name none.
        """
        mappings = [source.get("BlockDeviceMappings", []) for source in (image, template)]
        disks = {m.get("DeviceName"): m.get("Ebs", {}) for each in mappings for m in each}
        keys = [disk.get("KmsKeyId", self._default_key) for disk in disks.values()]
        keys += [known(self._snapshots, {}).get(s, {}).get("KmsKeyId") for s in _snapshots(image)]
        return tuple(dict.fromkeys(filter(None, keys)))


def _small_disks(template: Template, image: Mapping[str, Any]) -> Iterator[str]:
    """Name the disks of a template that cannot hold their snapshots of the image."""
    mappings = image.get("BlockDeviceMappings", [])
    least = {each.get("DeviceName"): each.get("Ebs", {}).get("VolumeSize", 0) for each in mappings}
    for each in template.get("BlockDeviceMappings", []):
        disk, name = each.get("Ebs", {}), each.get("DeviceName")
        if "SnapshotId" not in disk and disk.get("VolumeSize", math.inf) < least.get(name, 0):
            yield f"{disk['VolumeSize']} GiB for {name}, and the image has {least[name]}"


_NOT_FOR_SPOT: Mapping[str, Callable[[Template], Any]] = {
    "hibernates": lambda template: template.get("HibernationOptions", {}).get("Configured"),
    "asks for a dedicated host":
        lambda template: template.get("Placement", {}).get("Tenancy") == "host",
}  # fmt: skip


def _default_key(ec2: Any) -> str:
    """Read the key of disks that name none; empty where AWS does not encrypt them."""
    on = ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]
    return str(ec2.get_ebs_default_kms_key_id()["KmsKeyId"]) if on else ""


def _only_reserved(specified: Mapping[str, Any]) -> bool:
    """Say whether a launch fails without a reservation: named by its id, or by preference."""
    by_id = specified.get("CapacityReservationTarget", {}).get("CapacityReservationId")
    preference = specified.get("CapacityReservationPreference")
    return bool(by_id) or preference == "capacity-reservations-only"


def _snapshots_named(template: Template) -> list[str]:
    disks = [each.get("Ebs", {}) for each in template.get("BlockDeviceMappings", [])]
    return [disk["SnapshotId"] for disk in disks if "SnapshotId" in disk]


def _security_groups(template: Template) -> list[str]:
    interfaces = [each.get("Groups", []) for each in template.get("NetworkInterfaces", [])]
    return [*template.get("SecurityGroupIds", []), *(i for each in interfaces for i in each)]


def _subnets(group: Mapping[str, Any]) -> list[str]:
    return [name for name in group.get("VPCZoneIdentifier", "").split(",") if name]


# What launches need: the operation that lists it with its filter, if it has one, the key of the
# answer, and the key of its name there.
_LISTED = {
    "image": ("DescribeImages", "Images", "image-id", "ImageId"),
    "key pair": ("DescribeKeyPairs", "KeyPairs", "key-name", "KeyName"),
    "security group": ("DescribeSecurityGroups", "SecurityGroups", "group-id", "GroupId"),
    "placement group": ("DescribePlacementGroups", "PlacementGroups", "group-name", "GroupName"),
    "snapshot": ("DescribeSnapshots", "Snapshots", "snapshot-id", "SnapshotId"),
    "subnet": ("DescribeSubnets", "Subnets", "subnet-id", "SubnetId"),
    "target group": ("DescribeTargetGroups", "TargetGroups", "", "TargetGroupArn"),
}
# How a launch template, or a group, names it.
_NAMED: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "key pair": lambda template: [n for n in [template.get("KeyName")] if n],
    "security group": _security_groups,
    "placement group":
        lambda template: [n for n in [template.get("Placement", {}).get("GroupName")] if n],
    "snapshot": _snapshots_named,
    "subnet": _subnets,
    "target group": lambda group: group.get("TargetGroupARNs", []),
}  # fmt: skip


def _existing(
    client: Clients, what: str, wanted: Collection[str]
) -> Mapping[str, Mapping[str, Any]] | Unseen:
    """Describe those of some names that exist."""
    action, answer, by, key = _LISTED[what]

    def read() -> Mapping[str, Mapping[str, Any]]:
        made, operation = client("ec2" if by else "elbv2"), xform_name(action)
        # A filter hides a deprecated image of somebody else, which can be launched.
        more: dict[str, Any] = {"IncludeDeprecated": True} if what == "image" else {}
        arguments = (made, operation, answer)
        listed = filtered(*arguments, {by: wanted}, **more) if by else pages(*arguments)
        return {each[key]: each for each in listed}

    return look(f"ec2:{action}", read) if wanted else {}


def _snapshots(image: Mapping[str, Any]) -> list[str]:
    """Name the snapshots of an image's encrypted disks."""
    disks = [m["Ebs"] for m in image.get("BlockDeviceMappings", []) if "Ebs" in m]
    return [disk["SnapshotId"] for disk in disks if disk.get("Encrypted") and "SnapshotId" in disk]


def _policies(iam: Any, profile: str) -> frozenset[str] | Unseen | None:
    if not profile:
        return None

    def read() -> frozenset[str]:
        roles = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
        operation, key = "list_attached_role_policies", "AttachedPolicies"
        return frozenset(
            policy["PolicyArn"]
            for role in roles
            for policy in pages(iam, operation, key, RoleName=role["RoleName"])
        )

    return look("iam:GetInstanceProfile, iam:ListAttachedRolePolicies", read)
