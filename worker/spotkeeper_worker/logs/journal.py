"""The search logs that were accepted and are not sent yet, on disk so that a kill loses none.

A segment is a file of lines. Logs are appended to `open`; sealed, it gets a number and never
changes again, so that the message made of it is the same, byte for byte, until SQS has it. A line
that begins with # is the journal's own: which batch of which sender ends here, what was lost.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OPEN = "open"
# What a segment tells beside its logs, in the field `agent`: the counts, and news such as a look.
COUNTED: tuple[str, ...] = ("lost", "clamped", "refused")
LOOK = "queue"
SESSIONS = "sessions.json"
MOST_SESSIONS = 1000
# Of an open segment that has no log.
_LONGEST_EMPTY = 1 << 16


class Segment(NamedTuple):
    """A sealed segment; without a number it is in memory alone, as the disk took no more."""

    number: int | None
    lines: tuple[str, ...]
    counts: str = ""

    def body(self) -> str:
        """Give the message: JSON lines, gzip, base64."""
        lines = list(self.lines or ['{"version":1}'])
        if self.counts:
            lines[0] = f'{lines[0][:-1]},"agent":{self.counts}}}'
        packed = gzip.compress("\n".join(lines).encode("utf-8", "surrogatepass"), 6, mtime=0)
        return base64.b64encode(packed).decode()


class Journal:
    """The ring of logs in one folder; `most_logs` are kept, the oldest are lost first."""

    def __init__(self, folder: Path, most_logs: int = 10_000) -> None:
        """Read what an agent before this one left. Raises OSError if the folder cannot be used."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.counts = dict.fromkeys(COUNTED, 0)
        """What happened to logs that were not sent as they arrived; the next message has it."""
        self._unwritten = self._unsealed = ""
        self._is_torn = False
        """Whether the open segment has a batch that the disk did not take."""
        self._folder = folder
        self._most_logs = most_logs
        self._sessions: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            self._sessions = json.loads((folder / SESSIONS).read_text(encoding="utf-8"))
        self._sealed: deque[Segment] = deque()
        self._in_flight: Segment | None = None
        numbers = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())
        for number in numbers:
            lines, counts, _ = self._read_segment(folder / f"{number:012d}")
            if lines:
                self._sealed.append(Segment(number, tuple(lines), counts))
        self._next = numbers[-1] + 1 if numbers else 1
        self._fd = _opened(folder / OPEN)
        self._lines, counts, size = self._read_segment(folder / OPEN)
        os.ftruncate(self._fd, size)
        self.count_again(counts)

    def _read_segment(self, path: Path) -> tuple[list[str], str, int]:
        """Read whole batches, what they tell, and where the last one ends.

        What follows that was never accepted.
        """
        lines: list[str] = []
        pending: list[str] = []
        counts, size, at = "", 0, 0
        for raw in path.read_bytes().splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            at += len(raw)
            line = raw.decode("utf-8", "surrogatepass").rstrip("\n")
            if line.startswith("# batch "):
                _, _, session, batch = line.split(" ")
                _remember(self._sessions, session, int(batch))
                lines += pending
                pending, size = [], at
            elif line.startswith("# counts "):
                counts = line[len("# counts ") :]
            else:
                pending.append(line)
        return lines, counts, size

    def count_again(self, counts: str) -> None:
        """Add what a segment was to tell; its news is old by now."""
        for name, count in json.loads(counts or "{}").items():
            if name in COUNTED:
                self.counts[name] += count

    def last_of(self, session: str) -> int:
        """The number of the last batch that was accepted of a sender; 0 if none was."""
        return self._sessions.get(session, 0)

    @property
    def disk_trouble(self) -> str:
        """Why logs are in memory alone; empty while the disk takes them."""
        error = self._unwritten or self._unsealed
        return error and f"{self._folder}: {error}; logs are kept in memory"

    @property
    def waiting(self) -> int:
        """Logs that are not sent."""
        return len(self._lines) + sum(len(segment.lines) for segment in self._sealed)

    def append(self, lines: Sequence[str], session: str, batch: int) -> None:
        """Accept a batch: once this returns it survives the end of the process."""
        text = "".join(f"{line}\n" for line in (*lines, f"# batch {session} {batch}"))
        if not self._lines and os.fstat(self._fd).st_size > _LONGEST_EMPTY:
            # Nothing of its batches was a log: the health checks of a followed log, say.
            with contextlib.suppress(OSError):
                self._write_sessions()
                os.ftruncate(self._fd, 0)
        try:
            self._write(text)
            self._unwritten = ""
        except OSError as error:
            self._is_torn, self._unwritten = True, error.strerror or str(error)
        self._lines.extend(lines)
        _remember(self._sessions, session, batch)
        self._drop_oldest()

    def seal(self, news: Mapping[str, object] | None = None) -> None:
        """End the open segment, which tells the news, too; the next log begins another."""
        if not self._lines:
            return
        counts = self.counts_text(news)
        if counts:
            with contextlib.suppress(OSError):
                self._write(f"# counts {counts}\n")
        number: int | None = None
        try:
            if self._is_torn:
                # What is on disk would be another message than the one that is sent.
                os.ftruncate(self._fd, 0)
            else:
                self._begin_another()
                number = self._next - 1
            self._unsealed = ""
        except OSError as error:
            self._unsealed = error.strerror or str(error)
        self._is_torn = False
        self._sealed.append(Segment(number, tuple(self._lines), counts))
        self._lines = []

    def _begin_another(self) -> None:
        """Give the open file its number, and open another.

        Where that fails, raising OSError, the file that is open stays, and is emptied.
        """
        path, numbered = self._folder / OPEN, self._folder / f"{self._next:012d}"
        try:
            path.replace(numbered)
            try:
                fd = _opened(path)
            except OSError:
                numbered.replace(path)
                raise
        except OSError:
            os.ftruncate(self._fd, 0)
            raise
        os.close(self._fd)
        self._fd = fd
        self._next += 1

    def oldest(self) -> Segment | None:
        """Give the segment that is to be sent next; it stays until it is done."""
        self._in_flight = self._sealed[0] if self._sealed else None
        return self._in_flight

    def done(self, segment: Segment) -> None:
        """Forget a segment that SQS has."""
        with contextlib.suppress(ValueError):
            self._sealed.remove(segment)
        self._remove(segment)

    def close(self) -> None:
        """Close the open segment; what it holds stays."""
        os.close(self._fd)

    def counts_text(self, news: Mapping[str, object] | None = None) -> str:
        """Write what a message is to tell beside its logs, and begin to count anew."""
        counts: dict[str, object] = dict(news or {})
        if any(self.counts.values()):
            counts.update(self.counts)
        self.counts = dict.fromkeys(COUNTED, 0)
        return json.dumps(counts, separators=(",", ":")) if counts else ""

    def _drop_oldest(self) -> None:
        """Drop the oldest segments over the limit, except the one being sent."""
        while self.waiting > self._most_logs:
            lost = next((each for each in self._sealed if each is not self._in_flight), None)
            if lost is None and not self._lines:
                return
            if lost is None:
                self.seal()
                continue
            self._sealed.remove(lost)
            self.counts["lost"] += len(lost.lines)
            self.count_again(lost.counts)
            self._remove(lost)

    def _remove(self, segment: Segment) -> None:
        """Delete a segment once its senders' batches are known without it."""
        # What was in memory alone has no file, and no segment has the number 0.
        path = self._folder / f"{segment.number or 0:012d}"
        try:
            self._write_sessions()
            path.unlink(missing_ok=True)
        except OSError:
            # On a full disk it makes room for them first: left there, it would be sent again.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                self._write_sessions()

    def _write_sessions(self) -> None:
        draft = self._folder / f".{SESSIONS}.new"
        draft.write_text(json.dumps(self._sessions), encoding="utf-8")
        draft.replace(self._folder / SESSIONS)

    def _write(self, text: str) -> None:
        """Append wholly or not at all."""
        before = os.fstat(self._fd).st_size
        data = text.encode("utf-8", "surrogatepass")
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError(28, "the disk is full")
        except OSError:
            os.ftruncate(self._fd, before)
            raise


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _remember(sessions: dict[str, int], session: str, batch: int) -> None:
    """Note a sender's last batch; the senders whose batches arrived last are kept."""
    sessions[session] = max(batch, sessions.pop(session, 0))
    if len(sessions) > MOST_SESSIONS:
        del sessions[next(iter(sessions))]
