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
from typing import IO, TYPE_CHECKING

from spotkeeper_worker.files import NotARegularFile, open_regular
from spotkeeper_worker.states import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "workers"
_LINE = re.compile(rb"ready=([01]) busy=(\d+) begun=(\d+)")
_LONGEST_LINE = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
# A file that nobody holds stays for a while: a worker may have opened it and not locked it yet. The
# files of one that dies again and again, each time with another name, must stay below the most.
_KEEP_S = 60.0
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
        self.busy = 0
        """Requests that run now."""
        self._begun = 0
        self._form = b"ready=%d busy=%05d begun=%010d" + (b" slots=%d" % slots if slots else b"")
        line = self._form % (0, 0, 0)
        self._size = len(line)
        # A write through the mapping costs no system call, of which each request would make two.
        # Whoever cuts the file short ends the worker (SIGBUS); only its own user and root may.
        self._file = _taken(run_dir / FOLDER, name, line)
        self.is_forked = False
        """Whether this is a child of the process that took the name."""
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.is_forked = True
        self._file.close()

    def ready(self) -> None:
        """Say that the model is loaded."""
        with self._lock:
            self._ready = True
            self._write()

    def begin(self) -> None:
        """Say that a request begins."""
        with self._lock:
            self.busy += 1
            self._begun += 1
            self._write()

    def end(self) -> None:
        """Say that a request has ended."""
        with self._lock:
            self.busy -= 1
            self._write()

    def close(self) -> None:
        """Leave the roster."""
        with self._lock:
            self._file.close()

    def _write(self) -> None:
        if not self._file.closed:
            self._file[: self._size] = self._form % (self._ready, self.busy, self._begun)


def _taken(folder: Path, name: str, line: bytes) -> mmap.mmap:
    """Make the file under another name, so that it is never seen without its line and its lock.

    Both last as long as the mapping.
    """
    path = folder / name
    with _alone_in(folder, fcntl.LOCK_EX):
        with contextlib.suppress(FileNotFoundError, NotARegularFile), _opened(path) as known:
            if _locked(known.fileno()):
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


def _opened(path: Path) -> IO[bytes]:
    """Open a worker's file; raises OSError or NotARegularFile."""
    return os.fdopen(open_regular(path), "rb", buffering=0)


def _locked(fd: int) -> bool:
    """Whether a worker holds the file's lock; shared, as two that look are no workers."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def read_roster(run_dir: Path, expected: int, now: float) -> Workers:
    """Look at every worker. Files of workers that died long before `now` are removed."""
    paths: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        # Also those that a worker was about to rename.
        ours = (
            path for path in (run_dir / FOLDER).iterdir() if _NAME.fullmatch(path.name.lstrip("."))
        )
        paths = sorted(islice(ours, _MOST_FILES))
    rows: dict[str, tuple[int, int, int]] = {}
    for path in paths:
        with contextlib.suppress(OSError, NotARegularFile), _opened(path) as file:
            fd = file.fileno()
            if _locked(fd):
                line = _LINE.match(os.pread(fd, _LONGEST_LINE, 0))
                if not path.name.startswith("."):
                    # Who has not written its line yet may be serving.
                    ready, busy, begun = map(int, line.groups()) if line else (0, 1, 0)
                    rows[path.name] = (ready, busy, begun)
            elif now - os.fstat(fd).st_mtime > _KEEP_S:
                with _alone_in(path.parent, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    # A new worker may have its name by now.
                    if os.path.samestat(os.fstat(fd), path.lstat()):
                        path.unlink()
    return Workers(
        expected=expected,
        ready=tuple(name for name, (ready, _, _) in rows.items() if ready),
        not_ready=tuple(name for name, (ready, _, _) in rows.items() if not ready),
        busy=sum(busy for _, busy, _ in rows.values()),
        begun=sum(begun for _, _, begun in rows.values()),
        busy_with=tuple((name, begun) for name, (_, busy, begun) in rows.items() if busy),
    )
