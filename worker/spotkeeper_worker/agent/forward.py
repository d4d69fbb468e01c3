"""Search logs from RabbitMQ: each message moves to SQS unchanged, or stays."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.amqp import QueueGone
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from spotkeeper_worker.broker import Broker
    from spotkeeper_worker.stop import Stop

_LOG = get_logger("agent")
LONGEST = 256 * 1024
PREFETCH = 50
_LOOK_S = 0.2
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
_NOT_FOR_SQS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What is wrong with a message for good; what else is refused may be taken later.
_NEVER = ("InvalidMessageContents", "InvalidParameterValue", "MessageTooLong")


def forward(broker: Broker, queue: str, send: Callable[[str], None], stopping: Stop) -> None:
    """Move messages until `stopping` is set; acknowledge only what SQS took."""

    def session(channel: BlockingChannel) -> None:
        while not stopping.is_set():
            taken = next(channel.consume(queue, inactivity_timeout=_LOOK_S), None)
            if taken is None:
                raise QueueGone
            method, _, body = taken
            if method is not None and body is not None:
                why = _moved(channel, method.delivery_tag, body, send, stopping)
                if why:
                    # It would block all after it.
                    _LOG.error("SQS cannot take a message, so it is rejected: %s", why)
                    channel.basic_reject(method.delivery_tag, requeue=False)
        channel.cancel()

    broker.keep(session, stopping.is_set, stopping.wait)


def _moved(
    channel: BlockingChannel, tag: int, body: bytes, send: Callable[[str], None], stopping: Stop
) -> str:
    """Move a message, or say why SQS never takes it."""
    text = as_sqs_text(body)
    if text is None:
        return f"{len(body)} bytes that are not valid text for SQS"
    retry_s = _FIRST_RETRY_S
    while not stopping.is_set():
        try:
            send(text)
            channel.basic_ack(tag)
            return ""
        except AwsError as error:
            if error.code.startswith(_NEVER):
                return str(error)
            _LOG.warning("search logs wait: %s", error)
        ends = time.monotonic() + retry_s
        while not stopping.is_set() and time.monotonic() < ends:
            # It keeps the connection alive.
            channel.connection.sleep(_LOOK_S)
        retry_s = min(2 * retry_s, _LAST_RETRY_S)
    return ""


def as_sqs_text(body: bytes) -> str | None:
    """Give a body as SQS may have it; None where it may not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fits = 0 < len(body) <= LONGEST and not _NOT_FOR_SQS.search(text)
    return text if fits else None
