"""The parts of a job's agent, each by itself: tags, code, command, reports, output."""

import io
import json
import os
import pwd
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from spotkeeper_worker.agent import settings
from spotkeeper_worker.agent.aws import AwsError, Caller
from spotkeeper_worker.agent.credentials import CredentialChain
from spotkeeper_worker.agent.metadata import Metadata
from spotkeeper_worker.job import command as command_
from spotkeeper_worker.job import reports as reports_
from spotkeeper_worker.job.bucket import Bucket, BucketError
from spotkeeper_worker.job.command import Command, LogStream, user_named
from spotkeeper_worker.job.machine import Document, FinalError, JobError, Machine, Signs
from spotkeeper_worker.job.machine import _where as where
from spotkeeper_worker.job.reports import Reporter
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.worker.conftest import program
from tests.worker.logs import Queue
from tests.worker.test_job_commits import Objects
from tests.worker.test_job_life import DOCUMENT

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


def document(**given: Any) -> Document:
    return Document({**DOCUMENT, **given})


class Bare(Machine):
    """A machine of which only one part is needed."""

    job = "resnet"

    def __init__(self, metadata: Metadata | None = None) -> None:
        self.store = Objects()
        self._metadata: Any = metadata
        self._say = Sometimes(get_logger("agent"))


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_credentials_that_are_late_at_the_boot_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a client that was made without any, each call would fail for ever."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "EC2_METADATA_DISABLED"):
        monkeypatch.delenv(f"AWS_{name}")
    machine = FakeMachine()
    machine.fault = "503"
    with FakeServer(machine) as server:
        for name, text in server.environment().items():
            monkeypatch.setenv(name, text)
        with pytest.raises(BucketError, match="credentials"):
            Bucket("the-jobs", "us-east-1")
        machine.fault = ""
        Bucket("the-jobs", "us-east-1")


# --- tags -----------------------------------------------------------------------------------------


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize(("tags", "signs"), [
    ({}, Signs()),
    ({"volume": "vol-1"}, Signs(0, "vol-1")),
    ({"grant": "3"}, Signs(3)),
    ({"grant": "3 vol-2", "volume": "vol-1"}, Signs(3, "vol-2")),
    ({"grant": "3", "draining": "now"}, Signs(3, draining=True)),
    ({"draining": "2026-11-26T12:00:00+00:00 checkpoint"}, Signs(0, None, True, True)),
    ({"until": "2026-01-01T00:00:00+00:00"}, Signs(0, draining=True)),
    ({"until": "2026-01-01T00:00:00+00:00", "draining": "x checkpoint"}, Signs(draining=True)),
    ({"grant": "3", "until": "2999-01-01T00:00:00+00:00"}, Signs(3)),
    ({"grant": "3", "until": "soon"}, Signs(3)),
    ({"grant": "yes"}, None),
])  # fmt: skip
def test_the_signs_are_the_machine_s_tags(
    machine: FakeMachine, metadata: Metadata, tags: dict[str, str], signs: Signs | None
) -> None:
    assert machine.tags is not None
    machine.tags |= {f"spotkeeper:{name}": value for name, value in tags.items()}
    assert Bare(metadata).look() == signs


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_the_notice_is_a_sign_and_one_without_a_time_is_none(
    machine: FakeMachine, metadata: Metadata
) -> None:
    machine.interrupt(120)
    signs = Bare(metadata).look()
    assert signs is not None
    assert signs.taken_in_s == pytest.approx(120, abs=5)
    machine.action = {"action": "terminate", "time": "soon"}
    assert Bare(metadata).look() is None


@pytest.mark.parametrize(("given", "wrong"), [
    ({"SPOTKEEPER_JOBS_PARAMETER": "/spotkeeper/s/jobs"}, ""),
    ({"SPOTKEEPER_JOB_BUCKET": "b", "SPOTKEEPER_JOB_QUEUE_URL": "https://q.aws/1/q"}, ""),
    ({}, "SPOTKEEPER_JOBS_PARAMETER: is missing"),
    ({"SPOTKEEPER_JOB_BUCKET": "b"}, "SPOTKEEPER_JOBS_PARAMETER: is missing"),
    ({"SPOTKEEPER_JOBS_PARAMETER": "p", "SPOTKEEPER_JOB_TICK_S": "0"}, "SPOTKEEPER_JOB_TICK_S"),
])  # fmt: skip
def test_the_settings_of_a_job_s_machine(given: dict[str, str], wrong: str) -> None:
    if not wrong:
        assert settings.parse(given, job=True).job_shutdown == ("systemctl", "poweroff")
        return
    with pytest.raises(settings.SettingsError, match=wrong):
        settings.parse(given, job=True)


# --- code -----------------------------------------------------------------------------------------


def packed(*members: tuple[str, bytes]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return body.getvalue()


def prepared(tmp_path: Path, archive: bytes, **given: Any) -> Path:
    machine = Bare()
    machine.store.write("jobs/resnet/code.tar.gz", archive)
    machine.prepare(document(**given), tmp_path / "work")
    return tmp_path / "work"


def test_the_code_is_unpacked_where_the_command_runs(tmp_path: Path) -> None:
    work = prepared(tmp_path, packed(("a/train.py", b"pass")), code="code.tar.gz")
    assert (work / "a" / "train.py").read_bytes() == b"pass"


@pytest.mark.parametrize(
    "archive", [b"no archive", packed(("../../out", b"x"))], ids=["no archive", "outside"]
)
def test_code_that_cannot_be_unpacked_is_named(tmp_path: Path, archive: bytes) -> None:
    with pytest.raises(FinalError, match=r"code\.tar\.gz cannot be unpacked"):
        prepared(tmp_path, archive, code="code.tar.gz")
    assert not (tmp_path / "out").exists()


@pytest.mark.make_e2e
def test_code_of_git_is_the_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path / "origin"), *named, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "origin").mkdir()
    git("init", "--quiet")
    commits = []
    for text in ("one", "two"):
        (tmp_path / "origin" / "train.py").write_text(text)
        git("add", ".")
        git("commit", "--quiet", "--message", text)
        commits.append(git("rev-parse", "HEAD"))
    source = {"url": f"file://{tmp_path}/origin", "commit": commits[0]}
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    for _ in range(2):
        work = prepared(tmp_path, b"", git=source)
        assert (work / "train.py").read_text() == "one"
    with pytest.raises(JobError, match="git fetch"):
        prepared(tmp_path, b"", git={**source, "commit": "0" * 40})


# --- the command ----------------------------------------------------------------------------------


def ended(work: Path, *command: str, user: str | None = None) -> tuple[bytes, int | None]:
    """Run a command to its end; the end of its output, and its exit code."""
    run = Command(command, work, {"A": "b"}, user_named(user), lambda _: None)
    until(lambda: run.poll() is not None, "it ends")
    run.close()
    return run.tail, run.poll()


@pytest.mark.make_e2e
def test_values_of_secrets_are_in_no_output(tmp_path: Path) -> None:
    sent = bytearray()
    script = (
        "import os, time; "
        "[(os.write(1, p), time.sleep(0.05)) for p in (b'a hun', b'ter2 b\\nhunter2')]"
    )
    command = [sys.executable, "-c", script]
    run = Command(command, tmp_path, {}, None, sent.extend, [b"hunter2", b""])
    until(lambda: run.poll() is not None, "it ends")
    run.close()
    assert bytes(sent) == run.tail == b"a *** b\n***"
    # Without an end of line, too, what is kept back is no more than the tail.
    shown = b"".join([run._shown(b"x" * 70_000 + b"hun"), run._shown(b"ter2", end=True)])
    assert shown == b"x" * 70_000 + b"***"


@pytest.mark.make_e2e
@pytest.mark.parametrize(("script", "code", "end"), [
    ("raise SystemExit(3)", 3, b""),
    ("import os; os.kill(os.getpid(), 9)", 137, b""),
    ("import os; print(os.environ['A'], 'SPOTKEEPER_STACK' in os.environ)", 0, b"b False\n"),
    ("print('x' * 5_000_000); print('the end')", 0, b"x\nthe end\n"),
])  # fmt: skip
def test_a_command_s_exit_code_is_that_of_a_shell_and_the_end_of_its_output_is_kept(
    tmp_path: Path, script: str, code: int, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTKEEPER_STACK", "s")
    tail, found = ended(tmp_path, sys.executable, "-c", script)
    assert (found, tail[-len(end) :] if end else tail) == (code, end)
    assert len(tail) <= 64 * 1024


def test_a_command_that_does_not_exist_ends_with_127_and_says_so(tmp_path: Path) -> None:
    tail, code = ended(tmp_path, "no-such-command")
    assert code == 127
    assert b"no-such-command cannot be started" in tail


@pytest.mark.make_e2e
def test_nothing_of_the_command_is_left(tmp_path: Path) -> None:
    script = "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); print(child.pid)"
    stat = Path(f"/proc/{int(ended(tmp_path, sys.executable, '-c', script)[0])}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2][1] == "Z", "it ended")


@pytest.mark.make_e2e
def test_sigterm_spares_loaders_and_torchrun_and_reaches_its_scripts(tmp_path: Path) -> None:
    """PyTorch's loaders end at it, and their script before it saves; torchrun kills after 30 s."""
    named = 'printf $1 > /proc/$$/comm; trap "echo got $1" TERM; ${2:+setsid "$0" $2} & echo'
    program(tmp_path / "as", f"{named}; while :; do sleep 0.1; done")
    script = "./as pt_elastic rank & ./as pt_data_worker & exec ./as script wandb-core"
    run = Command(["sh", "-c", script], tmp_path, {}, None, lambda _: None)
    until(lambda: len(run.tail) == len("12345"), "all five of them run")
    run.signal(signal.SIGTERM)
    until(lambda: {b"rank", b"script"} <= {*run.tail.split()}, "rank and script got SIGTERM")
    run.close()
    assert not run._reader.is_alive() and b"pt_" not in run.tail and b"wandb" not in run.tail


@pytest.mark.make_e2e
def test_neither_a_process_that_hangs_in_the_kernel_nor_an_odd_name_stops_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotkeeper_worker.job.command._REACHED_S", 0.1)
    script = r"printf 'not \377 UTF-8' > /proc/$$/comm; echo up; while :; do sleep 1; done"
    run = Command(["sh", "-c", script], tmp_path, {}, None, lambda _: None)
    until(lambda: run.tail == b"up\n", "it runs")
    hangs, over = threading.Event(), threading.Event()

    def read_bytes(_: Path) -> bytes:
        hangs.set()
        over.wait()
        raise OSError

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    run.close()
    assert (hangs.is_set(), run.poll()) == (True, 137)
    over.set()


@pytest.mark.make_e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user")
def test_the_command_runs_as_the_jobs_user_and_owns_the_folder(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "checkpoints").mkdir(parents=True)
    for each in (tmp_path, *list(tmp_path.parents)[:-2]):
        each.chmod(0o755)
    Bare().hand_over(document(user="nobody"), work, None)
    script = "import os; open('checkpoints/a', 'w'); print(os.getuid(), os.environ['USER'])"
    tail, _ = ended(work, "python3", "-c", script, user="nobody")
    assert tail.split() == [str(pwd.getpwnam("nobody").pw_uid).encode(), b"nobody"]
    with pytest.raises(ValueError, match="'nobody-at-all' is not on this machine"):
        user_named("nobody-at-all")


def test_the_busiest_gpu_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Bare().gpu() is None
    for script, use in (("echo 3; echo 71", 71), ("echo '[N/A]'", None), ("echo 3; exit 9", None)):
        program(tmp_path / "nvidia-smi", script)
        assert Bare().gpu() == use


# --- reports --------------------------------------------------------------------------------------


def test_reports_are_numbered_kept_and_sent_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_, "_AGAIN_S", 0.01)
    queue = Queue()
    queue.refuses = True
    report = Reporter(queue.send, "resnet", 3, "i-1", tmp_path / "seq")
    report("booted")
    report.generation, report.volume = 2, "vol-1"
    for gpu in (1, 2, 3):
        report("running", gpu=gpu, step="000007")
    assert not report.flush(0.05)
    queue.refuses = False
    assert report.flush(10)
    bodies = [json.loads(body) for body in queue.bodies]
    assert [(each["event"], each["seq"], each["gpu"]) for each in bodies] == [
        ("booted", 1, None), ("running", 4, 3),
    ]  # fmt: skip
    last = bodies[-1]
    at = last.pop("at")
    assert at.endswith("Z")
    assert last == {
        "version": 1, "job": "resnet", "attempt": 3, "instance_id": "i-1", "generation": 2,
        "seq": 4, "event": "running", "volume": "vol-1", "step": "000007", "gpu": 3,
        "exit_code": None,
    }  # fmt: skip
    # An agent that starts again goes on counting.
    again = Reporter(queue.send, "resnet", 3, "i-1", tmp_path / "seq")
    again("failed", reason="why")
    assert again.flush(10)
    last = json.loads(queue.bodies[-1])
    assert (last["seq"], last["reason"]) == (5, "why")


def test_reports_go_on_counting_after_a_full_disk_and_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted is never lost, though the newest count was not written."""
    queue = Queue()
    report = Reporter(queue.send, "resnet", 3, "i-1", tmp_path / "seq")
    report("booted")

    def full(path: Path, text: str) -> int:
        path.open("w").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    report("running")
    assert report.flush(60)
    monkeypatch.undo()
    again = Reporter(queue.send, "resnet", 3, "i-1", tmp_path / "seq")
    again("running")
    assert again.flush(60)
    assert [json.loads(body)["seq"] for body in queue.bodies] == [1, 2, 2]


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize(
    ("group", "expected"), [("/spotkeeper/s/jobs", "/spotkeeper/s/jobs"), (None, "")]
)
def test_the_parameter_of_the_stack_names_bucket_queue_and_log_group(
    group: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine()
    body = {"bucket": "b", "queue_url": "q", **({"log_group": group} if group else {})}
    machine.parameters["/spotkeeper/s/jobs"] = json.dumps(body)
    with FakeServer(machine) as server:
        given = {**server.environment(), "SPOTKEEPER_JOBS_PARAMETER": "/spotkeeper/s/jobs"}
        given.pop("SPOTKEEPER_SEARCH_LOG_QUEUE_URL")
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", server.endpoint)
        read = settings.load(given, job=True)
        assert where(read, "us-east-1", CredentialChain(None, KEYS)) == ("b", "q", expected)


# --- output ---------------------------------------------------------------------------------------


class Posts(Caller):
    """CloudWatch Logs, in place of its connection."""

    def __init__(self) -> None:
        super().__init__("logs", "us-east-1", CredentialChain(None, KEYS))
        self.fails = threading.Event()
        self.asked: list[tuple[str, Any]] = []

    def post(self, what: str, headers: Mapping[str, str], body: bytes) -> str:
        assert headers["X-Amz-Target"] == f"Logs_20140328.{what}"
        assert len(body) < 2**20
        if self.fails.is_set():
            raise AwsError(what, "ThrottlingException", "slow down")
        self.asked.append((what, json.loads(body)))
        if what == "CreateLogStream":
            raise AwsError(what, "ResourceAlreadyExistsException", "again")
        return "{}"

    @property
    def lines(self) -> list[str]:
        batches = [body["logEvents"] for action, body in self.asked if action == "PutLogEvents"]
        return [event["message"] for batch in batches for event in batch]


def test_output_goes_to_cloudwatch_logs_in_order_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_, "_SEND_EVERY_S", 0.01)
    posts = Posts()
    posts.fails.set()
    stream = LogStream(posts, "jobs", "resnet/1")
    take = stream.take
    take(b"one\ntw")
    take(b"o\n\nthree")
    posts.fails.clear()
    until(lambda: posts.lines == ["one", "two"], "two lines are there")
    take(b"\n" + b"x" * 300_000)
    for _ in range(40):
        take(b"y" * 50_000 + b"\n")
    stream.close(10)
    assert posts.lines[2] == "three"
    assert sum(line[0] == "y" for line in posts.lines) >= 39
    assert {body["logStreamName"] for _, body in posts.asked} == {"resnet/1"}
