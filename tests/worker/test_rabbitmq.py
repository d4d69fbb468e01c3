"""Both loops over RabbitMQ and the forwarder, against a real broker on loopback."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from spotkeeper_worker import Worker
from spotkeeper_worker.agent import forward
from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.aio import AsyncWorker
from spotkeeper_worker.aio.rabbitmq import serve as serve_async
from spotkeeper_worker.amqp import FIRST_RETRY_S, Consumer
from spotkeeper_worker.rabbitmq import serve
from spotkeeper_worker.states import State
from spotkeeper_worker.stop import Stop
from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.worker.brokers import Queue, Rabbit, broker, queue
from tests.worker.logs import say
from tests.worker.page import of

__all__ = ["broker", "queue"]
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
NAMES = ["requests", "anfragen-ü-日本"]


class Stage:
    """A worker whose loop, that of threads or of asyncio, runs in a thread."""

    def __init__(self, folder: Path, broker: Rabbit, queue: Queue, kind: str) -> None:
        self.served: list[bytes] = []
        self.handle: Callable[[bytes], None] = self.served.append
        self.say = partial(say, folder)
        self.say(State.SERVING)
        url = broker.url()

        def of_threads(worker: Worker) -> None:
            serve(worker, url, queue.name, lambda body: self.handle(body), prefetch=2)

        def of_asyncio(worker: AsyncWorker) -> None:
            async def handle(body: bytes) -> None:
                await asyncio.to_thread(self.handle, body)

            asyncio.run(serve_async(worker, url, queue.name, handle))

        run: Callable[[], None]
        if kind == "threads":
            self.worker = Worker("gpu-0", folder, margin_s=0.0)
            run = partial(of_threads, self.worker)
        else:
            self.worker = worker = AsyncWorker("gpu-0", folder, margin_s=0.0)
            run = partial(of_asyncio, worker)
        self._thread = threading.Thread(target=run)
        self._thread.start()

    def held(self) -> tuple[threading.Event, threading.Event]:
        """Hold every request up; gives that one has begun, and what lets them end."""
        begun, over = threading.Event(), threading.Event()

        def handle(body: bytes) -> None:
            begun.set()
            assert over.wait(120)
            self.served.append(body)

        self.handle = handle
        return begun, over

    def close(self) -> None:
        self.worker.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.worker.close(timeout_s=0.0)

    def serves(self, *bodies: bytes) -> None:
        """Wait until it has served these, in this order."""
        until(lambda: self.served == [*bodies], f"{bodies} are served")


@pytest.fixture(params=["threads", "asyncio"])
def stage(
    tmp_path: Path, broker: Rabbit, queue: Queue, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    with closing(Stage(tmp_path, broker, queue, request.param)) as made:
        yield made


@pytest.mark.parametrize("queue", NAMES, indirect=True)
def test_requests_are_served_and_acknowledged(stage: Stage, queue: Queue) -> None:
    for n in range(20):
        queue.send(b"%d" % n, message_id=f"r-{n}", timestamp=int(time.time()))
    stage.serves(*(b"%d" % n for n in range(20)))
    stage.worker.stop()
    until(lambda: queue.waiting == 0, "all are acknowledged")


def test_prefetched_requests_return_in_a_drain(stage: Stage, queue: Queue) -> None:
    begun, over = stage.held()
    for n in range(3):
        queue.send(b"%d" % n, message_id=f"r-{n}")
    assert begun.wait(60)
    stage.say(State.DRAINING)
    until(lambda: queue.waiting == 2, "the others wait for another worker")
    over.set()
    stage.serves(b"0")
    stage.say(State.SERVING)
    until(lambda: len(stage.served) == 3, "the warning was taken back")


def test_an_unfinished_request_is_requeued_in_time(stage: Stage, queue: Queue) -> None:
    begun, over = stage.held()
    queue.send(b"one", message_id="r-0")
    assert begun.wait(60)
    stage.say(State.DRAINING, until_s=2.2)
    until(lambda: queue.waiting == 1, "another worker can take it")
    over.set()


def test_a_failed_request_is_requeued(stage: Stage, queue: Queue) -> None:
    def handle(body: bytes) -> None:
        stage.handle = stage.served.append
        raise ValueError("no")

    stage.handle = handle
    queue.send(b"one", message_id="r-0")
    stage.serves(b"one")


@pytest.mark.parametrize("message_id", ["r-0", None])
def test_a_connection_lost_in_a_request_serves_it_once(
    stage: Stage, queue: Queue, broker: Rabbit, message_id: str | None
) -> None:
    begun, over = stage.held()
    queue.send(b"one", message_id=message_id)
    assert begun.wait(60)
    close_connections(broker, queue)
    until(lambda: queue.waiting == 1, "the broker has it again")
    over.set()
    until(lambda: queue.waiting == 0, "it is acknowledged on another connection")
    assert stage.served == [b"one"]
    hand_back(stage, queue, b"one", message_id=message_id and "r-1")
    stage.serves(b"one", b"one")


@pytest.mark.parametrize("of_client", [{}, {"message_id": "page-1", "reply_to": "client"}])
def test_equal_requests_are_served(stage: Stage, queue: Queue, of_client: dict[str, str]) -> None:
    """A message that another machine handed back is `redelivered` and has never been served."""
    queue.send(b"page 1", **of_client)
    stage.serves(b"page 1")
    hand_back(stage, queue, b"page 1", **{name: f"{text}-2" for name, text in of_client.items()})
    stage.serves(b"page 1", b"page 1")
    stage.worker.stop()
    until(lambda: queue.waiting == 0, "both are acknowledged")


def hand_back(stage: Stage, queue: Queue, body: bytes, **properties: str | None) -> None:
    """Send a request that a machine takes, and hands back to the stage's as it drains."""
    stage.say(State.DRAINING)
    until(lambda: queue.listeners == 0, "the stage does not listen")
    queue.send(body, **properties)
    until(lambda: queue.waiting == 1, "it waits")
    method, *_ = queue.channel.basic_get(queue.name)
    assert method is not None
    queue.channel.basic_nack(method.delivery_tag)
    stage.say(State.SERVING)


TIMES: list[Any] = [None, "soon", -1, 10**18, 1_795_300_000, b"\xff", [1], {}]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        *(({"headers": {"timestamp_in_ms": each}}, "is not a time") for each in TIMES),
        *(({"timestamp": each}, "no enqueue time") for each in (10**15, 10**18, 2**63 - 1)),
    ],
)
def test_a_bad_time_stops_no_request(
    stage: Stage, queue: Queue, sent: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(b"one", message_id="r-0", **sent)
    stage.serves(b"one")
    assert why in caplog.text
    stage.worker.stop()
    until(lambda: queue.waiting == 0, "it is acknowledged")
    assert "failed" not in caplog.text


def close_connections(broker: Rabbit, queue: Queue) -> None:
    """Have the broker close the connections of who listens to a queue, as in a restart."""

    def ask(method: str, path: str) -> bytes:
        request = urllib.request.Request(f"{broker.management_url}/api/{path}", method=method)
        request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def close() -> bool:
        listening = {
            each["channel_details"]["connection_name"]
            for each in json.loads(ask("GET", "consumers"))
            if each["queue"]["name"] == queue.name
        }
        for name in listening:
            ask("DELETE", "connections/" + urllib.parse.quote(name, safe=""))
        return bool(listening)

    until(close, "the broker knows who listens")


def test_a_deleted_queue_is_reported(
    stage: Stage, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(b"one", message_id="r-0")
    stage.serves(b"one")
    queue.channel.queue_delete(queue.name)
    until(lambda: f"there is no queue {queue.name} in the vhost /" in caplog.text, "it is said")
    queue.channel.queue_declare(queue.name, durable=True)
    queue.send(b"two", message_id="r-1")
    stage.serves(b"one", b"two")


def explained(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """What the log explains of a broker that is tried once."""
    assert asyncio.run(Consumer(url, "nothing-here", 1).listen()) == FIRST_RETRY_S
    return caplog.text


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ({"password": "wrong"}, "refuses the password of guest"),
        ({"vhost": "nowhere"}, "does not let guest into the vhost nowhere"),
        ({}, "there is no queue nothing-here in the vhost /"),
    ],
)
def test_a_broker_that_refuses_is_explained(
    broker: Rabbit, url: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert why in explained(broker.url(**url), caplog)


def test_a_missing_broker_is_named(caplog: pytest.LogCaptureFixture) -> None:
    url = "amqp://guest:guest@127.0.0.1:1/%2F"
    assert "127.0.0.1:1 cannot be reached" in explained(url, caplog)
    for url in ("http://host/", "amqp://", "host:5672"):
        with pytest.raises(ValueError, match="amqps://USER:PASSWORD@HOST:PORT/VHOST"):
            Consumer(url, "requests", 1)


@pytest.mark.parametrize("queue", NAMES[1:], indirect=True)
def test_search_logs_are_forwarded_unchanged(
    broker: Rabbit, queue: Queue, machine: FakeMachine, server: FakeServer, tmp_path: Path
) -> None:
    """While SQS refuses nothing is acknowledged; a killed forwarder loses nothing."""
    bodies = [f'{{"request_id": "ü-{n}"}}' for n in range(30)]
    machine.refuses = "AccessDenied"
    queue.send(b"\xff\xfe no text")
    for body in bodies:
        queue.send(body.encode())
    first = forwarder(broker, queue, server)
    until(lambda: queue.waiting == 0, "the forwarder has them")
    assert machine.bodies == []
    first.kill()
    first.wait()
    # The one that is none was rejected, or is in its turn.
    until(lambda: queue.waiting >= len(bodies), "the broker has them again")
    machine.refuses = ""
    second = forwarder(broker, queue, server)
    until(lambda: sorted(set(machine.bodies)) == sorted(bodies), "SQS has them")
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0
    assert queue.waiting == 0


def forwarder(broker: Rabbit, queue: Queue, server: FakeServer) -> subprocess.Popen[bytes]:
    """By the line of the page, but for where this broker is, and its queue's name."""
    [line] = of("spotkeeper-agent forward")
    here = {"amqps://user:password@host/vhost": broker.url(), "search-logs": queue.name}
    assert set(here) < set(line.split())
    words = [here.get(word, word) for word in line.split()[1:]]
    command = [sys.executable, "-m", "spotkeeper_worker", *words]
    environment = {**os.environ, **server.environment(), "PYTHONUTF8": "1"}
    return subprocess.Popen(command, env=environment)


# --- what SQS never takes does not block what it takes --------------------------------------------


@pytest.mark.parametrize(
    ("body", "codes", "then"),
    [
        (b"log", [], "acknowledged"),
        (b"\xff", [], "rejected"),
        (b"x" * (forward.LONGEST + 1), [], "rejected"),
        (b"log", ["InvalidMessageContents"], "rejected"),
        (b"log", ["InvalidParameterValueException"], "rejected"),
        (b"log", ["MessageTooLong"], "rejected"),
        (b"", ["MissingParameter"], "rejected"),
        (b"log", ["AccessDenied", "MessageTooLong"], "rejected"),
        (b"log", ["AccessDenied"], "acknowledged"),
        # A stop does not wait for it.
        (b"log", ["AccessDenied", "stop"], ""),
    ],
)
def test_a_message_is_acknowledged_or_rejected(
    body: bytes, codes: list[str], then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQS does not take now is kept and tried again."""
    monkeypatch.setattr(forward, "FIRST_RETRY_S", 0.0)
    became: list[str] = []
    left, stopping = list(codes), Stop()

    def send(text: str) -> None:
        code = left.pop(0) if left else ""
        if code == "stop":
            stopping.set()
        if code:
            raise AwsError("SendMessage", code, "no")

    async def end(how: str) -> None:
        became.append(how)
        stopping.set()

    async def reject(requeue: bool) -> None:
        await end("requeued" if requeue else "rejected")

    message = Mock(body=body, ack=partial(end, "acknowledged"), reject=reject)
    consumer = Mock(arrived=deque([message]), listen=AsyncMock(return_value=0), close=AsyncMock())
    asyncio.run(forward.forward(consumer, send, stopping))
    assert became == ([then] if then else [])
