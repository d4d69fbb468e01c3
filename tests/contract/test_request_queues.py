"""What every counter of request queues does, in memory and on AWS."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import Gone, Refused, RequestQueues, Unavailable
from spotkeeper_lab.fakes import FakeRequestQueues
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)

type Filled = tuple[RequestQueues, Callable[[QueueLength], None]]


def queues(sqs: Any = None, cloudwatch: Any = None, dynamodb: Any = None) -> EveryRequestQueue:
    """The adapter at NOW, with the clients that a test is about."""

    def client(given: Any) -> Any:
        assert given, "no client is made before a queue needs it"
        return given

    sqs, cloudwatch = partial(client, sqs), partial(client, cloudwatch)
    return EveryRequestQueue(sqs, cloudwatch, dynamodb, TABLE, lambda: NOW)


@pytest.fixture(params=["memory", "sqs"])
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """Each kind of counter, and a function that fills its queue with messages."""
    if request.param == "memory":
        fake = FakeRequestQueues()
        yield fake, lambda length: fake.lengths.update({URL: length})
        return
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1")
        assert sqs.create_queue(QueueName="requests")["QueueUrl"] == URL

        def send(length: QueueLength) -> None:
            for _ in range(length.in_flight):
                sqs.send_message(QueueUrl=URL, MessageBody="in flight")
                sqs.receive_message(QueueUrl=URL)
            for delay_s in (*[0] * length.waiting, *[60] * length.delayed):
                sqs.send_message(QueueUrl=URL, MessageBody="waits", DelaySeconds=delay_s)

        yield queues(sqs=sqs), send


@pytest.mark.parametrize("counts", [(0, 0, 0), (4, 2, 3), (0, 0, 1)])
def test_waiting_delayed_and_received_messages_are_counted(
    filled: Filled, counts: tuple[int, int, int]
) -> None:
    port, fill = filled
    length = QueueLength(waiting=counts[0], in_flight=counts[1], delayed=counts[2])
    fill(length)
    assert port.length(URL) == length


def test_a_queue_that_is_not_there_is_gone(filled: Filled) -> None:
    with pytest.raises(Gone, match=r"reading the queue .*/other"):
        filled[0].length(URL.replace("requests", "other"))


def test_what_sqs_refuses_names_the_queue() -> None:
    client = boto3.client("sqs", region_name="us-east-1")
    with Stubber(client) as stub:
        stub.add_client_error("get_queue_attributes", "AccessDenied", "no")
        with pytest.raises(Refused, match=f"reading the queue {URL}: AccessDenied: no"):
            queues(sqs=client).length(URL)


# --- Amazon MQ ------------------------------------------------------------------------------------

BROKERS_QUEUE = f"amazon-mq://ocr/%2F/{quote('anfragen-ü')}"


def amazon_mq(ready: list[float], unacknowledged: list[float], late: int = 0) -> QueueLength:
    """Have CloudWatch answer these figures, newest first, to the one question that is right.

    It lacks those of the last `late` minutes of what is unacknowledged.
    """
    cloudwatch = boto3.client("cloudwatch", region_name="us-east-1")
    named = {"Broker": "ocr", "VirtualHost": "/", "Queue": "anfragen-ü"}
    metric = {
        "Namespace": "AWS/AmazonMQ",
        "Dimensions": [{"Name": name, "Value": value} for name, value in named.items()],
    }
    figures = (
        ("ready", "MessageReadyCount", ready, 0),
        ("unacked", "MessageUnacknowledgedCount", unacknowledged, late),
    )
    asked = {
        "MetricDataQueries": [
            {
                "Id": id_,
                "MetricStat": {
                    "Metric": metric | {"MetricName": name}, "Period": 60, "Stat": "Maximum",
                },
            }
            for id_, name, _, _ in figures
        ],
        "StartTime": NOW - timedelta(minutes=5),
        "EndTime": NOW,
        "ScanBy": "TimestampDescending",
    }  # fmt: skip
    results = [
        {
            "Id": id_,
            "Values": values,
            "Timestamps": [NOW - timedelta(minutes=n + after) for n in range(len(values))],
        }
        for id_, _, values, after in figures
    ]
    with Stubber(cloudwatch) as stub:
        stub.add_response("get_metric_data", {"MetricDataResults": results}, asked)
        return queues(cloudwatch=cloudwatch).length(BROKERS_QUEUE)


def test_amazon_mq_is_ready_and_unacknowledged() -> None:
    assert amazon_mq([7.0, 9.0], [2.0, 0.0]) == QueueLength(waiting=7, in_flight=2)


def test_figures_of_two_minutes_are_not_taken_for_an_empty_queue() -> None:
    """A worker took the only message: the minute in which it holds it is not there yet."""
    assert amazon_mq([0.0, 1.0], [0.0, 0.0], late=1) == QueueLength(waiting=1, in_flight=0)


@pytest.mark.parametrize(("ready", "unacknowledged"), [([], []), ([0.0], []), ([], [0.0])])
def test_figures_that_are_missing_are_not_zero(
    ready: list[float], unacknowledged: list[float]
) -> None:
    with pytest.raises(Unavailable, match="no figures of the last five minutes"):
        amazon_mq(ready, unacknowledged)


# --- A broker of one's own, by the looks of its agents --------------------------------------------

OWN_QUEUE = "rabbitmq://%2F/requests"


@pytest.fixture
def agents(dynamodb: "DynamoDBClient") -> EveryRequestQueue:
    """What agents tell, on a table of moto's."""
    return queues(dynamodb=dynamodb)


def seen(ago_s: float, waiting: int, in_flight: int = 0) -> QueueLength:
    at = NOW - timedelta(seconds=ago_s)
    return QueueLength(waiting=waiting, in_flight=in_flight, seen_at=at)


def test_the_newest_look_counts_in_any_order_of_arrival(agents: EveryRequestQueue) -> None:
    agents.keep({OWN_QUEUE: seen(20, 7, 2)})
    agents.keep({OWN_QUEUE: seen(50, 9)})
    agents.keep({OWN_QUEUE: seen(20, 7, 2)})
    assert agents.length(OWN_QUEUE) == seen(20, 7, 2)


def test_an_old_look_is_none(agents: EveryRequestQueue) -> None:
    agents.keep({OWN_QUEUE: seen(121, 0)})
    with pytest.raises(Unavailable, match="no agent has reported its length for 121 s"):
        agents.length(OWN_QUEUE)


def test_a_queue_that_nobody_looks_at_is_not_empty(agents: EveryRequestQueue) -> None:
    with pytest.raises(Unavailable, match="SPOTKEEPER_REQUEST_QUEUE"):
        agents.length(OWN_QUEUE)


@pytest.mark.parametrize("named", [f"ocr/{quote('anfragen-ü')}", "ocr/anfragen-ü"])
def test_a_queue_is_one_however_it_is_quoted(agents: EveryRequestQueue, named: str) -> None:
    agents.keep({f"rabbitmq://ocr/{quote('anfragen-ü')}": seen(1, 3)})
    assert agents.length(f"rabbitmq://{named}").waiting == 3


def test_more_looks_than_a_call_takes_are_kept(agents: EveryRequestQueue) -> None:
    agents.keep({f"rabbitmq://%2F/q{n}": seen(1, n) for n in range(30)})
    assert agents.length("rabbitmq://%2F/q29").waiting == 29
