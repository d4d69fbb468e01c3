"""A job's machines, volumes and checkpoints in AWS: the look at them, and each step.

Machines and volumes are found by the ids that the job's item remembers, never by their tags.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from spotkeeper.adapters.errors import FAULT_CODES, THROTTLE_CODES, aws_errors
from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    Head,
    Job,
    JobSpec,
    Launch,
    Machine,
    Making,
    OwnMachine,
    Seen,
    Snapshot,
    Volume,
)
from spotkeeper.job_ports import Denied, NotMade
from spotkeeper.ports import FleetError, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

    from spotkeeper.border.settings import JobSettings

JOB, ATTEMPT, NONCE = "spotkeeper:job", "spotkeeper:attempt", "spotkeeper:nonce"
GRANT, VOLUME, DRAINING = "spotkeeper:grant", "spotkeeper:volume", "spotkeeper:draining"
GENERATION, EPOCH, MOVE, SEAL = (
    "spotkeeper:generation", "spotkeeper:epoch", "spotkeeper:move", "spotkeeper:seal",
)  # fmt: skip
DEVICE = "/dev/sdf"
_STATES = {
    "pending": "pending",
    "running": "running",
    "stopping": "leaving",
    "shutting-down": "leaving",
    "stopped": "stopped",
    "terminated": "gone",
}


class AwsJobs:
    """The cloud of the keeper: EC2, EBS and the bucket."""

    def __init__(
        self,
        ec2: "EC2Client",
        launching: "EC2Client",
        s3: Any,
        settings: "JobSettings",
        mail: Callable[[Job, str], None],
    ) -> None:
        """Take typed clients, and what sends the mail of a job's end with its last lines.

        `launching` waits longer for an answer.
        """
        self._slow_ec2 = launching
        self._ec2, self._s3, self._settings, self._mail = ec2, s3, settings, mail

    def zones(self) -> Sequence[str]:
        """List the zones of the stack's subnets."""
        return sorted(self._subnets)

    @cached_property
    def _subnets(self) -> Mapping[str, str]:
        with aws_errors("ec2:DescribeSubnets"):
            found = self._ec2.describe_subnets(SubnetIds=self._settings.subnets.split(","))
        return {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in found["Subnets"]}

    # --- the look

    def look(self, spec: JobSpec, job: Job, now: datetime) -> Seen:
        """Look at what the job remembers, by id; what AWS does not list is left out."""
        with aws_errors(f"looking at job {job.name}"):
            machines = {
                instance["InstanceId"]: _machine(instance, own, job)
                for page in _pages(
                    self._ec2.get_paginator("describe_instances"), "instance-id", job.machines
                )
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
                if (own := job.machines.get(instance["InstanceId"]))
            }
            volumes = {
                volume["VolumeId"]: _volume(volume)
                for page in _pages(
                    self._ec2.get_paginator("describe_volumes"), "volume-id", job.volumes
                )
                for volume in page["Volumes"]
                if volume["VolumeId"] in job.volumes
            }
            snapshots = {
                each["SnapshotId"]: snapshot
                for page in _pages(
                    self._ec2.get_paginator("describe_snapshots"), "volume-id", job.volumes
                )
                for each in page["Snapshots"]
                if (snapshot := self._snapshot(each, job))
            }
            images = {
                image["ImageId"]: image["State"]
                for page in _pages(
                    self._ec2.get_paginator("describe_images"), "image-id", job.images
                )
                for image in page["Images"]
            }
        return Seen(
            now=now,
            machines=machines,
            volumes=volumes,
            snapshots=snapshots,
            images=images,
            head=None if spec.has_volume else self._head(job.name),
        )

    def _snapshot(self, snapshot: Mapping[str, Any], job: Job) -> Snapshot | None:
        """Read a snapshot of the job's volumes; None for those that the user or AWS Backup took."""
        tags = tags_of(snapshot)
        numbers = tags.get(GENERATION, ""), tags.get(EPOCH, "")
        is_ours = tags.get(JOB) == job.name and tags.get(NONCE) == self._settings.stack_nonce
        if not is_ours or SEAL not in tags or not all(map(str.isdecimal, numbers)):
            return None
        return Snapshot(
            volume=snapshot["VolumeId"],
            state=snapshot["State"],
            generation=int(numbers[0]),
            epoch=int(numbers[1]),
            seal=tags[SEAL] == "true",
            at=snapshot["StartTime"],
        )

    def _head(self, name: str) -> Head | None:
        bucket, key = self._settings.bucket, f"jobs/{name}/head.json"
        try:
            with aws_errors(f"reading the head of job {name}"):
                text = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except FleetError as error:
            if isinstance(error.__cause__, self._s3.exceptions.NoSuchKey):
                return None
            raise
        try:
            head = json.loads(text)
            return Head(
                generation=int(head["generation"]),
                step=head["step"],
                done=head["done"] is True,
                exit_code=head["exit_code"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the head of job {name} is no head: {error}") from error

    # --- the steps

    def start(self, spec: JobSpec, job: Job, launch: Launch) -> str:
        """Launch a machine of one of the types and zones, whichever AWS has."""
        subnets = [self._subnets[zone] for zone in launch.zones if zone in self._subnets]
        image = {"ImageId": launch.image} if launch.image else {}
        overrides: Any = [
            {"InstanceType": kind, "SubnetId": subnet, "Priority": float(number), **image}
            for subnet in subnets
            for number, kind in enumerate(spec.types)
        ]
        tags = self._tags(job, {ATTEMPT: str(launch.attempt), "Name": f"job {job.name}"})
        # The role may seal and delete a root with the stack's tag only.
        tagged: Any = ("instance", "fleet", "volume") if spec.keeps_root else ("instance", "fleet")
        token = f"{job.name}-{int(job.created_at.timestamp())}-{launch.attempt}"
        with _made(f"launching a machine of job {job.name}"):
            answer = self._slow_ec2.create_fleet(
                Type="instant",
                ClientToken=token,
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {
                            "LaunchTemplateId": self._settings.launch_template,
                            "Version": self._settings.template_version,
                        },
                        "Overrides": overrides,
                    }
                ],
                TargetCapacitySpecification={
                    "TotalTargetCapacity": 1,
                    "DefaultTargetCapacityType": "spot" if launch.market == SPOT else "on-demand",
                },
                SpotOptions={"AllocationStrategy": "capacity-optimized-prioritized"},
                OnDemandOptions={"AllocationStrategy": "prioritized"},
                TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in tagged],
            )
        for instances in answer.get("Instances", []):
            for instance_id in instances["InstanceIds"]:
                return instance_id
        wrong = sorted({
            f"{error.get('ErrorCode')}: {error.get('ErrorMessage')}"
            for error in answer.get("Errors", [])
        })  # fmt: skip
        raise NotMade("; ".join(wrong) or "AWS launched nothing, and gave no reason")

    def create(self, spec: JobSpec, job: Job, making: Making) -> str:
        """Create a volume, empty or from a snapshot; or an image."""
        if making.base:
            with _made(f"registering an image of job {job.name}"):
                return self._register(job, making)
        more: dict[str, Any] = {}
        if making.snapshot:
            more = {"SnapshotId": making.snapshot}
        elif self._settings.kms_key:
            # A volume of a snapshot has its key.
            more = {"KmsKeyId": self._settings.kms_key}
        if making.snapshot and spec.initialization_rate:
            more["VolumeInitializationRate"] = spec.initialization_rate
        tags = {GENERATION: str(making.generation), MOVE: str(making.move)}
        with _made(f"creating a volume of job {job.name}"):
            return self._ec2.create_volume(
                AvailabilityZone=making.zone,
                Size=spec.size_gib or 1,
                VolumeType="gp3",
                Encrypted=True,
                ClientToken=making.token,
                TagSpecifications=[{"ResourceType": "volume", "Tags": self._tags(job, tags)}],
                **more,
            )["VolumeId"]

    def _register(self, job: Job, making: Making) -> str:
        """Register an image of a root that is like its base; the one of this name if there is."""
        mine: Any = [{"Name": "name", "Values": [making.token]}]
        for image in self._ec2.describe_images(Owners=["self"], Filters=mine)["Images"]:
            disks = [it.get("Ebs", {}).get("SnapshotId") for it in image["BlockDeviceMappings"]]
            if making.snapshot in disks:
                return image["ImageId"]
        base: Any = next(
            iter(
                self._ec2.describe_images(ImageIds=[making.base], IncludeDeprecated=True)["Images"]
            ),
            None,
        )
        if base is None:
            raise Denied(f"{making.base}, from which the machine started, is not there any more")
        device = base["RootDeviceName"]
        like = ("Architecture", "BootMode", "EnaSupport", "ImdsSupport", "SriovNetSupport",
                "TpmSupport", "VirtualizationType")  # fmt: skip
        return self._ec2.register_image(
            Name=making.token,
            RootDeviceName=device,
            BlockDeviceMappings=[{"DeviceName": device, "Ebs": {"SnapshotId": making.snapshot}}],
            TagSpecifications=[{"ResourceType": "image", "Tags": self._tags(job, {})}],
            **{key: base[key] for key in like if key in base},
        )["ImageId"]

    def do(self, spec: JobSpec, job: Job, step: steps.Step) -> None:
        """Do any other step."""
        ec2 = self._ec2
        with aws_errors(f"{type(step).__name__} of job {job.name}"):
            match step:
                case steps.End():
                    ec2.terminate_instances(InstanceIds=[step.instance_id])
                case steps.Drain():
                    self._tag(step.instance_id, DRAINING, _now_text(job))
                case steps.Point():
                    self._tag(step.instance_id, VOLUME, step.volume)
                case steps.Grant():
                    self._tag(step.instance_id, GRANT, step.grant)
                case steps.Attach():
                    ec2.attach_volume(
                        VolumeId=step.volume, InstanceId=step.instance_id, Device=DEVICE
                    )
                case steps.Detach():
                    ec2.detach_volume(VolumeId=step.volume)
                case steps.DeleteVolume():
                    ec2.delete_volume(VolumeId=step.volume)
                case steps.TakeSnapshot():
                    tags = {
                        GENERATION: str(step.generation),
                        EPOCH: str(step.epoch),
                        SEAL: "true" if step.seal else "false",
                    }
                    ec2.create_snapshot(
                        VolumeId=step.volume,
                        TagSpecifications=[
                            {"ResourceType": "snapshot", "Tags": self._tags(job, tags)}
                        ],
                    )
                case steps.KeepRoot():
                    ec2.modify_instance_attribute(
                        InstanceId=step.instance_id,
                        BlockDeviceMappings=[
                            {"DeviceName": step.device, "Ebs": {"DeleteOnTermination": False}}
                        ],
                    )
                case steps.DeregisterImage():
                    ec2.deregister_image(ImageId=step.image)
                case steps.DeleteSnapshot():
                    ec2.delete_snapshot(SnapshotId=step.snapshot)
                case steps.Mail():
                    self._mail(step.job, self._last_lines(job))
                case _:
                    raise TypeError(f"no step of AWS: {step}")

    def _last_lines(self, job: Job) -> str:
        """Read the end of the command's output, as the last machine left it."""
        try:
            key = f"jobs/{job.name}/log/{max(job.told, default=job.machine_attempt)}.txt"
            text = self._s3.get_object(Bucket=self._settings.bucket, Key=key)["Body"].read()
        except (ClientError, BotoCoreError):
            return "(the machine left no output, or it cannot be read)"
        return "\n".join(text.decode(errors="replace").splitlines()[-20:])

    def _tag(self, resource: str, key: str, value: str) -> None:
        self._ec2.create_tags(Resources=[resource], Tags=[{"Key": key, "Value": value}])

    def _tags(self, job: Job, more: Mapping[str, str]) -> Any:
        tags = {JOB: job.name, NONCE: self._settings.stack_nonce, **more}
        return [{"Key": key, "Value": value} for key, value in tags.items()]


def _now_text(job: Job) -> str:
    return job.looked_at.isoformat() if job.looked_at else ""


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return what an instance, volume or snapshot is tagged with."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def _pages(paginator: Any, key: str, ids: Mapping[str, object]) -> Iterator[Any]:
    """Describe by ids in a filter: an id that is not there is left out, and is no error."""
    if ids:
        yield from paginator.paginate(Filters=[{"Name": key, "Values": sorted(ids)}])


@contextmanager
def _made(operation: str) -> Iterator[None]:
    """Raise `Denied` where AWS refuses the call, not where it may have had its effect."""
    try:
        with aws_errors(operation):
            yield
    except FleetError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError):
            code = cause.response["Error"]["Code"]
            status = cause.response["ResponseMetadata"]["HTTPStatusCode"]
            if (
                status < HTTPStatus.INTERNAL_SERVER_ERROR
                and code not in THROTTLE_CODES | FAULT_CODES
            ):
                raise Denied(str(error)) from error
        raise


def _machine(instance: "InstanceTypeDef", own: OwnMachine, job: Job) -> Machine:
    tags = tags_of(instance)
    device = instance.get("RootDeviceName", "")
    disks = {
        it.get("DeviceName"): it.get("Ebs", {}) for it in instance.get("BlockDeviceMappings", [])
    }
    root = disks.get(device, {})
    return Machine(
        attempt=own.attempt,
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        market=SPOT if instance.get("InstanceLifecycle") == "spot" else ON_DEMAND,
        state=_STATES[instance["State"]["Name"]],
        instance_type=instance.get("InstanceType", ""),
        launched_at=instance.get("LaunchTime"),
        grant=tags.get(GRANT, ""),
        volume=tags.get(VOLUME, ""),
        draining_since=_time(tags.get(DRAINING, "")),
        ends_at=job.warned.get(instance["InstanceId"]),
        image=instance.get("ImageId", ""),
        root=root.get("VolumeId", ""),
        root_device=device,
        keeps_root=root.get("DeleteOnTermination") is False,
    )


def _time(text: str) -> datetime | None:
    """Read a time that the keeper wrote; what somebody else wrote is written again."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else None


def _volume(volume: Mapping[str, Any]) -> Volume:
    attached = volume.get("Attachments") or [{}]
    return Volume(
        zone=volume["AvailabilityZone"],
        state=volume["State"],
        attached_to=attached[0].get("InstanceId", ""),
        attachment=attached[0].get("State", ""),
    )
