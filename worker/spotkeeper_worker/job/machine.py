"""The machine of a job, as a life uses it: settings, metadata, tags, code and command."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from spotkeeper_worker.agent.aws import (
    Caller,
    SearchLogQueue,
    parameter,
)
from spotkeeper_worker.agent.credentials import CredentialChain
from spotkeeper_worker.agent.gpu import ask
from spotkeeper_worker.agent.metadata import Metadata, MetadataError, identity
from spotkeeper_worker.extras import region_of_queue
from spotkeeper_worker.job.bucket import Absent, Bucket, BucketError
from spotkeeper_worker.job.command import Command, LogStream, user_named
from spotkeeper_worker.job.reports import Reporter
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.times import read_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spotkeeper_worker.agent.settings import Settings
    from spotkeeper_worker.job.disks import Disks

_LOG = get_logger("agent")
_Answer = TypeVar("_Answer")
_TAGS = "meta-data/tags/instance/spotkeeper:"
_PREPARED_WITHIN_S = 900.0
_SHUTDOWN_WITHIN_S = 50.0
_MOUNTED_WITHIN_S = 60.0
# A shorter line of a secret, such as a bracket, is none by itself.
_LONG_LINE = 8
_LAST_LINES_S = 10.0


class JobError(Exception):
    """What stops this machine and is reported as `failed`."""


class FinalError(JobError):
    """What no other machine would do better: the job ends, unless it has a checkpoint."""


@dataclass(frozen=True)
class Signs:
    """What the metadata say; `taken_in_s` until EC2 takes the machine.

    A machine that is `draining` may first wait for a commit, if it is to leave `at_checkpoint`.
    """

    generation: int = 0
    volume: str | None = None
    draining: bool = False
    at_checkpoint: bool = False
    taken_in_s: float | None = None


class Document:
    """What the machine needs of the job's document."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """Read `document.json`; raises JobError."""
        try:
            if body["version"] != 1:
                raise JobError(f"document.json has version {body['version']}: update the agent")
            state, volume = body["state"], body["state"].get("volume")
            self.command = tuple(body["command"])
            self.code: str | None = body.get("code")
            self.git: Mapping[str, str] | None = body.get("git")
            self.user: str | None = body.get("user")
            self.environment = {name: str(text) for name, text in body["environment"].items()}
            self.checkpoints: str | None = None if volume else state["checkpoints"]
            self.complete: str | None = state.get("complete")
            self.entries = tuple(map(str, state.get("entries") or ()))
            self.keep = int(state.get("keep") or 2)
            self.mount: str | None = volume["mount"] if volume else None
            self.idle_after: float | None = (body.get("end") or {}).get("idle_after")
            self.setup = "\n".join(map(str, body.get("setup") or ()))
            self.setup_within = float(body.get("setup_within") or 1800)
            self.secrets = {str(k): str(v) for k, v in (body.get("secrets") or {}).items()}
            self.outputs: str | None = body.get("outputs")
            data = body.get("data") or {}
            self.data: tuple[str, str] | None = (data["s3"], data["into"]) if data else None
            self.mounts_data = bool(data.get("mount"))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise JobError(f"document.json cannot be read: {error!r}") from None


class Machine:
    """What a life needs of this machine; a test replaces any of it."""

    stream: LogStream | None = None
    disks: Disks

    def __init__(self, settings: Settings, metadata: Metadata, disks: Disks) -> None:
        """Read metadata, tags and the stack's parameter; raises an error where one is missing."""
        here = identity(metadata)
        job, number = metadata.get(f"{_TAGS}job"), metadata.get(f"{_TAGS}attempt")
        if not job or not number:
            needs = "; the launch template needs InstanceMetadataTags: enabled"
            missing = "the tags spotkeeper:job and spotkeeper:attempt are missing"
            raise MetadataError(missing if here.tags_on else missing + needs)
        self.job, self.attempt, self.instance_id = job, int(number), here.instance_id
        self.folder = settings.job_folder
        self._settings, self._metadata, self._say = settings, metadata, Sometimes(_LOG)
        chain = CredentialChain(metadata, os.environ)
        self._region = region = settings.region or here.region
        bucket_name, queue_url, log_group = _where(settings, region, chain)
        self.store = Bucket(bucket_name, region)
        queue = SearchLogQueue(queue_url, region_of_queue(queue_url) or region, chain)
        seq_file = settings.job_folder / f"seq-{number}"
        self.report = Reporter(queue.send, job, self.attempt, here.instance_id, seq_file)
        if log_group:
            caller = Caller("logs", region, chain)
            self.stream = LogStream(caller, log_group, f"{job}/{number}")
        self.disks = disks

    def clock(self) -> float:
        """Give the seconds since the epoch."""
        return time.time()

    def background(self, call: Callable[[], _Answer]) -> Future[_Answer]:
        """Make a call in a thread, which the process does not wait for when it ends."""
        made: Future[_Answer] = Future()

        def run() -> None:
            try:
                made.set_result(call())
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                made.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return made

    def look(self) -> Signs | None:
        """Read the tags and the notice; None where they are not known."""
        get = self._metadata.get
        try:
            grant = (get(f"{_TAGS}grant") or "").split()
            volume = (get(f"{_TAGS}volume") or "").strip()
            draining = get(f"{_TAGS}draining")
            action, taken_in_s = get("meta-data/spot/instance-action"), None
            if action is not None:
                try:
                    taken_at = read_time(json.loads(action)["time"]) - self._metadata.clock_offset_s
                except (ValueError, KeyError, TypeError):
                    raise ValueError(f"spot/instance-action: {action[:40]!r} has no time") from None
                taken_in_s = taken_at - time.time()
            if grant and not grant[0].isdigit():
                raise ValueError(f"spotkeeper:grant: {grant[0][:40]!r} is no generation")
            named = grant[1] if len(grant) > 1 else volume or None
            waits = draining is not None and draining.endswith(" checkpoint")
            number = int(grant[0]) if grant else 0
            is_over = self._is_over(get(f"{_TAGS}until"))
            waits = waits and not is_over
            return Signs(number, named, draining is not None or is_over, waits, taken_in_s)
        except (MetadataError, ValueError) as error:
            self._say.warn("metadata", f"metadata: {error}")
            return None

    def _is_over(self, until: str | None) -> bool:
        """Say whether the job has reached a limit; a tag that is no time says nothing."""
        try:
            ahead_s = self._metadata.clock_offset_s
            return bool(until) and read_time(str(until)) - ahead_s <= time.time()
        except ValueError:
            return False

    def document(self) -> Mapping[str, Any]:
        """Read the job's document."""
        text = self.store.get(f"jobs/{self.job}/document.json")
        if text is None:
            raise BucketError(f"jobs/{self.job}/document.json is not in the bucket")
        return dict(json.loads(text[0]))

    def prepare(self, document: Document, work: Path) -> None:
        """Put the job's code into the folder; raises JobError or BucketError."""
        work.mkdir(parents=True, exist_ok=True)
        if document.git:
            _clone(document.git["url"], document.git["commit"], work)
        elif document.code:
            packed = work.parent / "code.tar.gz"
            self.store.download(f"jobs/{self.job}/{document.code}", packed)
            try:
                with tarfile.open(packed) as archive:
                    _unpack(archive, work)
            except (tarfile.TarError, OSError, EOFError) as error:
                raise FinalError(f"{document.code} cannot be unpacked: {error}") from None

    def hand_over(self, document: Document, work: Path, mount: Path | None) -> None:
        """Give the folder and all in it to the job's user, and of its volume what is made there."""
        made = [mount.resolve(), mount.resolve() / "checkpoints"] if mount else []
        for path in made:
            path.mkdir(exist_ok=True)
        user = user_named(document.user)
        if user:
            for path in (work, *work.rglob("*"), *made):
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)

    def read_secrets(self, document: Document) -> dict[str, str]:
        """Read the values of the job's secrets, by variable; raises BucketError or FinalError."""
        values = {}
        for name, where in document.secrets.items():
            try:
                values[name] = self.store.secret(where)
            except Absent as error:
                raise FinalError(f"secrets: {name}: {error}") from None
        return values

    def start(
        self,
        document: Document,
        work: Path,
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        *,
        setup: bool = False,
    ) -> Command:
        """Start the command, or the setup before it, whose output has no values of secrets.

        Without a log group, the tail is all that is kept of it.
        """
        sink = self.stream.take if self.stream else lambda _: None
        given = {"AWS_DEFAULT_REGION": self._region, **environment, **secrets}
        command = ("/bin/sh", "-ec", document.setup) if setup else document.command
        # A value of several lines is printed by lines, too.
        hidden = {
            part.encode()
            for text in secrets.values()
            for part in (text, *(each for each in text.splitlines() if len(each) >= _LONG_LINE))
        }
        return Command(command, work, given, user_named(document.user), sink, [*hidden])

    def mount_data(self, document: Document, folder: Path) -> None:
        """Mount the data, read-only, by mount-s3; raises FinalError where it cannot."""
        bucket, _, prefix = (document.data or ("", ""))[0][len("s3://") :].partition("/")
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_mount():
            return
        within = ["--prefix", f"{prefix.rstrip('/')}/"] if prefix else []
        call = ["mount-s3", bucket, str(folder), "--read-only", "--allow-other", *within]
        try:
            subprocess.run(call, check=True, capture_output=True, timeout=_MOUNTED_WITHIN_S)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", b"") or str(error).encode()
            raise FinalError(f"mount-s3: {said.decode('utf-8', 'replace').strip()}") from None

    def save_log(self, tail: bytes, part: str = "") -> None:
        """Write the last of the output into the bucket; that of the command is the last."""
        self.store.write(f"jobs/{self.job}/log/{self.attempt}{part}.txt", tail)
        if self.stream and not part:
            self.stream.close(_LAST_LINES_S)

    def gpu(self) -> int | None:
        """Give the use of the busiest GPU in percent; None where it is not known."""
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            status, output, _ = ask(command)
            return None if status else max(int(line) for line in output.split("\n") if line.strip())
        except (OSError, ValueError):
            return None

    def shut_down(self) -> None:
        """Shut the machine down; raises OSError."""
        shut_down(self._settings)

    def aws_answered_at(self) -> float:
        """Give when AWS last answered, by the clock of `Life.step`."""
        return max(self.store.answered_at, self.report.answered_at)


def _where(settings: Settings, region: str, chain: CredentialChain) -> tuple[str, str, str]:
    """Return the bucket, the queue and the log group of the jobs."""
    group = settings.job_log_group
    if not settings.jobs_parameter:
        return settings.job_bucket, settings.job_queue_url, group
    text = parameter(settings.jobs_parameter, region, chain)
    try:
        body = json.loads(text)
        return str(body["bucket"]), str(body["queue_url"]), group or str(body.get("log_group", ""))
    except (ValueError, KeyError, TypeError):
        raise JobError(f"{settings.jobs_parameter} should name bucket and queue_url") from None


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
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
            raise JobError(f"git {step[0]}: {lines[-1] if lines else error}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JobError(f"git {step[0]}: {error}") from None


def shut_down(settings: Settings) -> None:
    """Shut the machine down by the command of its settings; raises OSError."""
    _LOG.info("shutting the machine down: %s", " ".join(settings.job_shutdown))
    try:
        subprocess.run(settings.job_shutdown, check=True, timeout=_SHUTDOWN_WITHIN_S)
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from None
