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
    from collections.abc import Iterator
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
        # A write through the mapping costs no system call, of which each request would make two.
        # Whoever cuts the file short ends the worker (SIGBUS); only its own user and root may.
        self._file = _taken(run_dir / FOLDER, name, self._line())
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
        self._file.close()

    def _line(self) -> bytes:
        line = b"ready=%d busy=%05d begun=%010d" % (self._ready, self._busy, self._begun)
        return line + b" slots=%d" % self._slots if self._slots else line

    def _write(self) -> None:
        if not self._file.closed:
            line = self._line()
            self._file[: len(line)] = line


def _taken(folder: Path, name: str, line: bytes) -> mmap.mmap:
    """Make the file under another name, so that it is never seen without its line and its lock.

    Both last as long as the mapping.
    """
    path = folder / name
    with _alone_in(folder, fcntl.LOCK_EX):
        if _alive(path):
            raise NameTaken(
                f"another worker of this machine is called {name}; give each its own name"
            )
        draft = folder / f".{name}.{os.urandom(16).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o644)
        try:
            # Nobody else knows the draft; an agent that looks at it this moment is waited for.
            fcntl.flock(fd, fcntl.LOCK_EX)
            # This reserves the space, as a mapping cannot report a full disk.
            os.pwrite(fd, line.ljust(_LONGEST_LINE - 1) + b"\n", 0)
            file = mmap.mmap(fd, _LONGEST_LINE)
            draft.replace(path)
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(fd)
    return file


@contextlib.contextmanager
def _alone_in(folder: Path, how: int) -> Iterator[None]:
    """Give or take away names while nobody else does; raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        # A child that was forked meanwhile has the folder open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


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
                _remove(path, fd)
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


def _remove(path: Path, fd: int) -> None:
    """Remove a file that is open and locked, unless a new worker has its name by now."""
    with _alone_in(path.parent, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if os.path.samestat(os.fstat(fd), path.lstat()):
            path.unlink()
