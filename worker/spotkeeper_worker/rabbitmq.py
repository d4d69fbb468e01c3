"""The loop over a RabbitMQ request queue: manual acknowledgement, a prefetch of one, requeue.

    from spotkeeper_worker.rabbitmq import serve

    serve(worker, "amqps://user:password@host/vhost", "requests", lambda body: answer(body))

Needs pika (`pip install 'spotkeeper-worker[rabbitmq]'`).
"""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.broker import ERRORS, Broker, QueueGone
from spotkeeper_worker.log import Sometimes, get_logger

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from spotkeeper_worker.worker import Request, Worker

_LOG = get_logger("worker")
_REMEMBERED = 1000
_LOOK_S = 0.2
# A message that fails again and again is not to keep a worker busy.
_FAILED_PAUSE_S = 0.5
# A broker also delivers unacknowledged messages to others: later, an equal one is another request.
_UNSURE_S = 300.0
# Ten digits, from 2001 to 2286: a number outside is in another unit than seconds.
_SECONDS = (1e9, 1e10)


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
        # The newest thousand served requests that may be delivered again, and until when.
        self._served: OrderedDict[str, float] = OrderedDict()
        self._say = Sometimes(_LOG)
        self._said_no_time = self._handed_back = False

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
            if method is None or body is None:
                continue
            key = _identity(properties, body)
            if method.redelivered and time.monotonic() < self._served.get(key, 0.0):
                # It was served on a connection that was lost before it could be acknowledged.
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
            if properties.message_id or not self._handed_back:
                for_s = math.inf if properties.message_id else _UNSURE_S
                self._served[key] = time.monotonic() + for_s
                while len(self._served) > _REMEMBERED:
                    self._served.popitem(last=False)
            if lost is None and not self._handed_back:
                self._acknowledge(channel, method, properties, key)
        if lost is not None:
            raise lost

    def _acknowledge(
        self, channel: BlockingChannel, method: Any, properties: Any, key: str
    ) -> None:
        """Tell the broker that a message was served; without an id an equal one is another."""
        channel.basic_ack(method.delivery_tag)
        if not properties.message_id:
            self._served.pop(key, None)

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
        """Read since when a message waits; what is no time stops no request, and is no wait."""
        headers = properties.headers or {}
        if "enqueued_at" in headers:
            return str(headers["enqueued_at"])
        if "timestamp_in_ms" in headers:
            name, stamp, unit = "timestamp_in_ms", headers["timestamp_in_ms"], 1000
        elif properties.timestamp:
            name, stamp, unit = "timestamp", properties.timestamp, 1
        else:
            if not self._said_no_time:
                self._said_no_time = True
                _LOG.warning("messages have no enqueue time: let publishers set a timestamp")
            return time.time()
        try:
            seconds = float(stamp) / unit
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if _SECONDS[0] <= seconds < _SECONDS[1]:
            return seconds
        self._say.warn(name, f"{name} of a message is not a time; its wait counts as 0")
        return time.time()


def _identity(properties: Any, body: bytes) -> str:
    """Identify a message by all that its publisher set; headers with x- are the broker's.

    Without a message's id that is little: two clients may well ask for the same.
    """
    headers = properties.headers or {}
    headers_said = sorted(item for item in headers.items() if not item[0].startswith("x-"))
    text = repr(sorted({**vars(properties), "headers": headers_said}.items()))
    return hashlib.sha256(text.encode() + b"\0" + body).hexdigest()
