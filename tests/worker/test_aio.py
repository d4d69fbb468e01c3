"""The worker of asyncio, and its loop over SQS on moto; `test_rabbitmq.py` has the other loop."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from spotkeeper_worker import AsyncWorker
from spotkeeper_worker.aio.loops import Message
from spotkeeper_worker.aio.sqs import serve, take
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.worker.brokers import broker, queue
from tests.worker.logs import Taken, say
from tests.worker.page import ROOT

__all__ = ["broker", "queue"]
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


class Client:
    """What aiobotocore's client is, over moto in this process."""

    def __init__(self, sqs: Any) -> None:
        self.sqs = sqs
        self.fails: dict[str, Exception] = {}
        self.before_answer: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(**asked: Any) -> Any:
            await asyncio.sleep(0.01)
            if name in self.fails:
                raise self.fails[name]
            answer = getattr(self.sqs, name)(**asked)
            if name == "receive_message" and answer.get("Messages"):
                self.before_answer()
            return answer

        return call


class Stage:
    """A worker of four slots, a queue, and an agent that takes its logs."""

    def __init__(self, folder: Path) -> None:
        self.sqs = boto3.client("sqs")
        self.client = Client(self.sqs)
        self.url = self.sqs.create_queue(QueueName="requests")["QueueUrl"]
        self.say = partial(say, folder)
        self.say(State.SERVING)
        self.taken = Taken(folder)
        self.worker = AsyncWorker("gpu-0", folder, 0.0, 0.01, 4)
        self.served: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lasts_s = 0.02

    async def handle(self, body: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.lasts_s)
        finally:
            self.at_once -= 1
        if body in ("error", "timeout"):
            raise {"error": ValueError, "timeout": TimeoutError}[body]("no")
        self.served.append(body)
        if body == "last":
            self.worker.stop()

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> tuple[int, int]:
        """Messages that wait, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)  # type: ignore[arg-type]
        return int(found["Attributes"][names[0]]), int(found["Attributes"][names[1]])  # type: ignore[index]

    def serve(self, visibility_s: float = 60.0) -> Awaitable[None]:
        return serve(
            self.worker, self.url, self.handle,
            client=self.client, visibility_s=visibility_s, wait_s=0,
        )  # fmt: skip

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(until, holds, what, 20.0)


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    with mock_aws():
        stage = Stage(folder)
        async with stage.worker:
            yield stage
        stage.taken.close()


type Story = Callable[[Stage], Awaitable[None]]
STORIES: list[Story] = []


def tale(story: Story) -> Story:
    STORIES.append(story)
    return story


@tale
async def all_are_served_once_as_many_at_once_as_slots(stage: Stage) -> None:
    stage.send(*map(str, range(40)), "last")
    await stage.serve()
    assert sorted(stage.served) == sorted([*map(str, range(40)), "last"])
    assert stage.most_at_once == 4
    assert stage.left() == (0, 0)
    await stage.until(lambda: len(stage.taken.logs) == 41, "all are logged")
    assert all(log["enqueued_at"] <= log["started_at"] for log in stage.taken.logs)


@tale
async def what_arrives_with_the_warning_goes_back(stage: Stage) -> None:
    arrived: list[bool] = []

    def warned() -> None:
        stage.say(State.DRAINING)
        arrived.append(True)

    stage.client.before_answer = warned
    stage.send("one", "two")
    task = asyncio.ensure_future(stage.serve())
    await stage.until(lambda: bool(arrived) and stage.left() == (2, 0), "they are back")
    assert stage.served == []
    stage.client.before_answer = lambda: None
    stage.say(State.SERVING)
    await stage.until(lambda: len(stage.served) == 2, "the warning was withdrawn")
    task.cancel()


@tale
async def what_will_not_be_done_is_handed_back_before_the_end(stage: Stage) -> None:
    stage.lasts_s = 20.0
    stage.send("one", "two")
    task = asyncio.ensure_future(stage.serve(visibility_s=1.0))
    await stage.until(lambda: stage.at_once == 2, "they run")
    stage.say(State.DRAINING, until_s=1.0)
    await stage.until(lambda: stage.left() == (2, 0), "others can take them")
    task.cancel()
    await stage.until(lambda: len(stage.taken.logs) == 2, "they are logged")
    assert {log["status"] for log in stage.taken.logs} == {"timeout"}


@tale
async def a_failed_request_is_served_again(stage: Stage) -> None:
    stage.send("error", "timeout", "one")
    task = asyncio.ensure_future(stage.serve())
    await stage.until(lambda: len(stage.taken.logs) == 3, "all are logged")
    assert sorted(log["status"] for log in stage.taken.logs) == ["error", "ok", "timeout"]
    # SQS delivers them again after the visibility timeout.
    await stage.until(lambda: stage.left() == (0, 2), "the others are deleted")
    task.cancel()


@tale
async def a_cancellation_returns_what_runs(stage: Stage) -> None:
    stage.lasts_s = 20.0
    stage.send("one", "two")
    task = asyncio.ensure_future(stage.serve())
    await stage.until(lambda: stage.at_once == 2, "they run")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (stage.left(), stage.at_once) == ((2, 0), 0)


@tale
async def a_hold_is_renewed_while_its_request_runs(stage: Stage) -> None:
    stage.lasts_s = 3.0
    stage.send("last")
    await stage.serve(visibility_s=2.0)
    assert (stage.served, stage.left()) == (["last"], (0, 0))


@tale
async def what_could_not_be_deleted_is_not_served_again(stage: Stage) -> None:
    stage.client.fails["delete_message"] = EndpointConnectionError(endpoint_url="https://sqs")
    stage.send("one")
    task = asyncio.ensure_future(stage.serve(visibility_s=0.9))
    await stage.until(lambda: stage.served == ["one"], "it is served")
    await stage.until(lambda: len(stage.taken.logs) == 1, "it is logged")
    stage.client.fails.clear()
    await stage.until(lambda: stage.left() == (0, 0), "it is deleted")
    task.cancel()
    assert stage.served == ["one"]


@tale
async def a_loop_of_one_s_own_ends_what_it_has_begun(stage: Stage) -> None:
    async def one(message: Message[str]) -> None:
        async with message as log:
            await stage.handle(message.body)
            log.status = "ok"

    stage.send("one", "two", "last")
    tasks = []
    async for message in take(stage.worker, stage.url, client=stage.client, wait_s=0):
        tasks.append(asyncio.create_task(one(message)))
    assert all(task.done() for task in tasks)
    assert sorted(stage.served) == ["last", "one", "two"]
    assert stage.left() == (0, 0)


@tale
async def a_break_returns_what_nobody_entered(stage: Stage) -> None:
    stage.send("one", "two", "three")
    messages = take(stage.worker, stage.url, client=stage.client, wait_s=0)
    async for message in messages:
        async with message:
            stage.served.append(message.body)
        break
    await messages.aclose()
    assert (len(stage.served), stage.left()) == (1, (2, 0))


@tale
async def a_worker_s_own_requests_wait_for_a_slot(stage: Stage) -> None:
    async def one() -> None:
        async with stage.worker.request("r", time.time()):
            await asyncio.sleep(0.05)

    tasks = []
    for _ in range(9):
        assert await stage.worker.may_begin()
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(0)
        assert sum(not task.done() for task in tasks) <= 4
    await asyncio.gather(*tasks)
    stage.worker.stop()
    assert not await stage.worker.may_begin()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_asyncio(story: Story, tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path) as stage:
            await story(stage)

    asyncio.run(asyncio.wait_for(run(), 60))


PROGRAM = """
import asyncio, os, sys
from spotkeeper_worker import AsyncWorker
kind, where, queue = sys.argv[1:]

async def answer(body):
    await asyncio.sleep(0.05)
    os.write(1, (body if isinstance(body, bytes) else body.encode()) + b"\\n")

async def main():
    async with AsyncWorker(slots=4) as worker:
        worker.ready()
        worker.stop_on_signals()
        if kind == "sqs":
            from spotkeeper_worker.aio.sqs import serve
            await serve(worker, where, answer, visibility_s=6, wait_s=1)
        else:
            from spotkeeper_worker.aio.rabbitmq import serve
            await serve(worker, where, queue, answer)

asyncio.run(main())
"""
MESSAGES = 300


@pytest.mark.make_e2e
@pytest.mark.parametrize("kind", ["sqs", "rabbitmq"])
def test_a_killed_worker_and_a_drain_lose_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Real clients: aiobotocore, of the environment that holds botocore back, and aio-pika."""
    python = Path(sys.executable)
    bodies = [f"r-{n}" for n in range(MESSAGES)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "worker")}
    if kind == "sqs":
        python = ROOT / ".venv-aws" / "bin" / "python"
        if not python.exists():
            pytest.skip("there is no .venv-aws here (make .venv-aws/.installed)")
        endpoint = request.getfixturevalue("moto_url")
        environment |= {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
        environment |= {"AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": "testing"}
        sqs = boto3.client("sqs", endpoint_url=endpoint)
        where = sqs.create_queue(QueueName="kills")["QueueUrl"]
        name = "kills"
        for body in bodies:
            sqs.send_message(QueueUrl=where, MessageBody=body)
    else:
        queue, where = request.getfixturevalue("queue"), request.getfixturevalue("broker").url()
        name = queue.name
        for body in bodies:
            queue.send(body.encode(), message_id=body)

    def answered() -> list[str]:
        return (tmp_path / "out").read_text().split()

    def started(machine: str, out: Any) -> subprocess.Popen[bytes]:
        command = [str(python), "-c", PROGRAM, kind, where, name]
        run_dir = {"SPOTKEEPER_RUN_DIR": str(tmp_path / machine / "run")}
        return subprocess.Popen(command, env=environment | run_dir, stdout=out)

    (tmp_path / "a").mkdir()
    machine = FakeMachine()
    with FakeServer(machine) as server, (tmp_path / "out").open("ab") as out:
        machine.launch()
        agent = start_agent(tmp_path / "a", server)
        try:
            until((tmp_path / "a" / "run" / "agent.sock").exists, "the agent runs")
            killed = started("a", out)
            until(lambda: len(answered()) > 40, "it serves")
            killed.kill()
            killed.wait()
            done = len(answered())
            leaving = started("a", out)
            until(lambda: len(answered()) > done + 40, "another one serves")
            machine.scale_in()
            until(lambda: len(machine.completed) == 2, "the terminate hook is complete")
            done = len(answered())
            leaving.send_signal(signal.SIGTERM)
            assert leaving.wait(30) == 0
            assert len(answered()) == done, "the hook was early"
            machine.launch()
            last = started("a", out)
            until(lambda: set(answered()) == set(bodies), "all are served")
            last.terminate()
            assert last.wait(30) == 0
        finally:
            agent.kill()
            agent.wait()
    # Twice at most what the killed one had answered, and not yet acknowledged.
    assert len(answered()) - len(bodies) <= 4
