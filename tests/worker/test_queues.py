"""The hooks of docs/queues.md, on a real Redis: nothing is lost, and nothing done twice."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock

import pytest
import redis as client

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
    await asyncio.sleep(0.1)
    say(n)
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
often = {"heartbeat_timeout": 2000, "maintenance_chance": 10**6}
broker = dramatiq.brokers.redis.RedisBroker(url=url, **often)
broker.add_middleware(Fleet())
dramatiq.set_broker(broker)
@dramatiq.actor
def answer(n):
    time.sleep(0.1)
    say(n)
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
    time.sleep(0.1)
    say(n)
connection = redis.Redis.from_url(url)
if what == "publish":
    for n in range(jobs):
        rq.Queue(connection=connection).enqueue("jobs.answer", n, retry=rq.Retry(max=1))
else:
    sys.modules["jobs"] = sys.modules["__main__"]
    FleetWorker(["default"], connection=connection, maintenance_interval=2).work()
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


@dataclass
class Shop:
    """Jobs in Redis, and machines that serve them; a machine's folder has its name."""

    name: str
    server: str
    folder: Path
    begun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, what: str, machine: str = "a") -> subprocess.Popen[bytes]:
        before, after = PROGRAMS[self.name]
        program = before + HEAD + block(self.name) + after
        answers = str(self.folder / "answers")
        command = [str(PYTHON), "-c", program, self.server, what, str(JOBS), answers]
        environment = {"PYTHONPATH": f"{ROOT / 'worker'}", "PATH": os.environ["PATH"]}
        environment["SPOTKEEPER_RUN_DIR"] = str(self.folder / machine)
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def serve(self, machine: str) -> subprocess.Popen[bytes]:
        say(self.folder / machine, State.SERVING)
        self.begun.append(self.run("serve", machine))
        return self.begun[-1]

    def answered(self) -> list[int]:
        """The jobs that were done to their end."""
        return [*map(int, (self.folder / "answers").read_text().split())]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a machine: the process and all that it began."""
        stats: list[str] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # some end meanwhile
                stats.append(path.read_text())
        parents = {int(each.split()[0]): int(each.rpartition(")")[2].split()[1]) for each in stats}
        for pid in (process.pid, *(pid for pid, one in parents.items() if one == process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def shop(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "answers").touch()
    client.Redis.from_url(server).flushall()
    shop = Shop(request.param, server, tmp_path)
    say(tmp_path / "a", State.SERVING)
    assert shop.run("publish").wait(60) == 0
    yield shop
    for process in shop.begun:
        if process.poll() is None:
            shop.kill(process)


@pytest.mark.make_e2e
@pytest.mark.parametrize("shop", PROGRAMS, indirect=True)
def test_a_machine_leaves_and_no_job_is_lost(shop: Shop, tmp_path: Path) -> None:
    """A warning that is withdrawn, and then a departure, while two machines serve."""
    taken, answered = Taken(tmp_path / "a"), shop.answered
    try:
        first = shop.serve("a")
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
        first.terminate()
        assert first.wait(30) == 0
        served = len(answered())
        until(lambda: len(taken.logs) == served, "each has a search log")
        shop.serve("b")
        until(lambda: len(answered()) == JOBS, "another machine serves the others")
    finally:
        taken.close()
    assert sorted(answered()) == list(range(JOBS))
    assert {log["status"] for log in taken.logs} == {"ok"}
    assert all(log["enqueued_at"] <= log["started_at"] for log in taken.logs)


def _time_outs_end(server: str) -> None:
    """Let what the libraries wait for after a kill be over: minutes, by their defaults."""
    redis: Any = client.Redis.from_url(server)
    for key in redis.scan_iter("arq:in-progress:*"):
        redis.delete(key)
    for job in redis.zrange("rq:wip:default", 0, -1):
        redis.zadd("rq:wip:default", {job: 1})
    # A machine may be killed as it takes a job, or as it looks for those of others.
    for job in redis.lrange("rq:queue:default:intermediate", 0, -1):
        redis.set(f"rq:queue:default:intermediate:first_seen:{job.decode()}", 1)
    redis.delete("rq:clean_registries:default")


@pytest.mark.make_e2e
@pytest.mark.parametrize("shop", PROGRAMS, indirect=True)
def test_machines_are_killed_and_no_job_is_lost(shop: Shop) -> None:
    """Three are killed in the midst of their jobs; another one does these to their end."""
    for kills, machine in enumerate("abc", 1):
        process = shop.serve(machine)
        until(lambda enough=6 * kills: len(shop.answered()) >= enough, "it serves")  # type: ignore[misc]
        time.sleep(0.03)
        shop.kill(process)
        _time_outs_end(shop.server)
    shop.serve("d")
    until(lambda: len({*shop.answered()}) == JOBS, "the others are served", 60)
    assert sorted(shop.answered()) == list(range(JOBS))


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
