"""A job's machines, volumes and checkpoints in AWS: reading them, and taking each step.

Machines and volumes are found by the ids that the job's item remembers, never by their tags.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from types import NoneType
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from spotkeeper.adapters.ec2.auto_scaling import described, filtered
from spotkeeper.adapters.errors import FAULT_CODES, aws_errors
from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    Head,
    Job,
    JobResources,
    JobSpec,
    Launch,
    Machine,
    Making,
    Outcome,
    Volume,
    VolumeSnapshot,
)
from spotkeeper.job_ports import Denied, NotMade
from spotkeeper.ports import FleetError, Throttled, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef
    from mypy_boto3_sns import SNSClient

    from spotkeeper.border.settings import JobSettings

JOB, ATTEMPT, NONCE = "spotkeeper:job", "spotkeeper:attempt", "spotkeeper:nonce"
GRANT, VOLUME, DRAINING = "spotkeeper:grant", "spotkeeper:volume", "spotkeeper:draining"
UNTIL = "spotkeeper:until"
GENERATION, EPOCH, MOVE, SEAL = (
    "spotkeeper:generation", "spotkeeper:epoch", "spotkeeper:move", "spotkeeper:seal",
)  # fmt: skip
# A head has a line for each file of a checkpoint; of a log, a mail quotes the end.
HEAD_BYTES, STEP_LENGTH = 4 << 20, 1_000
LOG_BYTES, LINE_LENGTH = 64 << 10, 1_000
# In the tag's value, after the time: the machine's agent waits for a commit.
AT_CHECKPOINT = "checkpoint"
DEVICE = "/dev/sdf"
_STATES = {
    "pending": "pending",
    "running": "running",
    "stopping": "leaving",
    "shutting-down": "leaving",
    "stopped": "stopped",
    "terminated": "gone",
}

_WHY = {
    Outcome.DONE: "its command is done",
    Outcome.FAILED: "it failed",
    Outcome.STOPPED: "somebody stopped it",
    Outcome.HOURS: "it reached max_hours",
    Outcome.USD: "it reached max_usd",
    Outcome.IDLE: "it was idle",
}


class AwsJobs:
    """The cloud of the keeper: EC2, EBS and the bucket."""

    def __init__(
        self,
        ec2: "EC2Client",
        launching: "EC2Client",
        s3: Any,
        sns: "SNSClient",
        settings: "JobSettings",
    ) -> None:
        """Take typed clients; `launching` waits longer for an answer."""
        self._ec2, self._slow_ec2, self._s3, self._sns = ec2, launching, s3, sns
        self._settings = settings

    def zones(self) -> Sequence[str]:
        """List the zones of the stack's subnets that exist; none while they cannot be read."""
        try:
            return sorted(self._subnets)
        except FleetError:
            # A launch names the error; what runs needs no subnet.
            return []

    @cached_property
    def _subnets(self) -> Mapping[str, str]:
        # As the parameter SubnetIds, one that was deleted fails the whole call.
        named: Any = [{"Name": "subnet-id", "Values": self._settings.subnets.split(",")}]
        with aws_errors("ec2:DescribeSubnets"):
            answer = self._ec2.describe_subnets(Filters=named)
        return {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in answer["Subnets"]}

    # --- the look

    def look(self, spec: JobSpec, job: Job, now: datetime) -> JobResources:
        """Look at what the job remembers, by id; what AWS does not list is left out.

        Only the machines are required: what else cannot be read is `unread`.
        """
        ec2, volumes = self._ec2, {"volume-id": job.volumes}
        with aws_errors(f"looking at the machines of job {job.name}"):
            instances = described(ec2, {"instance-id": job.machines})
            existing = JobResources(
                now=now, machines={each["InstanceId"]: _machine(each, job) for each in instances}
            )
        try:
            with aws_errors(f"looking at job {job.name}"):
                # Without an owner AWS looks through all public ones, which takes minutes.
                of, mine = (ec2, "describe_snapshots", "Snapshots"), {"image-id": job.images}
                snapshots = filtered(*of, volumes, OwnerIds=["self"])
                images = filtered(ec2, "describe_images", "Images", mine, Owners=["self"])
                return replace(
                    existing,
                    volumes={
                        each["VolumeId"]: _volume(each)
                        for each in filtered(ec2, "describe_volumes", "Volumes", volumes)
                    },
                    snapshots={
                        each["SnapshotId"]: snapshot
                        for each in snapshots
                        if (snapshot := self._snapshot(each, job))
                    },
                    images={each["ImageId"]: each["State"] for each in images},
                    head=None if spec.has_volume else self._head(job.name),
                )
        except FleetError as error:
            # A job's limits hold without these.
            return replace(existing, unread=str(error))

    def _snapshot(self, snapshot: Mapping[str, Any], job: Job) -> VolumeSnapshot | None:
        """Read a snapshot of the job's volumes; None for those that the user or AWS Backup took."""
        tags = tags_of(snapshot)
        numbers = tags.get(GENERATION, ""), tags.get(EPOCH, "")
        is_ours = tags.get(JOB) == job.name and tags.get(NONCE) == self._settings.stack_nonce
        if not is_ours or SEAL not in tags or not all(map(str.isdecimal, numbers)):
            return None
        return VolumeSnapshot(
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
                text = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read(HEAD_BYTES + 1)
        except FleetError as error:
            if isinstance(error.__cause__, self._s3.exceptions.NoSuchKey):
                return None
            raise
        try:
            return read_head(text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unreadable(f"the head of job {name} cannot be read: {error}") from error

    # --- the steps

    def do(self, spec: JobSpec, job: Job, step: steps.Step) -> str:
        """Do a step; return the id of what it made, if anything."""
        ec2 = self._ec2
        match step:
            case steps.Start():
                with _made(f"launching a machine of job {job.name}"):
                    return self._launch(spec, job, step.launch)
            case steps.RegisterImage():
                with _made(f"registering an image of job {job.name}"):
                    return self._register(job, step.making)
            case steps.CreateVolume():
                with _made(f"creating a volume of job {job.name}"):
                    return self._create(spec, job, step.making)
        with aws_errors(f"{type(step).__name__} of job {job.name}"):
            match step:
                case steps.End():
                    ec2.terminate_instances(InstanceIds=[step.instance_id])
                case steps.Drain():
                    at = job.looked_at.isoformat() if job.looked_at else ""
                    waits = f" {AT_CHECKPOINT}" if step.at_checkpoint else ""
                    self._tag(step.instance_id, DRAINING, f"{at}{waits}")
                case steps.Point():
                    self._tag(step.instance_id, VOLUME, step.volume)
                case steps.Limit():
                    self._tag(step.instance_id, UNTIL, step.until.isoformat(timespec="seconds"))
                case steps.Grant():
                    self._tag(step.instance_id, GRANT, step.grant)
                case steps.Attach():
                    name = step.instance_id
                    ec2.attach_volume(VolumeId=step.volume, InstanceId=name, Device=DEVICE)
                case steps.Detach():
                    ec2.detach_volume(VolumeId=step.volume)
                case steps.DeleteVolume():
                    ec2.delete_volume(VolumeId=step.volume)
                case steps.TakeSnapshot():
                    seal = "true" if step.seal else "false"
                    state = {GENERATION: str(step.generation), EPOCH: str(step.epoch), SEAL: seal}
                    tags = _tagged(self._tags(job, state), "snapshot")
                    ec2.create_snapshot(VolumeId=step.volume, TagSpecifications=tags)
                case steps.KeepRoot():
                    stays: Any = {"DeviceName": step.device, "Ebs": {"DeleteOnTermination": False}}
                    ec2.modify_instance_attribute(
                        InstanceId=step.instance_id, BlockDeviceMappings=[stays]
                    )
                case steps.DeregisterImage():
                    ec2.deregister_image(ImageId=step.image)
                case steps.DeleteSnapshot():
                    ec2.delete_snapshot(SnapshotId=step.snapshot)
                case steps.Mail():
                    self._sns.publish(
                        TopicArn=self._settings.topic,
                        # SNS takes 100 characters.
                        Subject=f"Job {job.name}: {job.outcome}"[:100],
                        Message=self._mail_text(job),
                    )
                case steps.Remind():
                    ignored = job.reports[job.machine_attempt].ignored
                    self._sns.publish(
                        TopicArn=self._settings.topic,
                        Subject=f"Job {job.name} commits nothing"[:100],
                        Message=f"Job {job.name} runs on {job.machine}, and {step.why}."
                        " An interruption would cost this work.\n\n"
                        + (f"Not committed: {ignored}\n" if ignored else "")
                        + 'What makes a checkpoint: docs/jobs.md, "In your script"; state.entries'
                        " and state.complete of its document.",
                    )
                case _:
                    raise TypeError(f"no step of AWS: {step}")
        return ""

    def _launch(self, spec: JobSpec, job: Job, launch: Launch) -> str:
        """Launch a machine of one of the types and zones, whichever AWS has."""
        image = {"ImageId": launch.image} if launch.image else {}
        overrides: Any = [
            {"InstanceType": kind, "SubnetId": subnet, "Priority": float(number), **image}
            for subnet in (self._subnets[each] for each in launch.zones if each in self._subnets)
            for number, kind in enumerate(spec.types)
        ]
        if not overrides:
            raise Denied("no subnet of JobSubnetIds is in a zone of this launch: correct them")
        template: Any = {
            "LaunchTemplateId": self._settings.launch_template,
            "Version": self._settings.template_version,
        }
        tags = self._tags(job, {ATTEMPT: str(launch.attempt), "Name": f"job {job.name}"})
        # The role may seal and delete a root with the stack's tag only.
        kinds = ("instance", "fleet", "volume") if spec.keeps_root else ("instance", "fleet")
        answer = self._slow_ec2.create_fleet(
            Type="instant",
            ClientToken=f"{job.name}-{int(job.created_at.timestamp())}-{launch.attempt}",
            LaunchTemplateConfigs=[
                {"LaunchTemplateSpecification": template, "Overrides": overrides}
            ],
            TargetCapacitySpecification={
                "TotalTargetCapacity": 1,
                "DefaultTargetCapacityType": "spot" if launch.market == SPOT else "on-demand",
            },
            SpotOptions={"AllocationStrategy": "capacity-optimized-prioritized"},
            OnDemandOptions={"AllocationStrategy": "prioritized"},
            TagSpecifications=_tagged(tags, *kinds),
        )
        for instances in answer.get("Instances", []):
            for instance_id in instances["InstanceIds"]:
                return instance_id
        errors = answer.get("Errors", [])
        wrong = {f"{each.get('ErrorCode')}: {each.get('ErrorMessage')}" for each in errors}
        raise NotMade("; ".join(sorted(wrong)) or "AWS launched nothing, and gave no reason")

    def _create(self, spec: JobSpec, job: Job, making: Making) -> str:
        """Create a volume, empty or from a snapshot."""
        more: dict[str, Any] = {}
        if making.snapshot:
            # It has the key of its snapshot.
            more = {"SnapshotId": making.snapshot}
            if spec.initialization_rate:
                more["VolumeInitializationRate"] = spec.initialization_rate
        elif self._settings.kms_key:
            more = {"KmsKeyId": self._settings.kms_key}
        tags = {GENERATION: str(making.generation), MOVE: str(making.move)}
        return self._ec2.create_volume(
            AvailabilityZone=making.zone,
            Size=spec.size_gib or 1,
            VolumeType="gp3",
            Encrypted=True,
            ClientToken=making.token,
            TagSpecifications=_tagged(self._tags(job, tags), "volume"),
            **more,
        )["VolumeId"]

    def _register(self, job: Job, making: Making) -> str:
        """Register an image of a root that is like its base; the one of this name if there is."""
        mine: Any = [{"Name": "name", "Values": [making.token]}]
        for image in self._ec2.describe_images(Owners=["self"], Filters=mine)["Images"]:
            disks = [disk.get("Ebs", {}).get("SnapshotId") for disk in image["BlockDeviceMappings"]]
            if making.snapshot in disks:
                return image["ImageId"]
        images = self._ec2.describe_images(ImageIds=[making.base], IncludeDeprecated=True)["Images"]
        if not images:
            raise Denied(f"{making.base}, from which the machine started, is not there any more")
        base: Any = images[0]
        like = ("Architecture", "BootMode", "EnaSupport", "ImdsSupport", "SriovNetSupport",
                "TpmSupport", "VirtualizationType")  # fmt: skip
        device = base["RootDeviceName"]
        return self._ec2.register_image(
            Name=making.token,
            RootDeviceName=device,
            BlockDeviceMappings=[{"DeviceName": device, "Ebs": {"SnapshotId": making.snapshot}}],
            TagSpecifications=_tagged(self._tags(job, {}), "image"),
            **{key: base[key] for key in like if key in base},
        )["ImageId"]

    def _mail_text(self, job: Job) -> str:
        """Write the mail of a job's end, with the last lines of the command's output."""
        bucket, folder = self._settings.bucket, f"jobs/{job.name}/"
        try:
            key = f"{folder}log/{max(job.reports, default=job.machine_attempt)}.txt"
            last = f"bytes=-{LOG_BYTES}"
            text = self._s3.get_object(Bucket=bucket, Key=key, Range=last)["Body"].read(LOG_BYTES)
            lines = text.decode(errors="replace").splitlines()[-20:]
            last_lines = [line[-LINE_LENGTH:] for line in lines]
        except (ClientError, BotoCoreError):
            last_lines = ["(the machine left no output, or it cannot be read)"]
        places = [] if job.kept is False else [f"s3://{bucket}/{folder}"]
        if job.home:
            places.append(f"volume {job.home} or its newest snapshot, in {job.zone}")
        elif job.image:
            places.append(f"image {job.image}")
        ignored = next(
            (report.ignored for _, report in sorted(job.reports.items(), reverse=True)), ""
        )
        missing = ["No checkpoint was committed: nothing of its work is in the bucket."]
        missing += [f"Not committed: {ignored}"] if ignored else []
        result = [] if job.kept is not False else missing
        result += [f"The result is in {', and '.join(places)}"] if places else []
        is_failed = job.outcome is Outcome.FAILED and job.failure
        code = "" if job.exit_code is None else f" (exit code {job.exit_code})"
        result += [f"The last commit is step {job.step}."] if job.step else []
        result += [f"What next: {job.advice}"] if job.advice else []
        return "\n".join((
            f"Job {job.name} ended: {_WHY[job.outcome or Outcome.STOPPED]}{code}.",
            *([f"The last failure: {job.failure}"] if is_failed else []),
            "",
            f"{job.story}.",
            *result,
            "",
            "The last lines of its output:",
            *last_lines,
        ))  # fmt: skip

    def _tag(self, resource: str, key: str, value: str) -> None:
        self._ec2.create_tags(Resources=[resource], Tags=[{"Key": key, "Value": value}])

    def _tags(self, job: Job, more: Mapping[str, str]) -> Mapping[str, str]:
        return {JOB: job.name, NONCE: self._settings.stack_nonce, **more}


def _tagged(tags: Mapping[str, str], *kinds: str) -> Any:
    """Tag what a call makes."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return what an instance, volume or snapshot is tagged with."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def read_head(text: bytes) -> Head:
    """Read a head, which the job's machines write; raises `ValueError` and its like."""
    if len(text) > HEAD_BYTES:
        raise ValueError(f"it is larger than {HEAD_BYTES >> 20} MiB")
    head = json.loads(text)
    generation, step, code = head["generation"], head["step"], head["exit_code"]
    # A bool is an int, and a float may be infinite.
    if type(generation) is not int or type(code) not in (int, NoneType):
        raise TypeError("generation and exit_code should be whole numbers")
    if not isinstance(step, str | None) or len(step or "") > STEP_LENGTH:
        raise TypeError(f"step should be a text of at most {STEP_LENGTH} characters, or null")
    return Head(generation=generation, step=step, done=head["done"] is True, exit_code=code)


@contextmanager
def _made(operation: str) -> Iterator[None]:
    """Raise `Denied` where AWS refuses the call, not where it may have had its effect."""
    try:
        with aws_errors(operation):
            yield
    except FleetError as error:
        if isinstance(cause := error.__cause__, ClientError):
            code = cause.response["Error"]["Code"]
            status = cause.response["ResponseMetadata"]["HTTPStatusCode"]
            is_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR or code in FAULT_CODES
            if not is_fault and not isinstance(error, Throttled):
                raise Denied(str(error)) from error
        raise


def _machine(instance: "InstanceTypeDef", job: Job) -> Machine:
    tags = tags_of(instance)
    device = instance.get("RootDeviceName", "")
    disks = instance.get("BlockDeviceMappings", [])
    root: Any = next(
        (disk.get("Ebs", {}) for disk in disks if disk.get("DeviceName") == device), {}
    )
    since, _, waits = tags.get(DRAINING, "").partition(" ")
    return Machine(
        attempt=job.machines[instance["InstanceId"]].attempt,
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        market=SPOT if instance.get("InstanceLifecycle") == "spot" else ON_DEMAND,
        state=_STATES[instance["State"]["Name"]],
        instance_type=instance.get("InstanceType", ""),
        launched_at=instance.get("LaunchTime"),
        grant=tags.get(GRANT, ""),
        volume=tags.get(VOLUME, ""),
        draining_since=_time_of(since),
        until=_time_of(tags.get(UNTIL, "")),
        drains_at_checkpoint=waits == AT_CHECKPOINT,
        ends_at=job.warned.get(instance["InstanceId"]),
        image=instance.get("ImageId", ""),
        root=root.get("VolumeId", ""),
        root_device=device,
        keeps_root=root.get("DeleteOnTermination") is False,
    )


def _time_of(tag: str) -> datetime | None:
    """Read a time; None for what is no value of Spotkeeper's: the tag is written again."""
    try:
        time = datetime.fromisoformat(tag)
    except ValueError:
        return None
    return time if time.tzinfo else None


def _volume(volume: Mapping[str, Any]) -> Volume:
    attached = volume.get("Attachments") or [{}]
    return Volume(
        zone=volume["AvailabilityZone"],
        state=volume["State"],
        attached_to=attached[0].get("InstanceId", ""),
        attachment=attached[0].get("State", ""),
    )
