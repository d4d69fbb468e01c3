"""Search logs out of a JSON access log that another program writes, such as nginx."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from spotkeeper_worker.files import NotARegularFile, open_regular
from spotkeeper_worker.times import as_text, read_time

if TYPE_CHECKING:
    from spotkeeper_worker.log import Sometimes
    from spotkeeper_worker.logs.spool import Accept

MOST_LOGS = 500
MOST_BYTES = 1 << 20
# A file that was renamed is read on for a while: its program may not have opened the new one yet.
_GRACE_S = 10.0
_TIMEOUTS = (408, 499, 504)
_SERVER_ERROR = 500


class Follow(NamedTuple):
    """The file to follow, and the names of its fields."""

    follow: Path
    request_id: str = "request_id"
    finished_at: str = "time"
    """RFC 3339, or seconds since the epoch."""
    seconds: str = "request_time"
    status: str = "status"
    path: str = "uri"
    enqueued_at: str = ""
    """As `finished_at`, or as the header X-Request-Start has it (`t=SECONDS`)."""
    skip: tuple[str, ...] = ("/health",)
    """Requests whose path begins so are none of the fleet's."""

    @classmethod
    def parse(cls, value: Any) -> Follow:
        """Read `{follow = "/var/log/nginx/access.json"}`; raises ValueError."""
        if not isinstance(value, dict) or not isinstance(value.get("follow"), str):
            raise ValueError('should be {follow = "/var/log/nginx/access.json"}')
        known = set(cls._fields)
        for name, named in value.items():
            right = isinstance(named, list if name == "skip" else str)
            if name not in known or not right:
                raise ValueError(f"{name} should be one of {', '.join(sorted(known))}, and a text")
        given = {**value, "follow": Path(value["follow"])}
        if "skip" in value:
            given["skip"] = tuple(map(str, value["skip"]))
        return cls(**given)

    def log_of(self, entry: dict[str, Any], worker_id: str) -> dict[str, Any] | None:
        """Map an entry to a search log; None for one to skip. Raises ValueError."""
        if str(entry.get(self.path, "")).startswith(self.skip):
            return None
        try:
            finished = _time(entry[self.finished_at])
            started = finished - float(entry[self.seconds])
            waited_from = entry.get(self.enqueued_at) if self.enqueued_at else None
            enqueued = _time(waited_from) if waited_from not in (None, "", "-") else started
            return {
                "request_id": str(entry[self.request_id])[:128],
                "worker_id": worker_id,
                "enqueued_at": as_text(enqueued),
                "started_at": as_text(started),
                "finished_at": as_text(finished),
                "status": _status(int(entry[self.status])),
            }
        except KeyError as error:
            raise ValueError(f"has no {error.args[0]}") from None
        except (TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None


def _time(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    text = str(value)
    text = text[2:] if text.startswith("t=") else text
    try:
        return float(text)
    except ValueError:
        return read_time(text)


def _status(code: int) -> str:
    if code in _TIMEOUTS:
        return "timeout"
    return "error" if code >= _SERVER_ERROR else "ok"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


class Follower:
    """Reads what is new, each line once, also by the agent after one that was killed.

    The journal remembers for every file how far it was read: that is the number of its batch.
    """

    def __init__(
        self, follow: Follow, accept: Accept, last_of: Callable[[str], int], say: Sometimes
    ) -> None:
        self._follow = follow
        self._accept = accept
        self._last_of = last_of
        self._say = say
        self._fd: int | None = None
        self._inode = self._at = 0
        self._session = ""
        self._worker_id = f"{socket.gethostname()}-access"
        self._renamed_at: float | None = None
        # What was written before there was an agent is history.
        self._known = f"follow:{_digest(os.fsencode(follow.follow))}"
        self._new = last_of(self._known) > 0

    def step(self, now: float) -> int:
        """Read what there is, up to a mebibyte; answers the number of logs."""
        if self._fd is not None and os.fstat(self._fd).st_size < self._at:
            # It was truncated (logrotate's copytruncate), and begins anew.
            self.close()
        if self._fd is None and not self._opened():
            return 0
        assert self._fd is not None
        if not self._session:
            self._begin(self._fd)
            self._accept([], self._known, 1)
        data = os.pread(self._fd, MOST_BYTES if self._session else 0, self._at)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == MOST_BYTES:
            whole = len(data)
        taken = self._take(data[:whole])
        self._at += whole
        if not whole:
            self._look_for_another(now)
        return taken

    def _opened(self) -> bool:
        try:
            fd = open_regular(self._follow.follow)
        except (OSError, NotARegularFile) as error:
            self._new = True
            self._say.warn("follow", f"{self._follow.follow} cannot be followed: {error}")
            return False
        self._say.over("follow", f"{self._follow.follow} is followed")
        self._fd, self._inode, self._renamed_at = fd, os.fstat(fd).st_ino, None
        self._session, self._at = "", 0
        return True

    def _begin(self, fd: int) -> None:
        """Find where to go on, once the file has a first line."""
        first, end, _ = os.pread(fd, MOST_BYTES, 0).partition(b"\n")
        new, self._new = self._new, True
        if not end and len(first) < MOST_BYTES:
            return
        # A file that was deleted leaves its inode to another, which has another first line.
        self._session = f"follow:{self._inode}:{_digest(first)}"
        known = self._last_of(self._session)
        if known:
            self._at = known - 1
        else:
            self._at = 0 if new else os.fstat(fd).st_size
            self._accept([], self._session, self._at + 1)

    def _take(self, data: bytes) -> int:
        """Map whole lines and hand them over, in batches that are numbered by where they end."""
        logs: list[object] = []
        at, taken = self._at, 0
        for line in data.splitlines(keepends=True):
            at += len(line)
            try:
                entry = json.loads(line) if line.strip() else None
                log = self._follow.log_of(entry, self._worker_id) if entry else None
            except (ValueError, AttributeError, RecursionError) as error:
                self._say.warn(
                    "entry", f"{self._follow.follow}: a line is not a search log: {error}"
                )
                continue
            if log is not None:
                logs.append(log)
            if len(logs) == MOST_LOGS:
                self._accept(logs, self._session, at + 1)
                taken, logs = taken + len(logs), []
        if data:
            self._accept(logs, self._session, at + 1)
        return taken + len(logs)

    def _look_for_another(self, now: float) -> None:
        """Change to the file that has the name now, once the old one has been still for a while."""
        try:
            same = self._follow.follow.stat().st_ino == self._inode
        except OSError:
            same = False
        if same:
            self._renamed_at = None
        elif self._renamed_at is None:
            self._renamed_at = now
        elif not 0 <= now - self._renamed_at < _GRACE_S:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
