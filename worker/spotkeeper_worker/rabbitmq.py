"""The loop over a RabbitMQ request queue: manual acknowledgement, requeue (docs/rabbitmq.md).

Needs aio-pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio.loops import serve_here
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

    How often a message may fail is the queue's to say
    (`x-delivery-limit` of a quorum queue); without `requeue_failed` it goes where the queue's dead
    letters go, at once. Its header `enqueued_at` or `timestamp_in_ms`, or else its timestamp, says
    since when it waits.
    """
    consumer = Consumer(url, queue, prefetch)
    serve_here(RabbitLoop(worker, consumer, requeue_failed, at_once=1).messages(), handle)
