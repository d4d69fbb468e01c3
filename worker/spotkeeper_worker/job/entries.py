"""The checkpoint folder: which of its entries are complete, and which of those is the newest."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from filecmp import cmp
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from spotkeeper_worker.checkpoints import DRAFT, MARKER, compare, form_of, is_published, newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SETTLED_S = 5.0
INCOMPLETE_S = 60.0
"""An entry that has not changed for this long, and has no file of `complete`, is reported."""
# What trainers name while they write it: tmp-checkpoint-500 (transformers 4.36 to 4.40),
# 500.orbax-checkpoint-tmp-17 (Orbax), ckpt-5_temp and .tempstate (TensorFlow), model.ckpt.part.
_IS_DRAFT = re.compile(
    r"(^|[-_.~])(tmp|incomplete|staging)([-_.~0-9]|$)"
    r"|[-_.](part|partial|temp|tempstate[0-9]+|lock|unfinished)$|~$",
    re.IGNORECASE,
)
# What says that a checkpoint is not whole: transformers' checkpoint-is-incomplete.txt, which a save
# at SIGTERM has in its folder, and NeMo's …-unfinished, beside it.
_IS_UNFINISHED = re.compile(r"(^|[-_.])(incomplete|unfinished)([-_.]|$)")
# TensorFlow writes a checkpoint as several files, all of which it needs, and so does Keras's
# BackupAndRestore, with a copy of each that begins with _.
_IS_PART = re.compile(
    r"\.(index|meta|data-[0-9]+-of-[0-9]+)$|^_?(latest\.weights\.h5|training_metadata\.json)$"
)
# What trainers write beside their checkpoints: transformers' Trainer and its examples, TRL,
# LLaMA-Factory, ms-swift, TensorBoard, Weights & Biases, MLflow, Lightning, DeepSpeed's
# save_checkpoint, Megatron, NeMo, torchtune, Ray Train, detectron2, Ultralytics.
_FOLDERS_BESIDE = (
    "runs", "logs", "tensorboard", "tb_logs", "wandb", "mlruns", "recipe_state", "completions",
)  # fmt: skip
_FILES_BESIDE = (
    "events.out.tfevents.*", "trainer_state.json", "training_args.bin", "*config.json", "vocab.*",
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.*",
    "*_results.json", "metrics*.json*", "progress.txt", "*.log", "*.md", "*.py", "*.csv", "*.y*ml",
    "log.txt", "*[-_]log.txt", "*[-_]logs.txt", "*[-_]log[-_]*.txt", "*.jsonl", "*.png", "*.jpg",
    "args.json", "*[-_]state-*.json", "core.[0-9]*",
)  # fmt: skip
# What replaces a checkpoint only where none is left: texts, pictures and other records (Flair's
# loss.tsv, CatBoost's time_left.tsv, samples/), and the best one so far beside the last one.
_IS_RECORD = re.compile(
    r"(^|/)(?!\w*(model|checkpoint|ckpt|weights|state))[^/]*"
    r"\.(txt|[ct]sv|jsonl?|log|out|err|pid|html?|pdf|png|jpe?g|gif|svg|webp|mp[34]|wav|diff)$"
    r"|(^|/)events\.out\.tfevents"
)
_IS_BEST = re.compile(r"(^|[-_.])best([-_.]|$)")
# Files that name the newest checkpoint: DeepSpeed, nanotron, TensorFlow, mmengine, DINOv2, Megatron
# and verl.
_POINTERS = (
    "latest", "latest.txt", "checkpoint", "last_checkpoint", "last_checkpoint.rank_0",
    "latest_checkpointed_iteration.txt",
)  # fmt: skip
_POINTER_BYTES = 4096
# Megatron-Bridge continues from latest_train_state.pt, a copy of a file in the checkpoint.
_COPY_BYTES = 1 << 16
_IS_LAST = re.compile("last|latest|newest|current", re.IGNORECASE)
_STEP = re.compile("checkpoint|ckpt|step|epoch|iter", re.IGNORECASE)
_SHARD = re.compile("-[0-9]+-of-[0-9]+")
# What is written within this time of a checkpoint may be a part of it.
_TOGETHER_NS = 600 * 10**9
_HELD = f"{DRAFT}upload"
_OLD = "older"
Seen = tuple[int, int, int]
"""A file as it was looked at: its bytes, time of the last write, and inode."""
_Print = tuple[tuple[str, int, int, int], ...]
"""Path below the entry, and what was seen, of each file."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint as it was looked at; `print` changes when something in it does.

    One in which a link leads `outside` is not committed: on the next machine it would lead nowhere.
    """

    path: Path
    print: _Print
    outside: str = ""

    @property
    def name(self) -> str:
        """The step."""
        return self.path.name

    @property
    def written_at(self) -> int:
        """When the last of its files was written, in nanoseconds."""
        return max((at for _, _, at, _ in self.print), default=0)

    @property
    def rank(self) -> int:
        """Order kinds: records, the best one so far, others, those with a number or with a step.

        What `publish` made has the highest rank, whatever its name.
        """
        form, numbers = form_of(self.name)
        if any(path == MARKER for path, *_ in self.print):
            return 6
        names = (f"{self.name}/{path}".removesuffix("/.") for path, *_ in self.print)
        if all(map(_IS_RECORD.search, names)):
            return 1
        if _IS_BEST.search(form):
            return 2
        has_number = bool(numbers) and not _SHARD.search(self.name)
        return 3 + has_number * (1 + bool(_STEP.search(form)))

    def files(self) -> dict[str, Path]:
        """Its files by their path below it; an entry that is one file has the path `.`."""
        return {path: self.path / path for path, *_ in self.print}


def look_at(path: Path) -> Entry | None:
    """Take an entry's print; None where it is gone, or changes while it is looked at.

    What a link in it leads to is a part of it. A link to nothing is none.
    """
    paths = [path] if path.is_file() else [*path.rglob("*")]
    print_, outside = [], ""
    for each in paths:
        if is_link := each.is_symlink():
            if not each.exists():
                continue
            if path.resolve() not in each.resolve().parents:
                outside = f"its link {each.relative_to(path)} leads outside of it"
                continue
        try:
            stat = each.stat()
        except FileNotFoundError:
            return None
        if each.is_file():
            name = str(each.relative_to(path))
            print_.append((name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
        elif is_link:
            paths += [each for each in each.rglob("*") if not each.is_symlink()]
    return Entry(path, tuple(sorted(print_)), outside) if print_ or outside else None


def _unfinished(entry: Entry) -> str:
    """Say what in an entry, or beside it, says that it is not whole; empty if nothing does."""
    stem = entry.name.removesuffix(".ckpt")
    beside = (entry.path.with_name(f"{stem}{sep}unfinished") for sep in "-._")
    names = [*(path.name for path in beside if path.exists()), *(name for name, *_ in entry.print)]
    mark = next(filter(_IS_UNFINISHED.search, names), "")
    return mark and f"it is not finished: {mark} is there"


class Entries:
    """Watches a checkpoint folder. `committed` is what the bucket has; only newer ones count.

    An entry is complete at once when `publish` made it, or when it matches the glob `complete`.
    Without a glob it is complete when it did not change for five seconds while the command ran:
    what a killed command left does not change either, and may be half. A rename is a change.

    `names` are patterns of the entries; without them each entry counts that is no known log. An
    entry without a number never replaces one with a number. `ignored` says why an entry of the
    last look will not be committed.
    """

    def __init__(self, folder: Path, complete: str | None, names: Iterable[str] = ()) -> None:
        self.folder = folder
        self.committed: Entry | None = None
        self.ignored: dict[str, str] = {}
        self._complete = complete
        self._names = tuple(names)
        self._seen: dict[str, tuple[Entry, float]] = {}
        self._replaced: dict[str, str] = {}

    def look(self, now: float, *, ended_well: bool = False) -> Entry | None:
        """Give the newest complete entry that the bucket does not have.

        `now` is the last time at which the command ran. One that ended well left nothing half.
        """
        entries: dict[str, tuple[Entry, float]] = {}
        complete = {}
        self.ignored = {}
        paths: list[Path] = []
        with contextlib.suppress(FileNotFoundError):
            paths = sorted(self.folder.iterdir())
        forms = {form_of(path.name)[0] for path in paths}
        for path in paths:
            if path.name[0] == DRAFT:
                continue
            if reason := self._is_no_entry(path):
                self.ignored[path.name] = reason
                continue
            entry = look_at(path)
            if entry is None or (reason := self._older(entry, forms)) == _OLD:
                continue
            reason = reason or entry.outside or _unfinished(entry)
            if reason:
                self.ignored[path.name] = reason
                continue
            before, since = self._seen.get(entry.name, (entry, now))
            entries[entry.name] = (entry, since if before == entry else now)
            unchanged_s = now - entries[entry.name][1]
            well = ended_well and not self._complete
            if is_published(path) or well or self._is_complete(entry, unchanged_s):
                complete[path] = entry
            elif self._complete and (ended_well or unchanged_s >= INCOMPLETE_S):
                self.ignored[path.name] = f"no file of it matches complete = {self._complete!r}"
        if self.committed is None:
            for name, (entry, _) in self._seen.items():
                if not self._complete and entries.get(name, (None,))[0] != entry:
                    what = "changed" if name in entries else "was gone"
                    self._replaced[name] = f"it {what} before it was {SETTLED_S:.0f} s old"
            self.ignored |= self._replaced
        self._seen = entries
        highest = max((entry.rank for entry in complete.values()), default=0)
        best = [path for path, entry in complete.items() if entry.rank == highest]
        return complete[newest(best)] if best else None

    def _is_no_entry(self, path: Path) -> str:
        """Say why a path is no checkpoint by its name alone; empty if it may be one."""
        name = path.name
        if path.is_symlink():
            return "a link"
        if self._names and not any(fnmatchcase(name, pattern) for pattern in self._names):
            return f"its name does not match entries = {', '.join(self._names)}"
        if _IS_DRAFT.search(name) and not is_published(path):
            return "its name is that of a draft"
        stem = _IS_PART.sub("", name)
        whole = f"{escape(stem)}.data-*" if stem else "training_metadata.json"
        if stem != name and any(self.folder.glob(whole)):
            return "a part of a checkpoint: write each of them into a folder of its own"
        if self._names or is_published(path):
            return ""
        beside = _FOLDERS_BESIDE if path.is_dir() else _FILES_BESIDE
        if any(fnmatchcase(name, known) for known in beside):
            return "logs or settings beside checkpoints"
        try:
            is_pointer = path.is_file() and path.stat().st_size < _POINTER_BYTES
        except FileNotFoundError:
            return "gone"
        return "names a checkpoint" if name in _POINTERS and is_pointer else ""

    def _older(self, entry: Entry, forms: set[str]) -> str:
        """Say why an entry does not replace the committed one; empty if it does.

        `forms` are those of the folder's names. Where numbers do not tell, time does.
        """
        known = self.committed
        if known is None:
            return ""
        order = compare(entry.name, known.name)
        if order > 0:
            return ""
        is_gone = not known.path.exists()
        is_renamed = is_gone and entry.name != known.name
        (form, numbers), (other, before) = form_of(entry.name), form_of(known.name)
        behind = known.written_at + (not is_renamed) - entry.written_at
        if behind > 0:
            is_part = numbers[:1] == before[:1] and form != other and entry.rank == known.rank
            beside = f"it was written with {known.name}: write both into a folder of its own"
            return beside if is_part and behind < _TOGETHER_NS and not is_gone else _OLD
        if order < 0:
            # Numbers that start again, or an older checkpoint that was written again.
            below = f"its number is below that of {known.name}, which is still there"
            return "" if is_gone else below
        if entry.rank < known.rank:
            return f"it would replace {known.name}, which is more like a checkpoint"
        # NeMo continues from m-step=9-last.ckpt alone, which it writes after m-step=9.ckpt.
        is_last = numbers == before and _IS_LAST.search(form) and not _IS_LAST.search(other)
        is_meant = self._names or entry.rank > known.rank or is_published(entry.path) or is_last
        if numbers and form != other and other in forms and not is_meant:
            return f"its name has another form than {known.name}: name the entries in state.entries"
        return ""

    def _is_complete(self, entry: Entry, unchanged_s: float) -> bool:
        if self._complete is None:
            return unchanged_s >= SETTLED_S
        if entry.path.is_file():
            return entry.path.match(self._complete)
        return any(entry.path.glob(self._complete))


def pointers_at(entry: Entry) -> dict[str, str]:
    """Return what names a checkpoint, or one beside it: a `link`, its `name`, `path` or `number`.

    A copy has `copy:` and the path of its part. A script may continue from these, and from nothing
    else.
    """
    folder, pointers = entry.path.parent, {}
    for path in folder.iterdir():
        if path.is_symlink():
            is_last = path.resolve() == entry.path.resolve() or _IS_LAST.search(path.name)
            if is_last and path.resolve().parent == folder.resolve():
                pointers[path.name] = "link"
        elif text := _named_in(path):
            how = "name" if (folder / text).exists() else "number"
            pointers[path.name] = "path" if Path(text).is_absolute() else how
        elif _IS_LAST.search(path.name) and path != entry.path and (part := _copied(entry, path)):
            pointers[path.name] = f"copy:{part}"
    return pointers


def _copied(entry: Entry, path: Path) -> str:
    """Return the file of a checkpoint that a last one is a copy of; `.` is the whole checkpoint.

    A last one that has the files, the size and the words of the checkpoint counts as its copy.
    """
    last = look_at(path)
    if last is None:
        return ""
    own, its = ({name: size for name, size, *_ in each.print} for each in (entry, last))
    for name, size in own.items() if path.is_file() else ():
        if size == its.get(".", -1) <= _COPY_BYTES and cmp(entry.path / name, path, shallow=False):
            return name
    many = sum(own.values())
    is_alike = own.keys() == its.keys() and abs(sum(its.values()) - many) * 10 <= many
    return "." if is_alike and _words(path) <= _words(entry.path) else ""


def _words(path: Path) -> set[str]:
    """The words of a name that are neither `last` nor that of a step."""
    return set(re.findall("[a-z]+", _STEP.sub("", _IS_LAST.sub("", path.name.lower()))))


def _named_in(path: Path) -> str:
    """Return the text of a file that names an entry beside it, or a step, and nothing else."""
    with contextlib.suppress(OSError, ValueError):
        if path.name in _POINTERS and path.is_file() and path.stat().st_size < _POINTER_BYTES:
            text = path.read_text(encoding="utf-8").strip()
            named = path.parent / text
            is_named = named.parent == path.parent and named.exists()
            return text if is_named or text.isdecimal() else ""
    return ""


def point(pointers: dict[str, str], place: Path) -> None:
    """Have what named a checkpoint name the one that was loaded."""
    for name, how in pointers.items():
        path = place.parent / Path(name).name
        *_, number = 0, *form_of(place.name)[1]
        texts = {"name": place.name, "path": str(place), "number": str(number)}
        if how == "link":
            path.symlink_to(place.name)
        elif how.startswith("copy:"):
            part = place / how.removeprefix("copy:")
            (shutil.copytree if part.is_dir() else shutil.copyfile)(part, path)
        else:
            path.write_text(texts.get(how, str(place)), encoding="utf-8")


@contextlib.contextmanager
def opened(path: Path, seen: Seen) -> Iterator[Path | None]:
    """Give an open file a path that always leads to it; None where another one is there now.

    The agent is root: a job's user may put a link in the place of a file, or of its folder.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        what = os.fstat(number)
        is_same = (what.st_size, what.st_mtime_ns, what.st_ino) == seen
        yield Path(f"/proc/self/fd/{number}") if is_same else None
    finally:
        os.close(number)


def hold(entry: Entry) -> Entry | None:
    """Give the entry a second name, so that a script that removes old ones cannot take it away.

    None where it is gone already. `release` removes the second name.
    """
    release(entry.path.parent)
    place = entry.path.parent / _HELD / entry.name
    try:
        for path, file in entry.files().items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(file.resolve(), place / path)
    except FileNotFoundError:
        return None
    except OSError:
        # This file system has no second names.
        return entry
    return Entry(place, entry.print)


def release(folder: Path) -> None:
    """Remove what `hold` made in a checkpoint folder."""
    shutil.rmtree(folder / _HELD, ignore_errors=True)
