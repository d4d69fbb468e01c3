"""The notice that workers read: a small JSON file that is replaced by rename."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from spotkeeper_worker.states import State
from spotkeeper_worker.times import as_text, read_time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERSION = 1
# A request is handed back this long before the machine is gone.
HAND_BACK_S = 2.0
NAME = "notice.json"
_TIMES = ("seen_at", "until", "serve_until")


class Notice(NamedTuple):
    """What the agent last wrote; times are seconds since the epoch."""

    state: State
    seen_at: float
    draining: bool = False
    reason: str = ""
    until: float | None = None
    serve_until: float | None = None
    target: str | None = None
    """The target lifecycle state when it was written."""

    def last_start(self, took: Iterable[float], margin_s: float) -> float | None:
        """Return the time after which to begin no request; None: not in sight, 0: at once.

        `took` are the durations of the last requests. A time that both the agent and this process
        read from their clocks would not do: a clock may step.
        """
        if self.serve_until is not None:
            return self.serve_until - max(took, default=0.0) - margin_s
        return None if self.state is State.SERVING else 0.0

    def must_hand_back(self, now: float) -> bool:
        """Whether what runs now will not be done: it goes back while the machine can hand it."""
        return self.draining and self.until is not None and now >= self.until - HAND_BACK_S

    def as_json(self) -> dict[str, Any]:
        """Give the notice as it is written and as the socket answers it."""
        body = self._asdict()
        times = {name: as_text(body[name]) for name in _TIMES if body[name] is not None}
        return {**body, **times, "version": VERSION, "state": self.state.value}


def write_notice(folder: Path, notice: Notice) -> None:
    """Replace the notice; a reader sees the old one or the new one."""
    draft = folder / f".{NAME}.new"
    draft.write_text(json.dumps(notice.as_json()) + "\n", encoding="utf-8")
    draft.chmod(0o644)
    draft.replace(folder / NAME)


def read_notice(folder: Path) -> Notice | None:
    """Read the notice; None while there is none. Raises ValueError if it is none of ours."""
    try:
        body = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    try:
        times = {name: read_time(body[name]) for name in _TIMES if body.get(name) is not None}
        known = {name: body[name] for name in Notice._fields if name in body}
        return Notice(**{**known, **times, "state": State(body["state"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / NAME} is not a notice: {error!r}") from None


class NoticeReader:
    """Reads the notice when it changed; asking costs one look at the file's name."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        # Replaced as one: of two threads that read, the slower has the older notice.
        self._last: tuple[object, Notice | None] = (None, None)

    def read(self) -> Notice | None:
        """Give the newest notice that could be read; None before the first."""
        with contextlib.suppress(OSError, ValueError):
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns)
            if stamp != self._last[0]:
                self._last = (stamp, read_notice(self._path.parent))
        return self._last[1]
