"""The life of a machine that runs a job: `Life.step(now)` is called again and again.

    booted -> the grant -> claim the head -> load -> the command -> last commit -> exited or left

Whatever may hang runs in the background, so that a warning is always seen. After each step of it a
killed agent, started again, finds its way from the machine's tags and the head alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from spotkeeper_worker.job.bucket import Bucket, BucketError
from spotkeeper_worker.job.commits import Keeper, NotLoaded, Owner, TakenOver, clear
from spotkeeper_worker.job.disks import DiskError, Volume
from spotkeeper_worker.job.entries import Entries, Entry, OutsideLink
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from spotkeeper_worker.job.command import Command
    from spotkeeper_worker.job.disks import Disks
    from spotkeeper_worker.job.reports import Reporter

_LOG = get_logger("agent")
_Answer = TypeVar("_Answer")
Ticks = Generator[None, None, _Answer]

LOOK_S = 2.0
REPORT_S = 60.0
SILENT_S = 900.0
"""Without a grant, or without an answer of the metadata service or of AWS, the machine is ended."""
LEAVES_WITHIN_S = 120.0
"""What the command has after SIGTERM, when Spotkeeper drains the machine."""
LAST_S = 30.0
"""Of a warning: what is left for the last commit, and the command is killed before."""
FIND_DISK_S = 60.0
AGAIN_S = 10.0
TROUBLED_S = 300.0
FLUSH_S = 30.0
IDLE_BELOW = 2


class JobError(Exception):
    """What stops this machine and is reported as `failed`."""


@dataclass(frozen=True)
class Signs:
    """What the metadata say; `taken_in_s` until EC2 takes the machine."""

    generation: int = 0
    volume: str | None = None
    draining: bool = False
    taken_in_s: float | None = None


@dataclass(frozen=True)
class Document:
    """What the machine needs of the job's document."""

    command: tuple[str, ...]
    code: str | None
    git: Mapping[str, str] | None
    user: str | None
    environment: Mapping[str, str]
    checkpoints: str | None
    complete: str | None
    keep: int
    mount: str | None
    idle_after: float | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Document:
        """Read `document.json`; raises JobError."""
        try:
            if body["version"] != 1:
                raise JobError(f"document.json has version {body['version']}: update the agent")
            state, end = body["state"], body.get("end") or {}
            volume = state.get("volume")
            return cls(
                command=tuple(body["command"]),
                code=body.get("code"),
                git=body.get("git"),
                user=body.get("user"),
                environment={name: str(text) for name, text in body["environment"].items()},
                checkpoints=None if volume else state["checkpoints"],
                complete=state.get("complete"),
                keep=int(state.get("keep") or 2),
                mount=volume["mount"] if volume else None,
                idle_after=end.get("idle_after"),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise JobError(f"document.json cannot be read: {error!r}") from None


def in_background(call: Callable[[], _Answer]) -> Future[_Answer]:
    """Make a call in a thread, which the process does not wait for when it ends."""
    made: Future[_Answer] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return made


@dataclass(frozen=True)
class Parts:
    """What a life is made of; a test replaces any of it."""

    job: str
    attempt: int
    instance_id: str
    folder: Path
    look: Callable[[], Signs | None]
    """None where the metadata service did not answer."""
    store: Bucket
    document: Callable[[], Mapping[str, Any]]
    prepare: Callable[[Document, Path], None]
    """Puts the code into the folder, for the job's user."""
    hand_over: Callable[[Document, Path, Path | None], None]
    """Gives the folder, and the root of the volume, to the job's user."""
    start: Callable[[Document, Path, Mapping[str, str]], Command]
    report: Reporter
    save_log: Callable[[bytes], None]
    gpu: Callable[[], int | None]
    disks: Disks
    shut_down: Callable[[], None]
    """Shuts the machine down; raises OSError."""
    aws_answered_at: Callable[[], float]
    """When AWS last answered, by the clock of `step`."""
    background: Callable[[Callable[[], Any]], Future[Any]] = in_background
    clock: Callable[[], float] = time.time


class _Silent(Exception):
    """Nobody answered for a quarter of an hour."""


class _Leave(Exception):
    """The machine goes before its command ran."""


@dataclass
class Life:
    """One machine's part in a job."""

    parts: Parts
    stopping: bool = False
    """The agent itself is to stop: the machine stays on."""
    now: float = 0.0
    signs: Signs = Signs()
    _ends_at: float | None = None
    _looked_at: float = float("-inf")
    _seen_at: float | None = None
    _story: Ticks[None] | None = None
    _command: Command | None = None
    _mounted: Path | None = None
    _keeper: Keeper | None = None
    _entries: Entries | None = None
    _commit: Future[bool] | None = None
    _committing: Entry | None = None
    _alive_at: float = 0.0
    _wait_until: float = 0.0
    _gpu: Future[int | None] | None = None
    _report_at: float = 0.0
    _busy_at: float = 0.0
    _idle: bool = False
    _trouble_since: float | None = None
    _is_reported: bool = False

    def step(self, now: float) -> bool:
        """Look, and do what is due; whether the machine's part is over."""
        self.now = now
        self._look()
        if self._story is None:
            self._story = self._whole()
        try:
            next(self._story)
        except StopIteration:
            return True
        return False

    # --- looking ----------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._seen_at is None:
            self._seen_at = self.now
        if self.now - self._looked_at < LOOK_S:
            return
        self._looked_at = self.now
        found = self.parts.look()
        if found is not None:
            self._seen_at = self.now
            self.signs = found
            self._ends_at = None if found.taken_in_s is None else self.now + found.taken_in_s

    @property
    def _leaving(self) -> bool:
        return self.stopping or self.signs.draining or self._ends_at is not None

    def _tick(self, *, may_leave: bool = False) -> Ticks[None]:
        yield
        answered_at = self.parts.aws_answered_at()
        if self.now - min(self._seen_at or self.now, answered_at) > SILENT_S:
            what = "AWS" if answered_at < (self._seen_at or self.now) else "the metadata service"
            raise _Silent(f"no answer of {what} for {SILENT_S / 60:.0f} minutes")
        if may_leave and self._leaving:
            raise _Leave

    def _await(self, call: Callable[[], _Answer], *, may_leave: bool = True) -> Ticks[_Answer]:
        """Have a call done in the background; what the bucket refuses is tried again."""
        since = self.now
        while True:
            task = self.parts.background(call)
            while not task.done():
                yield from self._tick(may_leave=may_leave)
            try:
                answer: _Answer = task.result()
                self._works()
                return answer
            except BucketError as error:
                self._troubled(str(error))
                if self.now - since > SILENT_S:
                    raise JobError(str(error)) from None
            again_at = self.now + AGAIN_S
            while self.now < again_at:
                yield from self._tick(may_leave=may_leave)

    def _troubled(self, reason: str) -> None:
        """Note what goes wrong; what lasts is reported once, and ends this machine as an error."""
        if self._trouble_since is None:
            self._trouble_since = self.now
            _LOG.warning("%s", reason)
        elif self.now - self._trouble_since >= TROUBLED_S and not self._is_reported:
            self._is_reported = True
            self.parts.report("failed", reason=reason[:1000])

    def _works(self) -> None:
        self._trouble_since, self._is_reported = None, False

    # --- the story --------------------------------------------------------------------------------

    def _whole(self) -> Ticks[None]:
        event: dict[str, Any] | None = None
        try:
            event = yield from self._life()
        except _Leave:
            event = {"event": "left"}
        except (TakenOver, _Silent) as error:
            _LOG.warning("the machine is shut down: %s", error)
        except (JobError, DiskError, NotLoaded, OSError, ValueError) as error:
            _LOG.error("%s", error)
            event = {"event": "failed", "reason": f"{error}"[:1000]}
        yield from self._close(event)

    def _life(self) -> Ticks[dict[str, Any]]:
        parts = self.parts
        parts.report("booted")
        document = Document.read((yield from self._await(parts.document)))
        volume = yield from self._proved(document)
        generation = yield from self._granted(volume)
        parts.report.generation = generation
        if volume and document.mount:
            # Before the claim: a blank volume is right only while there is no head.
            self._mounted = mount = Path(document.mount)
            yield from self._await(lambda: volume.open(mount, generation))
        owner = Owner(parts.instance_id, parts.attempt, generation)
        keeper = Keeper(parts.store, parts.job, owner, document.keep, parts.clock)
        head = yield from self._await(keeper.claim)
        if head.done or head.exit_code is not None:
            # The agent was killed after its last word to the bucket.
            yield from self._tried(keeper.clean, FLUSH_S)
            return {"event": "exited", "step": head.step, "exit_code": head.exit_code}
        self._keeper = keeper
        self._command = yield from self._started(document, keeper)
        code, left = yield from self._watched(self._command, document)
        yield from self._last_commits(well=code == 0)
        if left:
            return {"event": "left", "step": keeper.head.step}
        yield from self._await(lambda: keeper.finish(code), may_leave=False)
        yield from self._tried(keeper.clean, FLUSH_S)
        return {"event": "exited", "step": keeper.head.step, "exit_code": code}

    def _granted(self, volume: Volume | None) -> Ticks[int]:
        since = self.now
        while not self.signs.generation:
            if self.now - since > SILENT_S:
                raise _Silent(f"no grant for {SILENT_S / 60:.0f} minutes")
            yield from self._tick(may_leave=True)
        if volume and self.signs.volume != volume.volume:
            raise JobError(f"the grant is for {self.signs.volume}, and {volume.volume} was proved")
        return self.signs.generation

    def _proved(self, document: Document) -> Ticks[Volume | None]:
        """Find the job's volume, and check what is on it."""
        parts = self.parts
        if document.mount is None:
            return None
        since = self.now
        device = name = None
        while device is None:
            name = self.signs.volume
            device = parts.disks.find(name) if name else None
            if self.now - since > (FIND_DISK_S if name else SILENT_S):
                raise JobError(f"the volume {name} is not attached after {FIND_DISK_S:.0f} s")
            if device is None:
                yield from self._tick(may_leave=True)
        volume = Volume(parts.disks, parts.job, str(name), device)
        parts.report.volume = volume.volume
        mount, head_key = Path(document.mount), f"jobs/{parts.job}/head.json"

        def proved() -> None:
            # An agent that was killed left it mounted.
            parts.disks.unmount(mount)
            volume.is_new = parts.store.get(head_key) is None
            volume.prove(parts.folder / "proof")

        yield from self._await(proved)
        parts.report("proved")
        return volume

    def _started(self, document: Document, keeper: Keeper) -> Ticks[Command]:
        """Put code and checkpoint into their places, and start the command."""
        parts, work = self.parts, self.parts.folder / "work"
        checkpoints = work / document.checkpoints if document.checkpoints else None
        if checkpoints and keeper.was_mine:
            yield from self._await(lambda: keeper.rescue(checkpoints))
        elif checkpoints:
            # A kept root has those of another machine, whole or not.
            yield from self._await(lambda: clear(checkpoints))
        yield from self._await(lambda: parts.prepare(document, work))
        if self._mounted:
            folder = self._mounted / "checkpoints"
        else:
            folder = work / str(document.checkpoints)
            if keeper.was_mine and keeper.head.step:
                parts.report("committed", step=keeper.head.step)
            loaded, wrong = yield from self._await(lambda: keeper.resume(folder))
            if wrong:
                _LOG.error("an older checkpoint is used: %s", wrong)
            self._entries = Entries(folder, document.complete)
            self._entries.committed = loaded
        yield from self._await(lambda: parts.hand_over(document, work, self._mounted))
        environment = {
            **document.environment, "SPOTKEEPER_JOB": parts.job,
            "SPOTKEEPER_ATTEMPT": str(parts.attempt), "SPOTKEEPER_CHECKPOINTS": str(folder),
        }  # fmt: skip
        self._busy_at = self._report_at = self.now
        return parts.start(document, work, environment)

    def _watched(self, command: Command, document: Document) -> Ticks[tuple[int, bool]]:
        """Look after the command until it ends; its exit code, and whether it had to leave."""
        told_at: float | None = None
        while True:
            code = command.poll()
            if code is not None:
                return code, told_at is not None or self.stopping
            self._alive_at = self.now
            if self._leaving and told_at is None:
                told_at = self.now
                command.signal(signal.SIGTERM)
            if told_at is not None and self.now >= self._killed_at(told_at):
                command.signal(signal.SIGKILL)
            self._commits(well=False)
            self._each_minute(document)
            yield from self._tick()

    def _killed_at(self, told_at: float) -> float:
        ends = told_at + LEAVES_WITHIN_S
        return ends if self._ends_at is None else min(ends, self._ends_at - LAST_S)

    def _commits(self, *, well: bool) -> bool:
        """Commit what is complete; whether there is something that is not committed yet."""
        if self._entries is None or self._keeper is None:
            return False
        task, entry, keeper = self._commit, self._committing, self._keeper
        try:
            if task is None and self.now >= self._wait_until:
                entry = self._entries.look(self._alive_at, ended_well=well)
                if entry is None:
                    return False
                found = entry
                self._committing = entry
                self._commit = self.parts.background(lambda: keeper.commit(found))
            elif task is not None and task.done():
                self._commit = None
                if task.result():
                    self._works()
                    self._entries.committed = entry
                    self._busy_at, self._idle = self.now, False
                    self.parts.report("committed", step=keeper.head.step)
        except (BucketError, OutsideLink, OSError) as error:
            self._commit = None
            self._troubled(f"the checkpoint is not committed: {error}")
            self._wait_until = self.now + AGAIN_S
        return True

    def _last_commits(self, *, well: bool) -> Ticks[None]:
        since = self.now
        while self._commits(well=well):
            if self.now - since > SILENT_S:
                raise JobError("the last checkpoint could not be committed")
            yield from self._tick()

    def _each_minute(self, document: Document) -> None:
        if self._gpu is None:
            if self.now >= self._report_at:
                self._gpu = self.parts.background(self.parts.gpu)
            return
        if not self._gpu.done():
            return
        use, self._gpu = self._gpu.result(), None
        self._report_at = max(self._report_at + REPORT_S, self.now)
        step = self._keeper.head.step if self._keeper else None
        self.parts.report("running", step=step, gpu=use)
        if use is None or use >= IDLE_BELOW:
            self._busy_at, self._idle = self.now, False
        elif document.idle_after and self.now - self._busy_at >= document.idle_after:
            if not self._idle:
                self.parts.report("idle", step=step, gpu=use)
            self._idle = True

    # --- the end ----------------------------------------------------------------------------------

    def _close(self, event: dict[str, Any] | None) -> Ticks[None]:
        """Leave nothing behind, report, and shut the machine down."""
        parts, command = self.parts, self._command
        if command is not None:
            yield from self._tried(command.close, FLUSH_S)
        if self._mounted is not None:
            mount, until = self._mounted, self.now + FLUSH_S
            while not (yield from self._tried(lambda: parts.disks.unmount(mount), FLUSH_S)):
                if self.now > until:
                    _LOG.error("%s cannot be unmounted; the shutdown writes what is left", mount)
                    break
                yield
        if event is not None:
            # The time of a machine that leaves is short. After `exited` nobody keeps it on.
            if event["event"] == "left":
                parts.report(**event)
            if command is not None:
                tail = command.tail
                yield from self._tried(lambda: parts.save_log(tail), FLUSH_S)
            if event["event"] != "left":
                parts.report(**event)
        yield from self._tried(lambda: parts.report.flush(FLUSH_S), FLUSH_S)
        while not self.stopping and not (yield from self._tried(parts.shut_down, REPORT_S)):
            again_at = self.now + AGAIN_S
            while self.now < again_at and not self.stopping:
                yield

    def _tried(self, call: Callable[[], object], within_s: float) -> Ticks[bool]:
        """Have a call done within a time; whether it was, without an error."""
        task, until = self.parts.background(call), self.now + within_s
        while not task.done():
            if self.now > until:
                return False
            yield
        try:
            task.result()
        except (BucketError, DiskError, OSError) as error:
            _LOG.warning("%s", error)
            return False
        return True
