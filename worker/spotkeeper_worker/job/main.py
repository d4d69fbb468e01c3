"""`spotkeeper-agent job`: a life, put together from the machine's settings, metadata and tags."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

from spotkeeper_worker.agent.aws import (
    AwsError,
    Caller,
    Parameters,
    SearchLogQueue,
    endpoint_of,
    region_of_queue,
)
from spotkeeper_worker.agent.credentials import CredentialChain
from spotkeeper_worker.agent.gpu import ask
from spotkeeper_worker.agent.loop import hold_machine
from spotkeeper_worker.agent.metadata import Metadata, MetadataError, identity
from spotkeeper_worker.job.bucket import Bucket, BucketError
from spotkeeper_worker.job.command import Command, LogStream, user_named
from spotkeeper_worker.job.disks import LinuxDisks
from spotkeeper_worker.job.life import SILENT_S, Document, JobError, Life, Parts, Signs
from spotkeeper_worker.job.reports import Reporter
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.stop import Stop
from spotkeeper_worker.times import read_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spotkeeper_worker.agent.settings import Settings
    from spotkeeper_worker.job.disks import Disks

_LOG = get_logger("agent")
_TAGS = "meta-data/tags/instance/spotkeeper:"
_PREPARED_WITHIN_S = 900.0
_SHUTDOWN_WITHIN_S = 50.0
_AGAIN_S = 2.0
_LAST_LINES_S = 10.0


def run(settings: Settings) -> int:
    """Run this machine's job; raises AnotherAgent where one runs it already."""
    settings.job_folder.mkdir(parents=True, exist_ok=True)
    with hold_machine(settings.job_folder):
        return _run(settings)


def _run(settings: Settings) -> int:
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    metadata = Metadata(settings.metadata_endpoint)
    made = _assembled(settings, metadata, stop)
    if made is None:
        return 0
    life, stream = made
    while not life.step(time.monotonic()):
        life.stopping = stop.is_set()
        # After an order to stop there is nothing to wait for but the tick.
        time.sleep(settings.job_tick_s) if stop.is_set() else stop.wait(settings.job_tick_s)
    if stream:
        stream.close(5.0)
    return 0


def _assembled(
    settings: Settings, metadata: Metadata, stop: Stop
) -> tuple[Life, LogStream | None] | None:
    """Wait for the metadata and the parameter; a machine that has neither is shut down."""
    since, say = time.monotonic(), Sometimes(_LOG)
    while True:
        try:
            return _life(settings, metadata)
        except (MetadataError, AwsError, BucketError, OSError, JobError) as error:
            say.warn("start", f"the job waits: {error}")
            if time.monotonic() - since > SILENT_S:
                _shut_down(settings)
                return None
        if stop.wait(_AGAIN_S):
            return None


def _life(settings: Settings, metadata: Metadata) -> tuple[Life, LogStream | None]:
    here = identity(metadata)
    job, number = metadata.get(f"{_TAGS}job"), metadata.get(f"{_TAGS}attempt")
    if not job or not number:
        hint = "" if here.tags_on else "; the launch template needs InstanceMetadataTags: enabled"
        raise MetadataError(f"the tags spotkeeper:job and spotkeeper:attempt are missing{hint}")
    attempt, say = int(number), Sometimes(_LOG)
    chain = CredentialChain(metadata, os.environ)
    region = settings.region or here.region
    bucket_name, queue_url, log_group = _where(settings, region, chain)
    bucket = Bucket(bucket_name, region)
    queue = SearchLogQueue(queue_url, region_of_queue(queue_url) or region, chain)
    seq_file = settings.job_folder / f"seq-{attempt}"
    report = Reporter(queue.send, job, attempt, here.instance_id, seq_file)
    stream = None
    if log_group:
        endpoint = settings.logs_endpoint or endpoint_of("logs", region)
        stream = LogStream(Caller("logs", endpoint, region, chain), log_group, f"{job}/{attempt}")

    def document() -> Mapping[str, Any]:
        found = bucket.get(f"jobs/{job}/document.json")
        if found is None:
            raise BucketError(f"jobs/{job}/document.json is not in the bucket")
        return dict(json.loads(found[0]))

    def looked() -> Signs | None:
        try:
            return look(metadata)
        except (MetadataError, ValueError) as error:
            say.warn("metadata", f"metadata: {error}")
            return None

    def start(asked: Document, work: Path, environment: Mapping[str, str]) -> Command:
        # Without a log group, the tail is all that is kept.
        sink = stream.take if stream else lambda _: None
        user = user_named(asked.user)
        given = {"AWS_DEFAULT_REGION": region, **environment}
        return Command(asked.command, work, given, user, sink)

    def save_log(tail: bytes) -> None:
        bucket.write(f"jobs/{job}/log/{attempt}.txt", tail)
        if stream:
            stream.close(_LAST_LINES_S)

    parts = Parts(
        job=job,
        attempt=attempt,
        instance_id=here.instance_id,
        folder=settings.job_folder,
        look=looked,
        store=bucket,
        document=document,
        prepare=lambda asked, work: prepare(bucket, job, asked, work),
        hand_over=hand_over,
        start=start,
        report=report,
        save_log=save_log,
        gpu=gpu_use,
        disks=_disks(settings),
        shut_down=lambda: _shut_down(settings),
        aws_answered_at=lambda: max(bucket.answered_at, report.answered_at),
    )
    return Life(parts), stream


def _disks(settings: Settings) -> Disks:
    if settings.job_disks is None:
        return LinuxDisks()
    from spotkeeper_worker.testing.disks import FolderDisks

    return FolderDisks(settings.job_disks)


def _where(settings: Settings, region: str, chain: CredentialChain) -> tuple[str, str, str]:
    """Return the bucket, the queue and the log group of the jobs."""
    group = settings.job_log_group
    if not settings.jobs_parameter:
        return settings.job_bucket, settings.job_queue_url, group
    text = Parameters(settings.ssm_endpoint, region, chain).get(settings.jobs_parameter)
    try:
        body = json.loads(text)
        return str(body["bucket"]), str(body["queue_url"]), group or str(body.get("log_group", ""))
    except (ValueError, KeyError, TypeError):
        raise JobError(f"{settings.jobs_parameter} should name bucket and queue_url") from None


def look(metadata: Metadata) -> Signs:
    """Read the tags and the interruption notice. Raises MetadataError or ValueError."""
    grant = (metadata.get(f"{_TAGS}grant") or "").split()
    volume = metadata.get(f"{_TAGS}volume")
    draining = metadata.get(f"{_TAGS}draining") is not None
    action = metadata.get("meta-data/spot/instance-action")
    taken_in_s = None
    if action is not None:
        try:
            taken_at = read_time(json.loads(action)["time"]) - metadata.clock_offset_s
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"spot/instance-action: {action[:40]!r} has no time") from None
        taken_in_s = taken_at - time.time()
    if grant and not grant[0].isdigit():
        raise ValueError(f"spotkeeper:grant: {grant[0][:40]!r} is no generation")
    named = grant[1] if len(grant) > 1 else (volume or "").strip() or None
    return Signs(int(grant[0]) if grant else 0, named, draining, taken_in_s)


def prepare(bucket: Bucket, job: str, document: Document, work: Path) -> None:
    """Put the job's code into the folder; raises JobError or BucketError."""
    work.mkdir(parents=True, exist_ok=True)
    if document.git:
        _clone(document.git["url"], document.git["commit"], work)
    elif document.code:
        packed = work.parent / "code.tar.gz"
        bucket.download(f"jobs/{job}/{document.code}", packed)
        try:
            with tarfile.open(packed) as archive:
                _unpack(archive, work)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise JobError(f"{document.code} cannot be unpacked: {error}") from None


def _unpack(archive: tarfile.TarFile, work: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extractall(work, filter="data")
        return
    for member in archive:
        inside = work.resolve() in (work / member.name).resolve().parents
        if member.isdir() or (member.isreg() and inside):
            archive.extract(member, work)


def _clone(url: str, commit: str, work: Path) -> None:
    git = ["git", "-C", str(work), "-c", "safe.directory=*"]
    steps = [
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", url, commit],
        ["checkout", "--quiet", "--force", "FETCH_HEAD"],
    ]
    for step in steps:
        try:
            subprocess.run(
                [*git, *step], check=True, capture_output=True, timeout=_PREPARED_WITHIN_S,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode("utf-8", "replace").strip().splitlines()
            raise JobError(f"git {step[0]}: {told[-1] if told else error}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JobError(f"git {step[0]}: {error}") from None


def hand_over(document: Document, work: Path, mount: Path | None) -> None:
    """Give the folder and everything in it to the job's user, and the root of its volume."""
    user = user_named(document.user)
    if user:
        for path in (work, *work.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        if mount:
            os.chown(mount, user.pw_uid, user.pw_gid)


def gpu_use() -> int | None:
    """Give the use of the busiest GPU in percent; None where it is not known."""
    asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        status, output, _ = ask(asked)
        return None if status else max(int(line) for line in output.split("\n") if line.strip())
    except (OSError, ValueError):
        return None


def _shut_down(settings: Settings) -> None:
    _LOG.info("shutting the machine down: %s", " ".join(settings.job_shutdown))
    try:
        subprocess.run(settings.job_shutdown, check=True, timeout=_SHUTDOWN_WITHIN_S)
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from None
