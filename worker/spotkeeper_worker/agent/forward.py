"""Search logs from RabbitMQ: each message moves to SQS unchanged, or stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.aio import Change
from spotkeeper_worker.amqp import FIRST_RETRY_S, Consumer, reported
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage

    from spotkeeper_worker.stop import Stop

_LOG = get_logger("agent")
# Of bytes that any queue takes.
LONGEST = 1 << 20
PREFETCH = 50
_LAST_RETRY_S = 60.0
# What is wrong with a message for good: characters, size, or that it is empty. What else is refused
# may be taken later.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
_NEVER = ("InvalidMessageContents", "InvalidParameterValue", "MessageTooLong", "MissingParameter")


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
    retry_s = FIRST_RETRY_S
    while True:
        try:
            if len(message.body) > LONGEST:
                raise ValueError(f"it has {len(message.body)} bytes")
            text = message.body.decode("utf-8")
            await asyncio.get_running_loop().run_in_executor(None, send, text)
            with reported():
                await message.ack()
            return
        except (AwsError, ValueError) as error:
            why = str(error)
            if not isinstance(error, AwsError) or error.code.startswith(_NEVER):
                break
        _LOG.warning("search logs wait: %s", why)
        if not await change.pause(retry_s):
            return
        retry_s = min(2 * retry_s, _LAST_RETRY_S)
    # It would block all after it.
    _LOG.error("SQS cannot take a message, so it is rejected: %s", why)
    with reported():
        await message.reject(requeue=False)
