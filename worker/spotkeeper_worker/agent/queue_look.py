"""Looks at the request queue of a broker of your own: RabbitMQ by its management API, or Redis.

What is ready alone is wrong: a worker that serves holds its message unacknowledged. On a new queue
RabbitMQ answers null for seconds, which is no look; and one that answers 0 proves nothing by
itself. In Redis it is a list, a stream, or what Celery, RQ and BullMQ keep there.
https://www.rabbitmq.com/docs/http-api-reference
https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from http import HTTPStatus
from typing import Any, Callable, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from spotkeeper_worker.agent import web
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.times import as_text

TIMEOUT_S = 5.0
_LONGEST, _LONGEST_VALUE = 1 << 20, 64 << 20
# Entries of a stream, or what _LONGEST bytes have of them; of more, Redis's lag counts.
_MOST_COUNTED = 100
RABBITMQ = "rabbitmq"
# For each kind in Redis: the commands whose answers are added up to what waits, those to what is
# being served, the options of the address with what they are by default, and the command that says
# whether the queue is paused. kombu has a list for each of its `priority_steps`, of which the first
# has the plain name: QUEUE SEP STEP. All steps that a priority may have are looked at, and others
# are an option. Its `unacked` has the messages of all queues of the database. In RQ and BullMQ only
# workers move a job that is due: without one, it waits. RQ's need their scheduler, without
# which nobody does: such a job counts for an hour.
_SEP, _PRIORITIES, _DUE_S = "\x06\x16", 256, 3600
# BullMQ's scores are milliseconds, and 12 bits of a job's number.
_BULLMQ_UNITS = 1000 << 12
KINDS: dict[str, tuple[list[str], list[str], dict[str, str], str]] = {
    "list": (["LLEN {name}"], ["LLEN {processing}"], {"processing": ""}, ""),
    "stream": ([], [], {"group": ""}, ""),
    "celery": (
        ["LLEN {prefix}{name}"], ["HLEN {prefix}{unacked}"],
        {"prefix": "", "sep": "", "steps": "", "exchange": "", "unacked": "unacked"}, "",
    ),
    "rq": (
        ["LLEN rq:queue:{name}", "ZCOUNT rq:scheduled:{name} {since} {now}"],
        ["ZCARD rq:wip:{name}"],
        {}, "EXISTS rq:suspended",
    ),
    "bullmq": (
        ["LLEN {prefix}:{name}:wait", "ZCARD {prefix}:{name}:prioritized",
         "ZCOUNT {prefix}:{name}:delayed -inf {now_of_bullmq}"],
        ["LLEN {prefix}:{name}:active"],
        {"prefix": "bull"}, "HEXISTS {prefix}:{name}:meta paused",
    ),
}  # fmt: skip


class LookFailed(Exception):
    """The broker did not tell the queue's length; says why, without the password."""


class RedisError(Exception):
    """What Redis answered in place of a value."""


class Address(NamedTuple):
    """A queue of RabbitMQ or of Redis, as `https://USER:PASSWORD@HOST:15671/VHOST/QUEUE` (vhost /

    being %2F) or `redis://USER:PASSWORD@HOST:6379/DATABASE/QUEUE?kind=celery` names it.
    """

    kind: str
    host: str
    """And the port, where the address has one."""
    user: str
    password: str
    vhost: str
    """In Redis the number of the database."""
    queue: str
    url: str = ""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        room = "vhost" if self.kind == RABBITMQ else "database"
        return f"the queue {self.queue} in the {room} {self.vhost} of {self.host}"


def parse_address(url: str) -> Address:
    """Read the address of a queue; raises ValueError, without the password."""
    wrong = ValueError(
        "should be redis://USER:PASSWORD@HOST:6379/DATABASE/QUEUE?kind=celery"
        if url.startswith("redis")
        else "should be https://USER:PASSWORD@HOST:15671/VHOST/QUEUE (/ is %2F)"
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Its text has what stands for a port: a password up to its slash, say.
        raise wrong from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.scheme not in ("redis", "rediss"):
        *prefix, vhost, queue = ["", "", *parts.path.split("/")[1:]]
        named = parts.hostname and port != 0 and vhost and queue
        if parts.scheme not in ("http", "https") or not named:
            raise wrong
        vhost, queue = unquote(vhost), unquote(queue)
        host = parts.netloc.rpartition("@")[2]
        path = [*prefix[1:], "api", "queues", quote(vhost, safe=""), quote(queue, safe="")]
        api = f"{parts.scheme}://{host}{'/'.join(path)}"
        return Address(RABBITMQ, host, user or "guest", password or "guest", vhost, queue, api)
    database, _, queue = parts.path.lstrip("/").partition("/")
    if not parts.hostname or not database.isdigit() or not queue:
        raise wrong
    options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    kind = options.pop("kind", "list")
    if kind not in KINDS:
        raise ValueError(f"kind should be one of {', '.join(KINDS)}")
    takes = KINDS[kind][2]
    if set(options) - set(takes) or (kind == "stream" and "group" not in options):
        names = ", ".join(takes) or "nothing"
        raise ValueError(f"kind={kind} takes {names} (a stream needs its group)")
    if not all(step.isdecimal() for step in options.get("steps", "0").split(",")):
        raise ValueError("steps (kind=celery) should be numbers with commas between them")
    host, tls = f"{parts.hostname}:{port or 6379}", parts.scheme == "rediss"
    given = tuple(sorted(options.items()))
    return Address(kind, host, user, password, database, unquote(queue), tls=tls, options=given)


def look(address: Address, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """Take one look, as it travels in the field `agent` of a search log; raises LookFailed."""
    of_rabbitmq = address.kind == RABBITMQ
    try:
        counts = _count_in_rabbitmq(address) if of_rabbitmq else _count_in_redis(address, now())
    except (*web.ERRORS, RedisError, ValueError) as error:
        raise LookFailed(f"{address}: {type(error).__name__} {error}".rstrip()) from None
    named = {"vhost": address.vhost, "name": address.queue} | (
        {} if of_rabbitmq else {"kind": "redis"}
    )
    return {**named, **dict(zip(("ready", "unacknowledged"), counts)), "at": as_text(now())}


def _count_in_rabbitmq(address: Address) -> tuple[int, int]:
    """Count what is ready and what is unacknowledged; raises LookFailed and web.ERRORS."""
    secret = base64.b64encode(f"{address.user}:{address.password}".encode()).decode()
    headers = {"Authorization": f"Basic {secret}"}
    status, body = web.read(address.url, headers, TIMEOUT_S, _LONGEST)
    if status == HTTPStatus.UNAUTHORIZED:
        raise LookFailed(f"{address.host} refuses the user {address.user}, or its tag `monitoring`")
    if status == HTTPStatus.NOT_FOUND:
        raise LookFailed(f"{address} does not exist, or {address.user} may not see it")
    if status != HTTPStatus.OK:
        raise LookFailed(f"{address}: the management API answered {status}")
    try:
        counts = json.loads(body)
        ready, held = (counts.get(f"messages_{state}") for state in ("ready", "unacknowledged"))
    except (ValueError, AttributeError):
        raise LookFailed(f"{address}: the management API answered no JSON object") from None
    if counts.get("type") == "stream":
        raise LookFailed(f"{address} is a stream, which keeps what was served")
    if not all(isinstance(count, int) and count >= 0 for count in (ready, held)):
        raise LookFailed(f"{address} does not know its number of messages yet (or has no metrics)")
    return ready, held


def _count_in_redis(address: Address, now: float) -> tuple[int, int]:
    """Count what waits and what is being served; raises OSError, RedisError and ValueError.

    In a paused queue nothing waits: no worker may take it.
    """
    waiting, in_flight, options, paused = KINDS[address.kind]
    times = {
        "now": f"{now:.0f}",
        "since": f"{now - _DUE_S:.0f}",
        "now_of_bullmq": f"{int(now * _BULLMQ_UNITS)}",
    }
    words = {"name": address.queue, **times, **options, **dict(address.options)}
    host, _, port = address.host.rpartition(":")
    with contextlib.ExitStack() as ending:
        connection = ending.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
        if address.tls:
            context = ssl.create_default_context()
            secured = context.wrap_socket(connection, server_hostname=host)
            connection = ending.enter_context(secured)
        redis = _Redis(connection, ending.enter_context(connection.makefile("rb")))
        if address.password:
            redis.ask("AUTH", *([address.user] if address.user else []), address.password)
        if address.vhost != "0":
            redis.ask("SELECT", address.vhost)

        if address.kind == "stream":
            return redis.of_group(address.queue, words["group"])

        def total(commands: list[str], *more: list[str]) -> int:
            filled = ([word.format_map(words) for word in text.split(" ")] for text in commands)
            # An option that was not given leaves a key empty: there is nothing to count.
            return redis.total([*filter(all, filled), *more])

        steps: list[list[str]] = []
        if address.kind == "celery":
            sep = _sep_of_celery(redis, words)
            numbers = {*map(str, range(_PRIORITIES)), *filter(None, words["steps"].split(","))}
            plain = f"{words['prefix']}{address.queue}"
            steps = [["LLEN", f"{plain}{sep}{number}"] for number in sorted(numbers)]
        if paused and total([paused]):
            return 0, total(in_flight)
        return total(waiting, *steps), total(in_flight)


def _sep_of_celery(redis: _Redis, words: dict[str, str]) -> str:
    """Return what stands between queue and step; raises RedisError for an unknown layout.

    kombu writes each binding of an exchange with the same `sep`: KEY SEP PATTERN SEP QUEUE. A queue
    without one was never declared, or has another name in Redis: its length is not 0 but unknown.
    """
    name, exchange = words["name"], words["exchange"] or words["name"]
    sep = words["sep"] or _SEP
    try:
        members = redis.ask("SMEMBERS", f"{words['prefix']}_kombu.binding.{exchange}")
    except RedisError as error:
        if words["sep"]:
            return sep
        raise RedisError(f"{error}; allow SMEMBERS, or give sep= in the address") from None
    bound = [member for member in members if isinstance(member, str) and member.endswith(name)]
    parts = [member.split(sep) for member in bound]
    if any(len(part) != len(("key", "pattern", "queue")) for part in parts):
        raise RedisError(
            f"kombu's bindings of {exchange} have another sep: give sep= in the address, as in"
            " broker_transport_options"
        )
    if words["sep"] or any(part[-1] == name for part in parts):
        return sep
    raise RedisError(
        f"nobody has declared the queue in the exchange {exchange}: Celery did not use it yet, or"
        " exchange=, prefix= (global_keyprefix) or sep= is missing in the address"
    )


class _Redis(NamedTuple):
    connection: socket.socket
    answers: Any

    def of_group(self, stream: str, group: str) -> tuple[int, int]:
        """Count what a stream's group has not read yet, and what of it is being served.

        Redis knows no lag of a group that began within a stream, or before an entry that was
        deleted, and one too many once some were trimmed unread: the first ones are counted.
        """
        groups = [dict(zip(each[::2], each[1::2])) for each in self.ask("XINFO", "GROUPS", stream)]
        mine = next((each for each in groups if each.get("name") == group), None)
        if mine is None:
            raise RedisError(f"the stream has no group {group}")
        lag, behind = mine.get("lag"), 0
        if lag != 0:
            first = ("XRANGE", stream, f"({mine['last-delivered-id']}", "+", "COUNT")
            # They come with what they carry, which may be images.
            most = min(max(1, _LONGEST // len(str(self.ask(*first, "1")))), _MOST_COUNTED)
            behind = len(self.ask(*first, f"{most}"))
            if behind == most:
                behind = max(behind, min(lag or 0, _length(self.ask("XLEN", stream))))
        return behind, _length(mine.get("pending"))

    def total(self, commands: list[list[str]]) -> int:
        """Ask for many lengths at once; gives their sum."""
        self.connection.sendall(b"".join(_command(*each) for each in commands))
        return sum(_length(self._answer()) for _ in commands)

    def ask(self, *words: str) -> Any:
        self.connection.sendall(_command(*words))
        return self._answer()

    def _answer(self) -> Any:
        line = self.answers.readline(_LONGEST)
        if not line.endswith(b"\r\n"):
            raise RedisError("it closed the connection, or does not speak Redis")
        kind, text = line[:1], line[1:-2].decode("utf-8", "replace")
        if kind == b"-":
            raise RedisError(text)
        if kind == b"+":
            return text
        if kind == b":":
            return int(text)
        if kind == b"$":
            size = int(text)
            if size > _LONGEST_VALUE:
                raise RedisError(f"an answer of {size} bytes")
            return None if size < 0 else self.answers.read(size + 2)[:-2].decode("utf-8", "replace")
        if kind == b"*" and int(text) <= _LONGEST:
            return [self._answer() for _ in range(int(text))]
        raise RedisError("it does not speak Redis")


def _length(answer: object) -> int:
    if not isinstance(answer, int) or answer < 0:
        raise RedisError("it does not know the length")
    return answer


def _command(*words: str) -> bytes:
    encoded = [word.encode() for word in words]
    parts = [b"*%d\r\n" % len(encoded)]
    return b"".join([*parts, *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)])


def watch(
    address: Address, every_s: float, tell: Callable[[dict[str, Any]], None]
) -> Callable[[], None]:
    """Look from a thread of its own, and `tell` each look, until what is returned is called."""
    say, closed = Sometimes(get_logger("agent")), threading.Event()

    def run() -> None:
        while not closed.is_set():
            try:
                tell(look(address))
                say.over("queue", f"the length of {address} is known again")
            except LookFailed as error:
                say.warn("queue", f"the request queue's length is not known: {error}")
            closed.wait(every_s)

    threading.Thread(target=run, name="queue", daemon=True).start()
    return closed.set
