"""Workers of asyncio as processes, with the real clients: a kill, and a drain."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.worker.brokers import broker, queue
from tests.worker.page import ROOT

__all__ = ["broker", "queue"]
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

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
