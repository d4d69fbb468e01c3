"""What jobs need of an account, and images of moto that are as strict as those of EC2."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import boto3
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.fleets import FleetsBackend
from moto.ec2.models.instances import Instance
from moto.ec2.responses.amis import AmisResponse
from moto.ec2.utils import convert_tag_spec


def _register(response: Any) -> ActionResult:
    ec2, name = response.ec2_backend, response._get_param("Name")
    if any(it.name == name and it.owner_id == ec2.account_id for it in ec2.amis.values()):
        raise EC2ClientError("InvalidAMIName.Duplicate", f"{name} is already in use")
    [disk] = response._get_param("BlockDeviceMappings", [])
    snapshot = ec2.get_snapshot(disk["Ebs"]["SnapshotId"])
    if snapshot.status != "completed":
        raise EC2ClientError("InvalidSnapshot.Pending", f"{snapshot.id} is {snapshot.status}")
    image = ec2.register_image(name, "")
    ec2.snapshots.pop(image.ebs_snapshot.id)
    image.ebs_snapshot, snapshot.from_ami = snapshot, image.id
    image.add_tags(convert_tag_spec(response._get_param("TagSpecifications", []))["image"])
    return ActionResult({"ImageId": image.id})


def _root(instance: Any) -> None:
    """Give an instance the root that its image has."""
    image = instance.ec2_backend.amis.get(instance.image_id)
    if image is None:
        raise EC2ClientError("InvalidAMIID.NotFound", f"{instance.image_id} does not exist")
    snapshot = None if image.owner_alias == "amazon" else image.ebs_snapshot.id
    instance.add_block_device(15, "/dev/sda1", snapshot, False, True, None, None)


def _with_tags(create: Any) -> Any:
    def create_fleet(backend: Any, *given: Any, **more: Any) -> Any:
        fleet = create(backend, *given, **more)
        tags = convert_tag_spec(more.get("tag_specifications") or given[-1]).get("volume", {})
        for made in fleet.instances or []:
            for name in made["InstanceIds"]:
                for disk in backend.get_instance(name).block_device_mapping.values():
                    backend.get_volume(disk.volume_id).add_tags(tags)
        return fleet

    return create_fleet


@contextmanager
def strict_images() -> Iterator[None]:
    """Register, launch and tag as EC2 does; no account has defaults for metadata."""
    with (
        patch.object(AmisResponse, "register_image", _register),
        patch.object(
            AmisResponse,
            "get_instance_metadata_defaults",
            lambda _: ActionResult({"AccountLevel": {}}),
            create=True,
        ),
        patch.object(Instance, "setup_defaults", _root),
        patch.object(FleetsBackend, "create_fleet", _with_tags(FleetsBackend.create_fleet)),
    ):
        yield


POLICY = "arn:aws:iam::123456789012:policy/JobMachines"


def launch_template(name: str, **more: Any) -> str:
    """Make a launch template as docs/jobs.md asks for it, with the role that it names; its id."""
    iam, ec2 = boto3.client("iam", "us-east-1"), boto3.client("ec2", "us-east-1")
    trust = json.dumps({
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}],
    })  # fmt: skip
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    iam.create_policy(PolicyName=POLICY.rpartition("/")[2], PolicyDocument=trust)
    iam.attach_role_policy(RoleName=name, PolicyArn=POLICY)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    data: Any = {
        "ImageId": ec2.describe_images()["Images"][0]["ImageId"],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"InstanceMetadataTags": "enabled"},
        "IamInstanceProfile": {"Name": name},
        **more,
    }
    made = ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    return made["LaunchTemplate"]["LaunchTemplateId"]
