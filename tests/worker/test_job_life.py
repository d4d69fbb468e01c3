"""A machine's part in a job, step by step: its signs, its command and its clock are the test's."""

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper_worker.checkpoints import publish
from spotkeeper_worker.job import commits, entries, folders
from spotkeeper_worker.job.bucket import BucketError
from spotkeeper_worker.job.commits import Head, Owner
from spotkeeper_worker.job.life import Life
from spotkeeper_worker.job.machine import Document, Machine, Signs
from tests.worker.disks import FolderDisks
from tests.worker.test_job_commits import HEAD, Objects, keeper_of

DOCUMENT: dict[str, Any] = {
    "version": 1, "name": "resnet", "command": ["train"], "code": None, "user": None,
    "environment": {"EPOCHS": "90"}, "state": {"checkpoints": "checkpoints", "keep": 2},
    "end": {"idle_after": 600},
}  # fmt: skip
VOLUME = "vol-0abc"


@dataclass
class Script:
    """A command: `code` is set when it ends; `obeys` is its code after SIGTERM."""

    environment: dict[str, str]
    obeys: int | None = 143
    code: int | None = None
    signals: list[int] = field(default_factory=list)
    closed: bool = False
    tail: bytes = b"the end\n"

    def poll(self) -> int | None:
        return self.code

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.code = 137
        elif self.obeys is not None and self.code is None:
            self.code = self.obeys

    def close(self) -> None:
        self.closed = True


class Reports:
    """What was reported, each as its event and what it says."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.more: list[tuple[str, dict[str, Any]]] = []
        self.generation = 0
        self.volume: str | None = None

    def __call__(self, event: str, **said: Any) -> None:
        self.more.append((event, said))
        told = [said.get(name) for name in ("reason", "exit_code", "gpu", "step")]
        self.said.append((event, next((it for it in told if it is not None), None)))

    def flush(self, within_s: float) -> bool:
        return True

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.said]


class Scene(Machine):
    """A machine; `run` lets its time pass."""

    def __init__(self, tmp_path: Path, bucket: Objects | None = None, **document: Any) -> None:
        self.job, self.attempt, self.instance_id = "resnet", 1, "i-1"
        self.folder = tmp_path
        self.bucket = self.store = bucket or Objects()
        self.reports = Reports()
        self.report: Any = self.reports
        self.given = {**DOCUMENT, **document}
        self.signs: Signs | None = Signs()
        self.scripts: list[Script] = []
        self.obeys: int | None = 143
        self.setup_code: int | None = 0
        self.use: int | None = None
        self.hangs = False
        self.aws_silent_since: float | None = None
        self.logs: list[bytes] = []
        self.off = 0
        self.over = False
        self.disks = FolderDisks(tmp_path / "disks")
        self.disk = tmp_path / "disks" / VOLUME
        self.checkpoints = tmp_path / "work" / "checkpoints"
        self.times = itertools.count(1_700_000_000)
        self.life = Life(self)

    def clock(self) -> float:
        return next(self.times)

    def background[T](self, call: Callable[[], T]) -> Future[T]:
        """A call that is done at once, or never."""
        made: Future[T] = Future()
        try:
            if not self.hangs:
                made.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised by `result`
            made.set_exception(error)
        return made

    def look(self) -> Signs | None:
        return self.signs

    def document(self) -> Any:
        return self.given

    def prepare(self, document: Document, work: Path) -> None:
        work.mkdir(exist_ok=True)

    def start(
        self, document: Document, work: Path, environment: Any, secrets: Any, *, setup: bool = False
    ) -> Any:
        assert work.is_dir()
        self.scripts.append(Script({**environment, **secrets}, self.obeys))
        if setup:
            self.scripts[-1].code = self.setup_code
        return self.scripts[-1]

    def save_log(self, tail: bytes, part: str = "") -> None:
        # A job that is done loses its machine at once: the log of its mail has to be there.
        assert part or HEAD not in self.bucket.kept or not self.head.done
        self.logs.append(part.encode() + tail)

    def gpu(self) -> int | None:
        return self.use

    def shut_down(self) -> None:
        self.off += 1
        if self.off == 1:
            raise OSError("not yet")

    def aws_answered_at(self) -> float:
        return self.life.now if self.aws_silent_since is None else self.aws_silent_since

    def run(self, seconds: float = 5.0) -> None:
        """Let time pass, a second a step."""
        for _ in range(int(seconds)):
            if not self.over:
                self.over = self.life.step(self.life.now + 1.0)

    def grant(self, generation: int = 1, volume: str | None = None) -> Script:
        self.signs = Signs(generation, volume)
        self.run(10)
        return self.scripts[-1]

    def publish(self, step: int) -> None:
        with publish(step, Path(self.scripts[-1].environment["SPOTKEEPER_CHECKPOINTS"])) as folder:
            (folder / "model").write_text(str(step))

    @property
    def head(self) -> Head:
        return Head.read(self.bucket.kept[HEAD][0])


def test_a_job_from_boot_to_its_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(60)
    assert scene.scripts == []
    assert HEAD not in scene.bucket.kept
    script = scene.grant()
    assert scene.head.owner == Owner("i-1", 1, 1)
    assert script.environment == {
        "EPOCHS": "90", "SPOTKEEPER_JOB": "resnet", "SPOTKEEPER_ATTEMPT": "1",
        "SPOTKEEPER_CHECKPOINTS": str(scene.checkpoints),
    }  # fmt: skip
    scene.publish(1)
    scene.run(5)
    scene.publish(2)
    script.code = 0
    scene.run(5)
    assert (scene.head.step, scene.head.done, scene.head.exit_code) == ("000002", True, 0)
    assert scene.reports.said == [
        ("booted", None), ("running", None), ("committed", "000001"), ("committed", "000002"),
        ("exited", 0),
    ]  # fmt: skip
    assert (scene.logs, script.closed, scene.over) == ([b"the end\n"], True, False)
    # The command that shuts the machine down is tried until it works.
    scene.run(30)
    assert (scene.off, scene.over) == (2, True)
    # No machine runs a job again that is done.
    again = Scene(tmp_path, scene.bucket)
    again.signs = Signs(2)
    again.run(30)
    assert (again.scripts, again.reports.said[-1]) == ([], ("exited", 0))


@pytest.mark.parametrize(
    ("signs", "killed_at"),
    [
        (Signs(1, draining=True), 120),
        (Signs(1, taken_in_s=110.0), 80),
        (Signs(1, taken_in_s=-5), 0),
    ],
)
def test_a_machine_that_leaves_commits_first(
    tmp_path: Path, signs: Signs, killed_at: float
) -> None:
    scene = Scene(tmp_path)
    scene.obeys = None
    script = scene.grant()
    scene.publish(1)
    began = scene.life.now
    while signal.SIGKILL not in script.signals:
        passed, left = scene.life.now - began, signs.taken_in_s
        scene.signs = replace(signs, taken_in_s=None if left is None else left - passed)
        scene.run(1)
    assert script.signals[0] == signal.SIGTERM
    assert scene.life.now - began == pytest.approx(killed_at, abs=5)
    scene.run(5)
    assert scene.reports.said[-1] == ("left", "000001")
    assert (scene.head.step, scene.head.exit_code) == ("000001", None)


@pytest.mark.parametrize("must", [None, Signs(1, draining=True), Signs(1, taken_in_s=110.0)])
def test_a_machine_that_may_wait_leaves_after_its_next_commit_or_when_it_must(
    tmp_path: Path, must: Signs | None
) -> None:
    scene = Scene(tmp_path)
    script = scene.grant()
    scene.publish(1)
    scene.run(5)
    scene.signs = Signs(1, draining=True, at_checkpoint=True)
    scene.run(1800)
    assert script.signals == [], "the work since step 1 would be lost"
    if must:
        scene.signs = must
    else:
        scene.publish(2)
    scene.run(10)
    step = "000001" if must else "000002"
    assert script.signals == [signal.SIGTERM]
    assert (scene.reports.said[-1], scene.head.step) == (("left", step), step)


@pytest.mark.parametrize("state", [{}, {"volume": {"mount": "data", "size_gib": 1}}])
def test_a_machine_without_checkpoints_to_wait_for_leaves_at_once(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    scene = on_a_volume(tmp_path) if state else Scene(tmp_path)
    if state:
        scene.disk.mkdir(parents=True)
        scene.run(3)
        scene.grant(1, VOLUME)
    scene.signs = Signs(1 if state else 0, VOLUME if state else None, True, True)
    scene.run(20)
    assert (scene.reports.events[-1], scene.over, len(scene.scripts)) == ("left", True, len(state))


def test_a_machine_reports_how_long_nothing_was_committed_and_why(tmp_path: Path) -> None:
    state = {**DOCUMENT["state"], "complete": "trainer_stat.json"}
    scene = Scene(tmp_path, state=state)
    script = scene.grant()
    (scene.checkpoints / "checkpoint-5").mkdir()
    (scene.checkpoints / "checkpoint-5" / "trainer_state.json").write_text("{}")
    scene.run(3700)
    script.code = 0
    scene.run(5)
    why = "checkpoint-5: no file of it matches complete = 'trainer_stat.json'"
    running, ended = (
        [more for event, more in scene.reports.more if event == name][-1]
        for name in ("running", "exited")
    )
    assert running["uncommitted_s"] == pytest.approx(3700, abs=90)
    assert [running["ignored"], ended["ignored"], ended["step"]] == [why, why, None]


def test_what_a_script_saves_on_sigterm_is_committed_and_its_exit_is_no_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.obeys = None
    script = scene.grant()
    scene.signs = Signs(1, draining=True)
    scene.run(5)
    scene.publish(7)
    script.code = 0
    scene.run(5)
    assert (scene.head.step, scene.head.done) == ("000007", False)
    assert scene.reports.said[-1] == ("left", "000007")


def test_what_a_killed_script_left_unmarked_is_not_committed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.obeys = None
    script = scene.grant()
    (scene.checkpoints / "checkpoint-5").write_text("whole")
    scene.run(8)
    (scene.checkpoints / "checkpoint-6").write_text("hal")
    scene.run(2)
    script.code = 137
    scene.run(20)
    assert scene.head.step == "checkpoint-5"


def test_a_new_owner_stops_this_machine_without_a_word(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    script = scene.grant()
    keeper_of(scene.bucket, 2, 2).claim()
    scene.publish(1)
    scene.run(30)
    assert (script.closed, scene.over, scene.head.step) == (True, True, None)
    assert scene.reports.events == ["booted", "running"]


@pytest.mark.parametrize("what", ["grant", "metadata", "aws"])
def test_a_machine_without_answers_is_shut_down_after_a_quarter_of_an_hour(
    tmp_path: Path, what: str
) -> None:
    scene = Scene(tmp_path)
    if what != "grant":
        scene.grant()
    if what == "metadata":
        scene.signs = None
    if what == "aws":
        scene.aws_silent_since = scene.life.now
    scene.run(890)
    assert scene.off == 0
    scene.run(60)
    assert scene.over
    assert "exited" not in scene.reports.events


def test_a_refused_upload_is_tried_again_and_reported_once_if_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    scene.grant()
    refused = BucketError("AccessDenied")
    monkeypatch.setattr(scene.bucket, "upload", lambda *_: (_ for _ in ()).throw(refused))
    scene.publish(1)
    scene.run(280)
    assert "failed" not in scene.reports.events, "S3 is slow at times"
    scene.run(120)
    failed = [said for said in scene.reports.said if said[0] == "failed"]
    assert failed == [("failed", "the checkpoint is not committed: AccessDenied")]
    monkeypatch.undo()
    scene.run(15)
    assert scene.head.step == "000001"


def test_a_warning_is_seen_while_an_upload_hangs(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    script = scene.grant()
    scene.hangs = True
    scene.publish(1)
    scene.run(3)
    scene.signs = Signs(1, taken_in_s=120)
    scene.run(3)
    assert script.signals == [signal.SIGTERM]


def test_idle_is_reported_and_a_gpu_that_is_not_known_counts_as_busy(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.grant()
    scene.run(1000)
    assert "idle" not in scene.reports.events
    scene.use = 1
    scene.run(550)
    assert "idle" not in scene.reports.events
    scene.run(100)
    idle = scene.reports.events.count("idle")
    assert idle
    scene.publish(1)
    scene.run(590)
    assert scene.reports.events.count("idle") == idle, "a commit is work"


def test_an_agent_that_is_killed_finds_its_way_from_the_head(tmp_path: Path) -> None:
    first = Scene(tmp_path)
    first.grant()
    first.publish(1)
    first.run(5)
    first.publish(2)
    # Killed before 2 is committed; what the killed command wrote without `publish` may be half.
    (first.checkpoints / "checkpoint-3").mkdir()
    second = Scene(tmp_path, first.bucket)
    second.grant()
    assert second.head.step == "000002"
    assert [each.name for each in second.checkpoints.iterdir()] == ["000002"]
    second.scripts[-1].code = 5
    second.run(3)
    # Killed after the head has the exit code.
    third = Scene(tmp_path, first.bucket)
    third.signs = Signs(1)
    third.run(30)
    assert (third.scripts, third.over) == ([], True)
    assert third.reports.said == [("booted", None), ("exited", 5)]


def test_a_checkpoint_shipped_with_the_code_is_the_first(tmp_path: Path) -> None:
    class WithCode(Scene):
        def prepare(self, document: Document, work: Path) -> None:
            with publish(0, work / "checkpoints"):
                pass

    bucket = Objects()
    for generation, step in ((1, "000000"), (2, "000005")):
        scene = WithCode(tmp_path / str(generation), bucket)
        script = scene.grant(generation)
        scene.run(3)
        assert scene.head.step == step
        assert [each.name for each in scene.checkpoints.iterdir()] == [step]
        scene.publish(5)
        script.code = 3
        scene.run(5)


@pytest.mark.parametrize(
    ("strange", "reason"),
    [
        ({"version": 2}, "document.json has version 2: update the agent"),
        ({"command": None}, "document.json cannot be read"),
        ({"state": {}}, "document.json cannot be read"),
        ({"environment": None}, "document.json cannot be read"),
    ],
)
def test_a_document_that_cannot_be_read_is_reported(
    tmp_path: Path, strange: dict[str, Any], reason: str
) -> None:
    scene = Scene(tmp_path, **strange)
    scene.run(30)
    event, said = scene.reports.said[-1]
    assert (event, said[: len(reason)], scene.over) == ("failed", reason, True)


# --- a volume -------------------------------------------------------------------------------------


def on_a_volume(tmp_path: Path, bucket: Objects | None = None) -> Scene:
    mount = str(tmp_path / "data")
    scene = Scene(tmp_path, bucket, state={"volume": {"mount": mount, "size_gib": 1}})
    scene.signs = Signs(0, VOLUME)
    return scene


def test_a_new_volume_is_proved_formatted_after_the_grant_and_left_unmounted(
    tmp_path: Path,
) -> None:
    scene = on_a_volume(tmp_path)
    scene.run(30)
    assert scene.reports.events == ["booted"]
    scene.disk.mkdir(parents=True)
    scene.run(5)
    assert scene.reports.events == ["booted", "proved"]
    assert list(scene.disk.iterdir()) == [], "nothing is written before the grant"
    script = scene.grant(1, VOLUME)
    (tmp_path / "data" / "result").write_text("7")
    assert (tmp_path / "data").is_symlink()
    script.code = 0
    scene.run(5)
    assert not (tmp_path / "data").exists()
    assert json.loads((scene.disk / "content" / ".spotkeeper" / "volume.json").read_text()) == {
        "version": 1, "job": "resnet", "volume": VOLUME, "generation": 1,
    }  # fmt: skip
    assert scene.reports.said[-1] == ("exited", 0)
    # The next machine finds what was written.
    again = on_a_volume(tmp_path, scene.bucket)
    again.run(3)
    assert again.reports.events == ["booted", "proved"]


@pytest.mark.parametrize(
    ("content", "ran", "reason"),
    [
        (None, True, "vol-0abc is empty, and the job resnet ran before"),
        ({}, True, "vol-0abc is empty, and the job resnet ran before"),
        ({"a": "b"}, False, "vol-0abc has files, and none of them is .spotkeeper/volume.json"),
        ({".spotkeeper/volume.json": '{"job": "other"}'}, True, "vol-0abc belongs to another job"),
        ({".spotkeeper/volume.json": "{"}, True, "vol-0abc: .spotkeeper/volume.json cannot be"),
    ],
)
def test_a_volume_that_is_not_the_job_s_is_not_touched(
    tmp_path: Path, content: dict[str, str] | None, ran: bool, reason: str
) -> None:
    scene = on_a_volume(tmp_path)
    scene.disk.mkdir(parents=True)
    if content is not None:
        scene.disks.format(str(scene.disk))
        for name, text in content.items():
            (scene.disk / "content" / name).parent.mkdir(exist_ok=True)
            (scene.disk / "content" / name).write_text(text)
    if ran:
        keeper_of(scene.bucket, 1, 0).claim()
    scene.run(30)
    event, said = scene.reports.said[-1]
    assert (event, said[: len(reason)], scene.over) == ("failed", reason, True)
    assert "proved" not in scene.reports.events


class _Killed(BaseException):
    """The machine is gone between two calls."""


@pytest.mark.parametrize("moves", [False, True], ids=["the same volume", "a copy in another zone"])
@pytest.mark.parametrize("done", range(6))
def test_a_machine_lost_at_any_call_leaves_a_volume_that_the_next_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, moves: bool
) -> None:
    """No command has run: neither a blank volume nor a blank copy of it stops the next machine."""
    scene = on_a_volume(tmp_path)
    scene.disk.mkdir(parents=True)
    left = [done]

    def counted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def killed(*args: Any, **more: Any) -> Any:
            if left == [0]:
                raise _Killed
            left[0] -= 1
            return call(*args, **more)

        monkeypatch.setattr(owner, name, killed)

    for name in ("format", "mount", "unmount"):
        counted(FolderDisks, name)
    counted(os, "fsync")
    counted(Objects, "put")
    with contextlib.suppress(_Killed):
        scene.run(3)
        scene.grant(1, VOLUME)
    monkeypatch.undo()
    (tmp_path / "data").unlink(missing_ok=True)
    (tmp_path / "proof").unlink(missing_ok=True)
    again = on_a_volume(tmp_path, scene.bucket)
    again.run(3)
    assert again.reports.events == ["booted", "proved"]
    script = again.grant(2 if moves else 1, VOLUME)
    folder = tmp_path / "data" / "checkpoints"
    assert (script.environment["SPOTKEEPER_CHECKPOINTS"], folder.is_dir()) == (str(folder), True)


def test_a_volume_that_is_not_attached_within_a_minute_is_reported(tmp_path: Path) -> None:
    scene = on_a_volume(tmp_path)
    scene.run(100)
    said = ("failed", "the volume vol-0abc is not attached after 60 s")
    assert (scene.reports.said[-1], scene.over) == (said, True)


# --- before the command ---------------------------------------------------------------------------


def test_data_outputs_and_what_pip_downloaded_are_there_before_the_command(tmp_path: Path) -> None:
    """Nothing is copied again that is there, and the next machine has what this one wrote."""
    parts: dict[str, Any] = {
        "data": {"s3": "s3://mine/sets/a", "into": "data", "mount": False},
        "outputs": "out",
        "setup": ["pip install -r requirements.txt"],
        "secrets": {"WANDB_API_KEY": "ssm:/team/wandb"},
    }
    scene = Scene(tmp_path, **parts)
    scene.bucket.kept |= {"sets/a/x/1": (b"one", "t"), "sets/a/../../etc/2": (b"two", "t")}
    script = scene.grant()
    work = tmp_path / "work"
    assert [path.name for path in (work / "data").rglob("*")] == ["x", "1"]
    named = ("SPOTKEEPER_DATA", "SPOTKEEPER_OUTPUTS", "PIP_CACHE_DIR", "WANDB_API_KEY")
    values = [str(work / "data"), str(work / "out"), str(work / ".cache"), "secret of /team/wandb"]
    assert [script.environment[name] for name in named] == values
    assert (len(scene.scripts), scene.logs) == (2, [b"-setupthe end\n"])
    (work / "out" / "model.pt").write_text("1")
    (work / "out" / "link").symlink_to("/etc/passwd")
    scene.run(310)
    assert scene.bucket.keys("jobs/resnet/outputs/") == ["jobs/resnet/outputs/model.pt"]
    first = dict(scene.bucket.kept)
    scene.run(310)
    script.code = 0
    scene.run(5)
    sent = {key for key, kept in scene.bucket.kept.items() if first.get(key) != kept}
    assert sent == {HEAD}, "what did not change is not sent again"
    scene.bucket.kept["jobs/resnet/outputs/model.pt"] = (b"an older one", "t")
    (work / "out" / "model.pt").write_text("newer")
    kept = Scene(tmp_path, scene.bucket, **parts)
    del scene.bucket.kept[HEAD]
    kept.attempt = 3
    kept.grant(3).code = 0
    kept.run(5)
    assert scene.bucket.kept["jobs/resnet/outputs/model.pt"][0] == b"newer"
    del scene.bucket.kept[HEAD]
    scene.bucket.kept["jobs/resnet/outputs/model.pt"] = (b"1", "t")
    again = Scene(tmp_path / "next", scene.bucket, **parts)
    (tmp_path / "next").mkdir()
    again.attempt, again.instance_id = 2, "i-2"
    again.grant(2)
    assert (tmp_path / "next/work/out/model.pt").read_text() == "1"
    again.run(5)
    assert again.bucket.kept["jobs/resnet/outputs/model.pt"] == (b"1", "t"), "it was sent again"


def test_a_replaced_machine_does_not_write_over_outputs_of_its_successor(tmp_path: Path) -> None:
    scene = Scene(tmp_path, outputs="out")
    scene.grant()
    (tmp_path / "work" / "out" / "model.pt").write_text("old")
    keeper_of(scene.bucket, 2, 2).claim()
    scene.life._copy_outputs()
    assert scene.bucket.keys("jobs/resnet/outputs/") == []


@pytest.mark.parametrize(
    ("parts", "setup_code", "reason"),
    [
        ({"setup": ["false"]}, 1, "setup: exit code 1: the end"),
        ({"setup": ["sleep 9999"], "setup_within": 60}, None, "setup took longer than 60 s"),
        ({"secrets": {"TOKEN": "ssm:/typo"}}, 0, "secrets: TOKEN: /typo"),
        ({"data": {"s3": "s3://mine/typo", "into": "data"}}, 0,
         "data: there is nothing under s3://mine/typo"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_step", [False, True])
def test_what_no_other_machine_would_do_better_is_final_until_a_checkpoint_is_there(
    tmp_path: Path, parts: dict[str, Any], setup_code: int | None, reason: str, has_step: bool
) -> None:
    scene = Scene(tmp_path, **parts)
    if has_step:
        first = Scene(tmp_path / "first", scene.bucket)
        (tmp_path / "first").mkdir()
        first.grant()
        first.publish(1)
        first.run(5)
        scene.attempt, scene.instance_id = 2, "i-2"
    scene.setup_code = setup_code
    scene.signs = Signs(2 if has_step else 1)
    scene.run(90)
    event, more = scene.reports.more[-1]
    assert (event, more["reason"], more["final"], more["ran_s"]) == (
        "failed", reason, not has_step, 0.0
    )  # fmt: skip


def test_a_machine_that_prepares_for_long_reports_what_it_does(tmp_path: Path) -> None:
    scene = Scene(tmp_path, setup=["sleep 600"])
    scene.setup_code = None
    scene.signs = Signs(1)
    scene.run(200)
    doing = [more["doing"] for event, more in scene.reports.more if event == "running"]
    assert len(doing) == 4
    assert doing[-1].startswith("setup: 1")
    scene.signs = Signs(1, draining=True)
    scene.run(10)
    assert (scene.reports.events[-1], scene.scripts[-1].closed) == ("left", True)


def test_a_machine_that_cannot_prepare_reports_why_before_it_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    refused = Mock(side_effect=BucketError("AccessDenied"))
    monkeypatch.setattr(scene.bucket, "get", refused)
    scene.signs = Signs(1)
    scene.run(200)
    doing = [more["doing"] for event, more in scene.reports.more if event == "running"]
    assert doing == ["AccessDenied"] * 4


def test_nothing_is_written_where_a_link_of_the_jobs_user_leads(tmp_path: Path) -> None:
    """The agent is root, and a kept root has what the command of before left there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "out" / "sub").symlink_to(outside)
    scene = Scene(tmp_path, outputs="out")
    scene.bucket.kept["jobs/resnet/outputs/sub/passwd"] = (b"root", "t")
    scene.grant()
    assert [*outside.iterdir()] == []


@pytest.mark.parametrize("swapped", ["out/model.pt", "out", "checkpoints/000001/model"])
def test_a_link_that_takes_the_place_of_a_file_after_the_look_is_not_followed(
    tmp_path: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is root, and may read what the command's user may not."""
    scene = Scene(tmp_path, outputs="out")
    scene.grant()
    work, secret = tmp_path / "work", tmp_path / "secret"
    scene.publish(1)
    (work / "out" / "model.pt").write_text("1")
    target = work / swapped
    is_folder = target.is_dir()
    if is_folder:
        secret.mkdir()
    (secret / "model.pt" if is_folder else secret).write_text("2")

    def after_a_swap(do: Callable[..., Any]) -> Callable[..., Any]:
        def swapping(*given: Any) -> Any:
            if not target.is_symlink():
                target.rename(tmp_path / "aside")
                target.symlink_to(secret)
            return do(*given)

        return swapping

    if swapped.startswith("out"):
        monkeypatch.setattr(folders, "opened", after_a_swap(entries.opened))
        scene.life._copy_outputs()
    else:
        monkeypatch.setattr(commits, "hold", after_a_swap(entries.hold))
    scene.run(10)
    assert target.is_symlink()
    assert b"2" not in [body for body, _ in scene.bucket.kept.values()]


def test_an_agent_that_was_killed_after_the_setup_does_not_run_it_again(tmp_path: Path) -> None:
    first = Scene(tmp_path, setup=["pip install x"])
    first.grant()
    again = Scene(tmp_path, first.bucket, setup=["pip install x"])
    again.grant()
    assert (len(first.scripts), len(again.scripts)) == (2, 1)


def test_a_copy_that_goes_on_may_fail_for_longer_than_a_call(tmp_path: Path) -> None:
    """Each second download fails: all together for half an hour, and never two in a row."""

    class Flaky(Objects):
        calls = 0

        def download(self, key: str, path: Path) -> None:
            self.calls += 1
            if self.calls % 2:
                raise BucketError("503 Slow Down")
            super().download(key, path)

    scene = Scene(tmp_path, Flaky(), data={"s3": "s3://mine/a", "into": "data", "mount": False})
    scene.bucket.kept |= {f"a/{number}": (b"x", "t") for number in range(200)}
    scene.signs = Signs(1)
    scene.run(3000)
    assert len([*(tmp_path / "work" / "data").iterdir()]) == 200
    assert len(scene.scripts) == 1
    assert "failed" not in scene.reports.events
