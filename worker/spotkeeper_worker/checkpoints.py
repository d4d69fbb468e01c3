"""Checkpoints that are whole or not there: `publish` and `latest`, for a training script.

They use the folder in `SPOTKEEPER_CHECKPOINTS`, or `checkpoints` where that is not set. A kill or a
power failure at any moment leaves the checkpoints before it, and possibly a draft, whose name
begins with a dot. The module needs Python alone: a script without an agent may use it, too
(docs/jobs.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable

FOLDER = "SPOTKEEPER_CHECKPOINTS"
MARKER = ".spotkeeper"
"""A file in each published checkpoint: it was complete when it got its name."""
DRAFT = "."
_SUFFIX = re.compile(r"(?<=.)(\.[A-Za-z][A-Za-z0-9_]*)+$")
_NUMBER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+")


@contextlib.contextmanager
def publish(step: int | str, folder: Path | None = None, keep: int = 2) -> Iterator[Path]:
    """Give an empty folder to write into, and publish it as a checkpoint at the end of the block.

    A block that raises publishes nothing. Publishing a step again replaces it; a kill between the
    two renames of that loses this step alone. Of the checkpoints published here, the newest `keep`
    stay on this disk (0: all of them).
    """
    name = f"{step:06d}" if isinstance(step, int) else step
    if not name or name.startswith(DRAFT) or "/" in name or "\0" in name:
        raise ValueError(f"{step!r} is not a checkpoint's name: it is a number, or a file name")
    root = _root(folder)
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{name}.", dir=root))
    try:
        yield draft
        (draft / MARKER).write_text(json.dumps({"version": 1, "step": name}) + "\n")
        for path in (*draft.rglob("*"), draft):
            if not path.is_symlink():
                _sync(path)
        if (root / name).exists():
            _remove(root / name)
        draft.rename(root / name)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _sync(root)
    if keep:
        older = [each for each in _published(root) if each.name != name]
        while len(older) >= keep:
            oldest = min(older, key=_order(older))
            older.remove(oldest)
            _remove(oldest)


def latest(folder: Path | None = None) -> Path | None:
    """Give the newest published checkpoint; None where there is none yet."""
    published = _published(_root(folder))
    return newest(published) if published else None


def newest(entries: Iterable[Path]) -> Path:
    """Choose the newest: by their numbers where names differ in nothing else, or else by time."""
    entries = list(entries)
    return max(entries, key=_order(entries))


def is_published(entry: Path) -> bool:
    """Whether `publish` made this checkpoint, so that it is complete."""
    return (entry / MARKER).is_file()


def form_of(name: str) -> tuple[str, tuple[int, ...]]:
    """Split a name into its form and its numbers: `epoch=#-step=#` and (3, 1000).

    What follows the name of the step, such as `.ckpt` or `.weights.h5`, has no numbers. A number
    with a point is a measure such as the loss, and no step.
    """
    stem = _SUFFIX.sub("", name)
    numbers = [number for number in _NUMBER.findall(stem) if "." not in number]
    form = _NUMBER.sub(lambda match: "." if "." in match[0] else "#", stem)
    return form + name[len(stem) :], tuple(map(int, numbers))


def compare(name: str, known: str | None) -> int:
    """Compare the numbers of two names: above 0 for the newer one, 0 where time decides.

    Time decides between names of two forms, and where one number is larger and another smaller.
    """
    (form, numbers), (other, before) = form_of(name), form_of(known or "")
    signs = {(one > two) - (one < two) for one, two in zip(numbers, before)} - {0}
    return signs.pop() if form == other and len(signs) == 1 else 0


def written_at(entry: Path) -> int:
    """When something in an entry was last written, in nanoseconds; 0 where it is gone."""
    at = 0
    for path in (entry, *entry.rglob("*")):
        with contextlib.suppress(OSError):
            at = max(at, path.stat().st_mtime_ns)
    return at


def _order(entries: list[Path]) -> Callable[[Path], tuple[tuple[int, ...], int, str]]:
    forms = [form_of(each.name) for each in entries]
    rows = sorted({numbers for _, numbers in forms})
    ranked = len({form for form, _ in forms}) == 1 and all(
        one <= two for low, high in zip(rows, rows[1:]) for one, two in zip(low, high)
    )

    def key(entry: Path) -> tuple[tuple[int, ...], int, str]:
        numbers = form_of(entry.name)[1] if ranked else ()
        return (numbers, written_at(entry), entry.name)

    return key


def _root(folder: Path | None) -> Path:
    return folder or Path(os.environ.get(FOLDER) or "checkpoints")


def _published(root: Path) -> list[Path]:
    try:
        entries = list(root.iterdir())
    except FileNotFoundError:
        return []
    return [each for each in entries if each.name[0] != DRAFT and is_published(each)]


def _remove(entry: Path) -> None:
    """Remove a checkpoint: first its name, then what is in it, so that nothing half is seen."""
    gone = Path(tempfile.mkdtemp(prefix=f"{DRAFT}gone.", dir=entry.parent))
    entry.rename(gone / entry.name)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
