"""The job's head in the bucket: claim it, load its checkpoint, commit new ones.

`head.json` names the newest checkpoint and the machine that owns the job. It is written under a
condition alone: once a machine has claimed it, no older one can commit. Objects of a checkpoint are
uploaded before the head names them, under keys that no other upload uses.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from spotkeeper_worker.checkpoints import DRAFT, compare, latest
from spotkeeper_worker.job.bucket import AT_ONCE, Absent, Bucket, BucketError, Conflict, each_of
from spotkeeper_worker.job.entries import Entry, hold, look_at, opened, point, pointers_at, release
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
_BLOCK = 256 * 1024
LARGE = 32 * 1024 * 1024
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class TakenOver(Exception):
    """Another machine owns the job: this one is to stop at once."""


class NotLoaded(Exception):
    """No checkpoint that the head names is whole."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint; `path` is below it, and `.` for a checkpoint that is one file."""

    path: str
    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Step:
    """A checkpoint in the bucket, and what named it beside it."""

    step: str
    files: tuple[File, ...]
    pointers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, body: Any) -> Step | None:
        """Read it; None where there is none yet."""
        if not body or body.get("step") is None:
            return None
        names = ("path", "key", "bytes", "sha256")
        files = tuple(File(**{name: each[name] for name in names}) for each in body["files"])
        return cls(str(body["step"]), files, dict(body.get("pointers", {})))


@dataclass(frozen=True)
class Owner:
    """The machine that writes."""

    instance_id: str
    attempt: int
    generation: int

    @property
    def rank(self) -> tuple[int, int]:
        """Order the owners of a job: machines that share a volume share its generation."""
        return (self.generation, self.attempt)


@dataclass(frozen=True)
class Head:
    """What `head.json` says."""

    job: str
    owner: Owner
    newest: Step | None = None
    previous: Step | None = None
    done: bool = False
    exit_code: int | None = None
    at: str = ""

    @property
    def step(self) -> str | None:
        """The newest checkpoint's name."""
        return self.newest.step if self.newest else None

    @property
    def keys(self) -> set[str]:
        """The objects that it needs."""
        steps = [each for each in (self.newest, self.previous) if each]
        return {file.key for each in steps for file in each.files}

    def as_json(self) -> bytes:
        """Write it."""
        newest = asdict(self.newest or Step("", ())) | {"step": self.step}
        body = {
            "version": VERSION, "job": self.job, "generation": self.owner.generation,
            "attempt": self.owner.attempt, "owner": self.owner.instance_id, **newest,
            "previous": asdict(self.previous) if self.previous else None,
            "done": self.done, "exit_code": self.exit_code, "at": self.at,
        }  # fmt: skip
        return json.dumps(body, indent=1).encode()

    @classmethod
    def read(cls, text: bytes) -> Head:
        """Read it; raises ValueError for what is no head of this version."""
        try:
            body = json.loads(text)
            if body["version"] != VERSION:
                raise ValueError(f"head.json has version {body['version']}: update the agent")
            owner = Owner(body["owner"], int(body["attempt"]), int(body["generation"]))
            newest, previous = Step.read(body), Step.read(body.get("previous"))
            ended = (bool(body["done"]), body["exit_code"])
            return cls(body["job"], owner, newest, previous, *ended, body["at"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"head.json is not the head of a job: {error!r}") from None


@dataclass
class Keeper:
    """Writes the head for one machine. Its calls block; after an error each may be called again."""

    store: Bucket
    job: str
    me: Owner
    keep: int
    clock: Callable[[], float]
    """Seconds since the epoch."""
    at_once: int = AT_ONCE
    head: Head = field(init=False)
    was_mine: bool = False
    """Whether this machine owned the head before this claim: the agent was started again."""
    _tag: str | None = None
    _tried: list[Head] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head = Head(self.job, self.me)

    def _key(self, name: str) -> str:
        return f"jobs/{self.job}/{name}"

    def _read(self) -> tuple[Head | None, str | None]:
        answer = self.store.get(self._key("head.json"))
        return (Head.read(answer[0]), answer[1]) if answer else (None, None)

    def claim(self) -> Head:
        """Become the owner; raises TakenOver. What the job had done is kept as it is."""
        while True:
            head, self._tag = self._read()
            self.was_mine = head is not None and head.owner == self.me
            if head and not self.was_mine and head.owner.rank >= self.me.rank:
                raise TakenOver(f"{head.owner} owns the job")
            if head and head.done:
                self.head = head
                return head
            code = head.exit_code if head and self.was_mine else None
            claimed = replace(head or self.head, owner=self.me, exit_code=code)
            self.head = head or claimed
            try:
                self._write(claimed)
                return self.head
            except TakenOver:
                # Somebody wrote in between: look at whom.
                continue

    def _write(self, head: Head) -> None:
        """Write the head over the one that was written last; raises TakenOver or BucketError.

        A call without an answer may have had its effect, or have it later: what is there then is
        this machine's own, and no reason to stop.
        """
        head = replace(head, at=as_text(self.clock()))
        while True:
            self._tried.append(head)
            try:
                self._tag = self.store.put(self._key("head.json"), head.as_json(), self._tag)
                break
            except BucketError as error:
                stored, tag = self._read()
                if stored is not None and stored != self.head and stored not in self._tried:
                    raise TakenOver(f"{stored.owner} owns the job") from None
                if stored is None and self._tag is not None:
                    raise TakenOver("the job was deleted") from None
                self._tag = tag
                if stored == head:
                    break
                self.head = stored or self.head
                if not isinstance(error, Conflict):
                    raise
        self.head = head
        self._tried.clear()

    def commit(self, entry: Entry) -> bool:
        """Upload a checkpoint and have the head name it. False where it changed meanwhile."""
        held = None if entry.outside else hold(entry)
        if held is None:
            return False
        try:
            part = f"{entry.name}-{self.me.attempt}/{self.me.generation}.{secrets.token_hex(4)}"

            def send(seen: tuple[str, int, int, int]) -> File:
                path, size, at, inode = seen
                key = self._key(f"steps/{part}/{entry.name if path == '.' else path}")
                with opened(held.path / path, (size, at, inode)) as file:
                    if file is None:
                        raise FileNotFoundError(path)
                    sent = File(path, key, *_digest(file))
                    self.store.upload(file, key)
                return sent

            files = self._each(held.print, send, lambda seen: seen[1])
            pointers = pointers_at(entry)
            if look_at(held.path) != held or look_at(entry.path) not in (entry, None):
                return False
        except FileNotFoundError:
            return False
        finally:
            release(entry.path.parent)
        previous = self.head.newest if self.keep > 1 else None
        newest = Step(entry.name, tuple(sorted(files, key=lambda file: file.path)), pointers)
        try:
            self._write(replace(self.head, newest=newest, previous=previous))
        except TakenOver:
            self.clean(too_late=True)
            raise
        self.clean()
        return True

    def _each(
        self, files: Iterable[_Item], call: Callable[[_Item], _Answer], size: Callable[[_Item], int]
    ) -> list[_Answer]:
        """Copy small files at once; a large one has several connections, and much memory."""
        parts: tuple[list[_Item], list[_Item]] = ([], [])
        for file in files:
            parts[size(file) >= LARGE].append(file)
        small, large = parts
        return [*each_of(small, call, self.at_once), *each_of(large, call, 1)]

    def owns(self) -> bool:
        """Say whether no other machine has claimed the head."""
        head, _ = self._read()
        return head is not None and head.owner == self.me

    def finish(self, exit_code: int) -> None:
        """Write how the command ended, after its last commit."""
        self._write(replace(self.head, done=exit_code == 0, exit_code=exit_code))

    def clean(self, *, too_late: bool = False) -> None:
        """Delete the objects that the head does not name, and no newer machine can have made.

        Where it is `too_late`, a newer owner may have cleaned already: then its own uploads alone.
        What fails is left to the next commit, or to the end of the job.
        """
        prefix = self._key("steps/")
        try:
            head = (self._read()[0] if too_late else None) or self.head
            spare = []
            for key in self.store.keys(prefix):
                step, upload, *_ = [*key[len(prefix) :].split("/"), ""]
                numbers = (step.rpartition("-")[2], upload.partition(".")[0])
                if key in head.keys or not all(each.isdigit() for each in numbers):
                    continue
                attempt, generation = map(int, numbers)
                is_own = Owner("", attempt, generation).rank == self.me.rank
                if is_own if too_late else generation <= self.me.generation:
                    spare.append(key)
            each_of(spare, self.store.delete, self.at_once)
        except (BucketError, ValueError):
            return

    def rescue(self, folder: Path) -> None:
        """Empty the folder that a killed agent left.

        What was published there, and is newer, is committed before. Anything else may be half.
        """
        newest = latest(folder)
        if newest and (self.head.step is None or compare(newest.name, self.head.step) > 0):
            entry = look_at(newest)
            if entry:
                self.commit(entry)
        clear(folder)

    def _fetch(self, entry: Path, file: File) -> None:
        path = entry / file.path
        if entry not in (path, *path.parents) or ".." in Path(file.path).parts:
            raise NotLoaded(f"{file.path} is not a path below a checkpoint")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.store.download(file.key, path)
        if _digest(path) != (file.bytes, file.sha256):
            raise NotLoaded(f"{file.key} is not what was uploaded")

    def load(self, folder: Path) -> tuple[Entry | None, str]:
        """Have the newest whole checkpoint in a folder, and nothing else.

        Returns it, and what was wrong with a newer one. Where the job has none yet, a checkpoint
        that came with its code is its first. Raises NotLoaded, TakenOver or BucketError.
        """
        steps = [step for step in (self.head.newest, self.head.previous) if step]
        if steps:
            clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        wrong: list[str] = []
        for step in steps:
            if step.step.startswith(DRAFT) or "/" in step.step:
                raise NotLoaded(f"{step.step!r} is not a checkpoint's name")
            draft = folder / f"{DRAFT}load"
            _removed(draft)
            draft.mkdir()
            try:
                fetch = partial(self._fetch, draft / step.step)
                self._each(step.files, fetch, lambda file: file.bytes)
            except (NotLoaded, Absent) as error:
                head, _ = self._read()
                if head is None or head.owner != self.me:
                    raise TakenOver("a newer owner deleted what it does not need") from None
                gone = "not all of it is in the bucket any more"
                wrong.append(f"{step.step}: {gone if isinstance(error, Absent) else error}")
                continue
            place = folder / step.step
            (draft / step.step).rename(place)
            draft.rmdir()
            point(step.pointers, place)
            return look_at(place), "; ".join(wrong)
        if wrong:
            raise NotLoaded("; ".join(wrong))
        return None, ""


def clear(folder: Path) -> None:
    """Delete everything in a folder, if there is one."""
    if folder.exists():
        for each in folder.iterdir():
            _removed(each)


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _digest(path: Path) -> tuple[int, str]:
    """Give a file's size and hash."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
