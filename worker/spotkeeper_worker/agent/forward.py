"""Search logs that come over RabbitMQ: each message moves to SQS unchanged, or stays."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.broker import Broker, QueueGone

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

_LOG = logging.getLogger("spotkeeper.agent")
LONGEST = 256 * 1024
PREFETCH = 50
_LOOK_S = 0.2
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0


class Forwarder:
    """Moves messages; acknowledges only what SQS took."""

    def __init__(self, broker: Broker, queue: str, send: Callable[[str], None]) -> None:
        self._broker = broker
        self._queue = queue
        self._send = send
        self._stop = threading.Event()

    def stop(self) -> None:
        """End after the message that is being moved."""
        self._stop.set()

    def run(self) -> None:
        """Move messages until told to stop."""
        self._broker.keep(self._session, self._stop.is_set, lambda s: void(self._stop.wait(s)))

    def _session(self, channel: BlockingChannel) -> None:
        while not self._stop.is_set():
            taken = next(channel.consume(self._queue, inactivity_timeout=_LOOK_S), None)
            if taken is None:
                raise QueueGone
            method, _, body = taken
            if method is not None and body is not None:
                self._move(channel, method.delivery_tag, body)
        channel.cancel()

    def _move(self, channel: BlockingChannel, tag: int, body: bytes) -> None:
        text = _as_text(body)
        if text is None:
            _LOG.error("a message of %d bytes is none that SQS takes; it is rejected", len(body))
            channel.basic_reject(tag, requeue=False)
            return
        retry_s = _FIRST_RETRY_S
        while not self._stop.is_set():
            try:
                self._send(text)
            except AwsError as error:
                _LOG.warning("search logs wait: %s", error)
                channel.connection.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
            else:
                channel.basic_ack(tag)
                return


def void(_: Any) -> None:
    """Answer nothing."""


def _as_text(body: bytes) -> str | None:
    """Give a body as SQS may have it; None where it may not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text and len(body) <= LONGEST else None
