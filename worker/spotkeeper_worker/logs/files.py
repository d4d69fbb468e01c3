"""Search logs out of files: those that shell scripts leave, and a log that a server writes.

A script moves its file into the folder `in/` by rename. A server such as nginx writes a JSON access
log, which is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import socket
from itertools import islice
from operator import itemgetter
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from spotkeeper_worker.files import NotARegularFile, open_regular
from spotkeeper_worker.logs.intake import LONGEST_ID, MOST_HOURS
from spotkeeper_worker.logs.server import MOST_LOGS
from spotkeeper_worker.times import as_text, read_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper_worker.log import Sometimes

    Accept = Callable[[Sequence[object], str, int], list[str]]

FOLDER = "in"
REFUSED = "refused"
LONGEST_FILE = 2 << 20
# In one step of the agent; the others wait for the next.
MOST_FILES = 200
MOST_BYTES = 1 << 20
# Bytes of refused files that are kept, of MOST_FILES files at most.
MOST_REFUSED = 64 << 20
_MOST_ROTATED = 20
# What a rotation adds to a log's name: a number or a date. Before the suffix, as Caddy has it, a
# number alone may name another program's log.
_AFTER, _BEFORE = r"[._-]\d[\dT._:-]*", r"[._-]\d{4}-?\d\d-?\d\d[\dT._:-]*"
# A file that was renamed is read on for a while: its program may not have opened the new one yet.
_GRACE_S = 10.0
# 460 is an Application Load Balancer's 499: the client left.
_TIMEOUTS = (408, 460, 499, 504)
_SERVER_ERROR = 500
# As LiteLLM, scripts and gRPC write it (gRPC's Canceled is HTTP's 499).
_STATUS_WORDS = {
    "ok": re.compile("ok|succe|complete"),
    "timeout": re.compile("time[d_ -]*out|deadline|cancel"),
    "error": re.compile("error|fail|internal|unavailable|unknown|unimplemented|data_?loss|abort"),
}
# What nginx writes between the values of several upstreams.
_BETWEEN = re.compile(r" ?[,:] ")
# The method of nginx's $request, and what HAProxy writes for HTTP/2: a whole URL.
_BEFORE_PATH = re.compile(r"([A-Z]+ )?(\w+://[^/]*)?")
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_OBJECT = re.compile(r'\{\s*"')
# What nginx writes without escape=json, or without quotes: "time": 07/Oct/2024:11:40:51 +0000.
_NO_JSON = re.compile(r'\\(?:x(?=[0-9A-F]{2})|.)|(?<=":)(?P<bare>[^"{}\[\]]*)(?=["}])')
_ESCAPED = frozenset('"\\/bfnrtu')
# .NET and Python write 0:00:02.5, and Java PT2.5S.
_CLOCK = re.compile(r"^(\d+):(\d+):")
_GO = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?([-+.\de]+) ?(ns|us|ms|s|)", re.ASCII)
_LONGEST_NUMBER = 400
_A_TIME = "a time with a zone, or since the epoch"


def collect(spool_dir: Path, accept: Accept, say: Sometimes) -> None:
    """Accept the scripts' files once and remove them.

    A file that is found again after a kill is known by its inode and time, not by its name. One
    that cannot be read is kept for the operator; what is no file is only a trap.
    """
    folder = spool_dir / FOLDER
    with contextlib.suppress(FileNotFoundError):
        ours = (
            path for path in folder.iterdir()
            if path.suffix in (".json", ".jsonl") and not path.name.startswith(".")
        )  # fmt: skip
        for path in sorted(islice(ours, MOST_FILES)):
            try:
                session, logs = _read_logs(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                _put_aside(path, spool_dir / REFUSED, error, say)
                continue
            for first in range(0, len(logs), MOST_LOGS):
                accept(logs[first : first + MOST_LOGS], session, first // MOST_LOGS + 1)
            with contextlib.suppress(OSError):
                path.unlink()


def _read_logs(path: Path) -> tuple[str, list[object]]:
    """Read a sender's name, and one log, a list of logs, or JSON lines."""
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        stat = os.fstat(fd)
        data = file.read(LONGEST_FILE + 1)
    if len(data) > LONGEST_FILE:
        raise ValueError(f"has more than {LONGEST_FILE >> 20} MiB")
    session = f"file:{stat.st_ino}:{stat.st_mtime_ns}"
    text = data.decode("utf-8").strip()
    try:
        read = json.loads(text)
    except ValueError:
        return session, [json.loads(line) for line in text.splitlines() if line.strip()]
    return session, read if isinstance(read, list) else [read]


def _put_aside(path: Path, aside: Path, error: Exception, say: Sometimes) -> None:
    try:
        if isinstance(error, NotARegularFile) and not path.is_dir():
            path.unlink()
            where = "removed"
        else:
            aside.mkdir(exist_ok=True)
            path.replace(aside / path.name)
            # Whoever writes nonsense does not fill the disk: the oldest go.
            files = [one for one in aside.iterdir() if not one.is_dir()]
            left = MOST_REFUSED
            for one in sorted(files, key=lambda one: one.lstat().st_mtime_ns, reverse=True):
                left -= max(one.lstat().st_size, MOST_REFUSED // MOST_FILES)
                if left < 0:
                    one.unlink()
            where = f"moved to {aside}"
    except OSError as trouble:
        say.warn(f"spool {path.name}", f"{path.name} cannot be read or moved: {error}; {trouble}")
        return
    say.warn("spool", f"{path.name} could not be read and was {where}: {error}")


class Follow(NamedTuple):
    """The access log to follow, and the names of its fields; `request.uri` is one in another."""

    follow: Path
    request_id: str = "request_id"
    finished_at: str = "time"
    started_at: str = ""
    """If it is given, `finished_at` is only read where it is given too, and `seconds` is not."""
    seconds: str = "request_time"
    unit: str = "s"
    """Of `seconds`."""
    status: str = "status"
    path: str = "uri"
    enqueued_at: str = ""
    skip: tuple[str, ...] = ("/health",)
    """Requests whose path begins so are none of the fleet's."""
    format: str = "nginx"
    """Whose names the fields have, if they are not given; one of `FORMATS`."""

    @classmethod
    def parse(cls, value: Any) -> Follow:
        """Read `{follow = "/var/log/nginx/access.json"}`; raises ValueError."""
        if not isinstance(value, dict) or not isinstance(value.get("follow"), str):
            raise ValueError('should be {follow = "/var/log/nginx/access.json"}')
        if value.get("format") == "uvicorn":
            raise ValueError(
                "format: uvicorn's access log has no durations; add SpotkeeperMiddleware instead"
            )
        for name, choices in (("format", FORMATS), ("unit", _UNITS)):
            if name in value and value[name] not in choices:
                raise ValueError(f"{name} should be one of {', '.join(choices)}")
        known = ", ".join(sorted(cls._fields))
        for name, named in value.items():
            if name not in cls._fields:
                raise ValueError(f"{name}: should be one of {known}")
            if not isinstance(named, (str, list) if name == "skip" else str):
                raise ValueError(f"{name}: should be a text")
        named = FORMATS[value.get("format", "nginx")]
        given = {**named, **value, "follow": Path(value["follow"])}
        if "finished_at" in value and "seconds" not in value and "started_at" in value:
            given["seconds"] = ""
        elif "finished_at" in value and "started_at" not in value:
            given["started_at"] = ""
        if "skip" in value:
            given["skip"] = skipped(value["skip"])
        return cls(**given)

    def entry_of(self, line: bytes) -> Any:
        """Read a line; None if it is empty. Raises ValueError or RecursionError.

        What a syslog or a container's runtime writes around the JSON is left out; it may also be in
        a field of another object, as text or as it is.
        """
        # nginx writes `GET /%ff` as that byte.
        text = line.decode("utf-8", "replace").lstrip("\ufeff").strip()
        if not text:
            return None
        if self.format == "alb":
            return _alb_entry(text)
        entry: Any = None
        begins = _OBJECT.search(text)
        text = text[begins.start() if begins else 0 :]
        try:
            entry, _ = _JSON.raw_decode(text)
        except ValueError:
            with contextlib.suppress(ValueError):
                entry, _ = _JSON.raw_decode(_NO_JSON.sub(_as_json, text))
        if not isinstance(entry, dict):
            raise ValueError(f"it is no JSON, as format={self.format} needs: docs/access-logs.md")
        for held in entry.values() if self._missing(entry) else ():
            with contextlib.suppress(ValueError):
                is_text = isinstance(held, str) and _OBJECT.search(held)
                inside = self.entry_of(held.encode()) if is_text else held
                if isinstance(inside, dict) and not self._missing(inside):
                    return inside
        return entry

    def _missing(self, entry: dict[str, Any]) -> str:
        """Name the key whose field an entry lacks, of the two that it must have."""
        moment = "started_at" if self.started_at else "finished_at"
        needed = (moment, "seconds" if self.seconds else "finished_at")
        return next((key for key in needed if _field(entry, getattr(self, key)) is None), "")

    def log_of(
        self,
        entry: dict[str, Any],
        worker_id: str,
        own_id: str = "",
        wrong: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any] | None:
        """Map an entry to a search log; None for one to skip. Raises ValueError.

        Without the time or the duration there is no log. Another field that cannot be read costs
        that field alone, and is reported to `wrong`. `own_id` names an entry without an id.
        """
        where = _field(entry, self.path)
        if _BEFORE_PATH.sub("", str(where), count=1).startswith(self.skip):
            return None
        if key := self._missing(entry):
            known = ", ".join(each for each in entry if entry[each] is not None)[:200]
            raise ValueError(f"has no {getattr(self, key)}; set {key} to one of {known}")
        name, should_be = self.seconds or self.finished_at, f"a duration below a day ({self.unit})"
        try:
            # A clock may have been set back. What is no number stays none.
            if self.seconds:
                took = max(_duration(_field(entry, name), self.unit), 0.0)
            else:
                ended = read_moment(_field(entry, name))
                took = max(ended - read_moment(_field(entry, self.started_at)), 0.0)
            if not took < MOST_HOURS * 3600:
                raise ValueError
            name, should_be = self.started_at or self.finished_at, _A_TIME
            at = read_moment(_field(entry, name))
            started, finished = (at, at + took) if self.started_at else (at - took, at)
            texts = as_text(started), as_text(finished)
        except (TypeError, ValueError, OverflowError):
            shown = str(_field(entry, name))[:40]
            raise ValueError(f"{name} is {shown!r}, and should be {should_be}") from None
        if where is None and self.skip:
            wrong(f"{self.path}: an entry without it is not left out, whatever skip says; set path")
        code, waited_from = _field(entry, self.status), _field(entry, self.enqueued_at)
        enqueued, status = started, "ok"
        try:
            if waited_from not in (None, "", "-"):
                enqueued = read_moment(waited_from)
                if not finished - MOST_HOURS * 3600 < enqueued <= started:
                    raise ValueError
        except ValueError:
            # A client may have sent it: the text says nothing of it, and is logged once a minute.
            enqueued = started
            wrong(
                f"{self.enqueued_at}: a value is no time before its request; the wait counts as 0"
            )
        answer = _BETWEEN.split(str(code))[-1].strip()
        try:
            words = _STATUS_WORDS.items()
            status = next((word for word, like in words if like.match(answer.lower())), "")
            number = 0 if status else int(answer[:3])
            failed = "error" if number >= _SERVER_ERROR else "ok"
            # Envoy writes 0, and HAProxy -1, where the client left before the answer.
            status = status or ("timeout" if number in _TIMEOUTS or number <= 0 else failed)
        except ValueError:
            status = "ok"
            wrong(f"{self.status}: {str(code)[:40]!r} is no status; it counts as ok")
        named = _field(entry, self.request_id)
        request_id = str(named if named not in (None, "", "-") else own_id)[:LONGEST_ID]
        return {
            # A half of a character is no UTF-8.
            "request_id": request_id.encode("utf-8", "replace").decode(),
            "worker_id": worker_id,
            "enqueued_at": as_text(enqueued),
            "started_at": texts[0],
            "finished_at": texts[1],
            "status": status,
        }


FORMATS: dict[str, dict[str, str]] = {
    # The format of docs/access-logs.md.
    "nginx": {},
    # https://caddyserver.com/docs/caddyfile/directives/log
    "caddy": {"finished_at": "ts", "seconds": "duration", "path": "request.uri"},
    # https://doc.traefik.io/traefik/observe/logs-and-access-logs/
    "traefik": {
        "started_at": "StartUTC", "seconds": "Duration", "unit": "ns",
        "status": "DownstreamStatus", "path": "RequestPath",
    },
    # The keys of Envoy's own example, and of Istio:
    # https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
    "envoy": {
        "started_at": "start_time", "seconds": "duration", "unit": "ms",
        "status": "response_code", "path": "path",
    },
    # The format of docs/access-logs.md.
    "haproxy": {"unit": "ms"},
    "alb": {},
}  # fmt: skip
# https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html
# Its trace id is no id of a request: a client may send the same one each time.
_ALB = re.compile(
    r"\S+ (?P<time>\S+) \S+ \S+ (?P<target>\S+) (?P<times>\S+ \S+ \S+) (?P<status>\S+) "
    r'\S+ \S+ \S+ "\S+ (?P<uri>[^\s"]*)(?:.* -?\d+ (?P<began>\S+Z) ")?'
)


def _alb_entry(text: str) -> dict[str, Any]:
    """Read a line of an Application Load Balancer with the names of nginx; raises ValueError.

    A time of -1 was not measured: the target did not answer in time, or the client left before.
    Then it is the time since the request arrived, unless it reached no target.
    """
    match = _ALB.match(text)
    if not match:
        raise ValueError("is no line of an Application Load Balancer")
    entry: dict[str, Any] = match.groupdict()
    times = [float(each) for each in entry["times"].split()]
    entry["request_time"] = sum(max(0.0, each) for each in times)
    if min(times) < 0 and entry["began"] and entry["target"] != "-":
        entry["request_time"] = read_moment(entry["time"]) - read_moment(entry["began"])
    return entry


def skipped(paths: Sequence[str]) -> tuple[str, ...]:
    """Read `skip`: paths, each for all that begins so. Raises ValueError."""
    each = (paths,) if isinstance(paths, str) else tuple(map(str, paths))
    if "" in each:
        raise ValueError("skip: an empty path would leave every request out")
    return each


def _duration(value: Any, unit: str) -> float:
    """Read a duration in seconds: a number, or a text as Go writes it (`2500ms`, `1m2.5s`)."""
    text = str(value).strip().replace("µs", "us").replace("μs", "us")
    text = text[2:].lower() if text.startswith("PT") else _CLOCK.sub(r"\1h\2m", text)
    first, *others = _BETWEEN.split(text)
    match = _GO.fullmatch(first)
    hours, minutes, number, own = match.groups() if match else (0, 0, first, "")
    took = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(number) / _UNITS[own or unit]
    return took + sum(_duration(each, unit) for each in others)


def _field(entry: dict[str, Any], name: str) -> Any:
    """Look a field up by its name, or by its path (`request.uri`); None if it is not there.

    Of a list, as of a header's values, the first counts.
    """
    value = entry.get(name)
    at = name.find(".")
    while value is None and at > 0:
        inside = entry.get(name[:at])
        value = _field(inside, name[at + 1 :]) if isinstance(inside, dict) else None
        at = name.find(".", at + 1)
    return (value[0] if value else None) if isinstance(value, list) else value


def _as_json(match: re.Match[str]) -> str:
    """Escape and quote what a template put between JSON's marks as it is."""
    text, bare = match[0], match["bare"]
    if bare is None:
        if text == "\\x":
            return "\\u00"
        return text if text[1] in _ESCAPED else f"\\{text}"
    value, comma = bare.strip(), ""
    if value.endswith(","):
        value, comma = value[:-1].strip(), ","
    elif match.string[match.end()] == '"':
        # The space before a text.
        return text
    with contextlib.suppress(ValueError):
        json.loads(value)
        return text
    return ("null" if value in ("", "-") else json.dumps(value)) + comma


def _whole(text: str) -> float:
    """Read a whole number; one of thousands of digits does not cost the line."""
    return int(text) if len(text) < _LONGEST_NUMBER else math.inf


_JSON = json.JSONDecoder(parse_int=_whole, strict=False)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _whole_lines(fd: int, at: int) -> bytes:
    """Read whole lines from there on; of one that is too long, what there is."""
    data = os.pread(fd, MOST_BYTES, at)
    return data[: data.rfind(b"\n") + 1 or (len(data) if len(data) == MOST_BYTES else 0)]


class Follower:
    """Reads what is new, each line once, also by the agent after one that was killed.

    The journal remembers for every file how far it was read: that is the number of its batch. A
    file is known by its inode and its first line, wherever a rotation moves or copies it to.
    """

    def __init__(
        self, follow: Follow, accept: Accept, last_of: Callable[[str], int], say: Sometimes
    ) -> None:
        self._follow = follow
        self._path = follow.follow
        name, stem, suffix = map(re.escape, (self._path.name, self._path.stem, self._path.suffix))
        self._is_rotated = re.compile(f"{name}{_AFTER}|{stem}{_BEFORE}{suffix}").fullmatch
        self._accept = accept
        self._last_of = last_of
        self._say = say
        self._fd: int | None = None
        # Of the file that is read, and of the one that has the log's name.
        self._inode = self._log_inode = 0
        # Where it is read on, and the size below which it was truncated.
        self._at = self._least = 0
        self._session = ""
        self._worker_id = f"{socket.gethostname()}-access"
        self._renamed_at: float | None = None
        # What was written before there was an agent is history.
        self._known = f"follow:{_digest(os.fsencode(self._path))}"
        self._new = last_of(self._known) > 0
        self.behind = False
        """Whether lines may wait that it has not read."""

    def step(self, now: float, most_logs: float = math.inf) -> int:
        """Read what there is, up to a mebibyte or `most_logs`; answers the number of logs."""
        self.behind = False
        if self._fd is not None and os.fstat(self._fd).st_size < self._least:
            # It was truncated (logrotate's copytruncate), and begins anew.
            self.close()
        if self._fd is None:
            try:
                log = open_regular(self._path)
            except (OSError, NotARegularFile) as error:
                self._new = True
                self._say.warn("follow", f"{self._path} cannot be followed: {error}")
                return 0
            self._say.over("follow", f"{self._path} is followed")
            self._log_inode = os.fstat(log).st_ino
            self._fd = self._rotated(log)
            if self._fd is None:
                self._fd = log
            else:
                os.close(log)
            self._inode, self._renamed_at = os.fstat(self._fd).st_ino, None
            self._session, self._at, self._least = "", 0, 0
        if not self._session:
            self._begin(self._fd)
            self._accept([], self._known, 1)
        data = _whole_lines(self._fd, self._at) if self._session else b""
        if data:
            self.behind = True
            return self._take(data, most_logs)
        # Another file may have the name by now; it is the turn of that once this one was still.
        same = False
        with contextlib.suppress(OSError):
            same = self._path.stat().st_ino == self._inode
        if same or self._renamed_at is None:
            self._renamed_at = None if same else now
        elif now - self._renamed_at >= _GRACE_S:
            self.close()
        self.behind = not same
        return 0

    def _session_of(self, fd: int) -> str:
        """Name a file in the journal, once it has a first line; a copy as what it is a copy of."""
        first, end, _ = os.pread(fd, MOST_BYTES, 0).partition(b"\n")
        if not end and len(first) < MOST_BYTES:
            return ""
        # A file that was deleted leaves its inode to another, which has another first line.
        own, copied = (
            f"follow:{inode}:{_digest(first)}" for inode in (os.fstat(fd).st_ino, self._log_inode)
        )
        return copied if self._last_of(copied) else own

    def _rotated(self, log: int) -> int | None:
        """Open the oldest file beside the log that has lines of it which were not read.

        A file that is newer than one that was read was begun and rotated while no agent ran.
        """
        beside: list[tuple[bool, int, Path]] = []
        unread: list[int] = []
        begun: list[int] = []
        newest: int | None = None
        of_log = self._session_of(log)
        with contextlib.ExitStack() as opened:
            with contextlib.suppress(OSError):
                for path in self._path.parent.iterdir():
                    if path.name.startswith(self._path.stem):
                        with contextlib.suppress(FileNotFoundError):
                            stat = path.lstat()
                            if S_ISREG(stat.st_mode) and stat.st_ino != self._log_inode:
                                rotated = self._is_rotated(path.name) is not None
                                beside.append((rotated, stat.st_mtime_ns, path))
            # Of many files, those with a rotated log's name are preferred.
            chosen = sorted(beside)[-_MOST_ROTATED:]
            for rotated, _, path in sorted(chosen, key=itemgetter(1, 2)):
                with contextlib.suppress(OSError, NotARegularFile):
                    fd = open_regular(path)
                    opened.callback(os.close, fd)
                    session = self._session_of(fd)
                    if session and session == of_log:
                        # The log has these lines itself.
                        continue
                    last = self._last_of(session)
                    if rotated and not last:
                        # It was empty. Another name shows that its inode was used again.
                        last = self._last_of(f"follow:{os.fstat(fd).st_ino}:")
                    if last:
                        newest = fd
                        unread += [fd] if _whole_lines(fd, last - 1) else []
                    elif newest is not None and rotated:
                        begun.append(fd)
            # Its program may not have opened the log yet.
            if newest is not None and not (self._inode or self._last_of(of_log)):
                unread.append(newest)
            return next(map(os.dup, [*unread, *begun]), None)

    def _begin(self, fd: int) -> None:
        """Find where to go on, once the file has a first line."""
        new, self._new = self._new, True
        self._session = self._session_of(fd)
        if not self._session:
            self._accept([], f"follow:{self._inode}:", 1)
            return
        known = self._last_of(self._session)
        if known:
            self._at = known - 1
        else:
            self._at = 0 if new else os.fstat(fd).st_size
            self._accept([], self._session, self._at + 1)
        # It may have lost its end, and is read on once it is longer again.
        self._least = min(self._at, os.fstat(fd).st_size)

    def _take(self, data: bytes, most_logs: float) -> int:
        """Map whole lines and hand them over, in batches that are numbered by where they end."""
        logs: list[object] = []
        at, taken = self._at, 0

        def wrong(why: str) -> None:
            self._say.warn(why.partition(":")[0], f"{self._path}: {why}")

        for line in data.splitlines(keepends=True):
            at += len(line)
            try:
                entry = self._follow.entry_of(line)
                own_id = f"{self._session.rpartition(':')[2]}-{at}"
                log = None
                if entry is not None:
                    log = self._follow.log_of(entry, self._worker_id, own_id, wrong)
            except (ValueError, RecursionError) as error:
                self._say.warn("entry", f"{self._path}: a line is not a search log: {error}")
                continue
            logs += [log] if log is not None else []
            if taken + len(logs) >= most_logs:
                break
            if len(logs) == MOST_LOGS:
                self._accept(logs, self._session, at + 1)
                taken, logs = taken + len(logs), []
        self._accept(logs, self._session, at + 1)
        self._at = self._least = at
        return taken + len(logs)

    def unread(self) -> int:
        """Count the whole lines that it has not read of its file."""
        lines, at = 0, self._at
        while self._fd is not None and (data := os.pread(self._fd, MOST_BYTES, at)):
            lines, at = lines + data.count(b"\n"), at + len(data)
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
