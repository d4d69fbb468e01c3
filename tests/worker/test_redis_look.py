"""The agent looks at a queue in Redis, and the fleet's controller finds the look."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from spotkeeper.border.search_log import read
from spotkeeper_worker.agent.queue_look import LookFailed, look, parse_address
from spotkeeper_worker.logs.journal import Segment
from tests.worker import brokers

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://h/0/celery?kind=celery", ("h:6379", "0", "celery", "celery", "")),
        ("rediss://u:p%40@h:1/2/a%2Fb", ("h:1", "2", "a/b", "list", "p@")),
        ("redis://h/0/s?kind=stream&group=g", ("h:6379", "0", "s", "stream", "")),
    ],
)
def test_addresses(url: str, found: tuple[object, ...]) -> None:
    it = parse_address(url)
    assert (it.host, it.vhost, it.queue, it.kind, it.password) == found


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/celery", "redis://h/0/", "redis:///0/q", "redis://h/0/q?kind=sidekiq",
        "redis://h/0/q?kind=stream", "redis://h/0/q?colour=red", "redis://h:x/0/q",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis://USER|kind|[Pp]ort"):
        parse_address(url)


Says = Callable[[bytes], str]


@pytest.fixture
def says() -> Iterator[Says]:
    """Somebody who answers every command with the same bytes."""
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> str:
        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(65_536):
                    connection.sendall(answer)
                    if answer.endswith(b"!"):
                        return

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        return f"redis://me:s3cret@127.0.0.1:{server.getsockname()[1]}/1/q"

    yield start
    server.close()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"-WRONGPASS invalid username-password pair\r\n", "RedisError WRONGPASS"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Redis"),
        (b"$-1\r\n", "does not know the length"),
        (b"$99999999\r\n", "an answer of 99999999 bytes"),
        (b"bye!", "closed the connection"),
    ],
)
def test_what_is_no_look_is_named(says: Says, answer: bytes, why: str) -> None:
    with pytest.raises(LookFailed, match=why) as failed:
        look(parse_address(says(answer)))
    assert "s3cret" not in str(failed.value)
    assert "the queue q in the database 1 of 127.0.0.1" in str(failed.value)


def test_the_controller_reads_the_look() -> None:
    told = {"kind": "redis", "vhost": "0", "name": "a/b", "ready": 5, "unacknowledged": 2}
    told["at"] = "2026-11-22T10:00:00.000Z"
    message = read(Segment(None, (), json.dumps({"queue": told})).body())
    ((_, note),) = message.notes
    found = note.look(datetime(2026, 11, 22, 10, 0, 5, tzinfo=UTC))
    assert found is not None
    assert (found.url, found.length.waiting, found.length.in_flight) == ("redis://0/a%2Fb", 5, 2)


# --- the real thing -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with brokers.redis(tmp_path_factory.mktemp("redis"), "s3cret") as url:
        client = redis.Redis.from_url(url.replace("/0", "/3"))
        yield client
        client.close()


def fill(client: Any) -> None:
    """As Celery, RQ, BullMQ and consumers of a stream leave their keys."""
    client.flushall()
    client.rpush("plain", *range(5))
    client.rpush("doing", *range(2))
    client.rpush("celery", *range(3))
    client.rpush("celery\x06\x166", "urgent")
    client.hset("unacked", mapping={"a": 1, "b": 2})
    client.rpush("rq:queue:ocr", *range(4))
    client.zadd("rq:wip:ocr", {"a": 1})
    client.rpush("bull:ocr:wait", *range(6))
    client.zadd("bull:ocr:prioritized", {"a": 1, "b": 2})
    client.rpush("bull:ocr:active", "a")
    client.xgroup_create("stream", "ocr", mkstream=True)
    for _ in range(7):
        client.xadd("stream", {"page": 1})
    client.xreadgroup("ocr", "gpu-0", {"stream": ">"}, count=3)


@pytest.mark.make_e2e
@pytest.mark.parametrize(
    ("queue", "found"),
    [
        ("plain", (5, 0)),
        ("plain?processing=doing", (5, 2)),
        ("celery?kind=celery", (4, 2)),
        ("ocr?kind=rq", (4, 1)),
        ("ocr?kind=bullmq", (8, 1)),
        ("stream?kind=stream&group=ocr", (4, 3)),
        ("nothing", (0, 0)),
    ],
)
def test_a_real_redis_tells(server: Any, queue: str, found: tuple[int, int]) -> None:
    fill(server)
    port = server.connection_pool.connection_kwargs["port"]
    seen = look(parse_address(f"redis://:s3cret@127.0.0.1:{port}/3/{queue}"))
    assert (seen["ready"], seen["unacknowledged"], seen["kind"]) == (*found, "redis")
