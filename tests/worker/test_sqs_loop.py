"""The loop over an SQS queue, on moto: nothing is lost, nothing is taken twice by us."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from spotkeeper_worker import Worker
from spotkeeper_worker.logs.server import SocketServer
from spotkeeper_worker.notice import Notice, write_notice
from spotkeeper_worker.sqs import serve
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until


class Client:
    """A client of SQS on which something may happen with each call."""

    def __init__(self, sqs: Any) -> None:
        self.sqs = sqs
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda name: None
        self.after: Callable[[str], None] = lambda name: None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls.append(name)
            self.before(name)
            answer = getattr(self.sqs, name)(**arguments)
            self.after(name)
            return answer

        return call


class Stage:
    """A worker, its loop in a thread, and an agent that takes its logs."""

    def __init__(self, folder: Path, sqs: Any) -> None:
        self.logs: list[Any] = []
        self.served: list[str] = []
        self.handle: Callable[[str], None] = self.served.append
        self.client = Client(sqs)
        self.url = sqs.create_queue(QueueName="requests")["QueueUrl"]
        (folder / "workers").mkdir()
        self._folder = folder
        self.say(State.SERVING)
        self._server = SocketServer(folder, self._accept, dict)
        self._server.start()
        self.worker = Worker("gpu-0", folder, margin_s=0.0, send_every_s=0.01)
        self._thread: threading.Thread | None = None

    def _accept(self, logs: Any, session: str, batch: int, lost: int) -> list[str]:
        self.logs.extend(logs)
        return []

    def say(self, state: State, until_s: float | None = None) -> None:
        """Say what the agent would."""
        at = None if until_s is None else time.time() + until_s
        drains = state is not State.SERVING
        write_notice(self._folder, Notice(state, time.time(), drains, "a test", at))

    def start(self, visibility_s: float = 30.0) -> None:
        def run() -> None:
            serve(
                self.worker,
                self.url,
                lambda body: self.handle(body),
                client=self.client,
                visibility_s=visibility_s,
                wait_s=0,
            )

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.client.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> tuple[int, int]:
        """Messages that wait, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return int(found["Attributes"][names[0]]), int(found["Attributes"][names[1]])

    def close(self) -> None:
        self.worker.stop()
        if self._thread is not None:
            self._thread.join(10)
            assert not self._thread.is_alive()
        self.worker.close(timeout_s=0.0)
        self._server.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with mock_aws():
        made = Stage(tmp_path, boto3.client("sqs"))
        yield made
        made.close()


def test_requests_are_served_deleted_and_logged(stage: Stage) -> None:
    stage.send("one", "two")
    stage.start()
    until(lambda: sorted(stage.served) == ["one", "two"], "both are served")
    until(lambda: stage.left() == (0, 0), "both are deleted")
    until(lambda: len(stage.logs) == 2, "both are logged")
    assert all(log["enqueued_at"] <= log["started_at"] for log in stage.logs)
    assert {log["status"] for log in stage.logs} == {"ok"}


def test_nothing_is_taken_while_the_machine_drains(stage: Stage) -> None:
    stage.say(State.DRAINING)
    stage.send("one")
    stage.start()
    stage.worker.wait(0.3)
    assert stage.client.calls == []
    stage.say(State.SERVING)
    until(lambda: stage.served == ["one"], "the warning was taken back")


def test_a_message_that_came_with_the_warning_goes_back_at_once(stage: Stage) -> None:
    stage.client.after = lambda name: stage.say(State.DRAINING)
    stage.send("one")
    stage.start()
    until(lambda: "change_message_visibility" in stage.client.calls, "it is handed back")
    until(lambda: stage.left() == (1, 0), "another worker can take it")
    assert stage.served == []


def test_the_hold_is_renewed_while_a_request_is_served(stage: Stage) -> None:
    over = threading.Event()
    stage.handle = lambda body: void(over.wait(20))
    stage.send("one")
    stage.start(visibility_s=1.0)
    until(lambda: stage.client.calls.count("change_message_visibility") >= 4, "it is renewed")
    assert stage.left() == (0, 1)
    over.set()
    until(lambda: stage.left() == (0, 0), "it is deleted")
    assert stage.client.calls.count("receive_message") >= 1


def test_a_request_that_will_not_be_done_is_handed_back_before_the_end(stage: Stage) -> None:
    begun, over = threading.Event(), threading.Event()

    def handle(body: str) -> None:
        begun.set()
        over.wait(20)

    stage.handle = handle
    stage.send("one")
    stage.start()
    assert begun.wait(20)
    stage.say(State.DRAINING, until_s=2.5)
    until(lambda: stage.left() == (1, 0), "another worker can take it")
    over.set()
    until(lambda: len(stage.logs) == 1, "it is logged")
    assert stage.logs[0]["status"] == "timeout"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "error"), (TimeoutError("slow"), "timeout")]
)
def test_what_fails_comes_again(stage: Stage, error: Exception, status: str) -> None:
    def handle(body: str) -> None:
        stage.handle = stage.served.append
        raise error

    stage.handle = handle
    stage.send("one")
    stage.start(visibility_s=1.0)
    until(lambda: stage.served == ["one"], "it is served when it comes again")
    until(lambda: [log["status"] for log in stage.logs] == [status, "ok"], "both are logged")


def test_a_served_message_that_could_not_be_deleted_is_not_served_again(stage: Stage) -> None:
    def fail_once(name: str) -> None:
        if name == "delete_message":
            stage.client.before = lambda name: None
            raise EndpointConnectionError(endpoint_url="https://sqs")

    stage.client.before = fail_once
    stage.send("one")
    stage.start(visibility_s=1.0)
    until(lambda: stage.client.calls.count("delete_message") == 2, "it came again")
    until(lambda: stage.left() == (0, 0), "it is deleted")
    assert stage.served == ["one"]


def test_a_queue_that_refuses_is_asked_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        stage.client.before = lambda name: None
        denied = {"Error": {"Code": "AccessDenied", "Message": "not you"}}
        raise ClientError(denied, "ReceiveMessage")  # type: ignore[arg-type]

    stage.client.before = refuse
    stage.send("one")
    stage.start()
    until(lambda: stage.served == ["one"], "it is served in the end")
    assert "no request could be taken; again in 1 s" in caplog.text
    assert "AccessDenied" in caplog.text


def void(_: object) -> None:
    """Answer nothing."""
