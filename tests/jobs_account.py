"""What jobs need of an account, and images of moto that are as strict as those of EC2."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.fleets import FleetsBackend
from moto.ec2.models.instances import Instance
from moto.ec2.responses.amis import AmisResponse
from moto.ec2.utils import convert_tag_spec

from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.jobs import JobItems
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.jobs.job import Job
from spotkeeper_lab.aws.context import create_table
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.jobs import Jobs
from tests.builders import TABLE


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


BUCKET, NONCE = "the-jobs", "51af3dc0-da77"
POLICY = "arn:aws:iam::123456789012:policy/JobMachines"


def deploy(role: str) -> tuple[dict[str, str], Stack]:
    """Make what a stack with jobs has; return the environment of its function, and the stack.

    The launch template is as docs/jobs.md asks for it, with the role that it names.
    """
    iam, ec2 = boto3.client("iam", "us-east-1"), boto3.client("ec2", "us-east-1")
    trust = json.dumps({
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}],
    })  # fmt: skip
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
    iam.create_policy(PolicyName=POLICY.rpartition("/")[2], PolicyDocument=trust)
    iam.attach_role_policy(RoleName=role, PolicyArn=POLICY)
    iam.create_instance_profile(InstanceProfileName=role)
    iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
    data: Any = {
        "ImageId": ec2.describe_images()["Images"][0]["ImageId"],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"InstanceMetadataTags": "enabled"},
        "IamInstanceProfile": {"Name": role},
    }
    made = ec2.create_launch_template(LaunchTemplateName=role, LaunchTemplateData=data)
    template = made["LaunchTemplate"]["LaunchTemplateId"]
    subnets = ",".join(it["SubnetId"] for it in ec2.describe_subnets()["Subnets"][:3])
    boto3.client("s3", "us-east-1").create_bucket(Bucket=BUCKET)
    create_table(boto3.client("dynamodb", "us-east-1"), TABLE)
    environment = {
        "TABLE_NAME": TABLE,
        "FLEET_DOCUMENTS_PATH": "/spotkeeper/test/fleets",
        "JOB_BUCKET": BUCKET,
        "JOB_LAUNCH_TEMPLATE_ID": template,
        "JOB_LAUNCH_TEMPLATE_VERSION": "$Latest",
        "JOB_SUBNET_IDS": subnets,
        "JOB_TOPIC_ARN": boto3.client("sns", "us-east-1").create_topic(Name="alarms")["TopicArn"],
        "STACK_NONCE": NONCE,
        "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
        "POWERTOOLS_SERVICE_NAME": "spotkeeper",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    stack = Stack(
        name="spotkeeper",
        outputs={"TableName": TABLE, "JobBucket": BUCKET, "JobMachinesPolicy": POLICY},
        parameters={
            "JobLaunchTemplateId": template,
            "JobLaunchTemplateVersion": "$Latest",
            "JobSubnetIds": subnets,
        },
        resources={},
        id=f"arn:aws:cloudformation:us-east-1:123456789012:stack/spotkeeper/{NONCE}",
    )
    return environment, stack


def forget_clients() -> None:
    """Have the function make its clients anew."""
    for cached in (wiring.job_ports, wiring._client):
        cached.cache_clear()


@dataclass
class JobAccount:
    """An account with a stack that runs jobs, and one of its jobs."""

    folder: Path
    name: str = field(default="resnet", kw_only=True)

    def __post_init__(self) -> None:
        self.ec2 = boto3.client("ec2", "us-east-1")
        self.s3 = boto3.client("s3", "us-east-1")
        self.mine: Any = [{"Name": "tag-key", "Values": ["spotkeeper:job"]}]

    @cached_property
    def jobs(self) -> Jobs:
        """The operator's side."""
        return Jobs(Aws("us-east-1"), "spotkeeper")

    @property
    def job(self) -> Job:
        return self.jobs.one(self.name)[1]

    @property
    def instances(self) -> list[dict[str, Any]]:
        return [
            {**instance, "tags": {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}}
            for reservation in self.ec2.describe_instances()["Reservations"]
            for instance in reservation["Instances"]
        ]

    @property
    def machines(self) -> list[dict[str, Any]]:
        """The instances that run."""
        return [it for it in self.instances if it["State"]["Name"] == "running"]

    @property
    def volumes(self) -> list[Any]:
        return self.ec2.describe_volumes(Filters=self.mine)["Volumes"]

    @property
    def snapshots(self) -> list[Any]:
        return self.ec2.describe_snapshots(OwnerIds=["self"], Filters=self.mine)["Snapshots"]

    @property
    def images(self) -> list[Any]:
        return self.ec2.describe_images(Owners=["self"], Filters=self.mine)["Images"]

    def put(self, key: str, body: object) -> None:
        """Write an object of the job."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.s3.put_object(Bucket=BUCKET, Key=f"jobs/{self.name}/{key}", Body=text)

    def get(self, key: str) -> dict[str, Any]:
        """Read an object of the job; empty where there is none."""
        try:
            found = self.s3.get_object(Bucket=BUCKET, Key=f"jobs/{self.name}/{key}")
        except self.s3.exceptions.NoSuchKey:
            return {}
        return dict(json.loads(found["Body"].read()))

    def lose_item(self) -> None:
        """Lose the item of the job."""
        JobItems(boto3.client("dynamodb", "us-east-1"), TABLE, tuple).delete(self.name)
