"""The checkpoint folder: which of its entries are complete, and which of those is the newest."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotkeeper_worker.checkpoints import DRAFT, compare, is_published, newest

if TYPE_CHECKING:
    from pathlib import Path

SETTLED_S = 5.0
_HELD = f"{DRAFT}upload"
_Print = tuple[tuple[str, int, int, int], ...]
"""Path below the entry, bytes, time of the last write, and inode of each file."""


class OutsideLink(Exception):
    """A checkpoint has a symbolic link to a file that is not in it."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint as it was looked at; `print` changes when something in it does."""

    path: Path
    print: _Print

    @property
    def name(self) -> str:
        """The step."""
        return self.path.name

    @property
    def written_at(self) -> int:
        """When the last of its files was written, in nanoseconds."""
        return max(at for _, _, at, _ in self.print)

    def files(self) -> dict[str, Path]:
        """Its files by their path below it; an entry that is one file has the path `.`."""
        return {path: self.path / path for path, *_ in self.print}


def look_at(path: Path) -> Entry | None:
    """Take an entry's print; None where it is gone, or changes while it is looked at."""
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    print_ = []
    for each in found:
        try:
            if each.is_symlink() and path.resolve() not in each.resolve().parents:
                raise OutsideLink(f"{each} is a link to outside of the checkpoint")
            stat = each.stat()
        except FileNotFoundError:
            return None
        if each.is_file():
            name = str(each.relative_to(path))
            print_.append((name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return Entry(path, tuple(print_)) if print_ else None


class Entries:
    """Watches a checkpoint folder. `committed` is what the bucket has; only newer ones count.

    An entry is complete at once when `publish` made it, or when it matches the glob `complete`.
    Without a glob it is complete when it did not change for five seconds while the command ran:
    what a killed command left does not change either, and may be half.
    """

    def __init__(self, folder: Path, complete: str | None) -> None:
        self.folder = folder
        self.committed: Entry | None = None
        self._complete = complete
        self._seen: dict[str, tuple[Entry, float]] = {}

    def look(self, now: float, *, ended_well: bool = False) -> Entry | None:
        """Give the newest complete entry that the bucket does not have.

        `now` is the last time at which the command ran. One that ended well left nothing half.
        """
        found: dict[str, tuple[Entry, float]] = {}
        complete = {}
        known = self.committed
        paths: list[Path] = []
        with contextlib.suppress(FileNotFoundError):
            paths = list(self.folder.iterdir())
        for path in paths:
            order = compare(path.name, known.name if known else None)
            if path.name[0] == DRAFT or path.is_symlink() or order < 0:
                continue
            entry = look_at(path)
            # Where numbers do not tell, time does.
            if entry is None or (order == 0 and known and entry.written_at <= known.written_at):
                continue
            before, since = self._seen.get(entry.name, (entry, now))
            found[entry.name] = (entry, since if before == entry else now)
            unchanged_s = now - found[entry.name][1]
            well = ended_well and not self._complete
            if is_published(path) or well or self._is_complete(entry, unchanged_s):
                complete[path] = entry
        self._seen = found
        return complete[newest(complete)] if complete else None

    def _is_complete(self, entry: Entry, unchanged_s: float) -> bool:
        if self._complete is None:
            return unchanged_s >= SETTLED_S
        if entry.path.is_file():
            return entry.path.match(self._complete)
        return any(entry.path.glob(self._complete))


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
