"""The loops of threads and of asyncio over SQS, on moto: nothing is lost, nothing served twice."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from spotkeeper_worker import AsyncWorker, Worker, sqs
from spotkeeper_worker.aio import Change
from spotkeeper_worker.aio.loops import Message
from spotkeeper_worker.aio.sqs import serve, take
from spotkeeper_worker.sqs import _Awaited as Awaited
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.logs import Taken, say

GONE = EndpointConnectionError(endpoint_url="https://sqs")


class Client:
    """boto3's client, whose calls a test lets fail."""

    def __init__(self) -> None:
        self.sqs: Any = boto3.client("sqs")
        self.fails: dict[str, Exception] = {}
        self.before_answer: Callable[[], object] = lambda: None
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**asked: Any) -> Any:
            self.asked[name] += 1
            time.sleep(0.01)
            if name in self.fails:
                raise self.fails[name]
            answer = getattr(self.sqs, name)(**asked)
            if name == "receive_message" and answer.get("Messages"):
                self.before_answer()
            return answer

        return call


class Stage:
    """A worker, its queue, and an agent that takes its logs; the loop runs in a thread."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.client = kind, Client()
        self.url = self.client.sqs.create_queue(QueueName="requests")["QueueUrl"]
        self.say = partial(say, folder)
        self.say(State.SERVING)
        self.taken = Taken(folder)
        made = Worker if kind == "threads" else AsyncWorker
        self.worker = made("gpu-0", folder, 0.0, 0.01, 4 if kind == "asyncio" else 0)
        self.served: list[str] = []
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = self.most_held = 0
        self.lasts_s = 0.02
        self._thread: threading.Thread | None = None

    def handle(self, body: str) -> None:
        self.threads.add(threading.get_ident())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.most_held = max(self.most_held, self.left()[1])
        ends = time.monotonic() + self.lasts_s
        while time.monotonic() < ends and not self.worker.stopping:
            time.sleep(0.01)
        self.at_once -= 1
        kinds = (ValueError, TimeoutError, StopIteration, KeyboardInterrupt)
        for kind in kinds:
            if body == kind.__name__:
                raise kind("no")
        self.served.append(body)
        if body == "last":
            self.worker.stop()

    async def handle_async(self, body: str) -> None:
        await asyncio.to_thread(self.handle, body)

    def serve(self, visibility_s: float = 60.0) -> None:
        named: Any = {"visibility_s": visibility_s, "wait_s": 0}
        if isinstance(self.worker, AsyncWorker):
            named["client"] = Awaited(self.client)
            asyncio.run(serve(self.worker, self.url, self.handle_async, **named))
        else:
            sqs.serve(self.worker, self.url, self.handle, client=self.client, **named)

    def start(self, visibility_s: float = 60.0) -> None:
        self._thread = threading.Thread(target=self.serve, args=(visibility_s,))
        self._thread.start()

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.client.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> tuple[int, int]:
        """Messages that wait, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return int(found["Attributes"][names[0]]), int(found["Attributes"][names[1]])

    def statuses(self, count: int) -> list[str]:
        until(lambda: len(self.taken.logs) == count, "they are logged")
        return sorted(log["status"] for log in self.taken.logs)

    def close(self) -> None:
        self.worker.stop()
        if self._thread:
            self._thread.join(60)
            assert not self._thread.is_alive()
        self.worker.close(timeout_s=0.0)
        self.taken.close()


@pytest.fixture(params=["threads", "asyncio"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with mock_aws(), closing(Stage(tmp_path, request.param)) as made:
        yield made


of_threads = pytest.mark.parametrize("stage", ["threads"], indirect=True)
of_asyncio = pytest.mark.parametrize("stage", ["asyncio"], indirect=True)


def test_all_are_served_once_as_many_at_once_as_slots(stage: Stage) -> None:
    bodies = [*map(str, range(20)), "last"]
    stage.lasts_s = 0.15
    stage.send(*bodies)
    stage.serve()
    assert sorted(stage.served) == sorted(bodies)
    slots = 1 if stage.kind == "threads" else 4
    assert (stage.most_at_once, stage.most_held) == (slots, slots)
    assert stage.kind == "asyncio" or stage.threads == {threading.get_ident()}
    assert stage.left() == (0, 0)
    assert stage.statuses(21) == ["ok"] * 21
    assert all(log["enqueued_at"] <= log["started_at"] for log in stage.taken.logs)


def test_nothing_is_taken_while_the_machine_drains(stage: Stage) -> None:
    stage.say(State.DRAINING)
    stage.send("one")
    stage.start()
    time.sleep(0.5)
    assert stage.client.asked["receive_message"] == 0
    stage.say(State.SERVING)
    until(lambda: stage.served == ["one"], "it is served")


def test_what_arrives_with_the_warning_goes_back(stage: Stage) -> None:
    arrived: list[bool] = []

    def warned() -> None:
        stage.say(State.DRAINING)
        arrived.append(True)

    stage.client.before_answer = warned
    stage.send("one", "two")
    stage.start()
    until(lambda: bool(arrived) and stage.left() == (2, 0), "they are back")
    assert stage.served == []
    stage.client.before_answer = lambda: None
    stage.say(State.SERVING)
    until(lambda: len(stage.served) == 2, "the warning was withdrawn")


def test_what_will_not_be_done_is_handed_back_before_the_end(stage: Stage) -> None:
    stage.lasts_s = 20.0
    stage.send("one")
    stage.start(visibility_s=1.0)
    until(lambda: stage.at_once == 1, "it runs")
    stage.say(State.DRAINING, until_s=1.0)
    until(lambda: stage.left() == (1, 0), "another worker can take it")
    stage.worker.stop()
    assert stage.statuses(1) == ["timeout"]


def test_a_failed_request_is_served_again(stage: Stage) -> None:
    bodies = ["ValueError", "TimeoutError", "StopIteration", "one"]
    stage.send(*bodies)
    stage.start()
    assert stage.statuses(4) == ["error", "error", "ok", "timeout"]
    # SQS delivers them again after the visibility timeout.
    until(lambda: stage.left() == (0, 3), "the other one is deleted")


def test_a_hold_is_renewed_while_its_request_runs(stage: Stage) -> None:
    stage.lasts_s = 3.0
    stage.send("last")
    stage.serve(visibility_s=2.0)
    assert (stage.served, stage.left()) == (["last"], (0, 0))
    assert 3 <= stage.client.asked["change_message_visibility"] <= 5


def test_what_could_not_be_deleted_is_not_served_again(stage: Stage) -> None:
    stage.client.fails["delete_message"] = GONE
    stage.send("one")
    stage.start(visibility_s=0.9)
    assert stage.statuses(1) == ["ok"]
    stage.client.fails.clear()
    until(lambda: stage.left() == (0, 0), "it is deleted")
    assert stage.served == ["one"]


def test_a_refusing_queue_is_polled_again(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def pause(_: Change, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            stage.client.fails.clear()

    monkeypatch.setattr(Change, "pause", pause)
    denied: Any = {"Error": {"Code": "AccessDenied", "Message": "not you"}}
    stage.client.fails["receive_message"] = ClientError(denied, "ReceiveMessage")
    stage.send("last")
    stage.serve()
    assert (waits, stage.served) == ([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], ["last"])
    assert f"no request from {stage.url}; retrying in 1 s" in caplog.text
    assert "AccessDenied" in caplog.text


def test_a_client_without_credentials_ends_the_worker(stage: Stage) -> None:
    stage.client.fails["receive_message"] = NoCredentialsError()
    with pytest.raises(NoCredentialsError):
        stage.serve()


@of_threads
def test_what_ends_the_thread_returns_what_runs(stage: Stage) -> None:
    stage.send("KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        stage.serve()
    assert stage.left() == (1, 0)


def test_a_handle_of_the_other_loop_is_named(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that nobody awaits has served nothing."""
    monkeypatch.setattr(stage, "handle", stage.handle_async)
    monkeypatch.setattr(stage, "handle_async", stage.served.append)
    stage.send("one")
    stage.start()
    assert stage.statuses(1) == ["error"]
    until(lambda: "coroutine function" in caplog.text, "it is logged")
    assert stage.left() == (0, 1)


@of_threads
def test_a_loop_that_fails_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.worker, "request", lambda *_: 1 / 0)
    stage.send("one")
    with pytest.raises(ZeroDivisionError):
        stage.serve()


# --- only of asyncio ------------------------------------------------------------------------------


async def one(stage: Stage, message: Message[str]) -> None:
    async with message as log:
        await stage.handle_async(message.body)
        log.status = "ok"


async def a_cancellation_returns_what_runs(stage: Stage, worker: AsyncWorker) -> None:
    running: list[str] = []

    async def handle(body: str) -> None:
        running.append(body)
        await asyncio.sleep(60)

    stage.send("one", "two", "three", "four")
    client = Awaited(stage.client)
    task = asyncio.ensure_future(serve(worker, stage.url, handle, client=client, wait_s=0))
    while len(running) < 4:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.left() == (4, 0)


async def a_loop_of_one_s_own_ends_what_it_has_begun(stage: Stage, worker: AsyncWorker) -> None:
    stage.send("one", "two", "last")
    tasks = []
    async for message in take(worker, stage.url, client=Awaited(stage.client), wait_s=0):
        tasks.append(asyncio.create_task(one(stage, message)))
    assert all(task.done() for task in tasks)
    assert sorted(stage.served) == ["last", "one", "two"]
    assert stage.left() == (0, 0)


async def a_break_returns_what_nobody_entered(stage: Stage, worker: AsyncWorker) -> None:
    stage.send("one", "two", "three")
    messages = take(worker, stage.url, client=Awaited(stage.client), wait_s=0)
    async for message in messages:
        await one(stage, message)
        break
    await messages.aclose()
    assert (len(stage.served), stage.left()) == (1, (2, 0))


async def a_cancelled_task_returns_its_message(stage: Stage, worker: AsyncWorker) -> None:
    async def hang(message: Message[str]) -> None:
        async with message:
            await asyncio.sleep(60)

    stage.send("one")
    messages = take(worker, stage.url, client=Awaited(stage.client), wait_s=0)
    task = asyncio.create_task(hang(await anext(messages)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert stage.left() == (1, 0)
    await messages.aclose()


async def a_worker_s_own_requests_wait_for_a_slot(stage: Stage, worker: AsyncWorker) -> None:
    async def request() -> None:
        async with worker.request("r", time.time()):
            await asyncio.sleep(0.05)

    tasks = []
    for _ in range(9):
        assert await worker.may_begin()
        tasks.append(asyncio.create_task(request()))
        await asyncio.sleep(0)
        assert sum(not task.done() for task in tasks) <= 4
    await asyncio.gather(*tasks)
    worker.stop()
    assert not await worker.may_begin()


STORIES = [
    a_cancellation_returns_what_runs,
    a_loop_of_one_s_own_ends_what_it_has_begun,
    a_break_returns_what_nobody_entered,
    a_cancelled_task_returns_its_message,
    a_worker_s_own_requests_wait_for_a_slot,
]


@of_asyncio
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_asyncio(story: Callable[[Stage, Any], Awaitable[None]], stage: Stage) -> None:
    async def run() -> None:
        await story(stage, stage.worker)

    asyncio.run(asyncio.wait_for(run(), 60))
