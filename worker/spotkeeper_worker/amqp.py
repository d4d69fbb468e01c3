"""What both loops over RabbitMQ share, that of threads (pika) and that of asyncio (aio-pika)."""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from spotkeeper_worker.log import Sometimes, get_logger

_LOG = get_logger("worker")
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
# A message that fails again and again is not to keep a worker busy.
FAILED_PAUSE_S = 0.5
LOOK_S = 0.2
_NOT_FOUND = 404
_REMEMBERED = 1000
# A broker also delivers unacknowledged messages to others: later, an equal one is another request.
_UNSURE_S = 300.0
# Ten digits, from 2001 to 2286: a number outside is in another unit than seconds.
_SECONDS = (1e9, 1e10)
# The errors of both clients, by name: neither client is there for the other's loop.
_PASSWORD = {"ProbableAuthenticationError", "AuthenticationError"}
_VHOST = {"ProbableAccessDeniedError", "ConnectionNotAllowed"}
_PROPERTIES = (
    "app_id", "content_encoding", "content_type", "correlation_id", "delivery_mode", "expiration",
    "message_id", "priority", "reply_to", "timestamp", "type", "user_id",
)  # fmt: skip


class QueueGone(Exception):
    """The queue was deleted while it was listened to."""


class Address:
    """One queue of a broker; `url` is `amqp://` or `amqps://`, its vhost `/` written `%2F`."""

    def __init__(self, url: str, queue: str) -> None:
        """Raises ValueError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("a broker's URL is amqps://USER:PASSWORD@HOST:PORT/VHOST")
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        self._where = f"{parts.hostname}:{port}"
        self._user = unquote(parts.username or "guest")
        self._vhost = unquote(parts.path[1:]) or "/"
        self.queue = queue
        self._retry_s, self._last_problem = FIRST_RETRY_S, ""

    def connected(self) -> None:
        """Begin anew: the broker lets the queue be consumed."""
        if self._last_problem:
            _LOG.info("consuming from the queue %s again", self.queue)
        self._retry_s, self._last_problem = FIRST_RETRY_S, ""

    def failed(self, error: BaseException) -> float:
        """Say once what is wrong, and with what; return the seconds to wait before a retry."""
        problem = self._explained(error)
        if problem != self._last_problem:
            _LOG.error("%s; retrying", problem)
        self._last_problem, wait_s = problem, self._retry_s
        self._retry_s = min(2 * wait_s, LAST_RETRY_S)
        return wait_s

    def _explained(self, error: BaseException) -> str:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & _PASSWORD:
            return f"{self._where} refuses the password of {self._user}"
        if kinds & _VHOST:
            return f"{self._where} does not let {self._user} into the vhost {self._vhost}"
        is_missing = "ChannelNotFoundEntity" in kinds or isinstance(error, QueueGone)
        if is_missing or getattr(error, "reply_code", 0) == _NOT_FOUND:
            return f"there is no queue {self.queue} in the vhost {self._vhost} of {self._where}"
        return f"{self._where} cannot be reached: {type(error).__name__} {error}".rstrip()


class Deliveries:
    """Which messages were served, and since when a message waits."""

    def __init__(self) -> None:
        # The newest thousand served requests that may be delivered again, and until when.
        self._served: OrderedDict[str, float] = OrderedDict()
        self._say = Sometimes(_LOG)
        self._said_no_time = False

    def is_served(self, key: str) -> bool:
        """Whether a redelivered message was served on a connection that was lost before its ack."""
        return time.monotonic() < self._served.get(key, 0.0)

    def serve(self, key: str, *, has_id: bool) -> None:
        """Remember a served message until the broker knows."""
        self._served[key] = time.monotonic() + (math.inf if has_id else _UNSURE_S)
        while len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)

    def acknowledge(self, key: str, *, has_id: bool) -> None:
        """Forget an acknowledged message without an id: an equal one is another request."""
        if not has_id:
            self._served.pop(key, None)

    def enqueued_at(self, properties: Any) -> float | str:
        """Read since when a message waits; what is no time stops no request, and is no wait."""
        headers = properties.headers or {}
        if "enqueued_at" in headers:
            return str(headers["enqueued_at"])
        if "timestamp_in_ms" in headers:
            name, stamp, unit = "timestamp_in_ms", headers["timestamp_in_ms"], 1000
        elif properties.timestamp:
            name, stamp, unit = "timestamp", properties.timestamp, 1
        else:
            if not self._said_no_time:
                self._said_no_time = True
                _LOG.warning("messages have no enqueue time: let publishers set a timestamp")
            return time.time()
        try:
            seconds = stamp.timestamp() if isinstance(stamp, datetime) else float(stamp) / unit
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if _SECONDS[0] <= seconds < _SECONDS[1]:
            return seconds
        self._say.warn(name, f"{name} of a message is not a time; its wait counts as 0")
        return time.time()


def identity(properties: Any, body: bytes) -> str:
    """Identify a message by all that its publisher set; headers with x- are the broker's.

    Without a message's id that is little: two clients may well ask for the same.
    """
    headers = (properties.headers or {}).items()
    known = [(name, getattr(properties, name)) for name in _PROPERTIES]
    text = repr([*known, sorted(item for item in headers if not item[0].startswith("x-"))])
    return hashlib.sha256(text.encode() + b"\0" + body).hexdigest()
