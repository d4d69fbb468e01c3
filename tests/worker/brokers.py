"""A real RabbitMQ broker for the tests of a run, and queues on it."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from spotkeeper_worker.testing import rabbit
from spotkeeper_worker.testing.rabbit import Rabbit


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    if not rabbit.installed():
        pytest.skip(rabbit.MISSING)
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with rabbit.shared(shared / "rabbit") as found:
        yield found


class Queue:
    """A queue of the broker, as its publisher has it."""

    def __init__(self, broker: Rabbit, name: str) -> None:
        self.name = name
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
        self.channel = self.connection.channel()
        self.channel.queue_declare(name, durable=True)

    def send(self, body: bytes, **properties: Any) -> None:
        about = pika.BasicProperties(delivery_mode=2, **properties)
        self.channel.basic_publish("", self.name, body, about)

    @property
    def waiting(self) -> int:
        """Messages that are ready; those that a worker holds are not."""
        return int(self.channel.queue_declare(self.name, passive=True).method.message_count)

    @property
    def listeners(self) -> int:
        """Workers that listen to it."""
        return int(self.channel.queue_declare(self.name, passive=True).method.consumer_count)

    def close(self) -> None:
        if self.connection.is_open:
            self.channel.queue_delete(self.name)
            self.connection.close()


@pytest.fixture(params=["requests", "anfragen-ü-日本"])
def queue(broker: Rabbit, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(broker, f"{request.param}-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()
