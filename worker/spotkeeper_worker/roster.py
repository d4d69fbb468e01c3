"""The workers of this machine: one small file for each, locked for as long as its worker lives.

The file's one line says what the worker does. Files outlive an agent that is killed, and a lock
ends with its process, so that neither waits for the other. Any language can take part: lock
`workers/NAME` (flock) and write `ready=1 busy=0 begun=0000000000`; ` slots=16` may follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import threading
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker.files import NotARegularFile, open_regular
from spotkeeper_worker.states import Workers

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "workers"
_LINE = re.compile(rb"ready=([01]) busy=(\d+) begun=(\d+)")
_LONGEST_LINE = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
# A file that nobody holds stays for a while: a worker may have opened it and not locked it yet.
_KEEP_S = 3600.0
_MOST_FILES = 1000


class NameTaken(Exception):
    """Another worker of this machine, alive, has the same name."""


class Place:
    """A worker's own file."""

    def __init__(self, run_dir: Path, name: str, slots: int = 0) -> None:
        """Take the name; raises NameTaken, ValueError for a name that is none, or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be the name of a worker: use letters, digits and _ . : @ -"
            )
        self._lock = threading.Lock()
        self._ready = False
        self._busy = 0
        self._begun = 0
        self._slots = slots
        self._fd = _taken(run_dir / FOLDER, name)
        # A write through the mapping costs no system call, of which each request would make two.
        # The first write reserves the space, as a mapping cannot report a full disk. Whoever cuts
        # the file short ends the worker (SIGBUS); only the worker's own user and root may.
        os.pwrite(self._fd, b"\n".rjust(_LONGEST_LINE), 0)
        self._file = mmap.mmap(self._fd, _LONGEST_LINE)
        self._write()
        os.register_at_fork(after_in_child=self._leave)

    @property
    def busy(self) -> int:
        """Requests that run now."""
        return self._busy

    def ready(self) -> None:
        """Say that the model is loaded."""
        with self._lock:
            self._ready = True
            self._write()

    def begin(self) -> None:
        """Say that a request begins."""
        with self._lock:
            self._busy += 1
            self._begun += 1
            self._write()

    def end(self) -> None:
        """Say that a request has ended."""
        with self._lock:
            self._busy -= 1
            self._write()

    def close(self) -> None:
        """Leave the roster."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        if not self._file.closed:
            # The lock ends with the last of the two.
            self._file.close()
            os.close(self._fd)

    def _write(self) -> None:
        line = b"ready=%d busy=%05d begun=%010d" % (self._ready, self._busy, self._begun)
        if self._slots:
            line += b" slots=%d" % self._slots
        if not self._file.closed:
            self._file[: len(line)] = line


def _taken(folder: Path, name: str) -> int:
    """Make the file under another name and lock it, so that it is never seen without its lock."""
    path = folder / name
    if _alive(path):
        raise NameTaken(f"another worker of this machine is called {name}; give each its own name")
    draft = folder / f".{name}.{os.urandom(16).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o644)
    try:
        # Nobody else knows the draft; an agent that looks at it this moment is waited for.
        fcntl.flock(fd, fcntl.LOCK_EX)
        draft.replace(path)
    except OSError:
        os.close(fd)
        draft.unlink()
        raise
    return fd


def _locked(fd: int) -> bool:
    """Whether a worker holds the file's lock; shared, as two that look are no workers."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _alive(path: Path) -> bool:
    """Whether a live worker has this name."""
    try:
        fd = open_regular(path)
    except (FileNotFoundError, NotARegularFile):
        return False
    try:
        return _locked(fd)
    finally:
        os.close(fd)


class _Entry(NamedTuple):
    name: str
    ready: bool
    busy: int
    begun: int


def read_roster(run_dir: Path, expected: int, now: float) -> Workers:
    """Look at every worker. Files of workers that died long before `now` are removed."""
    files = _files(run_dir / FOLDER)
    entries = [entry for entry in (_read(path, now) for path in files) if entry]
    return Workers(
        expected=expected,
        ready=tuple(entry.name for entry in entries if entry.ready),
        not_ready=tuple(entry.name for entry in entries if not entry.ready),
        busy=sum(entry.busy for entry in entries),
        begun=sum(entry.begun for entry in entries),
        busy_with=tuple((entry.name, entry.begun) for entry in entries if entry.busy),
    )


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(islice(filter(_is_ours, folder.iterdir()), _MOST_FILES))
    return []


def _is_ours(path: Path) -> bool:
    """Whether it is a worker's file, or one that a worker was about to rename."""
    return _NAME.fullmatch(path.name.lstrip(".")) is not None


def _read(path: Path, now: float) -> _Entry | None:
    try:
        fd = open_regular(path)
    except (OSError, NotARegularFile):
        return None
    try:
        if not _locked(fd):
            if now - os.fstat(fd).st_mtime > _KEEP_S:
                path.unlink()
            return None
        found = _LINE.match(os.pread(fd, _LONGEST_LINE, 0))
    except OSError:
        return None
    finally:
        os.close(fd)
    if path.name.startswith("."):
        return None
    if not found:
        return _Entry(path.name, ready=False, busy=1, begun=0)
    ready, busy, begun = map(int, found.groups())
    return _Entry(path.name, bool(ready), busy, begun)
