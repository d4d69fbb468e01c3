"""The loop over a RabbitMQ request queue: manual acknowledgement, a prefetch of one, requeue.

    from spotkeeper_worker.rabbitmq import serve

    serve(worker, "amqps://user:password@host/vhost", "requests", lambda body: answer(body))

Needs aio-pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio.loops import serve_each
from spotkeeper_worker.aio.rabbitmq import RabbitLoop
from spotkeeper_worker.amqp import Consumer

if TYPE_CHECKING:
    from spotkeeper_worker.worker import Worker


def serve(
    worker: Worker,
    url: str,
    queue: str,
    handle: Callable[[bytes], Any],
    *,
    prefetch: int = 1,
    requeue_failed: bool = True,
) -> None:
    """Serve until `worker.stop`. What `handle` raises is logged, and its message requeued.

    `handle` runs in one thread. How often a message may fail is the queue's to say
    (`x-delivery-limit` of a quorum queue); without `requeue_failed` it goes where the queue's dead
    letters go, at once. Its header `enqueued_at` or `timestamp_in_ms`, or else its timestamp, says
    since when it waits.
    """
    consumer = Consumer(url, queue, prefetch)

    async def run() -> None:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="request") as pool:

            async def answer(body: bytes) -> None:
                await asyncio.get_running_loop().run_in_executor(pool, handle, body)

            loop = RabbitLoop(worker, consumer, requeue_failed, at_once=1)
            await serve_each(loop.messages(), answer)

    asyncio.run(run())
