"""A job from `spotkeeper job start` to the e-mail: the real function, commands, agents, training.

EC2, EBS, S3, DynamoDB and SNS are moto's, machines are process groups, disks are folders. Machines
are taken again and again, in each of `WAYS`, and each time their zone has no capacity until the
next one is taken. At the end the weights are those of an uninterrupted run, to the bit, and nothing
is left but what the job's document says. Other stories end a job in other ways.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

import boto3

from spotkeeper import wiring
from spotkeeper.adapters.ec2.jobs import AwsJobs
from spotkeeper.border.job_report import WARNING
from spotkeeper.domain.jobs.job import Job, JobSpec
from spotkeeper.domain.jobs.steps import Start, Step
from spotkeeper.job_ports import NotMade
from spotkeeper.observability import logger
from spotkeeper_lab.aws.wire import ACCOUNT
from spotkeeper_lab.world import Context
from spotkeeper_operator.aws import Aws
from tests.endpoint.job_host import Host, s3
from tests.jobs_account import BUCKET, JobAccount, deploy, forget_clients, strict_images

NAME = "resnet"
TRAIN = Path(__file__).parents[1] / "worker" / "train.py"
EPOCHS, EPOCH_S = 40, 0.4
WARNED_S = 32.0
LIMIT_S = 600.0
DOCUMENT = """
version = 1
name = "{name}"
command = ["{python}", "main.py"]
code = "code"
{needs}environment = {{EPOCHS = "{epochs}", HOW = "{how}", SLEEP_S = "{epoch_s}", HOLD = "{hold}"}}
[machine]
types = ["g5.xlarge"]
on_demand = "never"
{machine}
{state}
[end]
{end}
"""
# Each machine needs these of the account, and says so aloud.
SECRET = "a secret of the team"
NEEDS = f"""
setup = ["touch set-up"]
outputs = "out"
secrets = {{TOKEN = "ssm:/team/token"}}
data = {{s3 = "s3://{BUCKET}/sets/a", into = "data"}}
"""
CHECKED = f"""
import os
from pathlib import Path
print("the token is", os.environ["TOKEN"])
assert os.environ["TOKEN"] == "{SECRET}"
assert Path("set-up").exists()
assert (Path(os.environ["SPOTKEEPER_DATA"]) / "one" / "1").read_text() == "1"
(Path(os.environ["SPOTKEEPER_OUTPUTS"]) / os.environ["SPOTKEEPER_ATTEMPT"]).write_text("ran")
"""

# How each kind of job keeps its state: lines of the document, and its program. Only the first knows
# of Spotkeeper. The others write where a script would: to a volume, or anywhere on the root.
CHECKPOINTS = """
import runpy
runpy.run_path("train.py", run_name="__main__")
"""
ELSEWHERE = """
import os, runpy
from pathlib import Path
os.environ["SPOTKEEPER_CHECKPOINTS"] = str(Path("{folder}").absolute() / "checkpoints")
runpy.run_path("train.py", run_name="__main__")
"""
ON_THE_ROOT = "../content"
# A machine is warned, or lost without a warning. Its agent is killed, and systemd starts it again.
# Or AWS ends it and it goes on: with checkpoints, its next commit stops it.
WAYS = ("warning", "machine", "agent", "split")
RESULT = f"""
import json
from pathlib import Path
newest = max(Path("{ON_THE_ROOT}/checkpoints").glob("[0-9]*"))
print("found", json.loads((newest / "state.json").read_text())["weights"])
"""


def _number(step: str | None) -> int:
    return int((step or "0").rpartition("-")[2])


def _copied(disk: Path, copy: Path) -> None:
    """Copy a disk as it was at one instant: again, where its machine removed a file meanwhile."""
    for _ in range(20):
        with suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(disk, copy, symlinks=True)
            return
        shutil.rmtree(copy, ignore_errors=True)
    raise AssertionError(f"{disk} changes all the time")


@dataclass
class Place(JobAccount):
    """The account and its machines; `dry` is the zone that has no capacity."""

    endpoint: str
    draw: random.Random
    mail_queue: str
    hosts: dict[str, Host] = field(default_factory=dict)
    dry: str = ""
    zones: set[str] = field(default_factory=set)
    split: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.disks = self.folder / "disks"
        self.disks.mkdir()

    def start(
        self, kind: str = "checkpoints", *, program: str = "", epochs: int = EPOCHS,
        machine: str = "", end: str = "max_restarts = 0",
    ) -> None:  # fmt: skip
        """Write the document and the code, and start the job."""
        mount = self.folder / "data"
        states = {
            "volume": f'[state]\nvolume = {{mount = "{mount}", size_gib = 10}}',
            "plain": '[state]\ncomplete = "done"',
        }
        needs = kind in ("checkpoints", "plain") and not program
        text = DOCUMENT.format(
            needs=NEEDS if needs else "", name=self.name,
            python=sys.executable, epochs=epochs, epoch_s=EPOCH_S, hold=self.hold,
            machine=machine or ('root = "keep"' if kind == "root" else ""), end=end,
            state=states.get(kind, ""), how="plain" if kind == "plain" else "publish",
        )  # fmt: skip
        folder = {"volume": mount, "root": ON_THE_ROOT}.get(kind)
        given = ELSEWHERE.format(folder=folder) if folder else CHECKPOINTS
        (self.folder / "code").mkdir(exist_ok=True)
        shutil.copy(TRAIN, self.folder / "code" / "train.py")
        text_of = CHECKED + given if needs else program or given
        (self.folder / "code" / "main.py").write_text(text_of, encoding="utf-8")
        self.s3.put_object(Bucket=BUCKET, Key="sets/a/one/1", Body=b"1")
        path = self.folder / "job.toml"
        path.write_text(text, encoding="utf-8")
        self.jobs.start(path, wiring.now(), dry_run=False)

    def step(self, *events: Mapping[str, Any]) -> None:
        """Run the function on what the machines reported, and let the machines see the result."""
        from functions.keep_jobs.app import handler

        bodies = [json.dumps(event) for event in events]
        bodies += [body for host in self.hosts.values() for body in host.reports()]
        event = {"Records": [{"body": body} for body in bodies]}
        handler(event, Context())  # type: ignore[arg-type]
        self._follow()

    def _follow(self) -> None:
        """Machines that moto launched boot; those that are off or ended are gone."""
        self._connect()
        for instance in self.instances:
            name, state, tags = instance["InstanceId"], instance["State"]["Name"], instance["tags"]
            if tags.get("spotkeeper:job") != self.name:
                continue
            host = self.hosts.get(name)
            if host is None and state == "running":
                host = self.hosts[name] = self._boot(instance, tags)
                self.zones.add(instance["Placement"]["AvailabilityZone"])
            if host is None:
                continue
            if state == "terminated":
                if name not in self.split or host.is_off:
                    host.close()
            elif host.is_off:
                self.ec2.terminate_instances(InstanceIds=[name])
            else:
                host.tag(tags)

    def _connect(self) -> None:
        """Make the disks of new volumes and snapshots, and show each to its machine."""
        for snapshot in self.snapshots:
            copy = self.disks / snapshot["SnapshotId"]
            if not copy.exists():
                _copied(self.disks / snapshot["VolumeId"], copy)
        for volume in self.volumes:
            disk = self.disks / volume["VolumeId"]
            if not disk.exists() and volume.get("SnapshotId"):
                shutil.copytree(self.disks / volume["SnapshotId"], disk, symlinks=True)
            disk.mkdir(exist_ok=True)
            attached = {it["InstanceId"] for it in volume["Attachments"]}
            for name in self.hosts:
                device = self.folder / f"devices-{name}" / disk.name
                if name in attached and not device.exists():
                    device.symlink_to(disk)
                elif name not in attached and device.exists():
                    device.unlink()

    def _boot(self, instance: Mapping[str, Any], tags: dict[str, str]) -> Host:
        name = instance["InstanceId"]
        root = self.disks / instance["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
        # A root that is kept is a disk like others.
        folder = root if root.exists() else self.folder / name
        host = Host(self.endpoint, folder, self.folder / f"devices-{name}", name)
        host.machine.parameters["/team/token"] = SECRET
        host.tag(tags)
        host.start()
        return host

    def take(self, how: str) -> None:
        """Take the machine in one of `WAYS`, and leave its zone without capacity."""
        [instance, *_] = self.machines
        name, host = instance["InstanceId"], self.hosts[instance["InstanceId"]]
        before = [*self.hosts]
        if how == "agent":
            host.kill()
            host.start()
            return
        self.dry = instance["Placement"]["AvailabilityZone"]
        if how == "warning":
            host.machine.interrupt(WARNED_S)
            now = wiring.now().isoformat()
            warning = {"detail-type": WARNING, "source": "aws.ec2", "account": ACCOUNT}
            self.step({**warning, "time": now, "detail": {"instance-id": name}})
            assert name in self.job.warned
            with suppress(TimeoutError):
                self._until(lambda: host.is_off, "the end of its machine", WARNED_S)
            last = json.loads(host.machine.bodies[-1])
            assert last["event"] in ("left", "exited"), last
        elif how == "machine":
            host.kill()
        else:
            self.split.add(name)
        # What was mounted goes with the machine.
        (self.folder / "data").unlink(missing_ok=True)
        self.ec2.terminate_instances(InstanceIds=[name])
        # The training may end once the last machine is taken, and the next one is to be there.
        self._until(lambda: [*self.hosts] != before, "the next machine")

    def take_machines(self, kills: int, epochs: int, ways: Sequence[str]) -> None:
        """Take one machine after the other, each after a checkpoint, and let the training end."""
        self.hold.touch()
        for how in islice(cycle(ways), kills):
            self.until_committed(self.draw.uniform(0, EPOCH_S), epochs - 1)
            self.take(how)
        self.hold.unlink()

    def epoch(self) -> int:
        """How far the training is: by the newest whole checkpoint of any disk, or in the bucket."""
        found = self.disks.glob("vol-*/content/checkpoints/[0-9]*")
        return max([int(it.name) for it in found], default=0) or _number(self.head()["step"])

    def head(self) -> dict[str, Any]:
        """What the bucket says of the job."""
        return self.get("head.json") or {"step": None, "files": [], "done": False}

    def ended(self, outcome: str, code: int | None, left: tuple[int, int, int] = (0, 0, 0)) -> str:
        """Go on to the job's end: its outcome, what it leaves, and its mail, which is returned.

        `left` counts volumes, snapshots and images.
        """
        self._until(lambda: self.job.mailed, "its end")
        job = self.job
        assert (job.outcome, job.exit_code) == (outcome, code)
        assert not self.machines
        assert (len(self.volumes), len(self.snapshots), len(self.images)) == left
        for name, host in self.hosts.items():
            if name in self.split:
                host.until_off()
            assert not host.processes, "a process is left"
        head = self.head()
        named = {file["key"] for it in (head, head.get("previous") or head) for file in it["files"]}
        prefix = f"jobs/{self.name}/steps/"
        kept = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        assert {it["Key"] for it in kept.get("Contents", ())} <= named, "an object is left"
        everything = self.s3.list_objects_v2(Bucket=BUCKET)["Contents"]
        for key in (it["Key"] for it in everything if "code" not in it["Key"]):
            body = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            assert SECRET.encode() not in body, f"{key} has the secret"
        [mail] = self._mails()
        assert mail.startswith(f"Job {self.name} ended: ")
        assert SECRET not in mail
        assert (f"(exit code {code})" in mail) is (code is not None), mail
        return mail

    def _mails(self) -> list[str]:
        """The mails since the last look."""
        sqs, url = boto3.client("sqs"), self.mail_queue
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for it in got:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=it["ReceiptHandle"])
        return [str(json.loads(it["Body"])["Message"]) for it in got]

    @property
    def hold(self) -> Path:
        """While this file exists, the training does not end."""
        return self.folder / "hold"

    def _until(self, is_so: Callable[[], bool], what: str, within_s: float = LIMIT_S) -> None:
        """Go on until something is so."""
        ends = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.name}: waited for {what}")
            self.step()
            time.sleep(0.3)

    def until_committed(self, seconds: float, last: int) -> None:
        """Go on until another checkpoint is committed, and a bit longer."""
        before = self.epoch()
        self._until(lambda: not before == self.epoch() < last and bool(self.machines), "a commit")
        time.sleep(seconds)

    def weights(self) -> str:
        """The weights of the newest checkpoint, as the user gets at them."""
        folder = self.folder / f"result-{time.monotonic_ns()}"
        found = self.snapshots
        if found:
            kept = self.disks / found[0]["SnapshotId"] / "content" / "checkpoints"
            shutil.copytree(max(kept.glob("[0-9]*")), folder)
        else:
            self.jobs.fetch(self.name, folder)
        return str(json.loads((folder / "state.json").read_text())["weights"])

    def story(self) -> str:
        """Return all that explains a failure: the job, its objects, and what each machine did."""
        lines = [f"{self.job}", f"{self.head()}"]
        for name, host in self.hosts.items():
            log = (host.folder / "agent.log").read_text(errors="replace")
            lines += [f"--- {name}, off: {host.is_off}", *host.machine.bodies, log]
        found = self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())
        return "\n".join([*lines, *(it["Key"] for it in found)])

    def close(self) -> None:
        """End what is left."""
        for host in self.hosts.values():
            host.close()


@contextmanager
def account(seed: int) -> Iterator[Place]:
    """An account with a stack that runs jobs; `dry` of its place is where EC2 has no capacity."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = {**dict.fromkeys(names, "testing"), "AWS_DEFAULT_REGION": "us-east-1"}
    does = AwsJobs.do

    def do(cloud: AwsJobs, spec: JobSpec, job: Job, step: Step) -> str:
        if isinstance(step, Start):
            zones = [zone for zone in step.launch.zones if zone != place.dry]
            if not zones:
                raise NotMade("InsufficientInstanceCapacity")
            place.draw.shuffle(zones)
            step = replace(step, launch=replace(step.launch, zones=tuple(zones)))
        return does(cloud, spec, job, step)

    with (
        s3() as endpoint,
        strict_images(),
        tempfile.TemporaryDirectory() as name,
        patch.dict(os.environ, {**keys, "AWS_ENDPOINT_URL": endpoint}),
    ):
        with urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")):
            environment, stack = deploy(f"jobs-{seed}")
        os.environ |= environment
        sns, sqs = boto3.client("sns"), boto3.client("sqs")
        queue = sqs.create_queue(QueueName="mails")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        topic = environment["JOB_TOPIC_ARN"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])
        logger.setLevel("ERROR")
        place = Place(Path(name), endpoint, random.Random(seed), queue)
        with (
            patch.object(Aws, "stack", lambda *_: stack),
            patch.object(AwsJobs, "do", do),
            # moto has no price list.
            patch.object(wiring, "price_list_region", lambda _region: None),
        ):
            forget_clients()
            try:
                yield place
            except BaseException as error:
                error.add_note(place.story())
                raise
            finally:
                place.close()
                forget_clients()


def undisturbed(epochs: int) -> str:
    """The weights of a job of which no machine is taken."""
    with account(0) as place:
        place.start(epochs=epochs)
        place.ended("done", 0)
        return place.weights()


LEFT = {"checkpoints": (0, 0, 0), "plain": (0, 0, 0), "volume": (0, 1, 0), "root": (0, 1, 0)}


def interrupted(kind: str, kills: int, epochs: int, expected: str, *, seed: int = 1) -> None:
    """A job whose machines are taken in each way keeps every bit."""
    with account(seed) as place:
        place.start(kind, epochs=epochs)
        # A disk is used by one machine at a time: there an older one cannot go on.
        place.take_machines(kills, epochs, WAYS[:3] if LEFT[kind][1] else WAYS)
        place.ended("done", 0, LEFT[kind])
        assert place.weights() == expected
        assert len(place.hosts) > kills - (kills + 1) // 3


def root_to_next_job(kills: int, epochs: int, expected: str) -> None:
    """What a job wrote anywhere on its root is in the image that it leaves, for the next job."""
    with account(7) as place:
        place.start("root", epochs=epochs, end='on_done = "image"')
        place.take_machines(kills, epochs, WAYS[:2])
        mail = place.ended("done", 0, (0, 1, 1))
        [image] = [it["ImageId"] for it in place.images]
        assert image in mail
        assert place.weights() == expected
        place.name = "next"
        machine = f'root = "keep"\nimage = "{image}"'
        place.start(program=RESULT, machine=machine, end='on_done = "delete"')
        assert f"found {expected}" in place.ended("done", 0, (0, 1, 1))
        assert [it["ImageId"] for it in place.images] == [image]
