"""A job's machines, volumes and checkpoints in AWS: the look at them, and each step."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    Head,
    Job,
    JobSpec,
    Launch,
    Machine,
    Seen,
    Snapshot,
    Volume,
)
from spotkeeper.job_ports import LaunchRefused
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

    from spotkeeper.border.settings import JobSettings

JOB, ATTEMPT, NONCE = "spotkeeper:job", "spotkeeper:attempt", "spotkeeper:nonce"
GRANT, VOLUME, DRAINING = "spotkeeper:grant", "spotkeeper:volume", "spotkeeper:draining"
GENERATION, EPOCH, MOVE, SEAL = (
    "spotkeeper:generation", "spotkeeper:epoch", "spotkeeper:move", "spotkeeper:seal",
)  # fmt: skip
# An id that EC2 does not find proves nothing while it is young (EC2 API, "Eventual consistency").
YOUNG = timedelta(minutes=10)
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
        s3: Any,
        settings: "JobSettings",
        mail: Callable[[Job, str], None],
    ) -> None:
        """Take typed clients, and what sends the mail of a job's end with its last lines."""
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
        """Look at all of a job; what AWS does not list yet is missing."""
        mine: Any = [
            {"Name": f"tag:{JOB}", "Values": [job.name]},
            {"Name": f"tag:{NONCE}", "Values": [self._settings.stack_nonce]},
        ]
        with aws_errors(f"looking at job {job.name}"):
            machines = self._machines(job, mine)
            volumes, snapshots = {}, {}
            if spec.has_volume:
                pages = self._ec2.get_paginator("describe_volumes").paginate(Filters=mine)
                for volume in (it for page in pages for it in page["Volumes"]):
                    volumes[volume["VolumeId"]] = _volume(volume)
                found = self._ec2.get_paginator("describe_snapshots").paginate(
                    Filters=mine, OwnerIds=["self"]
                )
                for snapshot in (it for page in found for it in page["Snapshots"]):
                    snapshots[snapshot["SnapshotId"]] = _snapshot(snapshot)
        self._missing(job, machines, now)
        head = None if spec.has_volume else self._head(job.name)
        return Seen(now=now, machines=machines, volumes=volumes, snapshots=snapshots, head=head)

    def _machines(self, job: Job, mine: Any) -> dict[str, Machine]:
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=mine)
        return {
            instance["InstanceId"]: _machine(instance, job)
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        }

    def _missing(self, job: Job, machines: dict[str, Machine], now: datetime) -> None:
        """Take a machine for gone that is not listed, is not found by its id, and is not young."""
        for instance_id, attempt, since in (
            (job.machine, job.machine_attempt, job.machine_at),
            (job.successor, job.successor_attempt, job.successor_at),
        ):
            if not instance_id or instance_id in machines or not since or now - since < YOUNG:
                continue
            try:
                found = self._ec2.describe_instances(InstanceIds=[instance_id])
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidInstanceID.NotFound":
                    with aws_errors(f"looking at {instance_id}"):
                        raise
                machines[instance_id] = Machine(attempt=attempt, zone="", market="", state="gone")
                continue
            for reservation in found["Reservations"]:
                for instance in reservation["Instances"]:
                    machines[instance_id] = _machine(instance, job)

    def _head(self, name: str) -> Head | None:
        try:
            text = self._s3.get_object(Bucket=self._settings.bucket, Key=f"jobs/{name}/head.json")[
                "Body"
            ].read()
        except self._s3.exceptions.NoSuchKey:
            return None
        except ClientError:
            with aws_errors(f"reading the head of job {name}"):
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
        overrides: Any = [
            {"InstanceType": kind, "SubnetId": subnet, "Priority": float(number)}
            for subnet in subnets
            for number, kind in enumerate(spec.types)
        ]
        tags = self._tags(job, {ATTEMPT: str(launch.attempt), "Name": f"job {job.name}"})
        token = f"{job.name}-{int(job.created_at.timestamp())}-{launch.attempt}"
        try:
            answer = self._ec2.create_fleet(
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
                TagSpecifications=[
                    {"ResourceType": "instance", "Tags": tags},
                    {"ResourceType": "fleet", "Tags": tags},
                ],
            )
        except ClientError as error:
            if error.response["Error"]["Code"] == "IdempotentParameterMismatch":
                # The stack's settings changed since the first try: a new attempt asks anew.
                raise LaunchRefused(str(error)) from error
            with aws_errors(f"launching a machine of job {job.name}"):
                raise
        for instances in answer.get("Instances", []):
            for instance_id in instances["InstanceIds"]:
                return instance_id
        wrong = sorted({
            f"{error.get('ErrorCode')}: {error.get('ErrorMessage')}"
            for error in answer.get("Errors", [])
        })  # fmt: skip
        raise LaunchRefused("; ".join(wrong) or "AWS launched nothing, and gave no reason")

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
                case steps.CreateVolume():
                    self._create(spec, job, step)
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
                case steps.DeleteSnapshot():
                    ec2.delete_snapshot(SnapshotId=step.snapshot)
                case steps.Mail():
                    self._mail(step.job, self._last_lines(job))
                case _:
                    raise TypeError(f"no step of AWS: {step}")

    def _create(self, spec: JobSpec, job: Job, step: steps.CreateVolume) -> None:
        more: dict[str, Any] = {"SnapshotId": step.snapshot} if step.snapshot else {}
        if step.snapshot and spec.initialization_rate:
            more["VolumeInitializationRate"] = spec.initialization_rate
        tags = {GENERATION: str(step.generation), MOVE: str(step.move)}
        self._ec2.create_volume(
            AvailabilityZone=step.zone,
            Size=spec.size_gib or 1,
            VolumeType="gp3",
            Encrypted=True,
            ClientToken=step.token[-64:],
            TagSpecifications=[{"ResourceType": "volume", "Tags": self._tags(job, tags)}],
            **more,
        )

    def _last_lines(self, job: Job) -> str:
        """Read the end of the command's output, as the last machine left it."""
        try:
            key = f"jobs/{job.name}/log/{max(job.told, default=job.machine_attempt)}.txt"
            text = self._s3.get_object(Bucket=self._settings.bucket, Key=key)["Body"].read()
        except ClientError:
            return "(the machine left no output)"
        return "\n".join(text.decode(errors="replace").splitlines()[-20:])

    def _tag(self, resource: str, key: str, value: str) -> None:
        self._ec2.create_tags(Resources=[resource], Tags=[{"Key": key, "Value": value}])

    def _tags(self, job: Job, more: Mapping[str, str]) -> Any:
        tags = {JOB: job.name, NONCE: self._settings.stack_nonce, **more}
        return [{"Key": key, "Value": value} for key, value in tags.items()]


def _now_text(job: Job) -> str:
    return job.looked_at.isoformat() if job.looked_at else ""


def _tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def _machine(instance: "InstanceTypeDef", job: Job) -> Machine:
    tags = _tags_of(instance)
    draining = tags.get(DRAINING)
    return Machine(
        attempt=int(tags.get(ATTEMPT, 0)),
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        market=SPOT if instance.get("InstanceLifecycle") == "spot" else ON_DEMAND,
        state=_STATES[instance["State"]["Name"]],
        instance_type=instance.get("InstanceType", ""),
        launched_at=instance.get("LaunchTime"),
        grant=tags.get(GRANT, ""),
        volume=tags.get(VOLUME, ""),
        draining_since=datetime.fromisoformat(draining) if draining else None,
        ends_at=job.warned.get(instance["InstanceId"]),
    )


def _volume(volume: Mapping[str, Any]) -> Volume:
    tags, attached = _tags_of(volume), volume.get("Attachments") or [{}]
    return Volume(
        zone=volume["AvailabilityZone"],
        state=volume["State"],
        generation=int(tags.get(GENERATION, 0)),
        move=int(tags.get(MOVE, 0)),
        attached_to=attached[0].get("InstanceId", ""),
        attachment=attached[0].get("State", ""),
    )


def _snapshot(snapshot: Mapping[str, Any]) -> Snapshot:
    tags = _tags_of(snapshot)
    return Snapshot(
        volume=snapshot["VolumeId"],
        state=snapshot["State"],
        generation=int(tags.get(GENERATION, 0)),
        epoch=int(tags.get(EPOCH, 0)),
        seal=tags.get(SEAL) == "true",
        at=snapshot["StartTime"],
    )
