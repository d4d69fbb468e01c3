"""The loop over a RabbitMQ request queue: manual acknowledgement, a prefetch of one, requeue.

    from spotkeeper_worker.rabbitmq import serve

    serve(worker, "amqps://user:password@host/vhost", "requests", lambda body: answer(body))

Needs pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.amqp import FAILED_PAUSE_S, LOOK_S, Deliveries, QueueGone, identity
from spotkeeper_worker.broker import ERRORS, Broker
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from spotkeeper_worker.worker import Request, Worker

_LOG = get_logger("worker")


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

    How often a message may fail is the queue's to say (`x-delivery-limit` of a quorum queue);
    without `requeue_failed` it goes where the queue's dead letters go, at once. Its
    header `enqueued_at` or `timestamp_in_ms`, or else its timestamp, says since when it waits.
    """
    loop = _RabbitLoop(worker, queue, handle, requeue_failed)
    Broker(url, queue, prefetch).keep(loop.session, lambda: worker.stopping, worker.wait)


class _RabbitLoop:
    def __init__(
        self, worker: Worker, queue: str, handle: Callable[[bytes], Any], requeue_failed: bool
    ) -> None:
        self._worker, self._queue, self._handle = worker, queue, handle
        self._requeue_failed = requeue_failed
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="request")
        self._deliveries = Deliveries()
        self._handed_back = False

    def session(self, channel: BlockingChannel) -> None:
        """Take and serve on one channel, for as long as it lasts."""
        while not self._worker.stopping:
            if not self._worker.may_take:
                # What was prefetched goes back to the queue.
                channel.cancel()
                channel.connection.process_data_events(LOOK_S)
                continue
            taken = next(channel.consume(self._queue, inactivity_timeout=LOOK_S), None)
            if taken is None:
                raise QueueGone
            method, properties, body = taken
            if method is None or body is None:
                continue
            key = identity(properties, body)
            if method.redelivered and self._deliveries.is_served(key):
                self._acknowledge(channel, method, properties, key)
            elif not self._worker.may_take:
                self._hand_back(channel, method.delivery_tag)
            else:
                self._serve(channel, method, properties, body, key)
        channel.cancel()

    def _serve(
        self, channel: BlockingChannel, method: Any, properties: Any, body: bytes, key: str
    ) -> None:
        request_id = properties.message_id or properties.correlation_id or uuid.uuid4().hex
        lost: BaseException | None = None
        try:
            with self._worker.request(request_id, self._deliveries.enqueued_at(properties)) as log:
                future = self._pool.submit(self._handle, body)
                lost = self._attend(channel, method.delivery_tag, future, log)
                future.result()
        except Exception:  # noqa: BLE001 - whatever a request raises, the worker goes on
            _LOG.exception("request %s failed", request_id)
            if lost is None and not self._handed_back:
                channel.connection.sleep(FAILED_PAUSE_S)
                channel.basic_nack(method.delivery_tag, requeue=self._requeue_failed)
        else:
            if properties.message_id or not self._handed_back:
                self._deliveries.serve(key, has_id=bool(properties.message_id))
            if lost is None and not self._handed_back:
                self._acknowledge(channel, method, properties, key)
        if lost is not None:
            raise lost

    def _acknowledge(
        self, channel: BlockingChannel, method: Any, properties: Any, key: str
    ) -> None:
        """Tell the broker that a message was served."""
        channel.basic_ack(method.delivery_tag)
        self._deliveries.acknowledge(key, has_id=bool(properties.message_id))

    def _attend(
        self, channel: BlockingChannel, tag: int, future: Future[Any], log: Request
    ) -> BaseException | None:
        """Keep the connection alive while a request is served; answers how it was lost."""
        connection = channel.connection
        self._handed_back = False
        wake = connection.add_callback_threadsafe
        try:
            future.add_done_callback(lambda _: wake(lambda: None) if connection.is_open else None)
            while not future.done():
                if not self._worker.may_take:
                    channel.cancel()
                if self._worker.must_hand_back and not self._handed_back:
                    self._hand_back(channel, tag)
                    self._handed_back, log.status = True, "timeout"
                connection.process_data_events(LOOK_S)
        except ERRORS as error:
            return error
        return None

    def _hand_back(self, channel: BlockingChannel, tag: int) -> None:
        """Requeue a message for others: a consumer that listens on would get it itself."""
        channel.cancel()
        channel.basic_nack(tag, requeue=True)
