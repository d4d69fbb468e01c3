"""The life of a machine that runs a job: `Life.step(now)` is called again and again.

    booted -> the grant -> claim the head -> load, data, setup -> the command -> last commit
    -> exited or left

Whatever may hang runs in the background, so that a warning is always seen. After each step of it a
killed agent, started again, finds its way from the machine's tags and the head alone.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from spotkeeper_worker.job.bucket import BucketError
from spotkeeper_worker.job.commits import Keeper, NotLoaded, Owner, TakenOver, clear
from spotkeeper_worker.job.disks import DiskError, Volume
from spotkeeper_worker.job.entries import Entries, Entry, Seen
from spotkeeper_worker.job.folders import files_in, to_bucket, to_folder
from spotkeeper_worker.job.machine import Document, FinalError, JobError, Machine, Signs
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from concurrent.futures import Future

    from spotkeeper_worker.job.bucket import Bucket
    from spotkeeper_worker.job.command import Command

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
OUTPUTS_S = 300.0
"""How often the output folder is copied to the bucket while the command runs."""
CACHE = ".cache"
"""Below the folder of the command: what pip downloads, kept in the bucket for the next machine."""


class _Silent(Exception):
    """Nobody answered for a quarter of an hour."""


class _Leave(Exception):
    """The machine goes before its command ran."""


@dataclass
class Life:
    """One machine's part in a job."""

    machine: Machine
    stopping: bool = False
    """The agent itself is to stop: the machine stays on."""
    now: float = 0.0
    signs: Signs = field(default_factory=Signs)
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
    _outputs: Path | None = None
    _outputs_sent: dict[str, Seen] = field(default_factory=dict)
    _log_kept: bool = False
    _copy: Future[None] | None = None
    _copied_at: float = 0.0
    _began_at: float | None = None
    _report_at: float = 0.0
    _busy_at: float = 0.0
    _committed_at: float = 0.0
    _has_reached: bool = False
    """Whether something was committed since the machine was to leave at a checkpoint."""
    _said: set[str] = field(default_factory=set)
    _trouble_since: float | None = None
    _trouble: str = ""
    _is_reported: bool = False

    def step(self, now: float) -> bool:
        """Look, and do what is due; whether the machine's part is over."""
        self.now = now
        if self._seen_at is None:
            self._seen_at = now
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            state = self.machine.look()
            if state is not None:
                self._seen_at, self.signs = now, state
                self._ends_at = None if state.taken_in_s is None else now + state.taken_in_s
        if self._story is None:
            self._story = self._whole()
        try:
            next(self._story)
        except StopIteration:
            return True
        return False

    # --- waiting ----------------------------------------------------------------------------------

    @property
    def _leaving(self) -> bool:
        signs, has_checkpoints = self.signs, self._command is not None and self._entries is not None
        waits = signs.at_checkpoint and has_checkpoints and not self._has_reached
        return self.stopping or (signs.draining and not waits) or self._ends_at is not None

    def _tick(self, *, may_leave: bool = False) -> Ticks[None]:
        yield
        answers = {
            "the metadata service": self._seen_at or self.now,
            "AWS": self.machine.aws_answered_at(),
        }
        silent = min(answers, key=lambda name: answers[name])
        if self.now - answers[silent] > SILENT_S:
            raise _Silent(f"no answer of {silent} for {SILENT_S / 60:.0f} minutes")
        if may_leave and self._leaving:
            raise _Leave

    def _await(
        self,
        call: Callable[[], _Answer],
        *,
        may_leave: bool = True,
        doing: Callable[[], str] = str,
    ) -> Ticks[_Answer]:
        """Have a call done in the background; what the bucket refuses is tried again.

        A long one says each minute what it is `doing`, or what goes wrong: a machine that reports
        nothing is ended.
        """
        while True:
            task = self.machine.background(call)
            while not task.done():
                self._says(doing())
                yield from self._tick(may_leave=may_leave)
            try:
                answer: _Answer = task.result()
                self._trouble_since, self._is_reported = None, False
                return answer
            except BucketError as error:
                self._troubled(str(error))
                self._says("")
                if self.now - (self._trouble_since or self.now) > SILENT_S:
                    raise JobError(str(error)) from None
            again_at = self.now + AGAIN_S
            while self.now < again_at:
                yield from self._tick(may_leave=may_leave)

    def _says(self, doing: str) -> None:
        doing = doing if self._trouble_since is None else self._trouble
        if doing and self.now >= self._report_at:
            self._report_at = self.now + REPORT_S
            self.machine.report("running", doing=doing)

    def _tried(self, call: Callable[[], object], within_s: float = FLUSH_S) -> Ticks[bool]:
        """Have a call done within a time; whether it was, without an error."""
        task, until = self.machine.background(call), self.now + within_s
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

    def _troubled(self, reason: str) -> None:
        """Note what goes wrong; what lasts is reported once, and ends this machine as an error."""
        self._trouble = reason
        if self._trouble_since is None:
            self._trouble_since = self.now
            _LOG.warning("%s", reason)
        elif self.now - self._trouble_since >= TROUBLED_S and not self._is_reported:
            self._is_reported = True
            self.machine.report("failed", reason=reason[:1000])

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
            event = {"event": "failed", "reason": f"{error}"[:1000], "ran_s": self._ran_s}
            kept = self._keeper is not None and self._keeper.head.step
            event["final"] = isinstance(error, FinalError) and not kept
        yield from self._close(event)

    def _life(self) -> Ticks[dict[str, Any]]:
        machine = self.machine
        machine.report("booted")
        document = Document((yield from self._await(machine.document)))
        volume = yield from self._proved(document)
        since = self.now
        while not self.signs.generation:
            if self.now - since > SILENT_S:
                raise _Silent(f"no grant for {SILENT_S / 60:.0f} minutes")
            yield from self._tick(may_leave=True)
        if volume and self.signs.volume != volume.volume:
            raise JobError(f"the grant is for {self.signs.volume}, and {volume.volume} was proved")
        generation = machine.report.generation = self.signs.generation
        if volume and document.mount:
            # Before the claim: a blank volume is right only while there is no head.
            self._mounted = mount = Path(document.mount)
            yield from self._await(lambda: volume.open(mount, generation))
        owner = Owner(machine.instance_id, machine.attempt, generation)
        keeper = Keeper(machine.store, machine.job, owner, document.keep, machine.clock)
        head = yield from self._await(keeper.claim)
        if head.done or head.exit_code is not None:
            # The agent was killed after its last word to the bucket.
            yield from self._tried(keeper.clean)
            return {"event": "exited", "step": head.step, "exit_code": head.exit_code}
        self._keeper = keeper
        self._command = yield from self._started(document, keeper)
        self._began_at = self.now
        code, left = yield from self._watched(self._command, document)
        ran_s, since = self._ran_s, self.now
        while self._commits(well=code == 0):
            if self.now - since > SILENT_S:
                raise JobError("the last checkpoint could not be committed")
            yield from self._tick()
        event: dict[str, Any] = {"step": keeper.head.step, "ignored": self._ignored}
        if left:
            yield from self._tried(self._copy_outputs)
            return {"event": "left", **event}
        yield from self._await(
            self._copy_outputs, may_leave=False, doing=lambda: "copies its outputs"
        )
        # A turn that reads that the job is done ends this machine, and mails the output.
        yield from self._keep_log()
        yield from self._await(lambda: keeper.finish(code), may_leave=False)
        yield from self._tried(keeper.clean)
        return {"event": "exited", "exit_code": code, "ran_s": ran_s, **event}

    @property
    def _ran_s(self) -> float:
        """For how long the command has run; 0 before it."""
        return 0.0 if self._began_at is None else self.now - self._began_at

    def _keep_log(self) -> Ticks[None]:
        command = self._command
        if command is not None and not self._log_kept:
            yield from self._tried(command.close)
            tail = command.tail
            self._log_kept = yield from self._tried(lambda: self.machine.save_log(tail))

    def _copy_outputs(self) -> None:
        keeper, folder = self._keeper, self._outputs
        # A machine that was replaced does not write over what its successor wrote.
        if keeper and folder and folder.is_dir() and keeper.owns():
            prefix = f"jobs/{self.machine.job}/outputs/"
            to_bucket(self.machine.store, folder, prefix, self._outputs_sent)

    def _proved(self, document: Document) -> Ticks[Volume | None]:
        """Find the job's volume, and check what is on it."""
        machine = self.machine
        if document.mount is None:
            return None
        since = self.now
        device = name = None
        while device is None:
            name = self.signs.volume
            device = machine.disks.find(name) if name else None
            if self.now - since > (FIND_DISK_S if name else SILENT_S):
                raise JobError(f"the volume {name} is not attached after {FIND_DISK_S:.0f} s")
            if device is None:
                yield from self._tick(may_leave=True)
        volume = Volume(machine.disks, machine.job, str(name), device)
        machine.report.volume = volume.volume
        mount, head_key = Path(document.mount), f"jobs/{machine.job}/head.json"

        def proved() -> None:
            # An agent that was killed left it mounted.
            machine.disks.unmount(mount)
            volume.is_new = machine.store.get(head_key) is None
            volume.prove(machine.folder / "proof")

        yield from self._await(proved)
        machine.report("proved")
        return volume

    def _started(self, document: Document, keeper: Keeper) -> Ticks[Command]:
        """Put code and checkpoint into their places, and start the command."""
        machine, work = self.machine, self.machine.folder / "work"
        checkpoints = work / document.checkpoints if document.checkpoints else None
        if checkpoints:
            # A kept root has those of another machine, whole or not.
            empty = keeper.rescue if keeper.was_mine else clear
            yield from self._await(lambda: empty(checkpoints))
        yield from self._await(lambda: machine.prepare(document, work))
        if checkpoints:
            if keeper.was_mine and keeper.head.step:
                machine.report("committed", step=keeper.head.step)
            loaded, wrong = yield from self._await(lambda: keeper.load(checkpoints))
            if wrong:
                _LOG.error("an older checkpoint is used: %s", wrong)
            self._entries = Entries(checkpoints, document.complete, document.entries)
            self._entries.committed = loaded
        folder = checkpoints or (self._mounted or work) / "checkpoints"
        environment = {
            **document.environment, "SPOTKEEPER_JOB": machine.job,
            "SPOTKEEPER_ATTEMPT": str(machine.attempt), "SPOTKEEPER_CHECKPOINTS": str(folder),
        }  # fmt: skip
        if document.outputs:
            self._outputs = outputs = work / document.outputs
            environment["SPOTKEEPER_OUTPUTS"] = str(outputs)
            prefix = f"jobs/{machine.job}/outputs/"
            before = files_in(outputs)
            yield from self._copied("outputs", machine.store, prefix, outputs, keep=True)
            # What was there before, on a kept root or by a killed agent, may be newer.
            now = files_in(outputs)
            self._outputs_sent = {name: now[name] for name in now if name not in before}
        if document.data:
            source, into = document.data
            environment["SPOTKEEPER_DATA"] = str(work / into)
            if not document.mounts_data:
                bucket, _, prefix = source[len("s3://") :].partition("/")
                prefix = f"{prefix.rstrip('/')}/" if prefix else ""
                yield from self._copied("data", machine.store.beside(bucket), prefix, work / into)
                if not any((work / into).iterdir()):
                    raise FinalError(f"data: there is nothing under {source}")
        if document.setup:
            environment["PIP_CACHE_DIR"] = str(work / CACHE)
            prefix = f"jobs/{machine.job}/cache/"
            yield from self._copied("cache", machine.store, prefix, work / CACHE, keep=True)
        yield from self._await(lambda: machine.hand_over(document, work, self._mounted))
        if document.data and document.mounts_data:
            into = document.data[1]
            yield from self._await(lambda: machine.mount_data(document, work / into))
        secrets = yield from self._await(lambda: machine.read_secrets(document))
        if document.setup:
            yield from self._set_up(document, work, environment, secrets)
        self._busy_at = self._report_at = self._committed_at = self._copied_at = self.now
        return machine.start(document, work, environment, secrets)

    def _copied(
        self, what: str, store: Bucket, prefix: str, folder: Path, *, keep: bool = False
    ) -> Ticks[None]:
        """Copy a prefix of a bucket into a folder, and say how far it is."""
        progress = [0, 0]

        def show(done: int, total: int) -> None:
            if done > progress[0]:
                progress[:] = done, total
                self._trouble_since = None

        yield from self._await(
            lambda: to_folder(store, prefix, folder, show, keep=keep),
            doing=lambda: f"{what}: {progress[0] / 1e9:.1f} of {progress[1] / 1e9:.1f} GB",
        )

    def _set_up(
        self, document: Document, work: Path, environment: dict[str, str], secrets: dict[str, str]
    ) -> Ticks[None]:
        """Run the setup, once on each machine, and keep what pip downloaded for the next one."""
        machine, since = self.machine, self.now
        done = machine.folder / f"setup-{machine.attempt}"
        if done.exists():
            # The agent was killed after it.
            return
        known = files_in(work / CACHE)
        self._command = command = machine.start(document, work, environment, secrets, setup=True)
        while (code := command.poll()) is None:
            if self.now - since > document.setup_within:
                raise FinalError(f"setup took longer than {document.setup_within:.0f} s")
            self._says(f"setup: {self.now - since:.0f} s")
            yield from self._tick(may_leave=True)
        yield from self._tried(command.close)
        last = command.tail.decode("utf-8", "replace").strip().splitlines()[-1:]
        if code:
            raise FinalError(": ".join([f"setup: exit code {code}", *last])[:1000])
        yield from self._tried(lambda: machine.save_log(command.tail, "-setup"))
        prefix = f"jobs/{machine.job}/cache/"
        yield from self._tried(
            lambda: to_bucket(machine.store, work / CACHE, prefix, known), document.setup_within
        )
        done.touch()

    def _watched(self, command: Command, document: Document) -> Ticks[tuple[int, bool]]:
        """Look after the command until it ends; its exit code, and whether it had to leave."""
        killed_at: float | None = None
        while True:
            code = command.poll()
            if code is not None:
                return code, killed_at is not None or self.stopping
            self._alive_at = self.now
            if self._leaving and killed_at is None:
                killed_at = self.now + LEAVES_WITHIN_S
                command.signal(signal.SIGTERM)
            if killed_at is not None:
                if self._ends_at is not None:
                    killed_at = min(killed_at, self._ends_at - LAST_S)
                if self.now >= killed_at:
                    command.signal(signal.SIGKILL)
            self._commits(well=False)
            self._each_minute(document)
            is_due = self.now - self._copied_at >= OUTPUTS_S and not self._leaving
            if is_due and (self._copy is None or self._copy.done()):
                self._copied_at = self.now
                self._copy = self.machine.background(self._copy_outputs)
            yield from self._tick()

    def _commits(self, *, well: bool) -> bool:
        """Commit what is complete; whether there is something that is not committed yet."""
        if self._entries is None or self._keeper is None:
            return False
        task, entry, keeper = self._commit, self._committing, self._keeper
        try:
            if task is None and self.now >= self._wait_until:
                entry = self._entries.look(self._alive_at, ended_well=well)
                for name in {*self._entries.ignored} - self._said:
                    self._said.add(name)
                    _LOG.info("not committed: %s: %s", name, self._entries.ignored[name])
                if entry is None:
                    return False
                committing = self._committing = entry
                self._commit = self.machine.background(lambda: keeper.commit(committing))
            elif task is not None and task.done():
                self._commit = None
                if task.result():
                    self._trouble_since, self._is_reported = None, False
                    self._entries.committed = entry
                    self._busy_at = self._committed_at = self.now
                    self._has_reached = self.signs.at_checkpoint
                    self.machine.report(
                        "committed", step=keeper.head.step, ignored=self._ignored, uncommitted_s=0.0
                    )
        except (BucketError, OSError) as error:
            self._commit = None
            self._troubled(f"the checkpoint is not committed: {error}")
            self._wait_until = self.now + AGAIN_S
        return True

    @property
    def _ignored(self) -> str:
        """What of the checkpoint folder is not committed, with the reasons."""
        ignored = self._entries.ignored if self._entries else {}
        return "; ".join(f"{name}: {reason}" for name, reason in ignored.items())

    def _each_minute(self, document: Document) -> None:
        if self._gpu is None:
            if self.now >= self._report_at:
                self._gpu = self.machine.background(self.machine.gpu)
            return
        if not self._gpu.done():
            return
        use, self._gpu = self._gpu.result(), None
        self._report_at = max(self._report_at + REPORT_S, self.now)
        step = self._keeper.head.step if self._keeper else None
        since_s = self.now - self._committed_at if self._entries else None
        self.machine.report(
            "running", step=step, gpu=use, ignored=self._ignored, uncommitted_s=since_s
        )
        if use is None or use >= IDLE_BELOW:
            self._busy_at = self.now
        elif document.idle_after and self.now - self._busy_at >= document.idle_after:
            self.machine.report("idle", step=step, gpu=use)

    def _close(self, event: dict[str, Any] | None) -> Ticks[None]:
        """Leave nothing behind, report, and shut the machine down."""
        machine = self.machine
        if self._command is not None and not self._log_kept:
            yield from self._tried(self._command.close)
        if self._mounted is not None:
            mount, until = self._mounted, self.now + FLUSH_S
            while not (yield from self._tried(lambda: machine.disks.unmount(mount))):
                if self.now > until:
                    _LOG.error("%s cannot be unmounted; the shutdown writes what is left", mount)
                    break
                yield
        # The time of a machine that leaves is short. After `exited` nobody keeps it on.
        if event and event["event"] == "left":
            machine.report(**event)
        if event:
            yield from self._keep_log()
        if event and event["event"] != "left":
            machine.report(**event)
        yield from self._tried(lambda: machine.report.flush(FLUSH_S))
        while not self.stopping and not (yield from self._tried(machine.shut_down, REPORT_S)):
            again_at = self.now + AGAIN_S
            while self.now < again_at and not self.stopping:
                yield
