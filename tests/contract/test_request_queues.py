"""What every counter of request queues does, in memory and on SQS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.request_queues import (
    AgentRequestQueues,
    AmazonMqRequestQueues,
    EveryRequestQueue,
    SqsRequestQueues,
)
from spotkeeper.domain.load.request_queue import QueueLength, QueueLook
from spotkeeper.ports import FleetError, Gone, Refused, RequestQueues, Throttled, Unavailable
from spotkeeper_lab.fakes import FakeRequestQueues
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


@dataclass
class Filled:
    """A queue of the port, and a function that fills it with messages."""

    port: RequestQueues
    fill: Callable[[int, int, int], None] = field(default=lambda waiting, in_flight, delayed: None)


@pytest.fixture(params=["memory", "sqs"])
def queue(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """Each kind of counter, its queue empty."""
    if request.param == "memory":
        fake = FakeRequestQueues()
        fake.lengths[URL] = QueueLength(waiting=0, in_flight=0)

        def set_length(waiting: int, in_flight: int, delayed: int) -> None:
            fake.lengths[URL] = QueueLength(waiting=waiting, in_flight=in_flight, delayed=delayed)

        yield Filled(fake, set_length)
        return
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1")
        assert sqs.create_queue(QueueName="requests")["QueueUrl"] == URL

        def send(waiting: int, in_flight: int, delayed: int) -> None:
            for _ in range(in_flight):
                sqs.send_message(QueueUrl=URL, MessageBody="in flight")
                sqs.receive_message(QueueUrl=URL)
            for delay_s in (*[0] * waiting, *[60] * delayed):
                sqs.send_message(QueueUrl=URL, MessageBody="waits", DelaySeconds=delay_s)

        yield Filled(SqsRequestQueues(lambda: sqs), send)


def test_an_empty_queue_is_empty(queue: Filled) -> None:
    assert queue.port.length(URL).empty


def test_waiting_delayed_and_received_messages_are_counted(queue: Filled) -> None:
    queue.fill(4, 2, 3)
    length = queue.port.length(URL)
    assert length == QueueLength(waiting=4, in_flight=2, delayed=3)
    assert not length.empty


def test_a_queue_of_delayed_messages_is_not_empty(queue: Filled) -> None:
    queue.fill(0, 0, 1)
    assert not queue.port.length(URL).empty


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


def test_no_client_is_made_before_a_queue_is_looked_at() -> None:
    def never() -> Any:
        raise ClientError({}, "made")

    SqsRequestQueues(never)


# --- Amazon MQ ------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
BROKERS_QUEUE = f"amazon-mq://ocr/%2F/{quote('anfragen-ü')}"


def amazon_mq(ready: list[float], unacknowledged: list[float], late: int = 0) -> EveryRequestQueue:
    """Have CloudWatch answer these figures, newest first, to the one question that is right.

    It lacks those of the last `late` minutes of what is unacknowledged.
    """
    cloudwatch = boto3.client("cloudwatch", region_name="us-east-1")
    dimensions = [
        {"Name": "Broker", "Value": "ocr"},
        {"Name": "VirtualHost", "Value": "/"},
        {"Name": "Queue", "Value": "anfragen-ü"},
    ]
    queries = [
        {
            "Id": name,
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/AmazonMQ",
                    "MetricName": metric,
                    "Dimensions": dimensions,
                },
                "Period": 60,
                "Stat": "Maximum",
            },
        }
        for name, metric in (
            ("ready", "MessageReadyCount"),
            ("unacked", "MessageUnacknowledgedCount"),
        )
    ]
    asked = {
        "MetricDataQueries": queries,
        "StartTime": datetime(2026, 11, 20, 9, 55, tzinfo=UTC),
        "EndTime": NOW,
        "ScanBy": "TimestampDescending",
    }
    results = [
        {
            "Id": name,
            "Values": values,
            "Timestamps": [NOW - timedelta(minutes=n + after) for n in range(len(values))],
        }
        for name, values, after in (("ready", ready, 0), ("unacked", unacknowledged, late))
    ]
    stubber = Stubber(cloudwatch)
    stubber.add_response("get_metric_data", {"MetricDataResults": results}, asked)
    stubber.activate()
    queues = AmazonMqRequestQueues(lambda: cloudwatch, lambda: NOW)
    agents = AgentRequestQueues(boto3.client("dynamodb", region_name="us-east-1"), "t", lambda: NOW)
    return EveryRequestQueue(SqsRequestQueues(lambda: boto3.client("sqs")), queues, agents)


def test_amazon_mq_is_ready_and_unacknowledged() -> None:
    length = amazon_mq([7.0, 9.0], [2.0, 0.0]).length(BROKERS_QUEUE)
    assert length == QueueLength(waiting=7, in_flight=2)


def test_figures_of_two_minutes_are_not_taken_for_an_empty_queue() -> None:
    """A worker took the only message: the minute in which it holds it is not there yet."""
    length = amazon_mq([0.0, 1.0], [0.0, 0.0], late=1).length(BROKERS_QUEUE)
    assert length == QueueLength(waiting=1, in_flight=0)


@pytest.mark.parametrize(("ready", "unacknowledged"), [([], []), ([0.0], []), ([], [0.0])])
def test_figures_that_are_missing_are_not_zero(
    ready: list[float], unacknowledged: list[float]
) -> None:
    with pytest.raises(Unavailable, match="no figures of the last five minutes"):
        amazon_mq(ready, unacknowledged).length(BROKERS_QUEUE)


# --- A broker of one's own, by the looks of its agents --------------------------------------------

OWN_QUEUE = "rabbitmq://%2F/requests"


@pytest.fixture
def agents(dynamodb: "DynamoDBClient") -> AgentRequestQueues:
    """What agents tell, on a table of moto's, at NOW."""
    return AgentRequestQueues(dynamodb, TABLE, lambda: NOW)


def seen(ago_s: float, waiting: int, in_flight: int = 0, url: str = OWN_QUEUE) -> QueueLook:
    at = NOW - timedelta(seconds=ago_s)
    return QueueLook(url=url, length=QueueLength(waiting=waiting, in_flight=in_flight, seen_at=at))


def test_the_newest_look_counts_in_whichever_order_they_come(agents: AgentRequestQueues) -> None:
    agents.keep([seen(20, 7, 2)])
    agents.keep([seen(50, 9)])
    agents.keep([seen(20, 7, 2)])
    assert agents.length(OWN_QUEUE) == seen(20, 7, 2).length


def test_an_old_look_is_none(agents: AgentRequestQueues) -> None:
    agents.keep([seen(121, 0)])
    with pytest.raises(Unavailable, match="no agent has reported its length for 121 s"):
        agents.length(OWN_QUEUE)


def test_a_queue_that_nobody_looks_at_is_not_empty(agents: AgentRequestQueues) -> None:
    with pytest.raises(Unavailable, match="SPOTKEEPER_REQUEST_QUEUE"):
        agents.length(OWN_QUEUE)


@pytest.mark.parametrize("named", [f"ocr/{quote('anfragen-ü')}", "ocr/anfragen-ü"])
def test_a_queue_is_one_however_it_is_quoted(agents: AgentRequestQueues, named: str) -> None:
    agents.keep([seen(1, 3, url=f"rabbitmq://ocr/{quote('anfragen-ü')}")])
    assert agents.length(f"rabbitmq://{named}").waiting == 3


def test_more_looks_than_a_call_takes_are_kept(agents: AgentRequestQueues) -> None:
    agents.keep([seen(1, n, url=f"rabbitmq://%2F/q{n}") for n in range(30)])
    assert agents.length("rabbitmq://%2F/q29").waiting == 29
