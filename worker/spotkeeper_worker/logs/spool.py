"""Logs that shell scripts leave: files in `in/`, put there by rename, each with one log or more."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.logs.server import MOST_LOGS

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger("spotkeeper.agent")
FOLDER = "in"
REFUSED = "refused"
LONGEST_FILE = 8 << 20
Accept = Callable[[Sequence[object], str, int], list[str]]
_ENDINGS = (".json", ".jsonl")


def collect(spool_dir: Path, accept: Accept) -> int:
    """Accept every file, once, and remove it; answers how many there were."""
    folder = spool_dir / FOLDER
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(path for path in folder.iterdir() if _is_ours(path))
        for path in paths:
            _take(path, accept)
        return len(paths)
    return 0


def _is_ours(path: Path) -> bool:
    return path.suffix in _ENDINGS and not path.name.startswith(".")


def _take(path: Path, accept: Accept) -> None:
    try:
        found = path.stat()
        logs = read_logs(path) if found.st_size <= LONGEST_FILE else _too_long(path)
    except (OSError, ValueError, RecursionError) as error:
        _put_aside(path, error)
        return
    # A file that is met again after a kill is known by what it is, not by its name.
    session = f"file:{found.st_ino}:{found.st_mtime_ns}"
    for first in range(0, len(logs), MOST_LOGS):
        accept(logs[first : first + MOST_LOGS], session, first // MOST_LOGS + 1)
    with contextlib.suppress(OSError):
        path.unlink()


def _too_long(path: Path) -> list[object]:
    raise ValueError(f"has more than {LONGEST_FILE >> 20} MiB")


def read_logs(path: Path) -> list[object]:
    """Read one log, a list of logs, or JSON lines; raises ValueError and RecursionError."""
    text = path.read_text(encoding="utf-8").strip()
    try:
        read = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return read if isinstance(read, list) else [read]


def _put_aside(path: Path, error: Exception) -> None:
    aside = path.parent.parent / REFUSED
    with contextlib.suppress(OSError):
        aside.mkdir(exist_ok=True)
        path.replace(aside / path.name)
    _LOG.warning("%s could not be read and lies in %s: %s", path.name, aside, error)
