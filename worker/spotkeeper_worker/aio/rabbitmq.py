"""The loop of asyncio over a RabbitMQ request queue: manual acknowledgement (docs/asyncio.md).

Needs aio-pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio import LOOK_S
from spotkeeper_worker.aio.loops import Loop, Message, serve_each
from spotkeeper_worker.amqp import Consumer, identity, reported, waits_since
from spotkeeper_worker.log import Sometimes, get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from spotkeeper_worker.aio import AsyncWorker
    from spotkeeper_worker.worker import Worker

# A message that fails again and again is not to keep a worker busy.
_FAILED_PAUSE_S = 0.5
_REMEMBERED = 1000
# A broker also delivers unacknowledged messages to others: later, an equal one is another request.
_UNSURE_S = 300.0


async def serve(
    worker: AsyncWorker,
    url: str,
    queue: str,
    handle: Callable[[bytes], Awaitable[Any]],
    *,
    requeue_failed: bool = True,
) -> None:
    """Serve until `worker.stop`, as many at once as the worker has slots.

    What `handle` raises is logged, and its message requeued, as `spotkeeper_worker.rabbitmq.serve`
    says. A cancellation returns the messages that run.
    """
    await serve_each(take(worker, url, queue, requeue_failed=requeue_failed), handle)


def take(
    worker: AsyncWorker, url: str, queue: str, *, requeue_failed: bool = True
) -> AsyncGenerator[Message[bytes], None]:
    """Give messages until `worker.stop`; each is to be entered (`async with message`)."""
    consumer = Consumer(url, queue, worker.slots or 1)
    return RabbitLoop(worker, consumer, requeue_failed).messages()


class RabbitLoop(Loop[bytes]):
    """The loop over what a consumer gets; that of threads has it serve one `at_once`."""

    def __init__(
        self, worker: Worker, consumer: Consumer, requeue_failed: bool, at_once: int = 0
    ) -> None:
        super().__init__(worker, LOOK_S, at_once)
        self._consumer, self._requeue_failed = consumer, requeue_failed
        self._say = Sometimes(get_logger("worker"))
        # The newest thousand served requests that may be delivered again, and until when.
        self._served: OrderedDict[str, float] = OrderedDict()
        consumer.on_arrival = self.change.wake

    async def receive(self, at_most: int) -> list[Message[bytes]]:
        """Listen, and take what has arrived."""
        arrived = self._consumer.arrived
        wait_s = await self._consumer.listen()
        if wait_s:
            await self.change.pause(wait_s)
        elif not arrived:
            await self.change.wait()
        taken: list[Message[bytes]] = []
        while arrived and len(taken) < at_most:
            raw = arrived.popleft()
            key = identity(raw, raw.body)
            request_id = str(raw.message_id or raw.correlation_id or uuid.uuid4().hex)
            message = Message(self, request_id, waits_since(raw, self._say), raw.body, raw)
            message.hold = key
            # It was served on a connection that was lost before its acknowledgement.
            if raw.redelivered and time.monotonic() < self._served.get(key, 0.0):
                await self._acknowledge(message)
            else:
                taken.append(message)
        return taken

    async def look(self) -> None:
        """Listen no more once the machine leaves; what was prefetched goes back."""
        if self.worker.stopping or not self.worker.is_in_time:
            await self._consumer.stop_listening()
        await super().look()

    async def served(self, message: Message[bytes]) -> None:
        """Acknowledge it; until the broker knows, remember that it was served."""
        has_id = bool(message.raw.message_id)
        if has_id or not message.is_returned:
            self._served[message.hold] = time.monotonic() + (math.inf if has_id else _UNSURE_S)
            while len(self._served) > _REMEMBERED:
                self._served.popitem(last=False)
        if not message.is_returned:
            await self._acknowledge(message)

    async def _acknowledge(self, message: Message[bytes]) -> None:
        with reported():
            await message.raw.ack()
            if not message.raw.message_id:
                # An equal one is another request.
                self._served.pop(message.hold, None)

    async def failed(self, message: Message[bytes]) -> None:
        """Requeue it, or have the broker make it a dead letter."""
        if not message.is_returned:
            await asyncio.sleep(_FAILED_PAUSE_S)
            with reported():
                await message.raw.nack(requeue=self._requeue_failed)

    async def give_back(self, message: Message[bytes]) -> None:
        """Requeue it for others."""
        await self._consumer.stop_listening()
        with reported():
            await message.raw.nack(requeue=True)

    async def close(self) -> None:
        """End the connection."""
        await self._consumer.close()
