"""The loop over an SQS queue, on moto: nothing is lost, nothing is taken twice by us."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from spotkeeper_worker import Worker
from spotkeeper_worker.sqs import Calls, Hold, _SqsLoop, serve
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.logs import Taken, say


class Stage:
    """A worker and its loop, stepped by the test; an agent takes its logs."""

    def __init__(self, folder: Path, sqs: Any) -> None:
        self.served: list[str] = []
        self.handle: Callable[[str], None] = self.served.append
        self.sqs, self.client = sqs, Mock(wraps=sqs)
        self.url = sqs.create_queue(QueueName="requests")["QueueUrl"]
        self.say = partial(say, folder)
        self.say(State.SERVING)
        self.taken = Taken(folder)
        self.worker = Worker("gpu-0", folder, margin_s=0.0, send_every_s=0.01)
        self.calls = Calls(self.worker, self.url, 60.0, 0)
        self.loop = _SqsLoop(self.calls, lambda body: self.handle(body), self.client)

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def show_at_once(self) -> None:
        """Have messages that are taken from now on stay visible."""
        self.calls.visibility_s = 0.9

    def left(self) -> tuple[int, int]:
        """Messages that wait, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return int(found["Attributes"][names[0]]), int(found["Attributes"][names[1]])

    def statuses(self, count: int) -> list[str]:
        until(lambda: len(self.taken.logs) == count, "they are logged")
        return [log["status"] for log in self.taken.logs]

    def close(self) -> None:
        self.worker.close(timeout_s=0.0)
        self.taken.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with mock_aws(), closing(Stage(tmp_path, boto3.client("sqs"))) as made:
        yield made


def test_requests_are_served_deleted_and_logged(stage: Stage) -> None:
    stage.send("one", "two")
    assert stage.loop.step() and stage.loop.step()
    assert sorted(stage.served) == ["one", "two"]
    assert stage.left() == (0, 0)
    assert stage.statuses(2) == ["ok", "ok"]
    assert all(log["enqueued_at"] <= log["started_at"] for log in stage.taken.logs)


def test_nothing_is_taken_while_the_machine_drains(stage: Stage) -> None:
    stage.say(State.DRAINING)
    stage.send("one")
    assert not stage.loop.step()
    assert not stage.client.receive_message.called
    stage.say(State.SERVING)
    assert stage.loop.step()
    assert stage.served == ["one"]


def test_a_message_that_arrives_with_the_warning_goes_back_at_once(stage: Stage) -> None:
    def receive(**asked: Any) -> Any:
        answer = stage.sqs.receive_message(**asked)
        stage.say(State.DRAINING)
        return answer

    stage.client.receive_message.side_effect = receive
    stage.send("one")
    assert stage.loop.step()
    assert stage.left() == (1, 0)
    assert stage.served == []


def test_the_hold_is_renewed_while_a_request_is_served(stage: Stage) -> None:
    with stage.worker.request("r-0", time.time()) as log:
        hold = Hold(stage.calls, {"MessageId": "m-0", "ReceiptHandle": "h"}, log)
        asked = {now: hold.step(float(now)) for now in range(120)}
    renewed = {now: each.given["VisibilityTimeout"] for now, each in asked.items() if each}
    assert renewed == dict.fromkeys((20, 40, 60, 80, 100), 60)


def test_a_request_that_will_not_be_done_is_handed_back_before_the_end(stage: Stage) -> None:
    def handle(body: str) -> None:
        """The thread of the hold hands it back, a second before the machine goes."""
        stage.say(State.DRAINING, until_s=1.0)
        until(lambda: stage.left() == (1, 0), "another worker can take it")

    stage.handle = handle
    stage.send("one")
    assert stage.loop.step()
    assert stage.statuses(1) == ["timeout"]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "error"), (TimeoutError("slow"), "timeout")]
)
def test_a_failed_request_is_served_again(stage: Stage, error: Exception, status: str) -> None:
    def handle(body: str) -> None:
        stage.handle = stage.served.append
        raise error

    stage.handle = handle
    stage.show_at_once()
    stage.send("one")
    assert stage.loop.step()
    assert stage.left() == (1, 0)
    assert stage.loop.step()
    assert stage.served == ["one"]
    assert stage.statuses(2) == [status, "ok"]


def test_a_served_message_that_could_not_be_deleted_is_not_served_again(stage: Stage) -> None:
    delete = stage.client.delete_message
    stage.show_at_once()
    delete.side_effect = EndpointConnectionError(endpoint_url="https://sqs")
    stage.send("one")
    assert stage.loop.step()
    assert stage.left() == (1, 0)
    delete.side_effect = None
    assert stage.loop.step()
    assert stage.left() == (0, 0)
    assert stage.served == ["one"]


def test_a_refusing_queue_is_polled_again(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(stage.worker, "wait", waits.append)

    denied: Any = {"Error": {"Code": "AccessDenied", "Message": "not you"}}
    receive = stage.client.receive_message
    receive.side_effect = ClientError(denied, "ReceiveMessage")
    stage.send("one")
    for _ in range(7):
        assert stage.loop.step()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    receive.side_effect = None
    assert stage.loop.step()
    assert stage.served == ["one"]
    assert "no request could be received; retrying in 1 s" in caplog.text
    assert "AccessDenied" in caplog.text


def test_it_serves_until_it_is_stopped(stage: Stage) -> None:
    stage.send("one", "two")
    stage.handle = lambda body: stage.worker.stop()
    serve(stage.worker, stage.url, stage.handle, client=stage.client, wait_s=0)
    assert stage.left() == (1, 0)
