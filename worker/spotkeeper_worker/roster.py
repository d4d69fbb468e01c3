"""Who works on this machine: one small file a worker, held by a lock for as long as it lives.

The file's one line is what the worker is doing. Files outlive an agent that is killed, locks do not
outlive a worker that is; so either may die, and neither waits for the other. Any language can take
part: lock `workers/NAME` (flock) and write `ready=1 busy=0 begun=0000000000`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotkeeper_worker.states import Workers

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "workers"
_LINE = re.compile(rb"ready=([01]) busy=(\d+) begun=(\d+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")


class NameTaken(Exception):
    """Another worker of this machine, alive, has the same name."""


class Place:
    """A worker's own file."""

    def __init__(self, run_dir: Path, name: str) -> None:
        """Take the name; raises NameTaken, ValueError for a name that is none, or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a worker: letters, digits and _ . : @ -")
        self._lock = threading.Lock()
        self._ready = False
        self._busy = 0
        self._begun = 0
        self._fd: int | None = _taken(run_dir / FOLDER, name)
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
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        line = b"ready=%d busy=%05d begun=%010d\n" % (self._ready, self._busy, self._begun)
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, line, 0)


def _taken(folder: Path, name: str) -> int:
    """Make the file under another name and lock it, so that nobody meets it without its lock."""
    path = folder / name
    if path.exists() and _alive(path):
        raise NameTaken(f"another worker of this machine is called {name}; give each its own name")
    draft = folder / f".{name}.{os.getpid()}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.replace(path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _alive(path: Path) -> bool:
    """Whether somebody holds the file's lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@dataclass(frozen=True)
class _Entry:
    name: str
    ready: bool
    busy: int
    begun: int


def read_roster(run_dir: Path, expected: int) -> Workers:
    """Look at every worker; the files of those that died are removed."""
    entries = [entry for entry in map(_read, _files(run_dir / FOLDER)) if entry]
    return Workers(
        expected=expected,
        ready=tuple(entry.name for entry in entries if entry.ready),
        not_ready=tuple(entry.name for entry in entries if not entry.ready),
        busy=sum(entry.busy for entry in entries),
        begun=sum(entry.begun for entry in entries),
    )


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return []


def _read(path: Path) -> _Entry | None:
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = _LINE.match(file.read(64))
            else:
                path.unlink()
                return None
    except OSError:
        return None
    if not found:
        return _Entry(path.name, ready=False, busy=1, begun=0)
    ready, busy, begun = map(int, found.groups())
    return _Entry(path.name, bool(ready), busy, begun)
