"""What every counter of request queues does, in memory and on SQS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.request_queues import DELAYED, IN_FLIGHT, WAITING, SqsRequestQueues
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import FleetError, Gone, Refused, RequestQueues, Throttled, Unavailable
from spotkeeper_lab.fakes.request_queues import FakeRequestQueues

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


@dataclass
class Filled:
    """A queue of the port, and what puts so many messages into it."""

    port: RequestQueues
    fill: Callable[[int, int], None] = field(default=lambda waiting, in_flight: None)


@pytest.fixture(params=["memory", "sqs"])
def queue(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """Each kind of counter, its queue empty."""
    if request.param == "memory":
        fake = FakeRequestQueues()
        fake.lengths[URL] = QueueLength(waiting=0, in_flight=0)

        def set_length(waiting: int, in_flight: int) -> None:
            fake.lengths[URL] = QueueLength(waiting=waiting, in_flight=in_flight)

        yield Filled(fake, set_length)
        return
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1")
        assert sqs.create_queue(QueueName="requests")["QueueUrl"] == URL

        def send(waiting: int, in_flight: int) -> None:
            for _ in range(in_flight):
                sqs.send_message(QueueUrl=URL, MessageBody="in flight")
                sqs.receive_message(QueueUrl=URL)
            for number in range(waiting):
                # A delayed message waits as well.
                sqs.send_message(QueueUrl=URL, MessageBody="waits", DelaySeconds=60 * (number % 2))

        yield Filled(SqsRequestQueues(lambda: sqs), send)


def test_an_empty_queue_is_empty(queue: Filled) -> None:
    assert queue.port.length(URL).empty


def test_waiting_delayed_and_received_messages_are_counted(queue: Filled) -> None:
    queue.fill(4, 2)
    length = queue.port.length(URL)
    assert length == QueueLength(waiting=4, in_flight=2)
    assert not length.empty


def test_a_queue_that_is_not_there_is_gone(queue: Filled) -> None:
    with pytest.raises(Gone, match=r"reading the request queue .*/other"):
        queue.port.length(URL.replace("requests", "other"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDenied", Refused),
        ("AccessDeniedException", Refused),
        ("RequestThrottled", Throttled),
        ("ThrottlingException", Throttled),
        ("QueueDoesNotExist", Gone),
        ("InvalidAddress", Gone),
        ("InternalError", Unavailable),
    ],
)
def test_what_sqs_refuses_has_a_name(code: str, error: type[FleetError]) -> None:
    client = boto3.client("sqs", region_name="us-east-1")
    with Stubber(client) as stub:
        stub.add_client_error("get_queue_attributes", code, "no")
        with pytest.raises(error, match=f"reading the request queue {URL}: {code}: no"):
            SqsRequestQueues(lambda: client).length(URL)


def test_one_call_asks_for_three_counts() -> None:
    client: Any = boto3.client("sqs", region_name="us-east-1")
    names = [WAITING, DELAYED, IN_FLIGHT]
    with Stubber(client) as stub:
        stub.add_response(
            "get_queue_attributes",
            {"Attributes": dict(zip(names, "123", strict=True))},
            {"QueueUrl": URL, "AttributeNames": names},
        )
        length = SqsRequestQueues(lambda: client).length(URL)
        stub.assert_no_pending_responses()
    assert length == QueueLength(waiting=3, in_flight=3)


def test_no_client_is_made_before_a_queue_is_looked_at() -> None:
    def never() -> Any:
        raise ClientError({}, "made")

    SqsRequestQueues(never)
