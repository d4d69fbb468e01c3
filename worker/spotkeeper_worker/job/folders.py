"""Folders of a job beside its checkpoints: data that it reads, outputs and caches that it writes.

A file is copied where it is missing, or has another size. It is written under a draft's name and
renamed, so that a copy that ends half-way is continued with the next file.
"""

from __future__ import annotations

import stat
from threading import Lock
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.checkpoints import DRAFT
from spotkeeper_worker.job.bucket import each_of
from spotkeeper_worker.job.entries import Seen, opened

if TYPE_CHECKING:
    from pathlib import Path

    from spotkeeper_worker.job.bucket import Bucket

DRAFTS = f"{DRAFT}copy"


def to_folder(
    store: Bucket,
    prefix: str,
    folder: Path,
    show: Callable[[int, int], object] = lambda *_: None,
    *,
    keep: bool = False,
) -> None:
    """Copy what is under a prefix; `show` gets the bytes that are there, and those of all.

    With `keep` a file that is there stays, whatever its size: it may be newer. Raises BucketError,
    and OSError where the disk is full. Names that lead out of the folder are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        name: size for name, size in store.sizes(prefix).items() if name and not name.endswith("/")
    }
    inside, whole, done, lock = folder.resolve(), sum(sizes.values()), 0, Lock()

    def fetch(named: tuple[str, int]) -> None:
        nonlocal done
        name, size = named
        path = folder / name
        if inside not in (path.parent.resolve(), *path.parent.resolve().parents):
            # The agent is root, and a name or a link of the job's user leads elsewhere.
            return
        if not (path.is_file() and (keep or path.stat().st_size == size)):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{DRAFTS}-{path.name}")
            store.download(f"{prefix}{name}", draft)
            draft.replace(path)
        with lock:
            done += size
            show(done, whole)

    each_of(sorted(sizes.items()), fetch)


def to_bucket(store: Bucket, folder: Path, prefix: str, sent: dict[str, Seen]) -> None:
    """Copy the files that changed since they were `sent`, and note them; raises BucketError."""
    for name, seen in files_in(folder).items():
        if sent.get(name) == seen:
            continue
        with opened(folder / name, seen) as file:
            if file:
                store.upload(file, f"{prefix}{name}")
                sent[name] = seen


def files_in(folder: Path) -> dict[str, Seen]:
    """Look at each file; links, and what is no file, are left out."""
    files = {}
    for path in sorted(folder.rglob("*")):
        try:
            what = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(what.st_mode) and not path.name.startswith(DRAFTS):
            seen = (what.st_size, what.st_mtime_ns, what.st_ino)
            files[path.relative_to(folder).as_posix()] = seen
    return files
