"""A wake-up arrives at its instant or within a second after it, never before."""

from collections.abc import Callable, Iterator
from unittest.mock import patch

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws
from moto.sqs import models

from spotkeeper.adapters.wake_ups import TurnQueue
from spotkeeper.ports import Gone, Unavailable, WakeUps
from spotkeeper_lab.fakes import FakeWakeUps, instant

type Due = Callable[[float], int]
"""Count the wake-ups that have arrived by a second, and remove them."""


@pytest.fixture(params=["fake", "moto"])
def wake_ups(request: pytest.FixtureRequest) -> Iterator[tuple[WakeUps, Due]]:
    if request.param == "fake":
        fake = FakeWakeUps()
        yield fake, fake.take
        return
    now_s = [0.0]

    def due(by_s: float) -> int:
        now_s[0] = by_s
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for message in found:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return len(found)

    with (
        mock_aws(),
        patch.object(models, "unix_time_millis", lambda: 1000 * instant(now_s[0]).timestamp()),
        patch.object(models, "unix_time", lambda: instant(now_s[0]).timestamp()),
    ):
        sqs = boto3.client("sqs", region_name="us-east-1")
        url = sqs.create_queue(QueueName="wake-ups")["QueueUrl"]
        yield TurnQueue(lambda: sqs, url), due


@pytest.mark.parametrize(
    ("asked_s", "arrived"),
    [
        # Wake-ups by second.
        ([30], {29: 0, 30: 1, 3600: 0}),
        ([29.2], {29.1: 0, 30: 1}),
        ([0.4], {0.3: 0, 1: 1}),
        ([899.5], {899.4: 0, 900: 1}),
        # What is over is now; what is further off than the queue can delay arrives sooner.
        ([0], {0.1: 1}),
        ([-60], {0.1: 1}),
        ([2000], {900: 1}),
        ([10, 20, 20], {10: 1, 20: 2}),
    ],
)
def test_each_wake_up_comes_once_and_not_too_early(
    wake_ups: tuple[WakeUps, Due], asked_s: list[float], arrived: dict[float, int]
) -> None:
    port, due = wake_ups
    for at_s in asked_s:
        port.at("ocr", instant(at_s), instant(0), 1)
    assert {by_s: due(by_s) for by_s in arrived} == arrived


@mock_aws
def test_a_queue_that_is_not_there_is_an_error_of_the_fleet() -> None:
    sqs = boto3.client("sqs", region_name="us-east-1")
    port = TurnQueue(lambda: sqs, "https://sqs.us-east-1.amazonaws.com/123456789012/none")
    with pytest.raises(Gone, match="asking for a turn of ocr"):
        port.at("ocr", instant(30), instant(0), 1)


def test_fleets_that_the_queue_does_not_take_are_an_error() -> None:
    sqs = boto3.client("sqs", region_name="us-east-1")
    failed = {"Id": "0", "SenderFault": False, "Code": "InternalError", "Message": "again"}
    port = TurnQueue(lambda: sqs, "https://sqs.us-east-1.amazonaws.com/123456789012/health")
    with Stubber(sqs) as stub, pytest.raises(Unavailable, match="InternalError: again"):
        stub.add_response("send_message_batch", {"Successful": [], "Failed": [failed]})
        port.hand_on([["ocr"]], instant(0))
