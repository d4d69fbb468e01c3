"""A queue of a RabbitMQ broker by aio-pika: connected to again and again, and what was served."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable
from urllib.parse import unquote, urlsplit

from spotkeeper_worker.extras import needs
from spotkeeper_worker.log import Sometimes, get_logger

with needs("rabbitmq"):
    import aio_pika
    from aiormq import exceptions
    from pamqp import constants, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue

_LOG = get_logger("worker")
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
_TIMEOUT_S = 10.0
# Ten digits, from 2001 to 2286: a number outside is in another unit than seconds.
_SECONDS = (1e9, 1e10)
_PROPERTIES = (
    "app_id", "content_encoding", "content_type", "correlation_id", "delivery_mode", "expiration",
    "message_id", "priority", "reply_to", "timestamp", "type", "user_id",
)  # fmt: skip


class QueueGone(Exception):
    """The queue was deleted while it was listened to."""


# A channel that is closed is a RuntimeError.
_ERRORS = (*aio_pika.exceptions.CONNECTION_EXCEPTIONS, asyncio.TimeoutError, QueueGone)
_PASSWORD = (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError)


def _timestamp(value: bytes, read: Callable[[bytes], Any] = decode.timestamp) -> tuple[int, Any]:
    """Decode a message's time; None for one that is no date (microseconds), without which pamqp
    ends the connection, again and again.
    """
    try:
        decoded: tuple[int, Any] = read(value)
        return decoded
    except (ValueError, OverflowError, OSError):
        return 8, None


decode.METHODS["timestamp"] = decode.TABLE_MAPPING[b"T"] = _timestamp
# A broker takes every name in UTF-8, and pamqp only some of ASCII.
constants.DOMAIN_REGEX["queue-name"] = re.compile(".*")


class Consumer:
    """Listens to one queue; `url` is `amqp://` or `amqps://`, its vhost `/` written `%2F`."""

    def __init__(self, url: str, queue: str, prefetch: int) -> None:
        """Raises ValueError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("a broker's URL is amqps://USER:PASSWORD@HOST:PORT/VHOST")
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        self._where = f"{parts.hostname}:{port}"
        self._user = unquote(parts.username or "guest")
        self._vhost = unquote(parts.path[1:]) or "/"
        self._url, self._name, self._prefetch = url, queue, prefetch
        self._retry_s, self._say = FIRST_RETRY_S, Sometimes(_LOG)
        self._connection: AbstractConnection | None = None
        self._queue: AbstractQueue | None = None
        self._tag = ""
        self.arrived: deque[AbstractIncomingMessage] = deque()
        """What the broker has delivered, and nobody has taken."""
        self.on_arrival: Callable[[], None] = lambda: None

    async def listen(self) -> float:
        """Be connected, and consume; or log why not, and return the seconds until a retry."""
        try:
            await self._listen()
        except _ERRORS as error:
            await self.close()
            self._say.warn("broker", f"{self._explained(error)}; retrying")
            wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, LAST_RETRY_S)
            return wait_s
        return 0.0

    async def _listen(self) -> None:
        if self._connection is None or self._connection.is_closed:
            await self.close()
            self._connection = await aio_pika.connect(self._url, timeout=_TIMEOUT_S)
        if self._queue is None or self._queue.channel.is_closed:
            self._queue, self._tag = None, ""
            self.arrived.clear()
            channel = await self._connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=self._prefetch)
            # Whether it is there is known once it is consumed.
            self._queue = await channel.get_queue(self._name, ensure=False)
        below: Any = await self._queue.channel.get_underlay_channel()
        if self._tag and self._tag not in below.consumers:
            self._queue = None
            raise QueueGone
        if not self._tag:
            self._tag = await self._queue.consume(self._arrive, timeout=_TIMEOUT_S)
            self._say.over("broker", f"consuming from the queue {self._name} again")
            self._retry_s = FIRST_RETRY_S

    async def _arrive(self, raw: AbstractIncomingMessage) -> None:
        self.arrived.append(raw)
        self.on_arrival()

    async def stop_listening(self) -> None:
        """Return what was delivered, and listen no more: it would all be delivered again."""
        with reported():
            if self._queue is not None and self._tag:
                tag, self._tag = self._tag, ""
                await self._queue.cancel(tag, timeout=_TIMEOUT_S)
            while self.arrived:
                await self.arrived.popleft().nack(requeue=True)

    async def close(self) -> None:
        """Close the connection; the broker delivers what was not acknowledged again."""
        connection, self._connection, self._queue, self._tag = self._connection, None, None, ""
        self.arrived.clear()
        if connection is not None:
            with reported():
                await connection.close()

    def _explained(self, error: BaseException) -> str:
        if isinstance(error, _PASSWORD):
            return f"{self._where} refuses the password of {self._user}"
        # aiormq has no word for what a broker answers in place of this frame.
        if isinstance(error, exceptions.ConnectionNotAllowed) or "Connection.OpenOk" in str(error):
            return f"{self._where} does not let {self._user} into the vhost {self._vhost}"
        if isinstance(error, (exceptions.ChannelNotFoundEntity, QueueGone)):
            return f"there is no queue {self._name} in the vhost {self._vhost} of {self._where}"
        return f"{self._where} cannot be reached: {type(error).__name__} {error}".rstrip()


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Log what is lost with a connection: the broker delivers its messages again."""
    try:
        yield
    except _ERRORS as error:
        _LOG.info("the connection to the broker was lost: %s", type(error).__name__)


def waits_since(properties: Any, say: Sometimes) -> float | str:
    """Read since when a message waits; what is no time stops no request, and is no wait."""
    headers = properties.headers or {}
    if "enqueued_at" in headers:
        return str(headers["enqueued_at"])
    if "timestamp_in_ms" in headers:
        name, stamp, unit = "timestamp_in_ms", headers["timestamp_in_ms"], 1000
    elif properties.timestamp:
        name, stamp, unit = "timestamp", properties.timestamp, 1
    else:
        say.warn("", "messages have no enqueue time: let publishers set a timestamp")
        return time.time()
    try:
        seconds = stamp.timestamp() if isinstance(stamp, datetime) else float(stamp) / unit
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if _SECONDS[0] <= seconds < _SECONDS[1]:
        return seconds
    say.warn(name, f"{name} of a message is not a time; its wait counts as 0")
    return time.time()


def identity(properties: Any, body: bytes) -> str:
    """Identify a message by all that its publisher set; headers with x- are the broker's.

    Without a message's id that is little: two clients may well ask for the same.
    """
    headers = (properties.headers or {}).items()
    known = [(name, getattr(properties, name)) for name in _PROPERTIES]
    text = repr([*known, sorted(item for item in headers if not item[0].startswith("x-"))])
    return hashlib.sha256(text.encode() + b"\0" + body).hexdigest()
