"""The agent looks at the request queue of a broker of one's own, and tells what it saw."""

import json

import pytest

from spotkeeper_worker.agent.queue_look import LookFailed, look, parse_address
from spotkeeper_worker.testing import until
from spotkeeper_worker.times import as_text
from tests.worker.brokers import Queue, Rabbit, broker, queue
from tests.worker.management import TOLD, Manage, manage

__all__ = ["broker", "manage", "queue"]
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
AT = 1_795_300_000.0


def test_a_look_is_what_waits_and_what_is_being_served(manage: Manage) -> None:
    found = look(parse_address(manage(200, json.dumps(TOLD))), lambda: AT)
    assert found == {
        "vhost": "/",
        "name": "requests",
        "ready": 5,
        "unacknowledged": 2,
        "at": as_text(AT),
    }


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, "", "refuses the user me, or its tag `monitoring`"),
        (404, "", "the queue requests in the vhost / of"),
        (503, "", "the management API answered 503"),
        (200, "<html>", "answered no JSON object"),
        (200, "[1]", "answered no JSON object"),
        (200, "{}", "does not know its number of messages"),
        (200, json.dumps(TOLD | {"messages_ready": None}), "does not know its number"),
        (200, json.dumps(TOLD | {"messages_unacknowledged": "2"}), "does not know its number"),
    ],
)
def test_what_is_no_look_is_named(manage: Manage, status: int, body: str, why: str) -> None:
    with pytest.raises(LookFailed, match=why) as failed:
        look(parse_address(manage(status, body)))
    assert "s3cret" not in str(failed.value)


def test_a_broker_that_is_down_is_named() -> None:
    with pytest.raises(LookFailed, match=r"requests in the vhost / of 127\.0\.0\.1:9: "):
        look(parse_address("http://127.0.0.1:9/%2F/requests"))


@pytest.mark.parametrize(
    ("url", "path", "vhost", "name"),
    [
        ("https://h:15671/%2F/requests", ":15671/api/queues/%2F/requests", "/", "requests"),
        ("http://u:p@h/ocr/anfragen-ü", "/api/queues/ocr/anfragen-%C3%BC", "ocr", "anfragen-ü"),
        ("https://h/rabbit/%2F/a%2Fb", "/rabbit/api/queues/%2F/a%2Fb", "/", "a/b"),
    ],
)
def test_addresses(url: str, path: str, vhost: str, name: str) -> None:
    address = parse_address(url)
    assert (address.vhost, address.queue) == (vhost, name)
    assert address.url.endswith(f"//h{path}")


@pytest.mark.parametrize(
    "url", ["amqp://h/%2F/q", "https://h/q", "https://h//q", "https://h", "https://h:x/%2F/q", ""]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"15671/VHOST/QUEUE|[Pp]ort"):
        parse_address(url)


# --- the real thing -------------------------------------------------------------------------------


def management(broker: Rabbit, queue: Queue, password: str = "guest") -> str:
    host = broker.management_url.removeprefix("http://")
    return f"http://guest:{password}@{host}/%2F/{queue.name}"


def test_a_real_broker_tells_what_waits_and_what_is_being_served(
    broker: Rabbit, queue: Queue
) -> None:
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
