"""Images of moto as strict as those of EC2: each name once, and of a complete snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

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
    """Register, launch and tag as EC2 does."""
    with (
        patch.object(AmisResponse, "register_image", _register),
        patch.object(Instance, "setup_defaults", _root),
        patch.object(FleetsBackend, "create_fleet", _with_tags(FleetsBackend.create_fleet)),
    ):
        yield
