"""The loop over a RabbitMQ request queue: manual acknowledgement, a prefetch of one, requeue.

    from spotkeeper_worker.rabbitmq import serve

    serve(worker, "amqps://user:password@host/vhost", "requests", lambda body: answer(body))

Needs pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.broker import ERRORS, Broker, QueueGone

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from spotkeeper_worker.worker import Request, Worker

_LOG = logging.getLogger("spotkeeper.worker")
_REMEMBERED = 1000
_LOOK_S = 0.2
# A message that fails again and again is not to keep a worker busy.
_FAILED_PAUSE_S = 0.5


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
    without `requeue_failed` it goes where the queue's dead letters go, at once. Since when it waits
    is told by its header `enqueued_at` or `timestamp_in_ms`, or by its timestamp.
    """
    loop = _RabbitLoop(worker, queue, handle, requeue_failed)
    Broker(url, queue, prefetch).keep(loop.session, lambda: worker.stopping, worker.wait)


class _RabbitLoop:
    def __init__(
        self, worker: Worker, queue: str, handle: Callable[[bytes], Any], requeue_failed: bool
    ) -> None:
        self._worker = worker
        self._requeue_failed = requeue_failed
        self._queue = queue
        self._handle = handle
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="request")
        self._served: OrderedDict[str, None] = OrderedDict()
        self._said_no_time = False
        self._handed_back = False

    def session(self, channel: BlockingChannel) -> None:
        """Take and serve on one channel, for as long as it lasts."""
        while not self._worker.stopping:
            if not self._worker.may_take:
                # What was prefetched goes back to the queue.
                channel.cancel()
                channel.connection.process_data_events(_LOOK_S)
                continue
            taken = next(channel.consume(self._queue, inactivity_timeout=_LOOK_S), None)
            if taken is None:
                raise QueueGone
            method, properties, body = taken
            if method is not None and body is not None:
                self._deal_with(channel, method, properties, body)
        channel.cancel()

    def _deal_with(
        self, channel: BlockingChannel, method: Any, properties: Any, body: bytes
    ) -> None:
        key = properties.message_id or hashlib.sha256(body).hexdigest()
        if method.redelivered and key in self._served:
            # It was served on a connection that was lost before it could be acknowledged.
            channel.basic_ack(method.delivery_tag)
        elif not self._worker.may_take:
            self._hand_back(channel, method.delivery_tag)
        else:
            self._serve(channel, method, properties, body, key)

    def _serve(
        self, channel: BlockingChannel, method: Any, properties: Any, body: bytes, key: str
    ) -> None:
        request_id = properties.message_id or properties.correlation_id or uuid.uuid4().hex
        lost: BaseException | None = None
        try:
            with self._worker.request(request_id, self._enqueued_at(properties)) as log:
                future = self._pool.submit(self._handle, body)
                lost = self._attend(channel, method.delivery_tag, future, log)
                future.result()
        except Exception:  # noqa: BLE001 - whatever a request raises, the worker goes on
            _LOG.exception("request %s failed", request_id)
            if lost is None and not self._handed_back:
                channel.connection.sleep(_FAILED_PAUSE_S)
                channel.basic_nack(method.delivery_tag, requeue=self._requeue_failed)
        else:
            self._remember(key)
            if lost is None and not self._handed_back:
                channel.basic_ack(method.delivery_tag)
        if lost is not None:
            raise lost

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
                connection.process_data_events(_LOOK_S)
        except ERRORS as error:
            return error
        return None

    def _hand_back(self, channel: BlockingChannel, tag: int) -> None:
        """Requeue a message for others: a consumer that listens on would get it itself."""
        channel.cancel()
        channel.basic_nack(tag, requeue=True)

    def _enqueued_at(self, properties: Any) -> float | str:
        headers = properties.headers or {}
        if "enqueued_at" in headers:
            return str(headers["enqueued_at"])
        if "timestamp_in_ms" in headers:
            return float(headers["timestamp_in_ms"]) / 1000
        if properties.timestamp:
            return float(properties.timestamp)
        if not self._said_no_time:
            self._said_no_time = True
            _LOG.warning("messages do not say since when they wait; give them a timestamp")
        return time.time()

    def _remember(self, key: str) -> None:
        self._served[key] = None
        while len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)
