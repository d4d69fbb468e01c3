"""The hooks of docs/queues.md, on a real Redis: nothing is lost, and nothing done twice."""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock

import pytest

from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.brokers import redis
from tests.worker.logs import Taken, say
from tests.worker.page import ROOT

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
PAGE = (ROOT / "docs" / "queues.md").read_text()
PYTHON = ROOT / ".venv-queues" / "bin" / "python"
JOBS = 30


def block(name: str) -> str:
    """The hook of a library, the first block below its heading."""
    return PAGE.partition(f"\n## {name}\n")[2].partition("```python\n")[2].partition("```")[0]


# For each library: what is before the hook, and how jobs are published and served.
PROGRAMS = {
    "arq": (
        "import arq, functools\nfrom spotkeeper_worker import AsyncWorker",
        """
settings = arq.connections.RedisSettings.from_dsn(url)
async def answer(ctx, n):
    say(n)
    await asyncio.sleep(0.05)
async def publish():
    pool = await arq.create_pool(settings)
    for n in range(jobs):
        await pool.enqueue_job("answer", n)
if what == "publish":
    asyncio.run(publish())
else:
    machine = AsyncWorker(slots=2)
    machine.ready()
    FleetWorker([measured(answer)], max_jobs=2, job_completion_wait=9, redis_settings=settings,
                poll_delay=0.05).run()
""",
    ),
    "dramatiq": (
        "import dramatiq, dramatiq.brokers.redis\nfrom spotkeeper_worker import Worker",
        """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
broker = dramatiq.brokers.redis.RedisBroker(url=url)
broker.add_middleware(Fleet())
dramatiq.set_broker(broker)
@dramatiq.actor
def answer(n):
    say(n)
    time.sleep(0.05)
if what == "publish":
    for n in range(jobs):
        answer.send(n)
else:
    worker = dramatiq.Worker(broker, worker_threads=2)
    worker.start()
    signal.sigwait([signal.SIGTERM])
    worker.stop()
    broker.close()
""",
    ),
    "RQ": (
        "import redis, rq\nfrom spotkeeper_worker import Worker",
        """
def answer(n):
    say(n)
    time.sleep(0.05)
connection = redis.Redis.from_url(url)
if what == "publish":
    for n in range(jobs):
        rq.Queue(connection=connection).enqueue("jobs.answer", n)
else:
    sys.modules["jobs"] = sys.modules["__main__"]
    FleetWorker(["default"], connection=connection).work()
""",
    ),
}
HEAD = """
import asyncio, os, signal, sys, time
url, what, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
def say(n):
    with open(sys.argv[4], "a") as answers:
        answers.write(f"{n}\\n")
"""


def test_a_hook_has_at_most_fifteen_lines() -> None:
    names = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)[:-1]
    assert names == [*PROGRAMS, "Ray Serve"]
    for name in names:
        assert 0 < len([line for line in block(name).splitlines() if line.strip()]) <= 15


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-queues here (make .venv-queues/.installed)")
    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.mark.make_e2e
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_machine_leaves_and_no_job_is_lost(name: str, server: str, tmp_path: Path) -> None:
    """A warning that is withdrawn, and then a departure, while two machines serve."""
    before, after = PROGRAMS[name]
    program = before + HEAD + block(name) + after
    begun: list[subprocess.Popen[bytes]] = []
    answers = tmp_path / "answers"
    answers.touch()

    def run(what: str, machine: str = "a") -> subprocess.Popen[bytes]:
        command = [str(PYTHON), "-c", program, server, what, str(JOBS), str(answers)]
        environment = {"PYTHONPATH": f"{ROOT / 'worker'}", "PATH": os.environ["PATH"]}
        environment["SPOTKEEPER_RUN_DIR"] = str(tmp_path / machine)
        with (tmp_path / "output").open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def answered() -> list[str]:
        return answers.read_text().split()

    say(tmp_path / "a", State.SERVING)
    taken = Taken(tmp_path / "a")
    assert run("publish").wait(60) == 0
    try:
        begun.append(run("serve"))
        until(lambda: len(answered()) >= 4, "it serves")
        say(tmp_path / "a", State.DRAINING)
        time.sleep(0.5)
        count = len(answered())
        time.sleep(1.0)
        assert len(answered()) == count < JOBS, "it begins jobs while the machine leaves"
        say(tmp_path / "a", State.SERVING)
        until(lambda: len(answered()) > count + 3, "the warning was withdrawn")
        say(tmp_path / "a", State.DRAINING)
        # What it has prefetched waits by now.
        time.sleep(0.5)
        begun[0].terminate()
        assert begun[0].wait(30) == 0
        served = len(answered())
        until(lambda: len(taken.logs) == served, "each has a search log")
        say(tmp_path / "b", State.SERVING)
        begun.append(run("serve", "b"))
        until(lambda: len(answered()) == JOBS, "another machine serves the others")
    finally:
        for process in begun:
            process.kill()
            process.wait()
        taken.close()
    assert sorted(map(int, answered())) == list(range(JOBS))
    assert {log["status"] for log in taken.logs} == {"ok"}
    assert all(log["enqueued_at"] <= log["started_at"] for log in taken.logs)


def test_a_replica_of_ray_serve_is_measured(tmp_path: Path) -> None:
    """Ray's decorators give the application to a replica, which runs it as any server would."""
    say(tmp_path, State.SERVING)
    taken = Taken(tmp_path)
    serve: Any = ModuleType("serve")
    serve.deployment, serve.ingress = lambda **_: lambda it: it, lambda app: lambda it: it
    names: dict[str, Any] = {"serve": serve}
    exec("from fastapi import FastAPI\nfrom spotkeeper_worker.asgi import *", names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTKEEPER_RUN_DIR", str(tmp_path))
        exec(block("Ray Serve"), names)
        scope: dict[str, Any] = {
            "type": "http",
            "path": "/spotkeeper/none",
            "headers": [],
            "method": "GET",
        }
        scope |= {"query_string": b"", "root_path": ""}
        send = AsyncMock()
        asyncio.run(names["app"](scope, AsyncMock(), send))
    assert send.await_args_list[0].args[0]["status"] == 404
    until(lambda: len(taken.logs) == 1, "it is measured")
    taken.close()
