"""Logs that shell scripts leave: files in `in/`, moved there by rename, of one log or several."""

from __future__ import annotations

import contextlib
import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.files import NotARegularFile, open_regular
from spotkeeper_worker.logs.server import MOST_LOGS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spotkeeper_worker.log import Sometimes

    Accept = Callable[[Sequence[object], str, int], list[str]]

FOLDER = "in"
REFUSED = "refused"
LONGEST_FILE = 2 << 20
# In one step of the agent; the others wait for the next.
MOST_FILES = 200
_ENDINGS = (".json", ".jsonl")


def collect(spool_dir: Path, accept: Accept, say: Sometimes) -> int:
    """Accept the files once and remove them; answers how many it dealt with."""
    folder = spool_dir / FOLDER
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(islice(filter(_is_ours, folder.iterdir()), MOST_FILES))
        for path in paths:
            _take(path, accept, say)
        return len(paths)
    return 0


def _is_ours(path: Path) -> bool:
    return path.suffix in _ENDINGS and not path.name.startswith(".")


def _take(path: Path, accept: Accept, say: Sometimes) -> None:
    try:
        session, logs = read_logs(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        _put_aside(path, error, say)
        return
    for first in range(0, len(logs), MOST_LOGS):
        accept(logs[first : first + MOST_LOGS], session, first // MOST_LOGS + 1)
    with contextlib.suppress(OSError):
        path.unlink()


def read_logs(path: Path) -> tuple[str, list[object]]:
    """Read one log, a list of logs, or JSON lines, and a session that names the file.

    A file that is found again after a kill is known by its inode and time, not by its name. Raises
    OSError, ValueError and RecursionError.
    """
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        data = file.read(LONGEST_FILE + 1)
    if len(data) > LONGEST_FILE:
        raise ValueError(f"has more than {LONGEST_FILE >> 20} MiB")
    session = f"file:{found.st_ino}:{found.st_mtime_ns}"
    text = data.decode("utf-8").strip()
    try:
        read = json.loads(text)
    except ValueError:
        return session, [json.loads(line) for line in text.splitlines() if line.strip()]
    return session, read if isinstance(read, list) else [read]


def _put_aside(path: Path, error: Exception, say: Sometimes) -> None:
    """Keep a file that cannot be read for the operator; what is no file is only a trap."""
    aside = path.parent.parent / REFUSED
    try:
        if isinstance(error, NotARegularFile) and not path.is_dir():
            path.unlink()
            where = "removed"
        else:
            aside.mkdir(exist_ok=True)
            path.replace(aside / path.name)
            where = f"moved to {aside}"
    except OSError as trouble:
        say.warn(f"spool {path.name}", f"{path.name} cannot be read or moved: {error}; {trouble}")
        return
    say.warn("spool", f"{path.name} could not be read and was {where}: {error}")
