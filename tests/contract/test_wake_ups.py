"""A wake-up arrives at its instant or within a second after it, never before."""

from collections.abc import Callable, Iterator
from datetime import datetime
from unittest.mock import patch

import boto3
import pytest
from moto import mock_aws
from moto.sqs import models

from spotkeeper.adapters.wake_ups import TurnQueue
from spotkeeper.ports import Gone, WakeUps
from spotkeeper_lab.fakes import FakeWakeUps, instant

type Due = Callable[[datetime], int]
"""Count the wake-ups that have arrived by an instant, and remove them."""


@pytest.fixture(params=["fake", "moto"])
def wake_ups(request: pytest.FixtureRequest) -> Iterator[tuple[WakeUps, Due]]:
    if request.param == "fake":
        fake = FakeWakeUps()
        yield fake, lambda now: fake.take((now - instant(0)).total_seconds())
        return
    with mock_aws():
        yield from _moto()


def _moto() -> Iterator[tuple[WakeUps, Due]]:
    sqs = boto3.client("sqs", region_name="us-east-1")
    url = sqs.create_queue(QueueName="wake-ups")["QueueUrl"]
    clock = [instant(0)]

    def due(now: datetime) -> int:
        clock[0] = now
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for message in found:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return len(found)

    with (
        patch.object(models, "unix_time_millis", lambda: 1000 * clock[0].timestamp()),
        patch.object(models, "unix_time", lambda: clock[0].timestamp()),
    ):
        yield TurnQueue(lambda: sqs, url), due


@pytest.mark.parametrize(
    ("asked_s", "early_s", "by_s"),
    [(30, 29, 30), (29.2, 29.1, 30), (0.4, 0.3, 1), (899.5, 899.4, 900)],
)
def test_a_wake_up_comes_once_and_not_too_early(
    wake_ups: tuple[WakeUps, Due], asked_s: float, early_s: float, by_s: float
) -> None:
    port, due = wake_ups
    port.at("ocr", instant(asked_s), instant(0), 1)
    assert due(instant(early_s)) == 0
    assert due(instant(by_s)) == 1
    assert due(instant(by_s + 3600)) == 0


@pytest.mark.parametrize("asked_s", [0, -60])
def test_an_instant_that_is_over_is_now(wake_ups: tuple[WakeUps, Due], asked_s: float) -> None:
    port, due = wake_ups
    port.at("ocr", instant(asked_s), instant(0), 1)
    assert due(instant(0.1)) == 1


def test_what_is_further_off_than_the_queue_can_delay_comes_sooner(
    wake_ups: tuple[WakeUps, Due],
) -> None:
    port, due = wake_ups
    port.at("ocr", instant(2000), instant(0), 1)
    assert due(instant(900)) == 1


def test_each_wake_up_is_one_turn(wake_ups: tuple[WakeUps, Due]) -> None:
    port, due = wake_ups
    for at_s in (10, 20, 20):
        port.at("ocr", instant(at_s), instant(0), 1)
    assert due(instant(10)) == 1
    assert due(instant(20)) == 2


@mock_aws
def test_a_queue_that_is_not_there_is_an_error_of_the_fleet() -> None:
    sqs = boto3.client("sqs", region_name="us-east-1")
    port = TurnQueue(lambda: sqs, "https://sqs.us-east-1.amazonaws.com/123456789012/none")
    with pytest.raises(Gone, match="asking for a turn of ocr"):
        port.at("ocr", instant(30), instant(0), 1)
