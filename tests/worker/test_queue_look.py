"""The agent looks at the request queue of a broker of one's own, and tells what it saw."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from spotkeeper_worker.agent.queue_look import LookFailed, look, parse_address
from spotkeeper_worker.testing import until
from spotkeeper_worker.times import as_text
from tests.worker import brokers
from tests.worker.brokers import Queue, Rabbit, broker, queue
from tests.worker.management import TOLD, Manage, manage

__all__ = ["broker", "manage", "queue"]
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
AT = 1_795_300_000.0


def test_a_look_counts_what_waits_and_what_is_served(manage: Manage) -> None:
    found = look(parse_address(manage(200, json.dumps(TOLD))), lambda: AT)
    named = {"vhost": "/", "name": "requests", "at": as_text(AT)}
    assert found == {**named, "ready": 5, "unacknowledged": 2}


@pytest.mark.parametrize(("status", "body", "why"), [
    (401, "", "refuses the user me, or its tag `monitoring`"),
    (404, "", "the queue requests in the vhost / of"),
    (503, "", "the management API answered 503"),
    (200, "<html>", "answered no JSON object"),
    (200, "[1]", "answered no JSON object"),
    (200, "{}", "does not know its number of messages"),
    (200, json.dumps(TOLD | {"type": "stream"}), "is a stream, which keeps what was served"),
    (200, json.dumps(TOLD | {"messages_ready": None}), "does not know its number"),
    (200, json.dumps(TOLD | {"messages_unacknowledged": "2"}), "does not know its number"),
])  # fmt: skip
def test_a_failed_look_at_rabbitmq_is_explained(
    manage: Manage, status: int, body: str, why: str
) -> None:
    with pytest.raises(LookFailed, match=why) as failed:
        look(parse_address(manage(status, body)))
    assert "s3cret" not in str(failed.value)


def test_a_broker_that_is_down_is_named() -> None:
    with pytest.raises(LookFailed, match=r"requests in the vhost / of 127\.0\.0\.1:9: "):
        look(parse_address("http://127.0.0.1:9/%2F/requests"))


@pytest.mark.parametrize(("url", "where", "vhost", "name", "kind"), [
    ("https://h:1/%2F/q", "https://h:1/api/queues/%2F/q", "/", "q", "rabbitmq"),
    ("http://u:p@h/ocr/ü", "http://h/api/queues/ocr/%C3%BC", "ocr", "ü", "rabbitmq"),
    ("https://h/at/%2F/a%2Fb", "https://h/at/api/queues/%2F/a%2Fb", "/", "a/b", "rabbitmq"),
    ("redis://h/0/celery?kind=celery", "h:6379", "0", "celery", "celery"),
    ("rediss://u:p%40@h:1/2/a%2Fb", "h:1", "2", "a/b", "list"),
    ("redis://h/0/s?kind=stream&group=g", "h:6379", "0", "s", "stream"),
])  # fmt: skip
def test_an_address_names_a_queue(url: str, where: str, vhost: str, name: str, kind: str) -> None:
    it = parse_address(url)
    assert (it.url or it.host, it.vhost, it.queue, it.kind) == (where, vhost, name, kind)
    if url.startswith("rediss"):
        assert (it.user, it.password, it.tls) == ("u", "p@", True)


@pytest.mark.parametrize("url", [
    "amqp://h/%2F/q", "https://h/q", "https://h//q", "https://h", "https://h:x/%2F/q", "",
    "redis://h/celery", "redis://h/0/", "redis:///0/q", "redis://h/0/q?kind=sidekiq",
    "redis://h/0/q?kind=stream", "https://me:s3cret/@h/%2F/q", "https://[s3cret]@h/%2F/q",
    "redis://h/0/q?kind=celery&steps=1,b", "redis://h/0/q?colour=red", "redis://h:x/0/q",
])  # fmt: skip
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"15671/VHOST/QUEUE|redis://USER|kind") as refused:
        parse_address(url)
    assert "s3cret" not in str(refused.value)


Says = Callable[[bytes], str]


@pytest.fixture
def says() -> Iterator[Says]:
    """Start a server that answers every command with the same bytes."""
    with ExitStack() as ending:

        def start(answer: bytes) -> str:
            class Handler(BaseRequestHandler):
                def handle(self) -> None:
                    while self.request.recv(65_536):
                        self.request.sendall(answer)
                        if answer.endswith(b"!"):
                            return

            server = ending.enter_context(TCPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            ending.callback(thread.join, 60)
            return f"redis://me:s3cret@127.0.0.1:{server.server_address[1]}/1/q"

        yield start


@pytest.mark.parametrize(("answer", "why"), [
    (b"-WRONGPASS invalid username-password pair\r\n", "RedisError WRONGPASS"),
    (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Redis"),
    (b"$-1\r\n", "does not know the length"),
    (b":-99\r\n", "does not know the length"),
    (b"$99999999\r\n", "an answer of 99999999 bytes"),
    (b"bye!", "closed the connection"),
])  # fmt: skip
def test_a_failed_look_at_redis_is_explained(says: Says, answer: bytes, why: str) -> None:
    with pytest.raises(LookFailed, match=why) as failed:
        look(parse_address(says(answer)))
    assert "s3cret" not in str(failed.value)
    assert "the queue q in the database 1 of 127.0.0.1" in str(failed.value)


# --- the real thing -------------------------------------------------------------------------------


def management(broker: Rabbit, queue: Queue, password: str = "guest") -> str:
    host = broker.management_url.removeprefix("http://")
    return f"http://guest:{password}@{host}/%2F/{queue.name}"


@pytest.mark.parametrize("queue", ["requests", "anfragen-ü-日本"], indirect=True)
def test_a_real_rabbitmq_gives_both_counts(broker: Rabbit, queue: Queue) -> None:
    for number in range(5):
        queue.send(b"work", message_id=str(number))
    held = [queue.channel.basic_get(queue.name) for _ in range(2)]
    assert all(method is not None for method, *_ in held)
    address = parse_address(management(broker, queue))

    def sees() -> bool:
        # For its first seconds the queue is not known, or known to be empty: decision 5.
        try:
            found = look(address)
        except LookFailed:
            return False
        return (found["ready"], found["unacknowledged"]) == (3, 2)

    until(sees, "the broker tells")


def test_a_real_broker_refuses_by_name(broker: Rabbit, queue: Queue) -> None:
    with pytest.raises(LookFailed, match="refuses the user guest"):
        look(parse_address(management(broker, queue, "wrong")))
    gone = management(broker, queue) + "-gone"
    with pytest.raises(LookFailed, match="does not exist, or guest may not see it"):
        look(parse_address(gone))


@pytest.fixture(scope="module")
def in_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
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
    client.sadd("_kombu.binding.celery", "celery\x06\x16\x06\x16celery")
    client.hset("unacked", mapping={"a": 1, "b": 2})
    client.rpush("rq:queue:ocr", *range(4))
    client.zadd("rq:wip:ocr", {"a": 1})
    ages = {"due": 60.0, "later": -60.0, "forgotten": 7200.0}
    times = {job: time.time() - age for job, age in ages.items()}
    client.zadd("rq:scheduled:ocr", times)
    client.rpush("bull:ocr:wait", *range(6))
    client.zadd("bull:ocr:prioritized", {"a": 1, "b": 2})
    client.rpush("bull:ocr:active", "a")
    client.zadd("bull:ocr:delayed", {job: at * 4_096_000 for job, at in times.items()})
    client.xgroup_create("stream", "ocr", mkstream=True)
    for _ in range(7):
        client.xadd("stream", {"page": 1})
    client.xreadgroup("ocr", "gpu-0", {"stream": ">"}, count=3)


LARGE = "redis.call('XADD','stream','*','a',string.rep('x',3000000))"
OCR, READ = "stream?kind=stream&group=ocr", "XREADGROUP GROUP ocr c NOACK STREAMS stream >"


@pytest.mark.make_e2e
@pytest.mark.parametrize(("queue", "found", "after"), [
    ("plain", (5, 0), ""),
    ("plain?processing=doing", (5, 2), ""),
    ("celery?kind=celery", (4, 2), ""),
    ("ocr?kind=rq", (5, 1), ""),
    ("ocr?kind=rq", (0, 1), "SET rq:suspended 1"),
    ("ocr?kind=bullmq", (10, 1), ""),
    ("ocr?kind=bullmq", (0, 1), "HSET bull:ocr:meta paused 1"),
    (OCR, (4, 3), ""),
    # Redis knows no lag, or a wrong one: redis/redis#13957, valkey-io/valkey#1951.
    (OCR, (1, 3), "XTRIM stream MAXLEN 1"),
    (OCR, (0, 3), f"XTRIM stream MAXLEN 1; {READ}"),
    (OCR, (1, 3), f"XTRIM stream MAXLEN 1; {READ}; XADD stream * a 1"),
    (OCR, (1, 3), "XGROUP SETID stream ocr $; XADD stream * a 1"),
    (OCR, (100, 3), "XGROUP SETID stream ocr $" + "; XADD stream * a 1" * 150),
    (OCR, (154, 3), "PING" + "; XADD stream * a 1" * 150),
    (OCR, (5, 3), f"EVAL {LARGE} 0"),
    (OCR, (1, 3), f"EVAL {LARGE} 0; XTRIM stream MAXLEN 1"),
    ("nothing", (0, 0), ""),
])  # fmt: skip
def test_a_real_redis_gives_both_counts(
    in_redis: Any, queue: str, found: tuple[int, int], after: str
) -> None:
    """A job that is due waits, as only a worker moves it; in a paused queue none does."""
    fill(in_redis)
    for command in (after or "PING").split("; "):
        in_redis.execute_command(*command.split())
    port = in_redis.connection_pool.connection_kwargs["port"]
    seen = look(parse_address(f"redis://:s3cret@127.0.0.1:{port}/3/{queue}"))
    assert (seen["ready"], seen["unacknowledged"], seen["kind"]) == (*found, "redis")


LAYOUTS: list[tuple[dict[str, Any], str, int | str]] = [
    ({}, "", 10),
    ({"priority_steps": list(range(10))}, "", 10),
    ({"priority_steps": list(range(10)), "sep": ":", "queue_order_strategy": "priority"},
     "&sep=:", 10),
    ({"priority_steps": [0, 5, 250, 900], "sep": "--"}, "&sep=--&steps=900", 10),
    ({"priority_steps": [0, 255]}, "", 10),
    ({"global_keyprefix": "shop:"}, "&prefix=shop:", 10),
    ({"global_keyprefix": "shop:", "sep": "\x1f"}, "&prefix=shop:&sep=%1F", 10),
    # An unknown layout is refused, and not counted as empty.
    ({"sep": ":"}, "", "have another sep"),
    ({"priority_steps": list(range(10)), "sep": ":"}, "&sep=%7C", "have another sep"),
    ({"global_keyprefix": "shop:"}, "", "nobody has declared"),
    ({}, "&exchange=other", "nobody has declared"),
    ({}, "&prefix=shop:", "nobody has declared"),
]  # fmt: skip


@pytest.mark.make_e2e
@pytest.mark.parametrize(("options", "given", "found"), LAYOUTS)
@pytest.mark.parametrize("priorities", [range(10), [5] * 10], ids=["each", "one"])
def test_every_task_of_celery_is_counted_or_the_look_is_refused(
    in_redis: Any, options: dict[str, Any], given: str, found: int | str, priorities: Any
) -> None:
    """With Celery itself, which writes its keys as broker_transport_options say."""
    in_redis.flushall()
    # kombu remembers what it has declared over a connection.
    pools.reset()  # type: ignore[no-untyped-call]
    port = in_redis.connection_pool.connection_kwargs["port"]
    url = f"redis://:s3cret@127.0.0.1:{port}/3"
    with Celery("shop", broker=url, set_as_current=False) as app:
        app.conf.broker_transport_options = options
        for priority in priorities:
            app.send_task("t", priority=priority)
    address = parse_address(f"{url}/celery?kind=celery{given}")
    if isinstance(found, str):
        with pytest.raises(LookFailed, match=found):
            look(address)
        return
    assert look(address)["ready"] == found


@pytest.mark.make_e2e
def test_a_user_without_smembers_names_the_layout(in_redis: Any) -> None:
    fill(in_redis)
    in_redis.acl_setuser(
        "watcher", enabled=True, passwords=["+s3cret"], keys=["*"],
        commands=["+llen", "+hlen", "+select"],
    )  # fmt: skip
    port = in_redis.connection_pool.connection_kwargs["port"]
    url = f"redis://watcher:s3cret@127.0.0.1:{port}/3/celery?kind=celery"
    with pytest.raises(LookFailed, match="allow SMEMBERS, or give sep="):
        look(parse_address(url))
    assert look(parse_address(url + "&sep=%06%16"))["ready"] == 4
