"""Launch templates, the images behind them and the roles that they give."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.doctor.looking import look
from spotkeeper.domain.doctor.facts import Machine, Unseen, known

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        ImageTypeDef,
        ResponseLaunchTemplateDataTypeDef,
    )
    from mypy_boto3_iam import IAMClient

# What EC2 uses where the template says nothing; an image with ImdsSupport v2.0 asks for more
# (EC2 user guide, "Order of precedence for instance metadata options").
_DEFAULT_HOPS, _HOPS_OF_V2 = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A version of a launch template, as EC2 answers it."""

    data: "ResponseLaunchTemplateDataTypeDef"

    @property
    def spot(self) -> bool:
        """Whether it asks for spot by itself."""
        return self.data.get("InstanceMarketOptions", {}).get("MarketType") == "spot"

    @property
    def instance_type(self) -> str:
        """Its instance type; empty where the group names types."""
        return self.data.get("InstanceType", "")


def metadata_defaults(ec2: "EC2Client") -> Mapping[str, str] | Unseen:
    """Read what the account sets for instance metadata where a launch template does not."""
    answer = look("ec2:GetInstanceMetadataDefaults", ec2.get_instance_metadata_defaults)
    if isinstance(answer, Unseen):
        return answer
    level = answer.get("AccountLevel", {})
    # -1 and no-preference say that the account leaves it open.
    return {k: str(v) for k, v in level.items() if str(v) not in ("-1", "no-preference")}


class TemplateReader:
    """Reads launch templates."""

    def __init__(self, ec2: "EC2Client") -> None:
        """Take a typed client; nothing is called yet."""
        self._ec2 = ec2

    def read(self, template_id: str, version: str) -> Template | Unseen:
        """Read one version of a template."""
        return look(
            "ec2:DescribeLaunchTemplateVersions", lambda: self._version(template_id, version)
        )

    def _version(self, template_id: str, version: str) -> Template:
        answer = self._ec2.describe_launch_template_versions(
            LaunchTemplateId=template_id, Versions=[version]
        )
        return Template(data=answer["LaunchTemplateVersions"][0]["LaunchTemplateData"])


class ImageReader:
    """Reads what a template's instances will be: metadata, disks, role."""

    def __init__(
        self,
        ec2: "EC2Client",
        iam: "IAMClient",
        defaults: Mapping[str, str] | Unseen = MappingProxyType({}),
    ) -> None:
        """Take typed clients and the account's metadata defaults; nothing is called yet."""
        self._ec2, self._iam = ec2, iam
        self._defaults = known(defaults, {})

    def machine(self, template: Template, *, mixed: bool) -> Machine | Unseen:
        """Put together how instances start; `mixed` groups refuse market options."""
        images = look("ec2:DescribeImages", lambda: self._image(template))
        if isinstance(images, Unseen):
            return images
        image = images[0] if images else None
        keys = look("ec2:DescribeSnapshots", lambda: self._keys(template, image))
        if isinstance(keys, Unseen):
            return keys
        # The template's options, else the account's defaults, else the image's, else EC2's.
        options: dict[str, Any] = {**self._defaults, **template.data.get("MetadataOptions", {})}
        second_version = image is not None and image.get("ImdsSupport") == "v2.0"
        spot = template.data.get("InstanceMarketOptions", {}).get("SpotOptions", {})
        return Machine(
            market_options=mixed and "InstanceMarketOptions" in template.data,
            max_price=spot.get("MaxPrice", ""),
            metadata_enabled=options.get("HttpEndpoint", "enabled") == "enabled",
            architecture=(image or {}).get("Architecture", ""),
            tokens_required=options.get("HttpTokens", "required" if second_version else "")
            == "required",
            hop_limit=int(
                options.get(
                    "HttpPutResponseHopLimit", _HOPS_OF_V2 if second_version else _DEFAULT_HOPS
                )
            ),
            tags_in_metadata=options.get("InstanceMetadataTags") == "enabled",
            profile_policies=self._policies(template),
            keys=keys,
            tag_keys=tuple(
                tag["Key"]
                for each in template.data.get("TagSpecifications", [])
                if each.get("ResourceType") == "instance"
                for tag in each.get("Tags", [])
            ),
        )

    def _image(self, template: Template) -> "list[ImageTypeDef]":
        image_id = template.data.get("ImageId", "")
        if not image_id.startswith("ami-"):
            return []
        return self._ec2.describe_images(ImageIds=[image_id])["Images"]

    def _keys(self, template: Template, image: "ImageTypeDef | None") -> tuple[str, ...]:
        """Find the keys of all disks: named by the template, or those of the image's snapshots."""
        keys: dict[str, None] = {}
        for mapping in template.data.get("BlockDeviceMappings", []):
            if key := mapping.get("Ebs", {}).get("KmsKeyId"):
                keys[key] = None
        disks = [m["Ebs"] for m in (image or {}).get("BlockDeviceMappings", []) if "Ebs" in m]
        snapshots = [d["SnapshotId"] for d in disks if d.get("Encrypted") and "SnapshotId" in d]
        if snapshots:
            for each in self._ec2.describe_snapshots(SnapshotIds=snapshots)["Snapshots"]:
                if "KmsKeyId" in each:
                    keys[each["KmsKeyId"]] = None
        return tuple(keys)

    def _policies(self, template: Template) -> frozenset[str] | Unseen | None:
        profile = template.data.get("IamInstanceProfile", {})
        name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
        if not name:
            return None
        return look(
            "iam:GetInstanceProfile, iam:ListAttachedRolePolicies", lambda: self._attached(name)
        )

    def _attached(self, profile: str) -> frozenset[str]:
        answer = self._iam.get_instance_profile(InstanceProfileName=profile)
        pages = self._iam.get_paginator("list_attached_role_policies")
        return frozenset(
            policy["PolicyArn"]
            for role in answer["InstanceProfile"]["Roles"]
            for page in pages.paginate(RoleName=role["RoleName"])
            for policy in page["AttachedPolicies"]
        )
