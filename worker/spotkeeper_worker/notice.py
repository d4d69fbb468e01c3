"""The notice that workers read: a small JSON file that is replaced by rename."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from spotkeeper_worker.states import State
from spotkeeper_worker.times import as_text, read_time

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
NAME = "notice.json"


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

    @property
    def may_serve(self) -> bool:
        """Whether requests may be begun at all, `serve_until` aside."""
        return self.state is State.SERVING or self.serve_until is not None

    def as_json(self) -> dict[str, Any]:
        """Give the notice as it is written and as the socket answers it."""
        body = dict(self._asdict(), version=VERSION, state=self.state.value)
        for name in ("seen_at", "until", "serve_until"):
            body[name] = None if body[name] is None else as_text(body[name])
        return body


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
        return Notice(
            state=State(body["state"]),
            seen_at=read_time(body["seen_at"]),
            draining=bool(body["draining"]),
            reason=str(body["reason"]),
            until=body["until"] and read_time(body["until"]),
            serve_until=body.get("serve_until") and read_time(body["serve_until"]),
            target=body.get("target"),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / NAME} is not a notice: {error!r}") from None


class NoticeReader:
    """Reads the notice when it changed; asking costs one look at the file's name."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._folder = folder
        # Replaced as one: of two threads that read, the slower has the older notice.
        self._last: tuple[object, Notice | None] = (None, None)

    def read(self) -> Notice | None:
        """Give the newest notice that could be read; None before the first."""
        with contextlib.suppress(OSError, ValueError):
            found = self._path.stat()
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._last[0]:
                self._last = (stamp, read_notice(self._folder))
        return self._last[1]
