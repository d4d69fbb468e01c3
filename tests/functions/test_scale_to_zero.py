"""A fleet falls asleep and wakes on the first request: check_health on moto, its queue on SQS."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from celery import Celery

from functions.check_health.app import handler
from functions.collect_search_logs.app import handler as collect
from spotkeeper import wiring
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_worker.agent.queue_look import look, parse_address
from tests.builders import at
from tests.functions.conftest import Metrics, StageOf, document
from tests.functions.test_collect_search_logs import record
from tests.search_logs import packed
from tests.worker.brokers import redis

if TYPE_CHECKING:
    from collections.abc import Callable

PROMISE = {"wait_s": 10, "share": 0.95}
START_S, COLD_START_S = 600, 240


class Quiet:
    """A fleet of two spot instances, its request queue, and a minute hand.

    Without a `url` the queue is on SQS. `look` happens some seconds before each turn.
    """

    def __init__(self, stage_of: StageOf, url: str = "", objective: object = PROMISE) -> None:
        self.stage = stage_of(("ocr",), desired=2, physics=Physics(cold_start_s=COLD_START_S))
        self.minute, self.sqs = 0, boto3.client("sqs")
        self.url = url or self.sqs.create_queue(QueueName="requests")["QueueUrl"]
        told = document("ocr", request_queue_url=self.url, objective=objective)
        self.stage.put("ocr", json.dumps(told))
        self.stage.restart()
        self.look: Callable[[datetime], object] = lambda at: None

    @property
    def desired(self) -> int:
        """The spot group's desired capacity."""
        return self.stage.cloud.group("ocr-spot").desired

    @property
    def record(self) -> dict[str, Any]:
        return self.stage.records("ocr")[-1]

    def turns(self, minutes: int, *, busy: bool = False) -> None:
        """Let minutes pass, in which each instance serves or not, with a turn at each end."""
        for _ in range(minutes):
            self.minute += 1
            self.look(at(START_S + 60 * self.minute - 20))
            self.stage.at(START_S + 60 * self.minute)
            if busy:
                self.stage.serve("ocr", 6.0, 1)
            self.stage.call(handler)

    def send(self) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody="{}")


@pytest.fixture
def quiet(request: pytest.FixtureRequest, stage_of: StageOf) -> Quiet:
    """The fleet, sized to a promise where a test does not say otherwise."""
    return Quiet(stage_of, objective=getattr(request, "param", PROMISE))


@pytest.mark.parametrize(
    "quiet", [PROMISE, {"wait_s": 0, "share": 0.95}], ids=["objective", "load rate"], indirect=True
)
def test_to_zero_after_a_quiet_time_and_back_on_the_first_request(
    quiet: Quiet, metrics: Metrics
) -> None:
    quiet.turns(6, busy=True)
    metrics("ocr")
    quiet.turns(9)
    assert quiet.desired >= 1
    assert {"StaleSearchLogs", "RequestQueueUnread", "RequestsQueued"}.isdisjoint(metrics("ocr"))
    seen = quiet.record["health"]
    assert seen["requests_queued"] == seen["requests_in_flight"] == 0
    quiet.turns(1)
    assert (quiet.desired, quiet.record["rule"]) == (0, "quiet")
    assert "-> 0. No request for 600 s, nothing waits or is in flight" in quiet.record["reason"]
    quiet.turns(20)
    assert quiet.desired == 0
    assert quiet.record["alarms"] == []
    quiet.send()
    quiet.turns(1)
    assert (quiet.desired, quiet.record["rule"]) == (1, "wake")
    assert metrics("ocr")["RequestsQueued"] == 1
    quiet.turns(3)
    assert (quiet.desired, quiet.record["alarms"]) == (1, [])
    quiet.turns(1)
    assert [i.state for i in quiet.stage.cloud.group("ocr-spot").instances] == ["InService"]
    quiet.sqs.purge_queue(QueueUrl=quiet.url)
    quiet.turns(1, busy=True)
    assert quiet.desired in (1, 2)  # the one request ran for long: a second would wait for it
    quiet.turns(10)
    assert quiet.desired == 0


def test_a_fleet_whose_agent_went_silent_does_not_sleep(stage_of: StageOf) -> None:
    """Its queue is on a broker of its own, at which an agent looks."""
    quiet = Quiet(stage_of, "rabbitmq://%2F/requests")

    def look(seen_at: datetime) -> None:
        length = QueueLength(waiting=0, in_flight=0, seen_at=seen_at)
        wiring.queue_looks().keep({quiet.url: length})

    quiet.look = look
    quiet.turns(6, busy=True)
    quiet.turns(2)
    quiet.look = lambda at: None
    quiet.turns(15)
    assert quiet.desired >= 1
    assert "no agent has reported its length for" in quiet.record["reason"]
    assert "request-queue-unread" in quiet.record["alarms"]


@pytest.mark.make_e2e
@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server here")
def test_a_redis_fleet_sleeps_and_wakes(stage_of: StageOf, tmp_path: Path) -> None:
    """Its tasks are Celery's on a real Redis, at which a real agent's code looks."""
    with redis(tmp_path) as broker, Celery(broker=broker) as celery:
        quiet, address = Quiet(stage_of, "redis://0/celery"), f"{broker}/celery?kind=celery"
        with celery.connection_for_write() as connection:
            # As a worker does when it starts.
            celery.amqp.queues["celery"](connection.default_channel).declare()

        def shipped(sent_at: datetime) -> None:
            told = {"queue": look(parse_address(address), sent_at.timestamp)}
            body = packed(json.dumps({"version": 1, "agent": told}))
            answer = quiet.stage.call(collect, {"Records": [record("a", body, sent_at)]})
            assert answer == {"batchItemFailures": []}

        quiet.look = shipped
        quiet.turns(6, busy=True)
        quiet.turns(11)
        assert quiet.desired == 0
        celery.send_task("ocr.page")
        quiet.turns(1)
        assert (quiet.desired, quiet.record["rule"]) == (1, "wake")
        quiet.turns(4)
        with celery.connection_for_read() as connection:
            (message,) = [connection.SimpleQueue("celery").get(timeout=5)]
            # A worker has it: nothing waits, and yet the fleet stays.
            quiet.turns(12)
            assert quiet.desired == 1
            assert quiet.record["health"]["requests_in_flight"] == 1
            message.ack()
            quiet.turns(12)
            assert quiet.desired == 0


def test_the_first_requests_after_a_night_ring_no_alarm_unless_no_log_follows(quiet: Quiet) -> None:
    """The first worker takes one while the others wait; its log is a service and a minute away."""
    quiet.turns(6, busy=True)
    quiet.turns(60)
    for _ in range(3):
        quiet.send()
    quiet.turns(5)
    assert quiet.desired >= 1
    quiet.sqs.receive_message(QueueUrl=quiet.url, VisibilityTimeout=43_200)
    rings = []
    for _ in range(10):
        quiet.turns(1)
        rings.append("nobody-serves" in quiet.record["alarms"])
    assert rings == [False] * 2 + [True] * 8


def test_a_queue_that_cannot_be_read_holds_rings_and_is_named(
    quiet: Quiet, metrics: Metrics
) -> None:
    quiet.turns(6, busy=True)
    quiet.sqs.delete_queue(QueueUrl=quiet.url)
    metrics("ocr")
    quiet.turns(1, busy=True)
    assert "the request queue is not known (Gone: reading the" in quiet.record["reason"]
    assert quiet.record["alarms"] == ["request-queue-unread"]
    assert quiet.record["unread"][0].startswith("request queue: Gone: reading the")
    quiet.turns(14)
    assert quiet.desired >= 1
    assert quiet.record["rule"] == "stale search logs"
    told = metrics("ocr")
    assert told["RequestQueueUnread"] == told["StaleSearchLogs"] == 1
    assert "RequestsQueued" not in told
