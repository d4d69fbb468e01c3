"""Jobs from `spotkeeper job start` to the mail, through the real function and commands."""

import contextlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.sns.models import sns_backends

from functions.keep_jobs.app import handler
from spotkeeper import wiring
from spotkeeper.domain.jobs.decide import NEVER_REPORTED
from spotkeeper.domain.jobs.job import Job, JobSpec
from spotkeeper.domain.jobs.steps import RegisterImage, Step
from spotkeeper.job_ports import NotMade
from spotkeeper.observability import TurnFailed
from spotkeeper.ports import TimedOut, Unavailable
from spotkeeper.turns.keep_jobs import _turn
from spotkeeper_lab.world import Context
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.explain import decisions, explain_text
from spotkeeper_operator.jobs import exit_code, pack, read_document, rights, status_text
from tests.builders import TABLE
from tests.jobs_account import NONCE, JobAccount, deploy, forget_clients, strict_images

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
class Account(JobAccount):
    """The account; time passes by hand."""

    now: datetime
    sent: int = 0
    turned: set[str] = field(default_factory=set)
    answer: dict[str, Any] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)

    def start(self, text: str, *, dry_run: bool = False) -> list[str]:
        path = self.folder / "job.toml"
        path.write_text(text, encoding="utf-8")
        return list(self.jobs.start(path, self.now, dry_run=dry_run))

    def tick(self, *reports: dict[str, Any], minutes: float = 1) -> list[str]:
        """Let a minute pass, and run the function on these reports."""
        self.now += timedelta(minutes=minutes)
        bodies = []
        for report in reports:
            self.sent += 1
            machine = self.machine
            stamped = {
                "instance_id": machine["InstanceId"],
                "attempt": int(machine["tags"]["spotkeeper:attempt"]),
                "seq": self.sent,
                "at": self.now.isoformat(),
            }
            bodies.append({**REPORT, **stamped, **report})
        return self.handle(*bodies)

    def handle(self, *bodies: object) -> list[str]:
        """Run the function on messages, if there are any; returns the steps of the job."""
        records = [
            {"messageId": f"m-{number}", "body": json.dumps(body)}
            for number, body in enumerate(bodies)
        ]
        event, context = ({"Records": records} if records else {}), Context()
        with patch("spotkeeper.turns.keep_jobs._turn", wraps=_turn) as turns:
            self.answer = handler(event, context)  # type: ignore[arg-type]
        self.turned = {call.args[0] for call in turns.call_args_list}
        reports = [call.args[1].report for call in turns.call_args_list[:1]]
        mine = [it for report in reports for it in report.records if it.fleet == "resnet"]
        requests = [outcome.request for record in mine for outcome in record.outcomes]
        # The time of a limit is written at any time, beside the other steps.
        return [request.text() for request in requests if request.step != "Limit"]

    @property
    def shown(self) -> str:
        """The words of the job's screen."""
        return " ".join(status_text(*self.jobs.one("resnet"), self.now).split())

    def ticks(self, number: int) -> list[str]:
        return [step for _ in range(number) for step in self.tick()]

    @property
    def machine(self) -> dict[str, Any]:
        """The only one."""
        [machine] = self.machines
        return machine

    def stop(self, *, now: bool) -> None:
        self.jobs.stop("resnet", now=now)
        self.tick()

    def pay(self, usd: float) -> None:
        self.jobs._table.change("resnet", lambda job: replace(job, usd=usd, rate=1.0))
        self.tick()

    @property
    def mails(self) -> list[Any]:
        topic = sns_backends[ACCOUNT_ID]["us-east-1"].topics[os.environ["JOB_TOPIC_ARN"]]
        return list(topic.sent_notifications)

    def end_machine(self) -> None:
        self.ec2.terminate_instances(InstanceIds=[self.machine["InstanceId"]])

    def image(self) -> tuple[str, str]:
        """The only image, and the volume that its snapshot is of."""
        [image] = self.images
        seal = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        [sealed] = self.ec2.describe_snapshots(SnapshotIds=[seal])["Snapshots"]
        return image["ImageId"], sealed["VolumeId"]

    def rebuild_item(self) -> None:
        """Lose the job's item, and have it rebuilt from its tags."""
        self.lose_item()
        self.jobs.recover("resnet", "tags", self.now, self.confirmed.append)

    def replace_document(self, name: str) -> None:
        """Have a job's item hold the document of a later release."""
        boto3.client("dynamodb", "us-east-1").update_item(
            TableName=TABLE,
            Key={"pk": {"S": f"job#{name}"}, "sk": {"S": "state"}},
            UpdateExpression="SET document = :text",
            ExpressionAttributeValues={":text": {"S": '{"version": 2}'}},
        )

    def put_head(self, sha256: str = "", *, path: str = "model.pt", done: bool = False) -> None:
        """Commit step 9 with one file of this hash."""
        key = "jobs/resnet/steps/9-1/model.pt"
        self.put("steps/9-1/model.pt", b"ab")
        file = {"path": path, "key": key, "bytes": 2, "sha256": sha256}
        code = 0 if done else None
        head = {"generation": 1, "attempt": 1, "step": "9", "files": [file], "done": done}
        self.put("head.json", {**head, "exit_code": code})


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with mock_aws(), strict_images():
        environment, stack = deploy("jobs")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(Aws, "stack", lambda *_: stack)
        made = Account(tmp_path, datetime.now(UTC))  # noqa: TID251 - moto stamps its own with it
        stamp = "moto.ec2.models.elastic_block_store.utcnow"
        monkeypatch.setattr(stamp, lambda: made.now.replace(tzinfo=None))
        monkeypatch.setattr(wiring, "now", lambda: made.now)
        forget_clients()
        yield made
        forget_clients()


def test_a_job_with_checkpoints_from_start_to_mail(account: Account) -> None:
    account.start(DOCUMENT)
    zones = sorted(it["AvailabilityZone"] for it in account.ec2.describe_subnets()["Subnets"])[:3]
    assert account.tick() == ["Write: spot in " + ", ".join(zones), "Start: attempt 1",
                              "Write: generation 1", "Grant: generation 1"]  # fmt: skip
    assert account.machine["InstanceLifecycle"] == "spot"
    expected = {"job": "resnet", "attempt": "1", "grant": "1", "nonce": NONCE}
    tags = {f"spotkeeper:{name}": value for name, value in expected.items()}
    assert tags.items() <= account.machine["tags"].items()
    assert "resnet prepares i-" in account.shown
    running = {"event": "running", "step": "000010", "generation": 1}
    assert account.tick({"event": "booted"}, running) == []
    assert "step 000010" in account.shown
    account.put_head("c4694f2e93d5c4e7", done=True)
    account.put("log/1.txt", b"epoch 90 done\n")
    steps = account.tick()
    assert steps[:2] == ["Write: the job ended: done", "End: the job ended"]
    assert steps[-1] == "Mail: the job ended"
    assert account.machines == []
    assert exit_code(account.job) == 0
    with pytest.raises(OperatorError, match="not what the job uploaded"):
        account.jobs.fetch("resnet", account.folder / "result")
    account.tick(minutes=61)
    assert account.jobs.all(print) == []
    assert "deleted resnet: 4 objects" in account.jobs.delete("resnet")
    assert account.start(DOCUMENT)


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
    root = account.machine["BlockDeviceMappings"][0]["Ebs"]
    assert steps[-3:] == ["KeepRoot: it stays after the machine", "Write: generation 1",
                          "Grant: generation 1"]  # fmt: skip
    assert root["DeleteOnTermination"] is False
    account.end_machine()
    with pytest.raises(TurnFailed, match="no answer"):
        account.tick()
    account.tick()
    image, sealed = account.image()
    assert sealed == root["VolumeId"]
    assert account.machine["ImageId"] == image
    account.tick({"event": "exited", "exit_code": 0, "generation": 2})
    account.ticks(4)
    assert account.image()[0] != image
    assert account.job.mailed
    assert (account.volumes, len(account.snapshots)) == ([], 1)
    assert "1 snapshots, 0 volumes, 1 images" in account.jobs.delete("resnet")


@pytest.mark.parametrize("text", [DOCUMENT, VOLUME], ids=["checkpoints", "volume"])
def test_complete_copies_of_the_tags_end_and_delete_nothing(account: Account, text: str) -> None:
    """Whoever may create tags cannot have another machine, volume or snapshot ended."""
    account.start(text)
    account.ticks(2)
    mine, ec2 = account.machine, account.ec2
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
    account.ticks(4)
    assert account.machine["InstanceId"] == other
    assert ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"] == "available"
    account.tick(minutes=61)
    account.jobs.delete("resnet")
    assert ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]


def test_reports_that_are_wrong_repeated_or_late_change_nothing(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.tick({"event": "running", "step": "7", "seq": 50})
    before = account.job
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
    assert (account.job.reports, account.job.outcome) == (before.reports, None)


LIMITED = "[end]\nmax_hours = 2\n"
HEAD = {"generation": 1, "step": "9", "done": False, "exit_code": None}
WRONG_HEADS = {
    "no JSON": b"{",
    "no object": b"[]",
    "infinite": json.dumps(HEAD).replace(": 1,", ": 1e999,").encode(),
    "infinite code": json.dumps(HEAD).replace("null", "1e999").encode(),
    "deep": b"[" * 100_000,
    "long number": b'{"generation": ' + b"9" * 5_000 + b"}",
    "long step": json.dumps(HEAD | {"step": "9" * 10_000}).encode(),
    "large": b" " * (5 << 20),
    "no UTF-8": b"\xff\xfe{",
}


def hours_until_it_ends(account: Account, *, fails: bool) -> float:
    """Let a machine report nothing but that it runs; return when it was ended."""
    for minute in range(0, 181, 15):
        if not account.machines:
            return minute / 60
        running = {"event": "running", "step": "7"}
        account.tick(running, minutes=14)
        with pytest.raises(TurnFailed) if fails else contextlib.nullcontext():
            account.tick()
    return 8.0


@pytest.mark.parametrize("head", WRONG_HEADS)
def test_a_job_ends_at_its_limit_whatever_its_head_says(account: Account, head: str) -> None:
    account.start(DOCUMENT + LIMITED)
    account.ticks(2)
    account.put("head.json", WRONG_HEADS[head])
    assert hours_until_it_ends(account, fails=True) <= 2.5


@pytest.mark.parametrize("read", ["describe_volumes", "describe_snapshots", "describe_subnets"])
def test_a_job_ends_at_its_limit_although_its_disks_and_subnets_cannot_be_read(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], read: str
) -> None:
    """No volume is called lost of which nothing was read."""
    account.start(VOLUME + LIMITED)
    account.ticks(8)
    cloud: Any = wiring.job_ports().cloud

    def refused(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation"}}, read)

    paginator = cloud._ec2.get_paginator
    monkeypatch.setattr(
        cloud._ec2,
        "get_paginator",
        lambda name: Mock(paginate=refused) if name == read else paginator(name),
    )
    monkeypatch.setattr(cloud._ec2, "describe_subnets", refused)
    cloud.__dict__.pop("_subnets", None)
    assert hours_until_it_ends(account, fails=read != "describe_subnets") <= 2.5
    assert "JobsStuck" not in capsys.readouterr().out


def test_a_subnet_that_was_deleted_stops_no_job(account: Account) -> None:
    account.start(DOCUMENT)
    deleted, *others = os.environ["JOB_SUBNET_IDS"].split(",")
    account.ec2.delete_subnet(SubnetId=deleted)
    account.tick()
    assert account.machine["SubnetId"] in others


OF_EC2 = {"source": "aws.ec2", "account": "123456789012"}
KINDS: dict[str, dict[str, Any]] = {
    "EC2 Instance State-change Notification": {
        "detail": {"instance-id": "{i}", "state": "running"}
    },
    "EC2 Spot Instance Interruption Warning": {"detail": {"instance-id": "{i}"}},
    "EBS Volume Notification": {"resources": ["arn:aws:ec2:us-east-1:1:volume/{v}"]},
    "EBS Snapshot Notification": {"detail": {"source": "arn:aws:ec2::us-east-1:volume/{v}"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_takes_the_turn_of_the_job_that_it_names_and_of_no_other(
    account: Account, kind: str
) -> None:
    account.start(VOLUME)
    account.start(VOLUME.replace("resnet", "other"))
    account.ticks(6)
    job = account.job
    told = json.dumps(
        {"detail-type": kind, "time": account.now.isoformat(), **OF_EC2, **KINDS[kind]}
    )
    foreign = told.replace("{i}", "i-0123456789abcdef0").replace("{v}", "vol-0123456789abcdef0")
    for _ in range(30):
        account.handle(json.loads(foreign))
        assert (account.turned, account.answer) == (set(), {"batchItemFailures": []})
    mine = told.replace("{i}", job.machine or "i-").replace("{v}", job.home)
    account.handle(json.loads(mine))
    assert account.turned == {"resnet"}


def test_a_broken_job_costs_no_other_job_a_message(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda takes concurrency from all jobs for an error: failed messages are named instead."""
    account.start(DOCUMENT)
    account.start(DOCUMENT.replace("resnet", "broken"))
    account.tick()
    change = account.jobs._table.__class__.change

    def refused(self: Any, name: str, changed: Callable[[Job], Job]) -> Job | None:
        if name == "broken":
            raise Unavailable("job broken cannot be read")
        return change(self, name, changed)

    monkeypatch.setattr(account.jobs._table.__class__, "change", refused)
    machine = {"instance_id": account.job.machine, "attempt": 1, "at": account.now.isoformat()}
    report = {**REPORT, **machine, "event": "running", "step": "7"}
    account.handle({**report, "seq": 1}, {**report, "seq": 2, "job": "broken"}, "no report")
    assert account.answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
    assert [told.step for told in account.job.reports.values()] == ["7"]


def test_tags_of_a_jobs_machine_that_make_no_sense_stop_nothing(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    mine = account.machine["InstanceId"]
    names = ("draining", "attempt", "grant")
    tags: Any = [{"Key": f"spotkeeper:{name}", "Value": "tomorrow"} for name in names]
    account.ec2.create_tags(Resources=[mine], Tags=tags)
    account.tick()
    account.jobs.stop("resnet", now=False)
    account.tick()
    assert account.machine["tags"]["spotkeeper:draining"] != "tomorrow"


def test_a_warning_launches_the_next_machine_before_the_first_is_gone(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    name = account.machine["InstanceId"]
    warning = "EC2 Spot Instance Interruption Warning"
    detail = {"instance-id": name, "instance-action": "terminate"}
    event = {"detail-type": warning, "time": account.now.isoformat(), "detail": detail}
    for other in ({"account": "999999999999"}, {"source": "mine"}):
        account.handle({**event, **OF_EC2, **other})
    assert len(account.machines) == 1, "these are no events of EC2, of this account"
    account.handle({**event, **OF_EC2})
    assert len(account.machines) == 2
    account.ec2.terminate_instances(InstanceIds=[name])
    account.tick()
    assert account.machine["tags"]["spotkeeper:grant"] == "2"


def test_a_launch_that_aws_refuses_is_shown_and_tried_again_later(account: Account) -> None:
    account.start(DOCUMENT)
    template = os.environ["JOB_LAUNCH_TEMPLATE_ID"]
    account.ec2.delete_launch_template(LaunchTemplateId=template)
    assert account.tick()[-1] == "Start: attempt 1"
    assert "InvalidLaunchTemplateId.NotFound" in account.shown
    assert account.tick(minutes=0.5) == []
    assert account.tick(minutes=0.6)[-1] == "Start: attempt 2"
    text = explain_text(decisions(account.jobs.records("resnet", None, account.now)))
    assert text.count("Start: attempt") == 2
    assert text.count("InvalidLaunchTemplateId.NotFound") == 2
    earlier = (account.now - timedelta(hours=2), account.now - timedelta(hours=1))
    assert not account.jobs.records("resnet", earlier, account.now).records
    with pytest.raises(OperatorError, match="there is no job other"):
        account.jobs.records("other", None, account.now)
    account.replace_document("resnet")
    with pytest.raises(TurnFailed, match="cannot be read"):
        account.tick()


@pytest.mark.parametrize(
    ("ends", "outcome", "waits"),
    [
        (lambda it: it.tick({"event": "idle", "generation": 1}), "idle", False),
        (lambda it: it.tick(minutes=11), "max_hours", False),
        (lambda it: it.pay(2.5), "max_usd", False),
        (lambda it: it.stop(now=False), "stopped", True),
        (lambda it: (it.stop(now=False), it.pay(2.5)), "stopped", False),
    ],
    ids=["idle", "max_hours", "max_usd", "stop", "stop and max_usd"],
)
def test_a_job_ends_and_only_a_stop_waits_for_a_checkpoint_until_a_limit_is_reached(
    account: Account, ends: Callable[[Account], object], outcome: str, waits: bool
) -> None:
    account.start(DOCUMENT + "[end]\nmax_hours = 0.25\nmax_usd = 2\n")
    assert account.tick() == ["Write: no price can be read, and max_usd needs one"]
    account.pay(0)
    account.tick()
    assert "spotkeeper:draining" not in account.machine["tags"]
    ends(account)
    assert account.machine["tags"]["spotkeeper:draining"].endswith(" checkpoint") is waits
    account.tick({"event": "left", "generation": 1})
    assert (account.job.outcome, account.machines) == (outcome, [])


def test_a_stop_waits_for_the_next_checkpoint_and_not_for_one_that_never_comes(
    account: Account,
) -> None:
    account.start(DOCUMENT + '[state]\ncommits_within = "30m"\n')
    account.ticks(2)
    account.stop(now=False)
    assert account.machine["tags"]["spotkeeper:draining"].endswith(" checkpoint")
    for _ in range(28):
        assert account.tick({"event": "running", "generation": 1}) == []
    steps = account.tick({"event": "running"}) + account.tick({"event": "running"})
    assert steps == ["Drain: to stop without a checkpoint"]
    assert " " not in account.machine["tags"]["spotkeeper:draining"]
    assert "End: it did not leave in time" in account.ticks(4)


def test_a_job_that_kept_nothing_says_so_everywhere(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    ignored = "checkpoint-5: no file of it matches complete = 'trainer_stat.json'"
    running = {"event": "running", "generation": 1, "ignored": ignored}
    account.tick({**running, "uncommitted_s": 1800})
    assert account.mails == []
    for _ in range(2):
        account.tick({**running, "uncommitted_s": 3700})
    [(_, mail, subject, *_)] = account.mails
    assert subject == "Job resnet commits nothing"
    assert f"Not committed: {ignored}" in mail
    shown = account.shown
    assert "no checkpoint was committed" in shown
    assert "warning nothing was committed for 3700 s" in shown
    assert f"ignored {ignored}" in shown
    ended: dict[str, Any] = {"attempt": 1, "step": None, "files": [], "done": True, "exit_code": 0}
    account.put("head.json", HEAD | ended)
    account.tick({"event": "exited", "exit_code": 0, "generation": 1, "ignored": ignored})
    account.ticks(2)
    mail = account.mails[-1][1]
    assert "No checkpoint was committed" in mail
    assert ignored in mail
    assert "The result is in" not in mail
    assert "done, exit code 0, no checkpoint was committed" in account.shown
    with pytest.raises(OperatorError, match="no checkpoint of resnet was committed"):
        account.jobs.fetch("resnet", account.folder / "result")


def test_a_job_ends_at_once_and_its_mail_and_status_say_why(account: Account) -> None:
    account.start(DOCUMENT + "[end]\nmax_restarts = 0\n")
    account.tick()
    account.put("log/1.txt", b"no data")
    reason = "code.tar.gz cannot be unpacked: a link to outside"
    account.tick(
        {"event": "exited", "exit_code": 3, "generation": 1},
        {"event": "failed", "generation": 1, "reason": reason},
    )
    assert (account.job.outcome, exit_code(account.job), account.machines) == ("failed", 3, [])
    assert f"failed {reason}" in account.shown
    [(_, mail, subject, *_)] = account.mails
    assert subject == "Job resnet: failed"
    assert mail.startswith("Job resnet ended: it failed (exit code 3).")
    assert f"The last failure: {reason}" in mail
    assert mail.endswith("The last lines of its output:\nno data")
    account.jobs.delete("resnet")
    account.start(DOCUMENT)
    account.tick()
    account.stop(now=True)
    assert (account.job.outcome, account.machines) == ("stopped", [])


@pytest.mark.parametrize(
    ("failures", "ends_after"),
    [
        pytest.param([{"exit_code": 127, "ran_s": 1}] * 4, 2, id="alike, at once"),
        pytest.param([{"exit_code": 127, "ran_s": 60}] * 4, 4, id="alike, later"),
        pytest.param([{"exit_code": code, "ran_s": 1} for code in (1, 2, 1, 2)], 4, id="unlike"),
        pytest.param([{"exit_code": 1}] * 4, 4, id="an agent of an earlier release"),
        pytest.param([{"event": "failed", "reason": "no user", "ran_s": 0}] * 4, 2, id="prepared"),
        pytest.param(
            [{"event": "failed", "reason": "setup: exit code 1", "ran_s": 0, "final": True}], 1,
            id="final",
        ),
    ],
)  # fmt: skip
def test_machines_that_fail_alike_at_once_end_the_job_sooner(
    account: Account, failures: list[dict[str, Any]], ends_after: int
) -> None:
    account.start(DOCUMENT)
    account.tick()
    for number, failure in enumerate(failures, 1):
        assert account.job.outcome is None
        account.tick({"event": "exited", "generation": number, **failure})
        account.ticks(2)
        if number == ends_after:
            break
    assert (account.job.outcome, account.job.restarts) == ("failed", ends_after - 1)
    mail = account.mails[-1][1]
    assert "What next: spotkeeper job logs resnet; when it is mended, start it again" in mail
    if "exit_code" in failures[0] and failures[0]["exit_code"] == 127:
        assert "exit code 127 (the program was not found)" in mail
    account.put_head()
    account.jobs.recover("resnet", "9", account.now, print)
    account.tick()
    account.tick({"event": "exited", "exit_code": 127, "ran_s": 1, "generation": ends_after + 1})
    assert account.job.outcome is None, "the same failure, of a job that was mended"


def test_a_job_whose_machines_never_report_ends_and_says_so(account: Account) -> None:
    account.start(DOCUMENT)
    for minutes in (1, 21, 1, 1) * 4:
        account.tick(minutes=minutes)
    assert NEVER_REPORTED in account.mails[-1][1]
    assert f"failed no report for 20 minutes; {NEVER_REPORTED}" in account.shown


def test_the_first_line_says_what_is_wrong_since_when_and_what_comes_next(account: Account) -> None:
    account.start(DOCUMENT)

    def line() -> str:
        # Its hours are its own, on any day.
        return re.sub(r"\d\d:\d\d", "HH:MM", account.shown.partition(" spent ")[0])

    dry = "InsufficientInstanceCapacity: We currently do not have sufficient g5.xlarge capacity"
    for refusal, expected in (
        (dry, "AWS has no capacity; next try HH:MM; on-demand from HH:MM on; more instance types or"
         " subnets would help"),
        ("VcpuLimitExceeded: more", "AWS refuses it (quota); next try HH:MM; on-demand from HH:MM"
         " on; correct what AWS says"),
    ):  # fmt: skip
        with patch("spotkeeper.adapters.ec2.jobs.AwsJobs.do", side_effect=NotMade(refusal)):
            account.tick(minutes=3)
        assert line() == f"resnet no machine since HH:MM UTC: {expected}"
        account.jobs._table.change("resnet", lambda job: replace(job, refused={}))
    account.tick()
    account.ticks(6)
    machine = account.machine["InstanceId"]
    silent = "; NO REPORT since HH:MM UTC: after 20 min it is replaced"
    assert line() == f"resnet prepares {machine}{silent}; {NEVER_REPORTED}"
    account.tick({"event": "running", "step": "7", "generation": 1})
    assert line() == f"resnet runs on {machine}, step 7"
    account.ticks(4)
    assert line() == f"resnet runs on {machine}, step 7{silent}"
    account.now += timedelta(minutes=3)
    assert line().startswith("resnet UNKNOWN: no turn has looked at it since ")
    account.put_head()
    account.tick({"event": "exited", "exit_code": 0, "generation": 1, "step": "9"})
    account.ticks(2)
    account.now += timedelta(hours=2)
    assert line().endswith(" UTC: done, exit code 0, step 9; spotkeeper job fetch resnet DIRECTORY")


def test_mail_and_status_name_interruptions_and_hours_by_market(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.tick({"event": "running", "generation": 1, "doing": "data: 12.3 of 100.0 GB"})
    machine = account.machine["InstanceId"]
    preparing = account.shown
    assert preparing.startswith(f"resnet prepares {machine}: data: 12.3 of 100.0 GB")
    account.tick({"event": "committed", "generation": 1, "step": "7"}, minutes=9)
    account.ec2.terminate_instances(InstanceIds=[machine])
    account.ticks(2)
    account.tick({"event": "exited", "exit_code": 0, "generation": 2, "step": "9"}, minutes=4)
    account.ticks(2)
    mail = account.mails[-1][1]
    assert "interruptions: 1; restarts after errors: 0" in mail
    assert "0.5 h on spot, 0.0 h on demand" in mail
    assert "The last commit is step 9." in mail


def test_a_dry_run_prints_what_the_machine_s_role_needs_for_data_and_secrets(
    account: Account,
) -> None:
    text = DOCUMENT.replace("[machine]", (
        'secrets = {A = "ssm:/team/wandb", B = "secretsmanager:hf"}\n'
        'data = {s3 = "s3://sets/imagenet/"}\n[machine]'
    ))  # fmt: skip
    lines = account.start(text, dry_run=True)
    policy = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
    assert {one["Action"]: one["Resource"] for one in policy["Statement"]} == {
        "ssm:GetParameter": "arn:aws:ssm:us-east-1:*:parameter/team/wandb",
        "secretsmanager:GetSecretValue": "arn:aws:secretsmanager:us-east-1:*:secret:hf-??????",
        "s3:GetObject": "arn:aws:s3:::sets/imagenet/*",
        "s3:ListBucket": "arn:aws:s3:::sets",
    }
    in_gov_cloud = rights(read_document(account.folder / "job.toml"), "us-gov-west-1", "aws-us-gov")
    assert {one["Resource"].partition(":s")[0] for one in in_gov_cloud} == {"arn:aws-us-gov"}


def test_a_job_goes_on_from_the_step_that_is_named(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.put_head(done=True)
    head = account.get("head.json")
    account.put("head.json", {**head, "previous": {"step": "8", "files": []}})
    account.ticks(2)
    assert account.machines == []
    for step in ("7", ""):
        with pytest.raises(OperatorError, match="has steps 9 and 8"):
            account.jobs.recover("resnet", step, account.now, print)
    account.jobs.recover("resnet", "8", account.now, print)
    gone_back = {"step": "8", "previous": None, "done": False, "exit_code": None}
    assert gone_back.items() <= account.get("head.json").items()
    account.tick()
    assert account.machine["tags"]["spotkeeper:grant"] == "2"


def test_a_lost_item_is_rebuilt_from_the_bucket_and_tags(account: Account) -> None:
    account.start(DOCUMENT)
    account.tick()
    account.put_head()
    account.rebuild_item()
    account.ticks(2)
    tags = account.machine["tags"]
    assert (tags["spotkeeper:attempt"], tags["spotkeeper:grant"]) == ("2", "2")


def test_a_root_that_is_gone_before_it_is_sealed_waits_for_a_person(
    account: Account, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    account.start(ROOT)
    account.tick()
    account.end_machine()
    account.ticks(2)
    image, root = account.machine["ImageId"], account.job.home
    account.end_machine()
    account.ec2.delete_volume(VolumeId=root)
    account.tick()
    capsys.readouterr()
    assert account.tick(minutes=11) == []
    assert "JobsStuck" in capsys.readouterr().out
    told = str(vars(caplog.records[-1]))
    gone = f"its volume {root} is gone: spotkeeper job recover resnet"
    assert gone in told
    assert account.shown.startswith(f"resnet STUCK: {gone} spent ")
    account.jobs.recover("resnet", image, account.now, account.confirmed.append)
    steps = account.tick()
    assert account.machine["ImageId"] == image, steps


def test_a_lost_item_of_a_kept_root_is_rebuilt_and_the_root_is_kept(account: Account) -> None:
    account.start(ROOT)
    account.tick()
    first = account.machine
    account.rebuild_item()
    account.ticks(3)
    image, sealed = account.image()
    assert sealed == first["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    assert account.machine["ImageId"] == image
    # And once more, while an image and no other root than that of the machine is there.
    account.rebuild_item()
    account.ticks(3)
    assert account.machine["ImageId"] not in (first["ImageId"], image)


def test_a_lost_item_of_a_volume_is_rebuilt_and_the_volume_is_written_on(account: Account) -> None:
    account.start(VOLUME)
    account.ticks(2)
    machine = account.machine
    name = machine["tags"]["spotkeeper:volume"]
    [volume] = account.volumes
    assert (volume["VolumeId"], volume["Encrypted"]) == (name, True)
    assert "spotkeeper:grant" not in machine["tags"], "nothing is written before it is proved"
    account.tick({"event": "proved", "volume": name})
    account.rebuild_item()
    assert machine["InstanceId"] in account.confirmed[0]
    assert name in account.confirmed[0]
    account.ticks(3)
    tags = account.machine["tags"]
    assert (tags["spotkeeper:attempt"], tags["spotkeeper:volume"]) == ("2", name)
    account.tick({"event": "proved", "volume": name})
    assert account.machine["tags"]["spotkeeper:grant"] == f"1 {name}"


def test_a_copy_that_is_pending_while_a_lost_item_is_rebuilt_is_not_left(account: Account) -> None:
    """Both volumes are gone; the job goes on from the complete copy, which is older."""
    account.start(VOLUME)
    account.ticks(2)
    own = {"generation": "1", "epoch": "1", "seal": "false"}
    tagged = account.machine["tags"] | {f"spotkeeper:{it}": text for it, text in own.items()}
    tags: Any = [{"Key": it, "Value": text} for it, text in tagged.items()]
    account.end_machine()
    made = []
    for _ in range(2):
        volume = account.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
        made.append(account.ec2.create_snapshot(VolumeId=volume)["SnapshotId"])
        account.ec2.create_tags(Resources=made, Tags=tags)
        account.ec2.delete_volume(VolumeId=volume)
        account.now += timedelta(minutes=1)
    account.ec2.delete_volume(VolumeId=account.volumes[0]["VolumeId"])
    whole, pending = made
    copy = ec2_backends[ACCOUNT_ID]["us-east-1"].snapshots[pending]
    copy.status = "pending"
    account.rebuild_item()
    account.ticks(2)
    [volume] = account.volumes
    assert volume["SnapshotId"] == whole
    copy.status = "completed"
    account.tick({"event": "proved", "volume": volume["VolumeId"]})
    account.jobs.stop("resnet", now=True)
    account.ticks(6)
    [left] = account.snapshots
    assert left["VolumeId"] == volume["VolumeId"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("nodes = 2", "a job runs on one machine"),
        ("machines = 4", "one machine"),
        ("[state]\ncheckpoints='a'\nvolume={mount='/d',size_gib=1}", "either checkpoints or"),
        ("[state]\nvolume={mount='/d',size_gib=0}", "greater than or equal to 1"),
        ("[end]\nmax_hours = -1", "greater than 0"),
        ("[end]\nidle_after = 'soon'", "is not a time"),
        ("[state]\nefs = 'fs-1'", "efs is not offered"),
        ("image_uri = 'a.dkr.ecr/b'", "start the container by the command"),
        ("[data]\nsnapshot = 'snap-1'", "give data.s3 with mount = true"),
        ("[end]\non_done = 'image'", 'needs machine.root = "keep"'),
        ("root = 'keep'\n[state]\nvolume={mount='/d',size_gib=1}", "not offered with state.volume"),
        ('secrets = {A = "my-password"}', "secrets"),
        ('secrets = {EPOCHS = "ssm:epochs"}', "in environment and in secrets"),
        ('secrets = {SPOTKEEPER_JOB = "ssm:x"}', "is set by Spotkeeper"),
        ('outputs = "checkpoints"', "folders of their own"),
        ('outputs = "../up"', "outputs"),
        ('data = {s3 = "https://x"}', "data.s3"),
        ('setup = "pip install x"', "setup: must be a list in brackets"),
        (
            "root='drop'\non_demand = '5 minutes'",
            r"machine.on_demand: '5 minutes' is not a time[^\[]*$",
        ),
        ("[state]\ncommit_within = '1h'", "not known here: did you mean state.commits_within?"),
        ('secrets = {A = "x"}', "secrets.A: does not have .*: an example is ssm:/team/wandb"),
        ('end = {deadline = "36h"}', "needs end.work"),
        ('end = {deadline = -5, work = "1h"}', "-5 is neither a time of 10 minutes"),
        ('end = {deadline = 2026-12-01, work = "1h"}', "nor an instant with its zone"),
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
        LaunchTemplateId=os.environ["JOB_LAUNCH_TEMPLATE_ID"],
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
        jobs.stop("resnet", now=True)
        account.tick()

    printed(1, *(f"line {n}" for n in range(300)))
    assert [*jobs.logs("resnet")] == [f"line {n}" for n in range(100, 300)]
    waits = iter((lambda: printed(1, "more"), next_machine, over))
    found = [*jobs.logs("resnet", lambda: next(waits)())]
    assert found[200:] == ["more", "second", "done"]


def test_a_job_that_does_not_fit_before_its_deadline_is_not_started(account: Account) -> None:
    end = 'end = {deadline = 2020-12-01T08:00:00Z, work = "1h"}'
    with pytest.raises(OperatorError, match="does not fit before"):
        account.start(DOCUMENT.replace("[machine]", f"{end}\n[machine]"))


def test_one_name_is_one_job(account: Account) -> None:
    assert account.start(DOCUMENT, dry_run=True)[-1] == "nothing was started (--dry-run)"
    account.start(DOCUMENT)
    for dry_run in (True, False):
        with pytest.raises(OperatorError, match="already runs"):
            account.start(DOCUMENT, dry_run=dry_run)


def test_code_is_packed_without_what_never_belongs_to_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("x")
    (tmp_path / "train.py").write_text("print(1)")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path))) as archive:
        assert archive.getnames() == ["train.py"]
    with pytest.raises(OperatorError, match="is not a folder"):
        pack(tmp_path / "missing")
    (tmp_path / "train.link").symlink_to("train.py")
    assert pack(tmp_path)
    (tmp_path / "data").symlink_to("/mnt/data")
    with pytest.raises(OperatorError, match="code: 'data' is a link to an absolute"):
        pack(tmp_path)
