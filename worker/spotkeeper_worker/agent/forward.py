"""Search logs from RabbitMQ: each message moves to SQS unchanged, or stays."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.aio import Change
from spotkeeper_worker.amqp import FIRST_RETRY_S, Consumer, reported
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage

    from spotkeeper_worker.stop import Stop

_LOG = get_logger("agent")
LONGEST = 256 * 1024
PREFETCH = 50
_LAST_RETRY_S = 60.0
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
_NOT_FOR_SQS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What is wrong with a message for good; what else is refused may be taken later.
_NEVER = ("InvalidMessageContents", "InvalidParameterValue", "MessageTooLong")


async def forward(consumer: Consumer, send: Callable[[str], None], stopping: Stop) -> None:
    """Move messages until `stopping` is set; acknowledge only what SQS took."""
    change = Change(stopping.is_set)
    consumer.on_arrival = change.wake
    while not stopping.is_set():
        wait_s = await consumer.listen()
        if wait_s:
            await change.pause(wait_s)
        elif not consumer.arrived:
            await change.wait()
        else:
            await _move(consumer.arrived.popleft(), send, change)
    await consumer.close()


async def _move(
    message: AbstractIncomingMessage, send: Callable[[str], None], change: Change
) -> None:
    text, retry_s = as_sqs_text(message.body), FIRST_RETRY_S
    why = f"{len(message.body)} bytes that are not valid text for SQS"
    while text is not None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, send, text)
            with reported():
                await message.ack()
            return
        except AwsError as error:
            why = str(error)
            if error.code.startswith(_NEVER):
                break
        _LOG.warning("search logs wait: %s", why)
        if not await change.pause(retry_s):
            return
        retry_s = min(2 * retry_s, _LAST_RETRY_S)
    # It would block all after it.
    _LOG.error("SQS cannot take a message, so it is rejected: %s", why)
    with reported():
        await message.reject(requeue=False)


def as_sqs_text(body: bytes) -> str | None:
    """Give a body as SQS may have it; None where it may not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fits = 0 < len(body) <= LONGEST and not _NOT_FOR_SQS.search(text)
    return text if fits else None
