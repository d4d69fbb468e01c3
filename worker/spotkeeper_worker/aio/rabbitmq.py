"""The loop of asyncio over a RabbitMQ queue, with the promises of `spotkeeper_worker.rabbitmq`.

    await serve(worker, "amqps://user:password@host/vhost", "requests", answer)

or, with a task for each message:

    async for message in take(worker, "amqps://user:password@host/vhost", "requests"):
        group.create_task(one(message))  # `async with message: await answer(message.body)`

Needs aio-pika (`pip install 'spotkeeper-worker[asyncio-rabbitmq]'`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio.loops import Loop, Message, serve_each
from spotkeeper_worker.amqp import (
    FAILED_PAUSE_S,
    LOOK_S,
    Address,
    Deliveries,
    QueueGone,
    identity,
)
from spotkeeper_worker.extras import needs
from spotkeeper_worker.log import get_logger

with needs("asyncio-rabbitmq"):
    import aio_pika
    from pamqp import decode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterator

    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue

    from spotkeeper_worker.aio import AsyncWorker

_LOG = get_logger("worker")
_TIMEOUT_S = 10.0
# A channel that is closed is a RuntimeError.
_ERRORS = (*aio_pika.exceptions.CONNECTION_EXCEPTIONS, asyncio.TimeoutError, QueueGone)


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


async def take(
    worker: AsyncWorker, url: str, queue: str, *, requeue_failed: bool = True
) -> AsyncGenerator[Message[bytes], None]:
    """Give messages until `worker.stop`; each is to be entered (`async with message`)."""
    loop = _RabbitLoop(worker, url, queue, requeue_failed)
    messages = loop.messages()
    try:
        async for message in messages:
            yield message
    finally:
        await messages.aclose()
        await loop.disconnect()


class _RabbitLoop(Loop[bytes]):
    def __init__(self, worker: AsyncWorker, url: str, queue: str, requeue_failed: bool) -> None:
        """Raises ValueError for a wrong URL, and for a queue's name that aio-pika cannot send."""
        if not queue.isascii():
            raise ValueError(f"aio-pika takes queue names in ASCII alone, and not {queue!r}")
        super().__init__(worker, LOOK_S)
        self._url, self._address = url, Address(url, queue)
        self._requeue_failed = requeue_failed
        self._deliveries = Deliveries()
        self._connection: AbstractConnection | None = None
        self._queue: AbstractQueue | None = None
        self._tag = ""
        self._arrived: deque[AbstractIncomingMessage] = deque()

    async def receive(self, at_most: int) -> list[Message[bytes]]:
        try:
            await self._listen()
        except _ERRORS as error:
            await self.disconnect()
            await self.worker.pause(self._address.failed(error))
            return []
        if not self._arrived:
            await self.worker.change()
        taken: list[Message[bytes]] = []
        while self._arrived and len(taken) < at_most:
            raw = self._arrived.popleft()
            key = identity(raw, raw.body)
            request_id = str(raw.message_id or raw.correlation_id or uuid.uuid4().hex)
            enqueued_at = self._deliveries.enqueued_at(raw)
            message = Message(self, request_id, enqueued_at, raw.body, raw)
            message.hold = key
            if raw.redelivered and self._deliveries.is_served(key):
                await self._acknowledge(message)
            else:
                taken.append(message)
        return taken

    async def _listen(self) -> None:
        """Be connected, and consume; raises `_ERRORS`."""
        if self._connection is None or self._connection.is_closed:
            await self.disconnect()
            self._connection = await aio_pika.connect(self._url, timeout=_TIMEOUT_S)
        if self._queue is None or self._queue.channel.is_closed:
            self._queue, self._tag = None, ""
            self._arrived.clear()
            channel = await self._connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=self.worker.slots or 1)
            # Whether it is there is known once it is consumed.
            self._queue = await channel.get_queue(self._address.queue, ensure=False)
        below: Any = await self._queue.channel.get_underlay_channel()
        if self._tag and self._tag not in below.consumers:
            self._queue = None
            raise QueueGone
        if not self._tag:
            self._tag = await self._queue.consume(self._arrive, timeout=_TIMEOUT_S)
            self._address.connected()

    async def _arrive(self, raw: AbstractIncomingMessage) -> None:
        self._arrived.append(raw)
        self.worker.wake()

    async def look(self) -> None:
        """Listen no more once the machine leaves; what was prefetched goes back."""
        if self.worker.stopping or not self.worker.is_in_time:
            await self._stop_listening()
        await super().look()

    async def _stop_listening(self) -> None:
        """A consumer that listens on would get what it returns itself."""
        with _reported():
            if self._queue is not None and self._tag:
                tag, self._tag = self._tag, ""
                await self._queue.cancel(tag, timeout=_TIMEOUT_S)
            while self._arrived:
                await self._arrived.popleft().nack(requeue=True)

    async def look_after(self, message: Message[bytes]) -> None:
        if self.worker.must_hand_back and not message.is_returned:
            message.log.status = "timeout"
            _LOG.warning("%s was returned to the queue: the machine goes", message.id)
            await message.give_back()

    async def served(self, message: Message[bytes]) -> None:
        has_id = bool(message.raw.message_id)
        if has_id or not message.is_returned:
            self._deliveries.serve(message.hold, has_id=has_id)
        if not message.is_returned:
            await self._acknowledge(message)

    async def _acknowledge(self, message: Message[bytes]) -> None:
        with _reported():
            await message.raw.ack()
            self._deliveries.acknowledge(message.hold, has_id=bool(message.raw.message_id))

    async def failed(self, message: Message[bytes]) -> None:
        if not message.is_returned:
            await asyncio.sleep(FAILED_PAUSE_S)
            with _reported():
                await message.raw.nack(requeue=self._requeue_failed)

    async def give_back(self, message: Message[bytes]) -> None:
        await self._stop_listening()
        with _reported():
            await message.raw.nack(requeue=True)

    async def disconnect(self) -> None:
        """Close the connection; the broker delivers what was not acknowledged again."""
        connection, self._connection, self._queue, self._tag = self._connection, None, None, ""
        self._arrived.clear()
        if connection is not None:
            with _reported():
                await connection.close()


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Log what is lost with a connection: the broker delivers its messages again."""
    try:
        yield
    except _ERRORS as error:
        _LOG.info("the connection to the broker was lost: %s", type(error).__name__)
