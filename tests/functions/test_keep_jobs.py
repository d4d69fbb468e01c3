"""Jobs from `spotkeeper job start` to the mail, through the real function and commands."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from functions.keep_jobs.app import handler
from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.jobs import JobItems
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.jobs.job import Job, JobSpec
from spotkeeper.domain.jobs.steps import RegisterImage, Step
from spotkeeper.observability import TurnFailed
from spotkeeper.ports import TimedOut
from spotkeeper_lab.aws.context import create_table
from spotkeeper_lab.world import Context
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.jobs import (
    Jobs,
    exit_code,
    pack,
    read_document,
    status_text,
    turns_json,
    turns_text,
)
from tests.builders import TABLE
from tests.jobs_account import POLICY, launch_template, strict_images

BUCKET, NONCE = "jobs-bucket", "51af3dc0-da77"
REPORT = {"version": 1, "job": "resnet", "generation": 0, "volume": None, "step": None, "gpu": None}
DOCUMENT = """
version = 1
name = "resnet"
command = ["python", "train.py"]
environment = {EPOCHS = "90"}
[machine]
types = ["g5.xlarge"]
"""
ROOT = DOCUMENT + 'root = "keep"\n[end]\non_done = "image"\n'
VOLUME = DOCUMENT + '[state]\nvolume = {mount = "/data", size_gib = 100}\n'


@dataclass
class Account:
    """An account with a stack that runs jobs; time passes by hand."""

    folder: Path
    now: datetime
    sent: int = 0
    confirmed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ec2 = boto3.client("ec2", "us-east-1")
        self.s3 = boto3.client("s3", "us-east-1")

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(Aws("us-east-1"), "spotkeeper")

    def start(self, text: str, *, dry_run: bool = False) -> list[str]:
        path = self.folder / "job.toml"
        path.write_text(text, encoding="utf-8")
        return list(self.jobs.start(path, self.now, dry_run=dry_run))

    def tick(self, *reports: dict[str, Any], minutes: float = 1) -> list[str]:
        """Let a minute pass, and run the function on these reports."""
        self.now += timedelta(minutes=minutes)
        bodies = [json.dumps({**REPORT, **self._stamped(), **it}) for it in reports]
        steps: dict[str, list[str]] = handler(
            {"Records": [{"body": body} for body in bodies]} if bodies else {},
            Context(),  # type: ignore[arg-type]
        )
        return steps["resnet"]

    def _stamped(self) -> dict[str, Any]:
        self.sent += 1
        [machine] = self.machines()
        attempt = int(machine["tags"]["spotkeeper:attempt"])
        return {
            "instance_id": machine["InstanceId"],
            "attempt": attempt,
            "seq": self.sent,
            "at": self.now.isoformat(),
        }

    def machines(self) -> list[dict[str, Any]]:
        """The instances that run."""
        found = self.ec2.describe_instances()["Reservations"]
        return [
            {**instance, "tags": {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}}
            for reservation in found
            for instance in reservation["Instances"]
            if instance["State"]["Name"] == "running"
        ]

    def lose_item(self) -> None:
        """Lose the job's item, and have it rebuilt from its tags."""
        JobItems(boto3.client("dynamodb", "us-east-1"), TABLE, tuple).delete("resnet")
        self.jobs.recover("resnet", "tags", self.now, self.confirmed.append)

    def put(self, key: str, body: object) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.s3.put_object(Bucket=BUCKET, Key=f"jobs/resnet/{key}", Body=text)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with mock_aws(), strict_images():
        ec2 = boto3.client("ec2", "us-east-1")
        template = launch_template("jobs")
        subnets = [it["SubnetId"] for it in ec2.describe_subnets()["Subnets"][:3]]
        boto3.client("s3", "us-east-1").create_bucket(Bucket=BUCKET)
        topic = boto3.client("sns", "us-east-1").create_topic(Name="alarms")["TopicArn"]
        create_table(boto3.client("dynamodb", "us-east-1"), TABLE)
        for name, value in {
            "TABLE_NAME": TABLE,
            "FLEET_DOCUMENTS_PATH": "/spotkeeper/test/fleets",
            "JOB_BUCKET": BUCKET,
            "JOB_LAUNCH_TEMPLATE_ID": template,
            "JOB_LAUNCH_TEMPLATE_VERSION": "$Latest",
            "JOB_SUBNET_IDS": ",".join(subnets),
            "JOB_TOPIC_ARN": topic,
            "STACK_NONCE": NONCE,
            "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
            "POWERTOOLS_SERVICE_NAME": "spotkeeper",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        stack = Stack(
            name="spotkeeper",
            outputs={"TableName": TABLE, "JobBucket": BUCKET, "JobMachinesPolicy": POLICY},
            parameters={
                "JobLaunchTemplateId": template,
                "JobLaunchTemplateVersion": "$Latest",
                "JobSubnetIds": ",".join(subnets),
            },
            resources={},
            id=f"arn:aws:cloudformation:us-east-1:123456789012:stack/spotkeeper/{NONCE}",
        )
        monkeypatch.setattr(Aws, "stack", lambda *_: stack)
        made = Account(tmp_path, datetime.now(UTC))  # noqa: TID251 - moto stamps its own with it
        stamp = "moto.ec2.models.elastic_block_store.utcnow"
        monkeypatch.setattr(stamp, lambda: made.now.replace(tzinfo=None))
        monkeypatch.setattr(wiring, "now", lambda: made.now)
        for cached in (wiring.job_ports, wiring._ec2, wiring._dynamodb, wiring._settings):
            cached.cache_clear()
        yield made
        for cached in (wiring.job_ports, wiring._ec2, wiring._dynamodb, wiring._settings):
            cached.cache_clear()


def test_a_job_with_checkpoints_from_start_to_mail(account: Account) -> None:
    account.start(DOCUMENT)
    assert account.tick() == ["Write: spot in " + ", ".join(zones(account)), "Start: attempt 1",
                              "Write: generation 1", "Grant: generation 1"]  # fmt: skip
    [machine] = account.machines()
    assert machine["InstanceLifecycle"] == "spot"
    expected = {"job": "resnet", "attempt": "1", "grant": "1", "nonce": NONCE}
    assert {f"spotkeeper:{k}": v for k, v in expected.items()}.items() <= machine["tags"].items()
    assert account.tick({"event": "booted"}, {"event": "running", "step": "000010"}) == []
    assert "step 000010" in status_text(*account.jobs.one("resnet"))
    files = [{"path": "model.pt", "key": "jobs/resnet/steps/9-1/model.pt", "bytes": 2, "sha256":
              "c4694f2e93d5c4e7d51f9c5deb75e6cc8be5e1114178c6a45b6fc2c566a0aa8c"}]  # fmt: skip
    account.put("steps/9-1/model.pt", b"ab")
    head = {"generation": 1, "attempt": 1, "step": "9", "files": files, "done": True,
            "exit_code": 0}  # fmt: skip
    account.put("head.json", head)
    account.put("log/1.txt", b"epoch 90 done\n")
    steps = account.tick()
    assert steps[:2] == ["Write: the job ended: done", "End: the job ended"]
    assert steps[-1] == "Mail: the job ended"
    assert account.machines() == []
    [_, job] = account.jobs.one("resnet")
    assert exit_code(job) == 0
    with pytest.raises(OperatorError, match="not what the job uploaded"):
        account.jobs.fetch("resnet", account.folder / "result")
    account.tick(minutes=61)
    assert account.jobs.all(print) == []
    assert "deleted resnet: 4 objects" in account.jobs.delete("resnet")
    assert account.start(DOCUMENT)


def test_a_volume_is_created_proved_and_granted_and_sealed_at_the_end(account: Account) -> None:
    account.start(VOLUME)
    account.tick()
    steps = account.tick()
    [volume] = account.ec2.describe_volumes(
        Filters=[{"Name": "tag:spotkeeper:job", "Values": ["resnet"]}]
    )["Volumes"]
    name = volume["VolumeId"]
    assert volume["Encrypted"]
    assert volume["Attachments"][0]["InstanceId"] == account.machines()[0]["InstanceId"]
    assert not [step for step in steps if "Grant" in step]
    assert account.machines()[0]["tags"]["spotkeeper:volume"] == name
    steps = account.tick({"event": "proved", "volume": name})
    assert steps[:2] == ["Write: proved", "Grant: generation 1"]
    assert account.machines()[0]["tags"]["spotkeeper:grant"] == f"1 {name}"
    done = {"event": "exited", "exit_code": 0, "generation": 1}
    steps = [*account.tick(done), *account.tick(), *account.tick()]
    assert "TakeSnapshot: the seal" in steps
    assert steps[-1] == "Mail: the job ended"
    left = account.ec2.describe_volumes(
        Filters=[{"Name": "tag:spotkeeper:job", "Values": ["resnet"]}]
    )
    assert left["Volumes"] == []
    [seal] = account.ec2.describe_snapshots(
        OwnerIds=["self"], Filters=[{"Name": "tag:spotkeeper:job", "Values": ["resnet"]}]
    )["Snapshots"]
    assert {"Key": "spotkeeper:seal", "Value": "true"} in seal["Tags"]
    assert "1 snapshots, 0 volumes" in account.jobs.delete("resnet")


def test_a_kept_root_is_sealed_and_the_next_machine_starts_from_an_image_of_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.start(ROOT)
    cloud = wiring.job_ports().cloud
    do, lost = cloud.do, [TimedOut("no answer")]

    def answered_once(spec: JobSpec, job: Job, step: Step) -> str:
        made = do(spec, job, step)
        if isinstance(step, RegisterImage) and lost:
            raise lost.pop()
        return made

    monkeypatch.setattr(cloud, "do", answered_once)
    steps = account.tick()
    [first] = account.machines()
    [disk] = first["BlockDeviceMappings"]
    root = disk["Ebs"]["VolumeId"]
    assert steps[-3:] == ["KeepRoot: it stays after the machine", "Write: generation 1",
                          "Grant: generation 1"]  # fmt: skip
    assert disk["Ebs"]["DeleteOnTermination"] is False
    account.ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    with pytest.raises(TurnFailed, match="no answer"):
        account.tick()
    account.tick()
    [image] = account.ec2.describe_images(Owners=["self"])["Images"]
    seal = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    [sealed] = account.ec2.describe_snapshots(SnapshotIds=[seal])["Snapshots"]
    assert sealed["VolumeId"] == root
    assert {"Key": "spotkeeper:nonce", "Value": NONCE} in image["Tags"]
    [second] = account.machines()
    assert second["ImageId"] == image["ImageId"]
    account.tick({"event": "exited", "exit_code": 0, "generation": 2})
    for _ in range(4):
        account.tick()
    [last] = account.ec2.describe_images(Owners=["self"])["Images"]
    assert last["ImageId"] != image["ImageId"]
    assert account.jobs.one("resnet")[1].mailed
    mine: Any = [{"Name": "tag:spotkeeper:job", "Values": ["resnet"]}]
    assert account.ec2.describe_volumes(Filters=mine)["Volumes"] == []
    assert len(account.ec2.describe_snapshots(OwnerIds=["self"], Filters=mine)["Snapshots"]) == 1
    assert "1 snapshots, 0 volumes, 1 images" in account.jobs.delete("resnet")


@pytest.mark.parametrize("text", [DOCUMENT, VOLUME], ids=["checkpoints", "volume"])
def test_complete_copies_of_the_tags_end_and_delete_nothing(account: Account, text: str) -> None:
    """Whoever may create tags cannot have another machine, volume or snapshot ended."""
    account.start(text)
    account.tick()
    account.tick()
    [mine] = account.machines()
    ec2 = account.ec2
    image = mine["ImageId"]
    other = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    zone = mine["Placement"]["AvailabilityZone"]
    volume = ec2.create_volume(AvailabilityZone=zone, Size=1)["VolumeId"]
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    copied: Any = [{"Key": key, "Value": value} for key, value in mine["tags"].items()]
    for kind in ({"attempt": "0"}, {"attempt": "99"}, {"generation": "1", "move": "1"},
                 {"generation": "0", "move": "0", "seal": "true", "epoch": "1"}):  # fmt: skip
        tags: Any = [{"Key": f"spotkeeper:{key}", "Value": value} for key, value in kind.items()]
        ec2.create_tags(Resources=[other, volume, snapshot], Tags=[*copied, *tags])
        account.tick()
    account.jobs.stop("resnet", now=True)
    for _ in range(4):
        account.tick()
    assert [it["InstanceId"] for it in account.machines()] == [other]
    assert ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"] == "available"
    assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
    account.tick(minutes=61)
    account.jobs.delete("resnet")
    assert ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]


def test_reports_that_are_wrong_repeated_or_late_change_nothing(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.tick({"event": "running", "step": "7", "seq": 50})
    before = account.jobs.one("resnet")[1]
    done = {"event": "exited", "exit_code": 0, "generation": 1}
    account.tick(
        {"event": "running", "step": "7", "seq": 50},
        {"event": "running", "step": "3", "seq": 4},
        {**done, "instance_id": "i-0123456789abcdef0"},
        {**done, "attempt": 2},
        {**done, "attempt": -1},
        {**done, "event": "finished"},
        {"version": 9},
    )
    handler({"Records": [{"body": "{"}, {"body": "[]"}, {}]}, Context())  # type: ignore[arg-type]
    after = account.jobs.one("resnet")[1]
    assert (after.told, after.outcome) == (before.told, None)


def test_tags_of_a_jobs_machine_that_make_no_sense_stop_nothing(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    [mine] = account.machines()
    for name in ("draining", "attempt", "grant"):
        tag: Any = {"Key": f"spotkeeper:{name}", "Value": "tomorrow"}
        account.ec2.create_tags(Resources=[mine["InstanceId"]], Tags=[tag])
    account.tick()
    account.jobs.stop("resnet", now=False)
    account.tick()
    assert account.machines()[0]["tags"]["spotkeeper:draining"] != "tomorrow"


def test_a_warning_launches_the_next_machine_before_the_first_is_gone(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    [machine] = account.machines()
    warning = {
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": account.now.isoformat(),
        "detail": {"instance-id": machine["InstanceId"], "instance-action": "terminate"},
    }
    handler({"Records": [{"body": json.dumps(warning)}]}, Context())  # type: ignore[arg-type]
    assert len(account.machines()) == 2
    account.ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])
    account.tick()
    assert account.machines()[0]["tags"]["spotkeeper:grant"] == "2"


def test_a_command_that_fails_is_started_again_and_then_no_more(account: Account) -> None:
    account.start(DOCUMENT + "[end]\nmax_restarts = 1\n")
    account.tick()
    failed = {"event": "exited", "exit_code": 3, "generation": 1}
    assert "exit code 3: restart 1 of 1" in account.tick(failed)[0]
    account.tick()
    account.tick({**failed, "generation": 2})
    [_, job] = account.jobs.one("resnet")
    assert (job.outcome, exit_code(job)) == ("failed", 3)


def test_a_launch_that_aws_refuses_is_shown_and_tried_again_later(account: Account) -> None:
    account.start(DOCUMENT)
    template = os.environ["JOB_LAUNCH_TEMPLATE_ID"]
    account.ec2.delete_launch_template(LaunchTemplateId=template)
    assert account.tick()[-2] == "Start: attempt 1"
    assert "InvalidLaunchTemplateId.NotFound" in status_text(*account.jobs.one("resnet"))
    assert account.tick(minutes=0.5) == []
    assert account.tick(minutes=0.6)[-2] == "Start: attempt 2"
    told = turns_text(account.jobs.turns("resnet", None, account.now))
    assert told.count("AWS refused spot us-east-1a us-east-1b us-east-1c: ") == 2
    assert len(json.loads(turns_json(account.jobs.turns("resnet", None, account.now)))) == 2
    hour = timedelta(hours=1)
    assert not account.jobs.turns(
        "resnet", (account.now - 2 * hour, account.now - hour), account.now
    )
    with pytest.raises(OperatorError, match="there is no job other"):
        account.jobs.turns("other", None, account.now)
    with pytest.raises(TurnFailed, match="cannot be read"):
        table = boto3.client("dynamodb", "us-east-1")
        table.update_item(
            TableName=TABLE,
            Key={"pk": {"S": "job#resnet"}, "sk": {"S": "state"}},
            UpdateExpression="SET document = :text",
            ExpressionAttributeValues={":text": {"S": '{"version": 2}'}},
        )
        account.tick()


@pytest.mark.parametrize(("now", "left"), [(True, 0), (False, 1)])
def test_stop_ends_at_once_or_at_a_checkpoint(account: Account, now: bool, left: int) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.jobs.stop("resnet", now=now)
    account.tick()
    assert len(account.machines()) == left
    if left:
        assert "spotkeeper:draining" in account.machines()[0]["tags"]
        account.tick({"event": "left", "generation": 1})
    assert account.jobs.one("resnet")[1].outcome == "stopped"
    assert account.machines() == []


def test_a_lost_item_is_rebuilt_from_the_bucket_and_tags(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    head = {"generation": 1, "attempt": 1, "step": "9", "files": [], "done": False,
            "exit_code": None}  # fmt: skip
    account.put("head.json", head)
    account.lose_item()
    account.tick()
    account.tick()
    [machine] = account.machines()
    assert machine["tags"]["spotkeeper:attempt"] == "2"
    assert machine["tags"]["spotkeeper:grant"] == "2"


def test_a_root_that_is_gone_before_it_is_sealed_waits_for_a_person(
    account: Account, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    account.start(ROOT)
    account.tick()
    account.ec2.terminate_instances(InstanceIds=[account.machines()[0]["InstanceId"]])
    account.tick()
    account.tick()
    [second] = account.machines()
    account.ec2.terminate_instances(InstanceIds=[second["InstanceId"]])
    root = account.jobs.one("resnet")[1].home
    account.ec2.delete_volume(VolumeId=root)
    account.tick()
    capsys.readouterr()
    assert account.tick(minutes=11) == []
    assert "JobsStuck" in capsys.readouterr().out
    told = str(vars(caplog.records[-1]))
    assert f"its volume {root} is gone: spotkeeper job recover resnet" in told
    account.jobs.recover("resnet", second["ImageId"], account.now, account.confirmed.append)
    steps = account.tick()
    assert account.machines()[0]["ImageId"] == second["ImageId"], steps


def test_a_lost_item_of_a_kept_root_is_rebuilt_and_the_root_is_kept(account: Account) -> None:
    account.start(ROOT)
    account.tick()
    [first] = account.machines()
    account.lose_item()
    for _ in range(3):
        account.tick()
    [image] = account.ec2.describe_images(Owners=["self"])["Images"]
    seal = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    [sealed] = account.ec2.describe_snapshots(SnapshotIds=[seal])["Snapshots"]
    assert sealed["VolumeId"] == first["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    [second] = account.machines()
    assert second["ImageId"] == image["ImageId"]
    # And once more, while an image and no other root than that of the machine is there.
    account.lose_item()
    for _ in range(3):
        account.tick()
    [third] = account.machines()
    assert third["ImageId"] not in (first["ImageId"], image["ImageId"])


def test_a_lost_item_of_a_volume_is_rebuilt_and_the_volume_is_written_on(account: Account) -> None:
    account.start(VOLUME)
    account.tick()
    account.tick()
    [machine] = account.machines()
    name = machine["tags"]["spotkeeper:volume"]
    account.tick({"event": "proved", "volume": name})
    account.lose_item()
    assert machine["InstanceId"] in account.confirmed[0]
    assert name in account.confirmed[0]
    account.tick()
    account.tick()
    account.tick()
    [machine] = account.machines()
    assert machine["tags"]["spotkeeper:attempt"] == "2"
    assert machine["tags"]["spotkeeper:volume"] == name
    account.tick({"event": "proved", "volume": name})
    assert account.machines()[0]["tags"]["spotkeeper:grant"] == f"1 {name}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("nodes = 2", "nodes: Extra inputs"),
        ("machines = 4", "one machine"),
        ("[state]\ncheckpoints='a'\nvolume={mount='/d',size_gib=1}", "either checkpoints or"),
        ("[state]\nvolume={mount='/d',size_gib=0}", "greater than or equal to 1"),
        ("[end]\nmax_hours = -1", "greater than 0"),
        ("[end]\nidle_after = 'soon'", "is no time"),
        ("[state]\nefs = 'fs-1'", "efs is not offered"),
        ("[end]\non_done = 'image'", 'needs machine.root = "keep"'),
        ("root = 'keep'\n[state]\nvolume={mount='/d',size_gib=1}", "not offered with state.volume"),
    ],
)
def test_a_wrong_document_is_refused_with_its_fields(
    tmp_path: Path, more: str, message: str
) -> None:
    path = tmp_path / "job.toml"
    head, _, machine = DOCUMENT.partition("[machine]")
    first, rest = ("", more) if more.startswith(("[", "root")) else (more, "")
    path.write_text(f"{head}{first}\n[machine]{machine}{rest}\n", encoding="utf-8")
    with pytest.raises(OperatorError, match=message):
        read_document(path)


def test_start_names_everything_that_is_wrong_with_the_machine(account: Account) -> None:
    account.ec2.create_launch_template_version(
        LaunchTemplateId=account.jobs._parameters["JobLaunchTemplateId"],
        LaunchTemplateData={"ImageId": "ami-12c6146b"},
    )
    with pytest.raises(OperatorError) as error:
        account.start(DOCUMENT.replace("g5.xlarge", "g9.huge"))
    for part in ("g9.huge is not offered", "must terminate", "InstanceMetadataTags", "JobRole"):
        assert part in str(error.value)
    assert account.jobs.all(print) == []


def test_the_output_of_a_job_is_followed_from_machine_to_machine(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    # CloudWatch Logs refuses events that are 14 days old.
    monkeypatch.setattr("moto.logs.models.utcnow", lambda: account.now.replace(tzinfo=None))
    account.start(DOCUMENT)
    account.tick()
    jobs, logs = account.jobs, boto3.client("logs", "us-east-1")
    account.put("log/1.txt", b"from the bucket")
    assert [*jobs.logs("resnet")] == ["from the bucket"]
    jobs._log_group = "/spotkeeper/spotkeeper/jobs"
    logs.create_log_group(logGroupName=jobs._log_group)
    assert [*jobs.logs("resnet")] == ["from the bucket"]

    def printed(attempt: int, *lines: str) -> None:
        stream: Any = {"logGroupName": jobs._log_group, "logStreamName": f"resnet/{attempt}"}
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_stream(**stream)
        at = int(account.now.timestamp() * 1000)
        logs.put_log_events(**stream, logEvents=[{"timestamp": at, "message": it} for it in lines])

    def next_machine() -> None:
        account.tick({"event": "exited", "exit_code": 3, "generation": 1})
        account.tick()
        printed(2, "second")

    def over() -> None:
        printed(2, "done")
        account.jobs.stop("resnet", now=True)
        account.tick()

    printed(1, *(f"line {n}" for n in range(300)))
    assert [*jobs.logs("resnet")] == [f"line {n}" for n in range(100, 300)]
    waits = iter((lambda: printed(1, "more"), next_machine, over))
    found = [*jobs.logs("resnet", lambda: next(waits)())]
    assert found[200:] == ["more", "second", "done"]


def test_one_name_is_one_job(account: Account) -> None:
    assert account.start(DOCUMENT, dry_run=True)[-1] == "nothing was started (--dry-run)"
    account.start(DOCUMENT)
    for dry_run in (True, False):
        with pytest.raises(OperatorError, match="runs already"):
            account.start(DOCUMENT, dry_run=dry_run)


def test_code_is_packed_without_what_never_belongs_to_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("x")
    (tmp_path / "train.py").write_text("print(1)")
    assert b"train.py" not in pack(tmp_path / ".git")
    with pytest.raises(OperatorError, match="is no folder"):
        pack(tmp_path / "missing")


def zones(account: Account) -> list[str]:
    return sorted(it["AvailabilityZone"] for it in account.ec2.describe_subnets()["Subnets"])[:3]
