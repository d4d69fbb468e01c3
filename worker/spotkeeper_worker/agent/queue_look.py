"""Looks at the request queue of a broker of your own: RabbitMQ by its management API, or Redis.

What is ready alone is wrong: a worker that serves holds its message unacknowledged. On a new queue
the API answers null for seconds, which is no look; and one that answers 0 proves nothing by itself.
https://www.rabbitmq.com/docs/http-api-reference
"""

from __future__ import annotations

import base64
import json
import threading
import time
from http import HTTPStatus
from typing import Any, Callable, NamedTuple, Union
from urllib.parse import quote, unquote, urlsplit

from spotkeeper_worker.agent import web
from spotkeeper_worker.agent.redis_look import RedisAddress, RedisError, count_requests
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.times import as_text

TIMEOUT_S = 5.0
_LONGEST = 1 << 20
_COUNTS = {"ready": "messages_ready", "unacknowledged": "messages_unacknowledged"}


class LookFailed(Exception):
    """The broker did not tell the queue's length; says why, without the password."""


class QueueAddress(NamedTuple):
    """A queue as `https://USER:PASSWORD@HOST:PORT/VHOST/QUEUE` names it, vhost / being %2F."""

    url: str
    host: str
    user: str
    password: str
    vhost: str
    queue: str

    @classmethod
    def parse(cls, url: str) -> QueueAddress:
        """Read an address; raises ValueError, without the password."""
        parts = urlsplit(url)
        *prefix, vhost, queue = ["", "", *parts.path.split("/")[1:]]
        named = parts.hostname and parts.port != 0 and vhost and queue
        if parts.scheme not in ("http", "https") or not named:
            raise ValueError("should be https://USER:PASSWORD@HOST:15671/VHOST/QUEUE (/ is %2F)")
        names = [quote(unquote(name), safe="") for name in (vhost, queue)]
        host, path = parts.netloc.rpartition("@")[2], [*prefix[1:], "api", "queues", *names]
        return cls(
            url=f"{parts.scheme}://{host}{'/'.join(path)}",
            host=host,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(vhost),
            queue=unquote(queue),
        )

    def __str__(self) -> str:
        return f"the queue {self.queue} in the vhost {self.vhost} of {self.host}"


Address = Union[QueueAddress, RedisAddress]


def parse_address(url: str) -> Address:
    """Read the address of a queue; raises ValueError, without the password."""
    if url.startswith(("redis://", "rediss://")):
        return RedisAddress.parse(url)
    return QueueAddress.parse(url)


def look(address: Address, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """Take one look, as it travels in the field `agent` of a search log; raises LookFailed."""
    if isinstance(address, RedisAddress):
        try:
            waiting, in_flight = count_requests(address)
        except (OSError, RedisError, ValueError) as error:
            raise LookFailed(f"{address}: {type(error).__name__} {error}".rstrip()) from None
        named = {"kind": "redis", "vhost": address.vhost, "name": address.queue}
        return {**named, "ready": waiting, "unacknowledged": in_flight, "at": as_text(now())}
    status, body = _asked(address)
    if status == HTTPStatus.UNAUTHORIZED:
        raise LookFailed(f"{address.host} refuses the user {address.user}, or its tag `monitoring`")
    if status == HTTPStatus.NOT_FOUND:
        raise LookFailed(f"{address} does not exist, or {address.user} may not see it")
    if status != HTTPStatus.OK:
        raise LookFailed(f"{address}: the management API answered {status}")
    try:
        told = json.loads(body)
        counts = {name: told.get(field) for name, field in _COUNTS.items()}
    except (ValueError, AttributeError):
        raise LookFailed(f"{address}: the management API answered no JSON object") from None
    if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
        raise LookFailed(f"{address}: the broker does not know its number of messages yet")
    return {"vhost": address.vhost, "name": address.queue, **counts, "at": as_text(now())}


def _asked(address: QueueAddress) -> tuple[int, bytes]:
    secret = base64.b64encode(f"{address.user}:{address.password}".encode()).decode()
    try:
        return web.read(address.url, {"Authorization": f"Basic {secret}"}, TIMEOUT_S, _LONGEST)
    except (*web.ERRORS, ValueError) as error:
        raise LookFailed(f"{address}: {type(error).__name__} {error}".rstrip()) from None


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
