"""Looks at a request queue in Redis: a list, a stream, or what Celery, RQ and BullMQ keep there.

Spoken by the standard library, as https://redis.io/docs/latest/develop/reference/protocol-spec/.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 5.0
_LONGEST = 1 << 20
_SHOULD = "should be redis://USER:PASSWORD@HOST:6379/DATABASE/QUEUE?kind=celery"


class RedisError(Exception):
    """What Redis answered in place of a value."""


class Kind(NamedTuple):
    """How a kind of queue is counted: commands whose answers are added up.

    In their words stand the queue's name and the options, whose values are those that nobody gave.
    """

    waiting: tuple[tuple[str, ...], ...]
    in_flight: tuple[tuple[str, ...], ...]
    options: Mapping[str, str] = {}


# kombu has a list for each priority step, of which the first has the plain name; its `unacked` has
# the messages of all queues of the database.
_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
KINDS: dict[str, Kind] = {
    "list": Kind((("LLEN", "{name}"),), (("LLEN", "{processing}"),), {"processing": ""}),
    "stream": Kind(
        (("XINFO", "GROUPS", "{name}", "{group}", "lag"),),
        (("XINFO", "GROUPS", "{name}", "{group}", "pending"),),
        {"group": ""},
    ),
    "celery": Kind(
        tuple(("LLEN", "{prefix}{name}" + step) for step in _STEPS),
        (("HLEN", "{prefix}unacked"),),
        {"prefix": ""},
    ),
    "rq": Kind((("LLEN", "rq:queue:{name}"),), (("ZCARD", "rq:wip:{name}"),)),
    "bullmq": Kind(
        (("LLEN", "{prefix}:{name}:wait"), ("ZCARD", "{prefix}:{name}:prioritized")),
        (("LLEN", "{prefix}:{name}:active"),),
        {"prefix": "bull"},
    ),
}


class RedisAddress(NamedTuple):
    """A queue as `redis://USER:PASSWORD@HOST:PORT/DATABASE/QUEUE?kind=...` names it."""

    tls: bool
    host: str
    port: int
    user: str
    password: str
    vhost: str
    """The number of the database."""
    queue: str
    kind: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read an address; raises ValueError, without the password."""
        parts = urlsplit(url)
        database, _, queue = parts.path.lstrip("/").partition("/")
        if not parts.hostname or not database.isdigit() or not queue:
            raise ValueError(_SHOULD)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        kind = options.pop("kind", "list")
        if kind not in KINDS:
            raise ValueError(f"kind should be one of {', '.join(KINDS)}")
        strange = set(options) - set(KINDS[kind].options)
        if strange or (kind == "stream" and "group" not in options):
            takes = ", ".join(KINDS[kind].options) or "nothing"
            raise ValueError(f"kind={kind} takes {takes} (a stream needs its group)")
        return cls(
            tls=parts.scheme == "rediss",
            host=parts.hostname,
            port=parts.port or 6379,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            vhost=database,
            queue=unquote(queue),
            kind=kind,
            options=tuple(sorted(options.items())),
        )

    def __str__(self) -> str:
        return f"the queue {self.queue} in the database {self.vhost} of {self.host}:{self.port}"


def count_requests(address: RedisAddress) -> tuple[int, int]:
    """Count what waits and what is being served; raises OSError, RedisError and ValueError."""
    kind = KINDS[address.kind]
    words = {"name": address.queue, **kind.options, **dict(address.options)}
    with _Connection(address) as connection:

        def total(commands: tuple[tuple[str, ...], ...]) -> int:
            filled = ([word.format_map(words) for word in command] for command in commands)
            # An option that was not given leaves a key empty: there is nothing to count.
            return sum(connection.count(command) for command in filled if all(command))

        return total(kind.waiting), total(kind.in_flight)


class _Connection:
    def __init__(self, address: RedisAddress) -> None:
        connected = socket.create_connection((address.host, address.port), TIMEOUT_S)
        with contextlib.ExitStack() as stack:
            self._socket = stack.enter_context(connected)
            if address.tls:
                context = ssl.create_default_context()
                secured = context.wrap_socket(connected, server_hostname=address.host)
                self._socket = stack.enter_context(secured)
            self._file = stack.enter_context(self._socket.makefile("rb"))
            if address.password:
                user = (address.user,) if address.user else ()
                self._ask(("AUTH", *user, address.password))
            if address.vhost != "0":
                self._ask(("SELECT", address.vhost))
            self._open = stack.pop_all()

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._open.close()

    def count(self, command: Sequence[str]) -> int:
        """Ask for a length; of a stream's group, for one of its figures."""
        if command[0] != "XINFO":
            return _whole(self._ask(command))
        *asked, group, figure = command
        for fields in self._ask(asked):
            found = dict(zip(fields[::2], fields[1::2]))
            if found.get("name") == group:
                return _whole(found.get(figure))
        raise RedisError(f"the stream has no group {group}")

    def _ask(self, words: Sequence[str]) -> Any:
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded]
        self._socket.sendall(b"".join(parts))
        return self._answer()

    def _answer(self) -> Any:
        line = self._file.readline(_LONGEST)
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
            return self._bulk(int(text))
        if kind == b"*" and int(text) <= _LONGEST:
            return [self._answer() for _ in range(int(text))]
        raise RedisError("it does not speak Redis")

    def _bulk(self, size: int) -> str | None:
        if size < 0:
            return None
        if size > _LONGEST:
            raise RedisError(f"an answer of {size} bytes")
        return self._file.read(size + 2)[:-2].decode("utf-8", "replace")


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise RedisError("it does not know the length")
    return value
