"""One queue of a RabbitMQ broker: connected to again and again, and what went wrong in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable
from urllib.parse import unquote, urlsplit

import pika
import pika.exceptions

from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

_LOG = get_logger("worker")
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
_NOT_FOUND = 404


class QueueGone(Exception):
    """The queue was deleted while it was listened to."""


ERRORS = (pika.exceptions.AMQPError, OSError, QueueGone)


class Broker:
    """One queue of a broker; `url` is `amqp://` or `amqps://`, its vhost `/` written `%2F`."""

    def __init__(self, url: str, queue: str, prefetch: int) -> None:
        """Raises ValueError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("a broker's URL is amqps://USER:PASSWORD@HOST:PORT/VHOST")
        self._parameters = pika.URLParameters(url)
        self._where = f"{parts.hostname}:{self._parameters.port}"
        self._user = unquote(parts.username or "guest")
        self._queue = queue
        self._prefetch = prefetch

    def keep(
        self,
        session: Callable[[BlockingChannel], None],
        stopping: Callable[[], bool],
        wait: Callable[[float], object],
    ) -> None:
        """Run `session` on a channel, and on a new one whenever it is lost, until `stopping`."""
        retry_s, last_problem = FIRST_RETRY_S, ""
        while not stopping():
            try:
                with pika.BlockingConnection(self._parameters) as connection:
                    channel = connection.channel()
                    channel.basic_qos(prefetch_count=self._prefetch)
                    # The queue is known to be there.
                    channel.queue_declare(self._queue, passive=True)
                    if last_problem:
                        _LOG.info("consuming from the queue %s again", self._queue)
                    retry_s, last_problem = FIRST_RETRY_S, ""
                    session(channel)
            except ERRORS as error:
                problem = self._explained(error)
                if problem != last_problem:
                    _LOG.error("%s; retrying", problem)
                last_problem = problem
                wait(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _explained(self, error: BaseException) -> str:
        """Say what is wrong, and with what."""
        vhost = self._parameters.virtual_host
        if isinstance(error, pika.exceptions.ProbableAuthenticationError):
            return f"{self._where} refuses the password of {self._user}"
        if isinstance(error, pika.exceptions.ProbableAccessDeniedError):
            return f"{self._where} does not let {self._user} into the vhost {vhost}"
        if isinstance(error, QueueGone) or getattr(error, "reply_code", 0) == _NOT_FOUND:
            return f"there is no queue {self._queue} in the vhost {vhost} of {self._where}"
        return f"{self._where} cannot be reached: {type(error).__name__} {error}".rstrip()
