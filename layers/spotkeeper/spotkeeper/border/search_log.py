"""The border that search logs cross: queue message bodies are read and checked here, once.

A body is one log, a JSON list of logs, or JSON lines; plain, in base64, or gzip in base64; as it
was sent, or as SNS, EventBridge, Kinesis or CloudWatch Logs deliver it, several in one message too.
It is read whole or refused whole, with every wrong field named; but a log whose times cannot be
right is left out alone, since that is one clock's fault and no sender's.
"""

import base64
import binascii
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import CoreSchema, core_schema, from_json, to_json

from spotkeeper.domain.load.digest import MAX_INVERSION_S, MAX_SKEW_S, OWN_SKEW_S, SearchLog
from spotkeeper.domain.load.load import Cluster
from spotkeeper.domain.load.request_queue import RABBITMQ, REDIS, QueueLength

MAX_BODY_BYTES = 8 * 1024 * 1024
# Gzip makes a small message of many logs; each takes up to a kilobyte of the function's memory.
MAX_LOGS = 20_000
# A list or an object takes half a kilobyte while it is read, however short its text is, and each
# error about a log has a copy of it. A log is one object of a dozen values, and some in fields that
# are not known.
MAX_CONTAINERS = 4 * MAX_LOGS
MAX_VALUES = 30 * MAX_LOGS
MAX_LOG_VALUES = 2_000
MAX_ERRORS = 20
_TOO_LARGE = f"body: unpacks to more than {MAX_BODY_BYTES >> 20} MiB; send fewer logs in a message"
_MAX_DURATION = timedelta(hours=24)
# SQS keeps a message no longer.
_MAX_AGE = timedelta(days=14)
_MAX_INVERSION = timedelta(seconds=MAX_INVERSION_S)
_MAX_SKEW = timedelta(seconds=MAX_SKEW_S)
_OWN_SKEW = timedelta(seconds=OWN_SKEW_S)
# In JSON a brace, a line end and a brace follow each other only between two JSON lines.
_LINE_ENDS = re.compile(rb"\}[ \t\r]*\n\s*\{")
# What shows how much JSON holds, and where its strings are.
_MARKS = b'[]{},"'
_OTHERS = bytes(set(range(256)).difference(_MARKS))
_BRACKETS = re.compile(rb"[][{}]")
_GZIP_IN_BASE64 = b"H4sI"
# What holds logs, or a note: as JSON, as JSON in a JSON text, or packed.
_LOGS_IN = re.compile(r'"(request_id|agent)\\*"\s*:|(^|")\s*H4sI')
_JSON_IN_BASE64 = re.compile(r'(?:^|")\s*((?:e[wy]|W[3w])[\w+/=\s]+)(?:"|$)')
# SNS may deliver an event of EventBridge that has what a function of Lambda returned as its body.
_MOST_AROUND = 4
_BOM = b"\xef\xbb\xbf"
_RFC_3339 = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})$"
)


class MessageRefused(Exception):
    """A queue message that cannot be counted; says which log and field are wrong."""


class _Rfc3339:
    """A time with a zone.

    pydantic's own datetimes also accept "1763632800". Each has its own zone object, and takes twice
    as long to compare and subtract.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            datetime.fromisoformat, core_schema.str_schema(strict=True, pattern=_RFC_3339)
        )


type _Time = Annotated[datetime, _Rfc3339()]
type _Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]
type _Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
type _Fleet = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_.-]{0,64}$")]
type _Count = Annotated[int, Field(ge=0, le=10**9)]
_STRICT = ConfigDict(strict=True, extra="ignore")
# An older look is not used; one without a time has that of the calendar's first day.
_OLD = timedelta(days=1)


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Queue:
    """A look at a queue: its ready messages, and those that workers have received.

    The `vhost` of a queue in Redis is the number of its database.
    """

    kind: Literal["rabbitmq", "redis"] = "rabbitmq"
    vhost: _Name
    name: _Name
    ready: _Count
    unacknowledged: _Count
    at: AwareDatetime


_LONGEST_TROUBLE = 500


def _one_line(value: object) -> str:
    """Keep what can be shown of a text that anybody with the queue may have sent."""
    return "".join(c for c in str(value)[:_LONGEST_TROUBLE] if c.isprintable())


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AgentNote:
    """What the agent of a machine reports beside the search logs: the field `agent` of one of them.

    It counts the logs that the machine lost, clamped or refused since its last message. It may
    carry a look at a request queue that only the machine reaches, and a trouble, which is reported
    to the operator. Where there was no log to send, a message may be such a note alone:
    {"version": 1, "fleet": "ocr", "agent": {...}}.
    """

    lost: _Count = 0
    clamped: _Count = 0
    refused: _Count = 0
    queue: _Queue | None = None
    trouble: Annotated[str, BeforeValidator(_one_line)] = ""

    def look(self, sent_at: datetime) -> tuple[str, QueueLength, datetime] | None:
        """Return a queue's URL and length, and when it was seen, unless the look is old.

        A time after `sent_at` is replaced by `sent_at`.
        """
        queue = self.queue
        if queue is None or sent_at - queue.at > _OLD:
            return None
        scheme = REDIS if queue.kind == "redis" else RABBITMQ
        url = f"{scheme}{quote(queue.vhost, safe='')}/{quote(queue.name, safe='')}"
        seen_at, in_flight = min(queue.at, sent_at), queue.unacknowledged
        length = QueueLength(waiting=queue.ready, in_flight=in_flight, seen_at=seen_at)
        return url, length, seen_at


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Alone:
    """A message without a log."""

    version: Annotated[int, Field(ge=1, le=1)]
    fleet: _Fleet = ""
    agent: AgentNote


_ALONE: TypeAdapter[list[_Alone]] = TypeAdapter(
    Annotated[list[_Alone], FailFast(), Field(min_length=1)]
)


def _read_alone(listed: bytes) -> tuple[tuple[str, AgentNote], ...]:
    """Read notes without any log; return nothing if the list holds anything else."""
    if b'"request_id"' in listed:
        return ()
    try:
        return tuple((each.fleet, each.agent) for each in _ALONE.validate_json(listed))
    except ValidationError:
        return ()


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _ReadLog(SearchLog):
    """A search log as it is sent, version 1; unknown fields are kept out."""

    version: Annotated[int, Field(ge=1, le=1)]
    request_id: _Id
    worker_id: _Id
    instance_id: Annotated[str, StringConstraints(pattern="^(i-[0-9a-f]{8,17})?$")] = ""
    enqueued_at: _Time
    started_at: _Time
    finished_at: _Time
    fleet: _Fleet = ""
    agent: AgentNote | None = None


_LOG = TypeAdapter(_ReadLog)
_LOGS: TypeAdapter[list[_ReadLog]] = TypeAdapter(Annotated[list[_ReadLog], FailFast()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The logs of a message body, and why others of it are `left_out`: their times are wrong.

    `notes` has what the machine's agent tells, with the fleet that it names.
    """

    logs: Sequence[SearchLog]
    left_out: tuple[str, ...] = ()
    notes: tuple[tuple[str, AgentNote], ...] = ()


def read(body: str, most_around: int = _MOST_AROUND) -> Body:
    """Read a message body, or what is in `most_around` others around it.

    Raises MessageRefused, naming up to `MAX_ERRORS` wrong fields.
    """
    listed = _as_list(body)
    try:
        logs = _LOGS.validate_json(listed)
    except ValidationError as error:
        if alone := _read_alone(listed):
            return Body(logs=(), notes=alone)
        if most_around and (inside := _inside(listed)):
            return read(inside, most_around - 1)
        raise _refused(listed, error) from None
    if not logs:
        raise MessageRefused("logs: the message holds no search log")
    if len(logs) > MAX_LOGS:
        raise MessageRefused(
            f"logs: the message holds {len(logs)}; send at most {MAX_LOGS} in a message"
        )
    notes = tuple((log.fleet, log.agent) for log in logs if log.agent is not None)
    wrong = [[*_mistimed(log)] for log in logs]
    misplaced = [f"logs[{at}].{why}" for at, log in enumerate(logs) for why in _misplaced(log)]
    mistimed = [f"logs[{at}].{why}" for at, whys in enumerate(wrong) for why in whys]
    sound = [log for log, whys in zip(logs, wrong, strict=True) if not whys]
    if misplaced or not sound:
        raise _named(iter(misplaced or mistimed))
    return Body(logs=sound, left_out=tuple(mistimed), notes=notes)


def unpacked_bytes(body: str) -> int:
    """Say how large a body is when it is unpacked; 0 where it cannot be."""
    try:
        return len(_as_list(body))
    except MessageRefused:
        return 0


def without_future(body: Body, sent_at: datetime) -> Body:
    """Leave out single logs of the future: of a day ahead, or of a worker whose others are past.

    Where all of a worker's logs lie in the future its clock is ahead, which is put right later. A
    message of which nothing would be left is refused as a whole where it is summed up.
    """
    right = {(log.instance_id, log.worker_id) for log in body.logs if log.finished_at <= sent_at}
    kept: list[SearchLog] = []
    future: list[str] = []
    for log in body.logs:
        known = (log.instance_id, log.worker_id) in right
        if log.finished_at <= sent_at + (_OWN_SKEW if known else _MAX_SKEW):
            kept.append(log)
        else:
            when, worker = log.finished_at.isoformat(), log.worker_id
            future.append(f"finished_at: {when} of {worker} lies after the message was sent")
    if not kept or not future:
        return body
    return replace(body, logs=kept, left_out=(*body.left_out, *future))


def _as_list(body: str) -> bytes:
    """The body's logs as one JSON list."""
    text = body.encode("utf-8", "surrogatepass").removeprefix(_BOM).strip()
    data = _unpacked(text) if text.startswith(_GZIP_IN_BASE64) else text
    if _JSON_IN_BASE64.match(body):
        data = _decoded(body)
    data = data.removeprefix(_BOM).strip()
    if not data.startswith((b"{", b"[")):
        raise MessageRefused(
            "body: should be a JSON object, a JSON list, JSON lines, or gzip of these in base64"
        )
    _check_amount(data)
    return data if data.startswith(b"[") else b"[" + _LINE_ENDS.sub(b"},\n{", data) + b"]"


def _inside(listed: bytes) -> str | None:
    """Return what has logs in it, where services put others around it: one field of each item."""
    try:
        items = from_json(listed)
    except ValueError:
        return None
    lists: list[bytes] = []
    size = 0
    for item in items:
        if not isinstance(item, dict) or "request_id" in item:
            return None
        texts = {k: v if isinstance(v, str) else to_json(v).decode() for k, v in item.items()}
        held = [name for name, text in texts.items() if _holds_logs(text)]
        if len(held) > 1:
            raise MessageRefused(f"body: {' and '.join(held)} hold logs; send one of them")
        if not held:
            return None
        if len(items) == 1:
            return texts[held[0]]
        lists.append(_as_list(texts[held[0]])[1:-1])
        size += len(lists[-1])
        if size > MAX_BODY_BYTES:
            raise MessageRefused(_TOO_LARGE)
    return f"[{b','.join(filter(None, lists)).decode()}]" if lists else None


def _holds_logs(text: str) -> bool:
    inside = (_decoded(each).decode("utf-8", "replace") for each in _JSON_IN_BASE64.findall(text))
    return any(map(_LOGS_IN.search, (text, *inside)))


def _decoded(text: str) -> bytes:
    """Decode base64; nothing where it is none."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return b""


def _check_amount(data: bytes) -> None:
    """Refuse JSON of more values than fit into the memory, before any of it is read."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    # Two quotes beside each other are no string, or join two: the others stay where they were.
    marks = plain.translate(None, _OTHERS).replace(b'""', b"")
    if marks.count(b'"') <= MAX_VALUES:
        marks = b"".join(marks.split(b'"')[::2])
    containers = max(marks.count(b"[") + marks.count(b"{"), marks.count(b"]") + marks.count(b"}"))
    if containers > MAX_CONTAINERS or containers + marks.count(b",") > MAX_VALUES:
        raise MessageRefused(
            f"body: holds more than {MAX_VALUES} values, or {MAX_CONTAINERS} lists and objects; "
            f"send at most {MAX_LOGS} logs in a message"
        )
    top = depth = 1 if marks.startswith(b"[") else 0
    begin = 0
    for bracket in _BRACKETS.finditer(marks, top):
        if bracket.group() in b"[{":
            begin = bracket.start() if depth == top else begin
            depth += 1
            continue
        depth -= 1
        if depth == top and bracket.start() - begin > MAX_LOG_VALUES:
            raise MessageRefused(f"body: a log of it holds more than {MAX_LOG_VALUES} values")


def _unpacked(text: bytes) -> bytes:
    try:
        packed = base64.b64decode(b"".join(text.split()), validate=True)
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacking:
            data = unpacking.read(MAX_BODY_BYTES + 1)
    except (binascii.Error, ValueError) as error:
        raise MessageRefused(
            f"body: starts like gzip in base64 but is not base64: {error}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise MessageRefused(f"body: is base64 but cannot be unpacked by gzip: {error}") from None
    if len(data) > MAX_BODY_BYTES:
        raise MessageRefused(_TOO_LARGE)
    return data


def _mistimed(log: SearchLog) -> Iterator[str]:
    """Say which times of a log cannot be right.

    Any two times have a difference; one of the year 1 has no earlier one to compare with.
    """
    if log.enqueued_at - log.started_at > _MAX_INVERSION:
        yield f"started_at: lies more than {MAX_INVERSION_S} s before enqueued_at"
    if log.started_at - log.finished_at > _MAX_INVERSION:
        yield f"finished_at: lies more than {MAX_INVERSION_S} s before started_at"
    if log.finished_at - log.started_at > _MAX_DURATION:
        yield "finished_at: lies more than 24 hours after started_at"
    if log.finished_at - log.enqueued_at > _MAX_AGE:
        yield "finished_at: lies more than 14 days after enqueued_at"


def _misplaced(log: SearchLog) -> Iterator[str]:
    """Say where a log's worker and cluster do not fit together."""
    if log.cluster is Cluster.AWS and not log.instance_id:
        yield "instance_id: is missing, which a worker in cluster aws needs"
    if log.cluster is Cluster.ONPREM and log.instance_id:
        yield "instance_id: is not for a worker in cluster onprem; leave it out"


def _refused(listed: bytes, error: ValidationError) -> MessageRefused:
    if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
        return MessageRefused(f"body: {error.errors(include_url=False)[0]['msg']}")
    return _named(_wrong_fields(from_json(listed)))


def _wrong_fields(items: list[object]) -> Iterator[str]:
    """Name each wrong field, log by log: a whole message of wrong logs must not cost much."""
    for at, item in enumerate(items):
        try:
            log = _LOG.validate_json(to_json(item, inf_nan_mode="constants"))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False)
            # Of a version that is not known, the other fields may well differ, too.
            for wrong in sorted(errors, key=lambda each: each["loc"] != ("version",)):
                yield f"{'.'.join((f'logs[{at}]', *map(str, wrong['loc'])))}: {_message(wrong)}"
        else:
            yield from (f"logs[{at}].{wrong}" for wrong in (*_mistimed(log), *_misplaced(log)))


def _named(wrong: Iterator[str]) -> MessageRefused:
    named = [each for each, _ in zip(wrong, range(MAX_ERRORS + 1), strict=False)]
    more = ["and more"] if len(named) > MAX_ERRORS else []
    return MessageRefused("; ".join(named[:MAX_ERRORS] + more))


def _message(wrong: Any) -> str:
    if wrong["type"].startswith("string_") and str(*wrong["loc"][-1:]).endswith("_at"):
        return "should be an RFC 3339 time with a zone, such as 2026-11-20T10:00:00.120Z"
    if wrong["loc"] == ("version",) and wrong["type"] != "missing":
        return "should be the number 1, the only version that there is"
    if wrong["type"].startswith("dataclass_"):
        return "should be an object with the fields of a search log"
    return str(wrong["msg"])
