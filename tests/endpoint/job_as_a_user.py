"""A job from `spotkeeper job start` to the e-mail: the real function, commands, agents, training.

EC2, EBS, S3, DynamoDB and SNS are moto's, machines are process groups, disks are folders. Machines
are taken again and again, half of them without a warning, and each time their zone has no capacity
until the next one is taken. At the end the weights are those of an uninterrupted run, to the bit.

    python -m tests.endpoint.job_as_a_user --kills 20
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3

from bench.jobs import TRAIN, Host, s3
from spotkeeper import wiring
from spotkeeper.adapters.ec2.jobs import AwsJobs
from spotkeeper.adapters.ec2.prices import price_list_region
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.jobs.job import Job, JobSpec, Launch
from spotkeeper.job_ports import NotMade
from spotkeeper.observability import logger
from spotkeeper_lab.local_aws.table import create_table
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.jobs import Jobs

BUCKET, TABLE, NAME = "the-jobs", "spotkeeper", "resnet"
EPOCHS, EPOCH_S = 40, 0.4
WARNED_S = 32.0
LIMIT_S = 300.0
CACHED = ("job_ports", "_ec2", "_dynamodb", "_settings")
DOCUMENT = """
version = 1
name = "resnet"
command = ["{python}", "{script}"]
code = "code"
environment = {{EPOCHS = "{epochs}", HOW = "publish", SLEEP_S = "{epoch_s}", HOLD = "{hold}"{more}}}
[machine]
types = ["g5.xlarge"]
on_demand = "never"
{state}
[end]
max_restarts = {restarts}
"""

# A script that knows nothing of Spotkeeper, and writes to its disk.
ON_VOLUME = """
import os, runpy
os.environ["SPOTKEEPER_CHECKPOINTS"] = "{mount}/checkpoints"
runpy.run_path("train.py", run_name="__main__")
"""


class Context:
    """What the handler reads of Lambda's context."""

    function_name = "keep-jobs"
    memory_limit_in_mb = 512
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:keep-jobs"
    aws_request_id = "request"


@dataclass
class Place:
    """The account and its machines; `dry` is the zone that has no capacity."""

    endpoint: str
    folder: Path
    draw: random.Random
    hosts: dict[str, Host] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    dry: str = ""
    zones: set[str] = field(default_factory=set)
    mails: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ec2 = boto3.client("ec2", "us-east-1")
        self.disks = self.folder / "disks"
        self.disks.mkdir()

    @property
    def jobs(self) -> Jobs:
        """The operator's side."""
        return Jobs(Aws("us-east-1"), "spotkeeper")

    def start(self, *, volume: bool, epochs: int, more: str = "", restarts: int = 9) -> None:
        """Write the document, and start the job."""
        mount = self.folder / "data"
        state = f'[state]\nvolume = {{mount = "{mount}", size_gib = 10}}' if volume else ""
        text = DOCUMENT.format(
            python=sys.executable, epochs=epochs, epoch_s=EPOCH_S, state=state, more=more,
            restarts=restarts, hold=self.hold, script="on_volume.py" if volume else "train.py",
        )  # fmt: skip
        (self.folder / "code").mkdir(exist_ok=True)
        shutil.copy(TRAIN, self.folder / "code" / "train.py")
        (self.folder / "code" / "on_volume.py").write_text(ON_VOLUME.format(mount=mount))
        path = self.folder / "job.toml"
        path.write_text(text, encoding="utf-8")
        self.jobs.start(path, wiring.now(), dry_run=False)

    def step(self, *events: Mapping[str, Any]) -> None:
        """Run the function on what the machines reported, and let the machines see the result."""
        from functions.keep_jobs.app import handler

        bodies = [json.dumps(event) for event in events]
        for host in self.hosts.values():
            with host.machine.changed:
                new = host.machine.bodies[self.told.get(host.machine.instance_id, 0) :]
            self.told[host.machine.instance_id] = len(host.machine.bodies)
            bodies += new
        handler({"Records": [{"body": body} for body in bodies]}, Context())  # type: ignore[arg-type]
        self._follow()

    def _follow(self) -> None:
        """Machines that moto launched boot; those that are off or ended are gone."""
        self._connect()
        for instance in self._instances():
            name, state = instance["InstanceId"], instance["State"]["Name"]
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
            if tags.get("spotkeeper:job") != NAME:
                continue
            host = self.hosts.get(name)
            if host is None and state == "running":
                host = self._boot(name, int(tags["spotkeeper:attempt"]))
                self.zones.add(instance["Placement"]["AvailabilityZone"])
            if host is None:
                continue
            if state == "terminated":
                host.close()
            elif host.is_off:
                self.ec2.terminate_instances(InstanceIds=[name])
            else:
                assert host.machine.tags is not None
                host.machine.tags |= tags

    def _connect(self) -> None:
        """Make the disks of new volumes and snapshots, and show each to its machine."""
        mine: Any = [{"Name": "tag:spotkeeper:job", "Values": [NAME]}]
        for snapshot in self.ec2.describe_snapshots(Filters=mine, OwnerIds=["self"])["Snapshots"]:
            copy = self.disks / snapshot["SnapshotId"]
            if not copy.exists():
                shutil.copytree(self.disks / snapshot["VolumeId"], copy)
        for volume in self.ec2.describe_volumes(Filters=mine)["Volumes"]:
            disk = self.disks / volume["VolumeId"]
            if not disk.exists() and volume.get("SnapshotId"):
                shutil.copytree(self.disks / volume["SnapshotId"], disk)
            disk.mkdir(exist_ok=True)
            attached = {it["InstanceId"] for it in volume["Attachments"]}
            for name in self.hosts:
                device = self.folder / f"devices-{name}" / disk.name
                if name in attached and not device.exists():
                    device.symlink_to(disk)
                elif name not in attached and device.exists():
                    device.unlink()

    def _boot(self, name: str, attempt: int) -> Host:
        host = Host(self.endpoint, self.folder / f"machine-{attempt}", NAME, attempt)
        host.machine.instance_id = name
        self.hosts[name] = host
        devices = self.folder / f"devices-{name}"
        devices.mkdir()
        os.environ["SPOTKEEPER_JOB_DISKS"] = str(devices)
        host.start()
        return host

    def _instances(self) -> Iterator[Mapping[str, Any]]:
        for reservation in self.ec2.describe_instances()["Reservations"]:
            yield from reservation["Instances"]

    def running(self) -> list[Mapping[str, Any]]:
        """The instances that run."""
        return [it for it in self._instances() if it["State"]["Name"] == "running"]

    def take(self, *, warned: bool) -> None:
        """Take the machine, as AWS does, and leave its zone without capacity."""
        [instance, *_] = self.running()
        name, host = instance["InstanceId"], self.hosts[instance["InstanceId"]]
        self.dry = instance["Placement"]["AvailabilityZone"]
        if warned:
            host.machine.interrupt(WARNED_S)
            now = wiring.now().isoformat()
            warning = "EC2 Spot Instance Interruption Warning"
            self.step({"detail-type": warning, "time": now, "detail": {"instance-id": name}})
            ends = time.monotonic() + WARNED_S
            while not host.is_off and time.monotonic() < ends:
                time.sleep(0.3)
                self.step()
        else:
            host.kill()
        # What was mounted goes with the machine.
        (self.folder / "data").unlink(missing_ok=True)
        self.ec2.terminate_instances(InstanceIds=[name])
        self.step()

    def epoch(self) -> int:
        """How far the training is: by the newest whole checkpoint of any disk, or in the bucket."""
        found = self.disks.glob("vol-*/content/checkpoints/[0-9]*")
        return max([int(it.name) for it in found], default=0) or int(self.head()["step"] or 0)

    def head(self) -> dict[str, Any]:
        """What the bucket says of the job."""
        client = boto3.client("s3", "us-east-1")
        try:
            text = client.get_object(Bucket=BUCKET, Key=f"jobs/{NAME}/head.json")["Body"].read()
        except client.exceptions.NoSuchKey:
            return {"step": None, "files": [], "done": False}
        return dict(json.loads(text))

    def until_ended(self) -> Job:
        """Go on until the job's end was mailed."""
        ends = time.monotonic() + LIMIT_S
        while time.monotonic() < ends:
            self.step()
            job = self.jobs.one(NAME)[1]
            if job.mailed:
                return job
            time.sleep(0.5)
        raise TimeoutError(f"{NAME} did not end within {LIMIT_S:.0f} s: {self.jobs.one(NAME)[1]}")

    @property
    def hold(self) -> Path:
        """While this file exists, the training does not end."""
        return self.folder / "hold"

    def until_committed(self, seconds: float, last: int) -> None:
        """Go on until another checkpoint is committed, and a bit longer."""
        before, ends = self.epoch(), time.monotonic() + LIMIT_S
        while before == self.epoch() < last or not self.running():
            if time.monotonic() > ends:
                raise TimeoutError("no checkpoint was committed")
            self.step()
            time.sleep(0.3)
        time.sleep(seconds)

    def weights(self) -> str:
        """The weights of the newest checkpoint, as the user fetches it."""
        folder = self.folder / f"result-{time.monotonic_ns()}"
        if self.jobs.one(NAME)[0].state.volume:
            mine: Any = [{"Name": "tag:spotkeeper:job", "Values": [NAME]}]
            [seal] = self.ec2.describe_snapshots(Filters=mine, OwnerIds=["self"])["Snapshots"]
            kept = self.disks / seal["SnapshotId"] / "content" / "checkpoints"
            shutil.copytree(max(kept.glob("[0-9]*")), folder)
        else:
            self.jobs.fetch(NAME, folder)
        return str(json.loads((folder / "state.json").read_text())["weights"])

    def close(self) -> None:
        """End what is left."""
        for host in self.hosts.values():
            host.close()


class DryZones(AwsJobs):
    """EC2 that has no capacity in one zone; moto always has."""

    place: Place

    def start(self, spec: JobSpec, job: Job, launch: Launch) -> str:
        """Launch where there is capacity."""
        zones = tuple(zone for zone in launch.zones if zone != self.place.dry)
        if not zones:
            raise NotMade("InsufficientInstanceCapacity")
        shuffled = tuple(self.place.draw.sample(zones, len(zones)))
        return super().start(spec, job, replace(launch, zones=shuffled))


@contextmanager
def account(seed: int) -> Iterator[Place]:
    """An account with a stack that runs jobs."""
    kept = dict(os.environ)
    with s3() as endpoint, tempfile.TemporaryDirectory() as name:
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        with urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")):
            ec2 = boto3.client("ec2", "us-east-1")
        template = ec2.create_launch_template(
            LaunchTemplateName=f"jobs-{seed}",
            LaunchTemplateData={
                "ImageId": ec2.describe_images()["Images"][0]["ImageId"],
                "InstanceInitiatedShutdownBehavior": "terminate",
                "MetadataOptions": {"InstanceMetadataTags": "enabled"},
            },
        )["LaunchTemplate"]["LaunchTemplateId"]
        boto3.client("s3", "us-east-1").create_bucket(Bucket=BUCKET)
        create_table(boto3.client("dynamodb", "us-east-1"), TABLE)
        topic = boto3.client("sns", "us-east-1").create_topic(Name="alarms")["TopicArn"]
        os.environ |= {
            "TABLE_NAME": TABLE, "FLEET_DOCUMENTS_PATH": "/spotkeeper/test/fleets",
            "JOB_BUCKET": BUCKET, "JOB_LAUNCH_TEMPLATE_ID": template,
            "JOB_LAUNCH_TEMPLATE_VERSION": "$Latest", "JOB_TOPIC_ARN": topic,
            "JOB_SUBNET_IDS": ",".join(
                it["SubnetId"] for it in ec2.describe_subnets()["Subnets"][:3]
            ),
            "STACK_NONCE": "51af3dc0-da77", "POWERTOOLS_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        stack = Stack(
            name="spotkeeper",
            outputs={"TableName": TABLE, "JobBucket": BUCKET},
            parameters={"JobLaunchTemplateId": template, "JobLaunchTemplateVersion": "$Latest"},
            resources={},
            id="arn:aws:cloudformation:us-east-1:123456789012:stack/spotkeeper/51af3dc0-da77",
        )
        # moto has no price list.
        real, region = Aws.stack, price_list_region
        place_prices(lambda _region: None)
        logger.setLevel("ERROR")
        Aws.stack = lambda *_: stack  # type: ignore[method-assign]
        _forget()
        place = Place(endpoint, Path(name), random.Random(seed))
        ports = wiring.job_ports()
        assert isinstance(ports.cloud, AwsJobs)
        ports.cloud.__class__ = DryZones
        ports.cloud.place = place  # type: ignore[attr-defined]
        send = ports.cloud._mail

        def mailed(job: Job, lines: str) -> None:
            place.mails.append(lines)
            send(job, lines)

        ports.cloud._mail = mailed
        try:
            yield place
        finally:
            place.close()
            Aws.stack = real  # type: ignore[method-assign]
            place_prices(region)
            _forget()
            os.environ.clear()
            os.environ |= kept


def place_prices(where: Callable[[str], str | None]) -> None:
    """Have the function look for list prices elsewhere, or nowhere."""
    wiring.__dict__["price_list_region"] = where


def _forget() -> None:
    for name in CACHED:
        getattr(wiring, name).cache_clear()


def undisturbed(epochs: int) -> str:
    """The weights of a job of which no machine is taken."""
    with account(0) as place:
        place.start(volume=False, epochs=epochs)
        place.until_ended()
        return place.weights()


def disturbed(kills: int, epochs: int, *, volume: bool, seed: int = 1) -> tuple[str, Place, Job]:
    """The weights of a job whose machines are taken, every second one with a warning."""
    with account(seed) as place:
        place.start(volume=volume, epochs=epochs)
        place.hold.touch()
        for number in range(kills):
            place.until_committed(place.draw.uniform(0, EPOCH_S), epochs - 1)
            place.take(warned=number % 2 == 0)
        place.hold.unlink()
        job = place.until_ended()
        left = [it for it in place.ec2.describe_volumes()["Volumes"] if it.get("Tags")]
        assert not left, left
        assert not place.running()
        return place.weights(), place, job


def failed() -> Job:
    """A job whose command exits with 3."""
    with account(2) as place:
        place.start(volume=False, epochs=1, restarts=0)
        text = "import sys\nprint('no data')\nsys.exit(3)\n"
        (place.folder / "code" / "train.py").write_text(text, encoding="utf-8")
        place.jobs.stop(NAME, now=True)
        place.until_ended()
        place.jobs.delete(NAME)
        place.jobs.start(place.folder / "job.toml", wiring.now(), dry_run=False)
        job = place.until_ended()
        assert "no data" in place.mails[-1], place.mails
        return job


def main() -> int:
    """Run the stories, and say how they ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    asked = parser.parse_args()
    expected, wrong = undisturbed(asked.epochs), 0
    for volume in (False, True):
        weights, place, job = disturbed(asked.kills, asked.epochs, volume=volume)
        wrong += weights != expected
        sys.stdout.write(
            f"{'volume' if volume else 'checkpoints'}: {len(place.hosts)} machines in"
            f" {len(place.zones)} zones, outcome {job.outcome}:"
            f" {'bit-equal' if weights == expected else 'NOT EQUAL'}\n"
        )
    job = failed()
    sys.stdout.write(f"a command that exits with 3: {job.outcome}, exit code {job.exit_code}\n")
    return int(wrong > 0 or job.exit_code != 3)


if __name__ == "__main__":
    sys.exit(main())
