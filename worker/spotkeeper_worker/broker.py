"""One queue of a RabbitMQ broker by pika: connected to again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.amqp import Address, QueueGone
from spotkeeper_worker.extras import needs

with needs("rabbitmq"):
    import pika
    import pika.exceptions

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

ERRORS = (pika.exceptions.AMQPError, OSError, QueueGone)


class Broker:
    """One queue of a broker; `url` is `amqp://` or `amqps://`, its vhost `/` written `%2F`."""

    def __init__(self, url: str, queue: str, prefetch: int) -> None:
        """Raises ValueError for a URL that is none."""
        self._address = Address(url, queue)
        self._parameters = pika.URLParameters(url)
        self._prefetch = prefetch

    def keep(
        self,
        session: Callable[[BlockingChannel], None],
        stopping: Callable[[], bool],
        wait: Callable[[float], object],
    ) -> None:
        """Run `session` on a channel, and on a new one whenever it is lost, until `stopping`."""
        while not stopping():
            try:
                with pika.BlockingConnection(self._parameters) as connection:
                    channel = connection.channel()
                    channel.basic_qos(prefetch_count=self._prefetch)
                    # The queue is known to be there.
                    channel.queue_declare(self._address.queue, passive=True)
                    self._address.connected()
                    session(channel)
            except ERRORS as error:
                wait(self._address.failed(error))
