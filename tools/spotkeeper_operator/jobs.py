"""Jobs for an operator: start, look, stop, recover, fetch and delete."""

import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from spotkeeper.adapters.doctor.account import offers
from spotkeeper.adapters.doctor.groups import metadata_defaults
from spotkeeper.adapters.doctor.jobs import job_facts
from spotkeeper.adapters.dynamodb.decision_records import Records
from spotkeeper.adapters.dynamodb.jobs import JobItems
from spotkeeper.adapters.ec2.auto_scaling import described, filtered
from spotkeeper.adapters.ec2.jobs import (
    ATTEMPT,
    EPOCH,
    GENERATION,
    GRANT,
    JOB,
    MOVE,
    NONCE,
    SEAL,
    tags_of,
)
from spotkeeper.adapters.errors import aws_errors, classify
from spotkeeper.border.job_document import JobDocument, JobDocumentError, parse_job
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.doctor.checks import JOB_CHECKS
from spotkeeper.domain.doctor.facts import GONE, Unseen
from spotkeeper.domain.doctor.finding import Severity
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.jobs.deadline import ends_by, work_left
from spotkeeper.domain.jobs.decide import NEVER_REPORTED, SILENT, limit_of
from spotkeeper.domain.jobs.job import (
    AttemptReport,
    Job,
    JobSpec,
    Outcome,
    OwnImage,
    OwnMachine,
    OwnVolume,
    explained,
)
from spotkeeper.ports import Gone, Unreadable
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.text import extended, labelled, paragraphs

MOST_CODE_BYTES = 200 * 2**20
_FROM_ITS_BEGIN = "begin"
_LEFT_OUT = {".git", ".venv", "__pycache__", "node_modules"}


class Jobs:
    """The jobs of a stack."""

    def __init__(self, aws: Aws, stack: str) -> None:
        """Find the stack's bucket and table; raises `OperatorError` for a stack without jobs."""
        deployed = aws.stack(stack)
        self._aws, self._stack, self._parameters = aws, deployed, deployed.parameters
        self._log_group = deployed.outputs.get("JobLogGroup", "")
        if "JobBucket" not in deployed.outputs:
            raise OperatorError(
                f"stack {stack} runs no jobs: deploy it with Jobs=true, JobLaunchTemplateId and"
                " JobSubnetIds"
            )
        self.bucket = deployed.outputs["JobBucket"]
        self._table = JobItems(aws.dynamodb, deployed.table, tuple)

    @cached_property
    def _s3(self) -> Any:
        return self._aws.client("s3")

    @cached_property
    def _logs(self) -> Any:
        return self._aws.client("logs")

    # --- start

    def start(self, path: Path, now: datetime, *, dry_run: bool) -> Sequence[str]:
        """Check a job document, pack its code, and begin it; return what was done."""
        document = read_document(path)
        name, prefix = document.name, f"jobs/{document.name}/"
        current = self._table.read(name)
        if current and current[1].outcome is None:
            if not dry_run:
                # A command that was killed may have begun it without listing it.
                self._table.relist(name)
            raise OperatorError(f"job {name} already runs: `spotkeeper job status {name}`")
        wrong = [*self._wrong_machine(document)]
        if self._head(name)[1]:
            wrong.append(
                f"{name} has a result in the bucket: `spotkeeper job delete {name}`, or another"
                " name"
            )
        due = document.end.deadline
        if isinstance(due, datetime) and (due - now).total_seconds() < (document.end.work or 0):
            wrong.append(f"end.work does not fit before end.deadline, {due:%d %b %H:%M} UTC")
        archive = pack(path.parent / document.code) if document.code is not None else None
        if wrong:
            raise OperatorError("; ".join(wrong))
        size = f", {len(archive) / 2**20:.1f} MiB of code" if archive else ""
        checked = [f"{name}: {', '.join(document.machine.types)}{size}"]
        if statements := rights(document, self._aws.region, self._s3.meta.partition):
            policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, indent=1)
            checked += ["JobRole needs, beside the policy of the stack:", *policy.splitlines()]
        if dry_run:
            return [*checked, "nothing was started (--dry-run)"]
        kept = document.model_copy(update={"code": "code.tar.gz" if archive else None})
        if archive:
            self._s3.put_object(Bucket=self.bucket, Key=f"{prefix}code.tar.gz", Body=archive)
        text = kept.model_dump_json().encode()
        self._s3.put_object(Bucket=self.bucket, Key=f"{prefix}document.json", Body=text)
        if not self._table.create(kept, now):
            raise OperatorError(f"job {name} already exists: `spotkeeper job status {name}`")
        return [*checked, f"started; within a minute: spotkeeper job status {name}"]

    def _wrong_machine(self, document: JobDocument) -> Iterator[str]:
        """Name what would keep every machine of a job from running, or from ending."""
        ec2 = self._aws.ec2
        types = document.machine.types
        if missing := sorted({*types} - offers(ec2, types).keys()):
            yield f"{', '.join(missing)} is not offered in {self._aws.region}"
        jobs = job_facts(self._aws.client, self._stack, metadata_defaults(ec2))
        if jobs is None:
            return
        for part in (jobs.launch_template, jobs.zones, jobs.bucket):
            if isinstance(part, Unseen) and part.kind == GONE:
                yield f"{part.action}: {part.why}"
        for check in JOB_CHECKS:
            if check.severity is Severity.ERROR:
                yield from (
                    f"{finding.evidence}: {finding.fix}" for finding in check.findings(jobs, "jobs")
                )

    # --- look

    def all(self, left_out: Callable[[Unreadable], None]) -> Sequence[tuple[JobDocument, Job]]:
        """Read the jobs that are not over; those of another release are `left_out`."""
        jobs: list[tuple[JobDocument, Job]] = []
        for name in self._table.names():
            try:
                if one := self._table.read(name):
                    jobs.append(one)
            except Unreadable as error:
                left_out(error)
        return jobs

    def one(self, name: str) -> tuple[JobDocument, Job]:
        """Read one job, also one that is over."""
        job = self._table.read(name)
        if job is None:
            raise _no_job(name)
        return job

    def records(
        self, name: str, period: tuple[datetime, datetime] | None, now: datetime
    ) -> Records:
        """Read what the turns of a job did, of 30 days at most; without a period, all of them."""
        job = self._table.read(name)
        first, last = period or (job[1].created_at if job else now - timedelta(days=30), now)
        records = self._aws.records(self._stack).between(name, first, last, Controller.JOBS)
        if not job and not records.records:
            raise _no_job(name)
        return records

    def logs(
        self,
        name: str,
        wait: Callable[[], None] | None = None,
        ask: Callable[[Callable[[], Any]], Any] = lambda read: read(),
    ) -> Iterator[str]:
        """Yield the last 200 lines of the job's newest output; with `wait`, what follows, too.

        What follows is read by `ask`, which may try again.
        """
        _, job = self.one(name)
        tries = range(job.attempt, 0, -1) if self._log_group else ()
        attempt = next((n for n in tries if self._events(name, n)), 0)
        if not attempt and not (self._log_group and wait and not job.outcome):
            # The machine may not write to the log group: its last words are in the bucket.
            yield from self._last_words(name, job).splitlines()
            return
        attempt, token = attempt or 1, ""
        while True:
            events = ask(partial(self._events, name, attempt, token))
            yield from (event["message"] for event in (events or {}).get("events", ()))
            if events and events["nextForwardToken"] != token:
                token = events["nextForwardToken"]
                continue
            _, job = ask(partial(self.one, name))
            if attempt < job.attempt:
                attempt, token = attempt + 1, _FROM_ITS_BEGIN
            elif wait is None or job.outcome:
                return
            else:
                wait()

    def _events(self, name: str, attempt: int, token: str = "") -> Any:
        """Read output of a machine, the newest or from a token on; None if there is none."""
        more: dict[str, Any] = {"startFromHead": True} if token else {"limit": 200}
        if token not in ("", _FROM_ITS_BEGIN):
            more["nextToken"] = token
        try:
            with aws_errors(f"reading the output of job {name}"):
                return self._logs.get_log_events(
                    logGroupName=self._log_group, logStreamName=f"{name}/{attempt}", **more
                )
        except Gone:
            return None

    def _last_words(self, name: str, job: Job) -> str:
        for attempt in range(job.attempt, 0, -1):
            try:
                key = f"jobs/{name}/log/{attempt}.txt"
                text: bytes = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except self._s3.exceptions.NoSuchKey:
                continue
            return text.decode(errors="replace")
        raise OperatorError(f"job {name} has printed nothing yet")

    # --- change

    def stop(self, name: str, *, now: bool) -> str:
        """Stop a job at its next checkpoint, or at once."""
        _, job = self.one(name)
        if job.outcome:
            raise OperatorError(f"job {name} has already ended: {job.outcome}")
        change = {"stop_now": True} if now else {"ending": Outcome.STOPPED}
        self._table.change(name, lambda before: replace(before, **change))
        return f"{name} stops {'at once' if now else 'at its next checkpoint'}"

    def recover(self, name: str, source: str, now: datetime, confirm: Callable[[str], None]) -> str:
        """Go back to a snapshot of the volume, to the step before, or rebuild a lost item.

        Anybody who may create tags can write those of a job, so `confirm` shows what was found.
        """
        if source == "tags":
            return self._from_tags(name, now, confirm)
        document, job = self.one(name)
        if job.machine or job.successor:
            raise OperatorError(f"{name} has a machine: `spotkeeper job stop {name} --now` first")
        if limit := limit_of(document.spec(()), job):
            raise OperatorError(
                f"{name} has reached {limit}, and would end at once: fetch it, and start another"
                " job with that checkpoint in its code"
            )
        image = document.machine.root == "keep" and source.startswith("ami-")
        if document.state.volume and not image and not source.startswith("snap-"):
            raise OperatorError("give a snapshot: --from snap-...")
        if not document.state.volume and not image:
            self._step_back(name, source)

        def back(job: Job) -> Job:
            again = replace(
                job, outcome=None, ending=None, stop_now=False, mailed=False, reports={},
                restarts=0, failed_soon="",
            )  # fmt: skip
            if source.startswith("ami-"):
                return replace(again, image=source, home="", zone="", opened="")
            if not document.state.volume:
                return again
            return replace(again, home="", zone="", seal=source, opened="", move="")

        self._table.change(name, back)
        self._table.relist(name)
        return f"{name} continues from {source}"

    def _step_back(self, name: str, step: str) -> None:
        head, etag = self._head(name)
        before = head.get("previous") or {}
        if not etag:
            raise OperatorError(f"job {name} has no checkpoint yet")
        if step not in (head["step"], before.get("step")):
            raise OperatorError(f"{name} has steps {head['step']} and {before.get('step')}")
        if step == before.get("step"):
            head |= {"step": before["step"], "files": before["files"], "previous": None}
        head |= {"done": False, "exit_code": None}
        self._s3.put_object(
            Bucket=self.bucket, Key=f"jobs/{name}/head.json", Body=json.dumps(head), IfMatch=etag
        )

    def _from_tags(self, name: str, now: datetime, confirm: Callable[[str], None]) -> str:
        """Rebuild a lost item of its document, its head, and what carries its tags."""
        try:
            text = self._s3.get_object(Bucket=self.bucket, Key=f"jobs/{name}/document.json")
        except self._s3.exceptions.NoSuchKey:
            raise OperatorError(f"the bucket has no job {name}") from None
        document = parse_job(json.loads(text["Body"].read()))
        instances = self._described("instances", self._tagged(name))
        machines = {
            each["InstanceId"]: OwnMachine(attempt=_number(each, ATTEMPT), at=now)
            for each in instances
            if each["State"]["Name"] != "terminated"
        }
        head, _ = self._head(name)
        attempt = max([*(each.attempt for each in machines.values()), head.get("attempt", 0)])
        state: dict[str, Any] = {"generation": head.get("generation", 0)}
        if document.state.volume or document.machine.root == "keep":
            state |= self._disk_from_tags(document, instances, now)
        if self._table.read(name):
            raise OperatorError(f"job {name} is not lost: `spotkeeper job status {name}`")
        disks = [*sorted(state.get("volumes", {})), *sorted(state.get("images", {}))]
        confirm(
            f"these have the tags of {name}, which will own them and may end or delete them: "
            + (", ".join([*sorted(machines), *disks]) or "nothing")
        )
        if not self._table.create(document, now):
            raise OperatorError(f"job {name} is not lost: `spotkeeper job status {name}`")
        self._table.change(
            name, lambda each: replace(each, attempt=attempt, machines=machines, **state)
        )
        ended = f"; {', '.join(sorted(machines))} will be ended" if machines else ""
        return f"{name} is recovered, with its state{ended}"

    def _disk_from_tags(
        self, document: JobDocument, instances: Sequence[Any], now: datetime
    ) -> dict[str, Any]:
        """Find the volume or root that may be written, or else the newest copy of it."""
        name, has_volume = document.name, document.state.volume is not None
        tagged = {each["VolumeId"]: each for each in self._described("volumes", self._tagged(name))}
        snapshots = self._described("snapshots", self._tagged(name), OwnerIds=["self"])
        if has_volume:
            running = [each for each in instances if each["State"]["Name"] != "terminated"]
            granted = {tags_of(each).get(GRANT, "").rpartition(" ")[2] for each in running} & {
                *tagged
            }
            homes = sorted(granted or tagged)
            hint = (
                "attach each to a machine and look at .spotkeeper/volume.json. Keep the one with"
                f" the newest files, remove the tag {JOB} from the others, and recover again"
            )
        else:
            idle = {each["InstanceId"] for each in instances if GRANT not in tags_of(each)}
            homes = sorted(
                volume
                for volume, each in tagged.items()
                if not any(disk["InstanceId"] in idle for disk in each["Attachments"])
            )
            hint = (
                f"remove the tag {JOB} from all but the root with the newest files, and recover"
                " again"
            )
        if len(homes) > 1:
            raise OperatorError(f"{', '.join(homes)} have the tags of {name}: {hint}")
        # Copies of a volume that is gone are looked for as long as it is remembered.
        volumes = {
            each["VolumeId"]: OwnVolume(
                generation=_number(each, GENERATION), move=_number(each, MOVE), at=now
            )
            for each in (*snapshots, *tagged.values())
        }
        state: dict[str, Any] = {
            "volumes": volumes,
            "epoch": max((_number(each, EPOCH) for each in snapshots), default=0) + 1,
            "moves": max((each.move for each in volumes.values()), default=0),
        }
        if homes:
            state |= {"home": homes[0], "zone": tagged[homes[0]]["AvailabilityZone"]}
        if has_volume:
            if homes:
                return {**state, "generation": volumes[homes[0]].generation}
            whole = [each for each in snapshots if each["State"] == "completed"]
            if not whole:
                raise OperatorError(f"no volume and no snapshot carries the tags of {name}")
            newest = max(whole, key=lambda each: each["StartTime"])
            generation = _number(newest, GENERATION)
            return {**state, "seal": newest["SnapshotId"], "generation": generation}
        listed = sorted(
            self._described("images", self._tagged(name)), key=lambda each: each["CreationDate"]
        )
        snapshot_of = {
            each["ImageId"]: each["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"] for each in listed
        }
        state["images"] = {each: OwnImage(snapshot=of, at=now) for each, of in snapshot_of.items()}
        image = state["image"] = next(reversed(snapshot_of), "")
        state["seal"] = snapshot_of.get(image, "")
        if homes:
            bases = [
                each["ImageId"]
                for each in instances
                for disk in each.get("BlockDeviceMappings", [])
                if disk.get("Ebs", {}).get("VolumeId") == homes[0]
            ]
            state["base"] = next(iter(bases), image) or self._template_image()
        return state

    def _template_image(self) -> str:
        [version] = self._aws.ec2.describe_launch_template_versions(
            LaunchTemplateId=self._parameters.get("JobLaunchTemplateId", ""),
            Versions=[self._parameters.get("JobLaunchTemplateVersion", "$Default")],
        )["LaunchTemplateVersions"]
        return version["LaunchTemplateData"].get("ImageId", "")

    def _tagged(self, name: str) -> dict[str, Sequence[str]]:
        return {f"tag:{JOB}": [name], f"tag:{NONCE}": [self._stack.nonce]}

    def _described(self, what: str, by: Mapping[str, Sequence[str]], **more: Any) -> list[Any]:
        ec2: Any = self._aws.ec2
        if what == "instances":
            return [*described(ec2, by)]
        return [*filtered(ec2, f"describe_{what}", what.capitalize(), by, **more)]

    def fetch(self, name: str, folder: Path) -> Sequence[str]:
        """Download outputs, and the newest checkpoint, each file checked; return what was written.

        The outputs are in a folder `outputs` of that one.
        """
        document, job = self.one(name)
        outputs = f"jobs/{name}/outputs/"
        files: list[dict[str, Any]] = [
            {"key": each["Key"], "path": each["Key"].removeprefix(f"jobs/{name}/"), "sha256": None}
            for each in self._objects(outputs)
        ]
        if document.state.volume and not files:
            raise OperatorError(f"its result is a volume or snapshot: {job.home} in {job.zone}")
        head, etag = self._head(name)
        if job.image and not files and not etag:
            raise OperatorError(f"its result is the image {job.image}")
        if head.get("step") is None and not files:
            raise OperatorError(
                f"no checkpoint of {name} was committed: there is nothing to fetch; `spotkeeper job"
                f" logs {name}` shows its output"
            )
        files += head["files"]
        written = []
        for entry in files:
            # The path of a checkpoint that is one file is `.`.
            path = folder / (head["step"] if entry["path"] == "." else entry["path"])
            if not path.resolve().is_relative_to(folder.resolve()):
                raise OperatorError(f"the bucket names a file outside of it: {entry['path']}")
            if path.exists():
                raise OperatorError(f"{path} already exists: give an empty folder")
            try:
                body = self._s3.get_object(Bucket=self.bucket, Key=entry["key"])["Body"]
            except self._s3.exceptions.NoSuchKey:
                raise OperatorError(
                    f"step {head['step']} of {name} is not in the bucket any more: a newer one has"
                    " replaced it, or it was deleted; give another folder, and fetch again"
                ) from None
            path.parent.mkdir(parents=True, exist_ok=True)
            # No half file is ever taken for a checkpoint.
            part = path.with_name(f"{path.name}.part")
            digest = hashlib.sha256()
            with part.open("wb") as file:
                for chunk in body.iter_chunks(2**20):
                    digest.update(chunk)
                    file.write(chunk)
            if entry["sha256"] not in (None, digest.hexdigest()):
                part.unlink()
                raise OperatorError(f"{entry['path']} is not what the job uploaded: fetch it again")
            part.rename(path)
            written.append(str(path))
        return written

    def _objects(self, prefix: str) -> list[Any]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        return [each for each in pages.search("Contents[].{Key: Key}") if each]

    def delete(self, name: str) -> str:
        """Delete a job that is over, with all that it left: item, objects, snapshots, volumes."""
        job = self._table.read(name)
        if job and job[1].outcome is None:
            raise OperatorError(f"job {name} runs: `spotkeeper job stop {name}` first")
        objects = self._objects(f"jobs/{name}/")
        if not job and not objects:
            raise _no_job(name)
        mine = {"instance-id": [*job[1].machines] if job else []}
        for each in self._described("instances", mine):
            if each["State"]["Name"] in ("pending", "running"):
                raise OperatorError(f"{each['InstanceId']} of {name} still runs: wait a minute")
        for at in range(0, len(objects), 1000):
            some = {"Objects": objects[at : at + 1000], "Quiet": True}
            answer = self._s3.delete_objects(Bucket=self.bucket, Delete=some)
            # S3 answers with success, and names what it kept.
            for each in answer.get("Errors", ()):
                raise OperatorError(
                    f"s3:DeleteObject of {each['Key']}: {each['Code']}: {each['Message']}; correct "
                    f"this, and run `spotkeeper job delete {name}` again"
                )
        # Only what the item remembers: tags prove nothing.
        known, own = ([*job[1].images], [*job[1].volumes]) if job else ([], [])
        ec2, ours = self._aws.ec2, {f"tag:{SEAL}": ["true", "false"], **self._tagged(name)}
        images = self._described("images", {"image-id": known})
        for image in images:
            ec2.deregister_image(ImageId=image["ImageId"])
        snapshots = self._described("snapshots", {"volume-id": own, **ours})
        for snapshot in snapshots:
            ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
        volumes = self._described("volumes", {"volume-id": own})
        for volume in volumes:
            ec2.delete_volume(VolumeId=volume["VolumeId"])
        self._table.delete(name)
        return (
            f"deleted {name}: {len(objects)} objects, {len(snapshots)} snapshots,"
            f" {len(volumes)} volumes, {len(images)} images"
        )

    def _head(self, name: str) -> tuple[dict[str, Any], str]:
        """Read the head and its entity tag, which is empty where there is none yet."""
        try:
            answer = self._s3.get_object(Bucket=self.bucket, Key=f"jobs/{name}/head.json")
        except self._s3.exceptions.NoSuchKey:
            return {"step": None, "files": []}, ""
        return json.loads(answer["Body"].read()), answer["ETag"]


def _no_job(name: str) -> OperatorError:
    return OperatorError(f"there is no job {name}: `spotkeeper job status` lists them")


def _number(resource: Mapping[str, Any], key: str) -> int:
    text = tags_of(resource).get(key, "")
    return int(text) if text.isdecimal() else 0


def read_document(path: Path) -> JobDocument:
    """Read a job document, TOML or JSON; raises `OperatorError` with every wrong field named."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise OperatorError(f"{path} is neither TOML nor JSON: {error}") from error
    if not isinstance(data, dict):
        raise OperatorError(f"{path}: must be one object")
    try:
        return parse_job(data)
    except JobDocumentError as error:
        raise OperatorError(f"{path}: {error}") from error


def pack(folder: Path) -> bytes:
    """Pack a folder of code, without what never belongs to it; at most 200 MB."""
    if not folder.is_dir():
        raise OperatorError(f"code: {folder} is not a folder")
    packed, total = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            if _LEFT_OUT & set(inner.parts) or not (path.is_file() or path.is_symlink()):
                continue
            try:
                # The machine unpacks it by this rule, into an empty folder.
                tarfile.data_filter(archive.gettarinfo(path, str(inner)), "/empty")
            except tarfile.FilterError as error:
                raise OperatorError(
                    f"code: {error}, and the machine has not what it leads to: remove it"
                ) from error
            total += path.lstat().st_size
            if total > MOST_CODE_BYTES:
                raise OperatorError(
                    f"code: {folder} has more than 200 MB; put data into a bucket, and models into"
                    " the image"
                )
            archive.add(path, arcname=str(inner), recursive=False)
    return packed.getvalue()


def rights(document: JobDocument, region: str, partition: str) -> list[Mapping[str, Any]]:
    """Return the policy statements that a job's data and secrets need, and no others."""
    actions = {"ssm": "ssm:GetParameter", "secretsmanager": "secretsmanager:GetSecretValue"}
    allowed: list[Mapping[str, Any]] = []
    for where in sorted(document.secrets.values()):
        service, _, name = where.partition(":")
        # Secrets Manager adds six characters to a name.
        named = f"parameter/{name.lstrip('/')}" if service == "ssm" else f"secret:{name}-??????"
        arn = f"arn:{partition}:{service}:{region}:*:{named}"
        allowed.append({"Effect": "Allow", "Action": actions[service], "Resource": arn})
    if document.data:
        bucket, _, prefix = document.data.s3.removeprefix("s3://").partition("/")
        within = f"{prefix.rstrip('/')}/*" if prefix else "*"
        arn = f"arn:{partition}:s3:::{bucket}"
        allowed += [
            {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{arn}/{within}"},
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": arn,
             "Condition": {"StringLike": {"s3:prefix": within}}},
        ]  # fmt: skip
    return allowed


# A turn looks at each job every minute, and a machine reports as often.
_LATE = timedelta(minutes=3)


def status_text(document: JobDocument, job: Job, now: datetime) -> str:
    """Describe a job in a few lines; the first says what is wrong, and what is next."""
    report = job.reports.get(job.machine_attempt)
    spec = document.spec(())
    looked = job.looked_at or job.created_at
    if job.outcome:
        code = "" if job.exit_code is None else f", {explained(job.exit_code)}"
        step = f", step {job.step}" if job.step else ""
        kept = ", no checkpoint was committed" if job.kept is False else step
        at = f" {job.ended_at:%d %b %H:%M} UTC" if job.ended_at else ""
        state = f"ended{at}: {job.outcome}{code}{kept}"
        todo = job.advice if job.mailed else job.stuck or "its last turns are not over"
        state += f"; {todo}" if todo else ""
    elif now - looked >= _LATE:
        state = (
            f"UNKNOWN: no turn has looked at it since {looked:%d %b %H:%M} UTC: see `spotkeeper"
            f" explain --job {job.name}`, and the log of KeepJobs"
        )
    elif job.machine:
        state = _on_machine(document, job, report, now)
    elif job.refused:
        state = _refused(spec, job)
    else:
        state = f"STUCK: {job.stuck}" if job.stuck else "waits for a machine"
    rows: list[tuple[str, str]] = []
    if (by := ends_by(spec, job)) and not job.outcome:
        left_h = work_left(spec, job) / timedelta(hours=1)
        rows.append(("due", f"{by:%d %b %H:%M} UTC; about {left_h:.1f} h of work are left"))
    rows.append(("spent", f"{job.story} of {document.end.max_restarts}"))
    if report and (report.uncommitted_s or 0) >= document.state.commits_within and not job.outcome:
        rows.append(("warning", f"nothing was committed for {report.uncommitted_s or 0:.0f} s"))
    if ignored := report.ignored if report else "":
        rows.append(("ignored", ignored))
    rows += [("failed", job.failure)] if job.failure else []
    rows += [
        ("refused", f"{kind}: {refusal.message} (again {refusal.until:%H:%M} UTC)")
        for kind, refusal in sorted(job.refused.items())
        if not job.outcome
    ]
    lines = [labelled(job.name, state, indent=0), *(labelled(*row) for row in rows)]
    return paragraphs([[line for each in lines for line in each]])


def _on_machine(
    document: JobDocument, job: Job, report: AttemptReport | None, now: datetime
) -> str:
    """Say what the job's machine does, as far as is known."""
    doing, reported = (report.doing, report.at) if report else ("", None)
    seen = reported or job.machines[job.machine].at
    step = f", step {job.step}" if job.step else ", no checkpoint was committed"
    if not job.is_at_work:
        state = f"starts on {job.machine}"
    elif doing or not report or not report.generation:
        state = f"prepares {job.machine}{f': {doing}' if doing else ''}"
    else:
        state = f"runs on {job.machine}{'' if document.state.volume else step}"
    if job.machine in job.warned:
        state = f"AWS takes {job.machine} back; another machine goes on{step}"
    elif job.ending:
        state += f"; it stops: {job.ending}"
    # Before its first report it boots.
    if now - seen >= (_LATE if reported else 2 * _LATE):
        silent = f"{SILENT.total_seconds() / 60:.0f}"
        state += f"; NO REPORT since {seen:%H:%M} UTC: after {silent} min it is replaced"
        state += "" if reported else f"; {NEVER_REPORTED}"
    return f"STUCK: {job.stuck}" if job.stuck else state


def _refused(spec: JobSpec, job: Job) -> str:
    """Say since when AWS refuses a job its machines, and what is tried next."""
    refusals = job.refused.values()
    classes = {classify(refusal.message)[0] for refusal in refusals}
    is_dry = FailureClass.CAPACITY in classes
    since = f" since {job.short_since:%H:%M} UTC" if job.short_since else ""
    why = "AWS has no capacity" if is_dry else f"AWS refuses it ({', '.join(sorted(classes))})"
    state = f"no machine{since}: {why}; next try {min(each.until for each in refusals):%H:%M}"
    if spec.on_demand_after is None:
        state += "; on-demand is not allowed (machine.on_demand)"
    elif spec.spot and spec.deadline is None and job.short_since:
        state += f"; on-demand from {job.short_since + spec.on_demand_after:%H:%M} on"
    todo = "more instance types or subnets would help" if is_dry else "correct what AWS says"
    return f"{state}; {todo}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """A job for programs; what it has not is None."""

    name: str
    outcome: Outcome | None
    exit_code: int | None
    machine: str | None
    successor: str | None
    generation: int
    volume: str | None
    zone: str | None
    image: str | None
    step: str | None
    kept: bool | None
    ignored: str
    doing: str
    stuck: str
    looked_at: datetime | None
    uncommitted_s: float | None
    failure: str
    hours: float
    on_demand_hours: float
    interruptions: int
    cost_usd: float
    launches: int
    restarts: int
    max_restarts: int
    refused: Mapping[str, str]


def answer_of(document: JobDocument, job: Job) -> JobAnswer:
    """Return what programs read of a job."""
    report = job.reports.get(job.machine_attempt)
    return extended(
        JobAnswer,
        job,
        machine=job.machine or None,
        successor=job.successor or None,
        volume=job.home or None,
        zone=job.zone or None,
        image=job.image or None,
        ignored=report.ignored if report else "",
        doing=report.doing if report else "",
        uncommitted_s=report.uncommitted_s if report else None,
        hours=round(job.hours, 3),
        on_demand_hours=round(job.on_demand_hours, 3),
        cost_usd=round(job.usd, 4),
        launches=job.attempt,
        max_restarts=document.end.max_restarts,
        refused={kind: refusal.message for kind, refusal in job.refused.items()},
    )


def exit_code(job: Job) -> int:
    """Return the exit code of `status NAME`: the job's own, 1 if it ended without one."""
    if job.outcome is None or job.outcome is Outcome.DONE:
        return 0
    return job.exit_code or 1
