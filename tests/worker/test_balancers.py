"""Real load balancers and proxies before real agents: what a departure or a client costs."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.ports import free_ports
from tests.worker.page import DOC, ROOT

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]

APP = """
import asyncio
from spotkeeper_worker.asgi import SpotkeeperMiddleware

async def answer(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    await asyncio.sleep(0.2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"text"})

app = SpotkeeperMiddleware(answer)
"""
BALANCER = """
defaults
  mode http
  timeout connect 1s
  timeout client 30s
  timeout server 30s
  retries 0
listen web
  bind 127.0.0.1:{port}
  option httpchk GET /spotkeeper/ready
  default-server check inter 500ms fall 2 rise 1
  server a 127.0.0.1:{a}
  server b 127.0.0.1:{b}
"""
PROXY = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {log}
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "text"; }} }}
}}
"""
FRONTEND = """
defaults
  mode http
  timeout connect 1s
  timeout client 30s
  timeout server 30s
frontend web
  bind 127.0.0.1:{port}
  {log}
  http-request return status 200 content-type text/plain string text
"""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


@contextlib.contextmanager
def running(*command: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [str(each) for each in command], env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ask(port: int, path: str = "/ocr", **headers: str) -> object:
    """Send a request; its status, or the error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


@contextlib.contextmanager
def machine_at(folder: Path, port: int) -> Iterator[tuple[FakeMachine, subprocess.Popen[bytes]]]:
    """A machine in service with an agent and a server; its group, and the server's process."""
    folder.mkdir()
    (folder / "service.py").write_text(APP)
    machine = FakeMachine()
    uvicorn = (sys.executable, "-m", "uvicorn", "service:app", "--app-dir", folder, "--port", port)
    with FakeServer(machine) as server:
        machine.launch()
        # More than the load balancer takes to look twice.
        agent = start_agent(folder, server, settle_s=2.5)
        until((folder / "run" / "agent.sock").exists, "the agent runs")
        with running(*uvicorn, SPOTKEEPER_RUN_DIR=str(folder / "run")) as process:
            until(lambda: ask(port, "/spotkeeper/ready") == 200, "it serves")
            yield machine, process
        agent.kill()
        agent.wait()


@needs("haproxy")
@pytest.mark.parametrize("how", ["interruption", "scale-in"])
def test_a_departure_behind_a_load_balancer_costs_no_request(tmp_path: Path, how: str) -> None:
    port, a, b = free_ports(3)
    (tmp_path / "haproxy.cfg").write_text(BALANCER.format(port=port, a=a, b=b))
    found: Counter[object] = Counter()
    over = threading.Event()

    def load() -> None:
        while not over.wait(0.02):
            found[ask(port)] += 1

    with (
        machine_at(tmp_path / "a", a) as (machine, process),
        machine_at(tmp_path / "b", b),
        running("haproxy", "-f", tmp_path / "haproxy.cfg"),
    ):
        until(lambda: ask(port) == 200, "the load balancer answers")
        until(lambda: len(machine.completed) == 1, "the launch hook is complete")
        users = [threading.Thread(target=load) for _ in range(6)]
        for user in users:
            user.start()
        time.sleep(1)
        if how == "interruption":
            machine.interrupt(in_s=10)
            time.sleep(10)
        else:
            machine.scale_in()
            until(lambda: len(machine.completed) == 2, "the terminate hook is complete")
        process.kill()
        time.sleep(1.5)
        over.set()
        for user in users:
            user.join()
        served = machine.logs()
    assert set(found) == {200}, found
    assert found[200] > 100
    assert served


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
def test_no_client_sets_its_own_wait_or_costs_a_line_of_a_proxy(
    tmp_path: Path, machine: FakeMachine, proxy: str
) -> None:
    """With the formats of the pages."""
    if not shutil.which(proxy):
        pytest.skip(f"{proxy} is not installed")
    (port,) = free_ports(1)
    access, config = tmp_path / "access.json", tmp_path / "proxy.conf"
    access.touch()
    page = DOC if proxy == "nginx" else (ROOT / "docs" / "access-logs.md").read_text()
    (log,) = (part.partition("```")[0] for part in page.split(f"```{proxy}")[1:])
    if proxy == "nginx":
        log = log.replace("/var/log/nginx/access.json", str(access))
        config.write_text(PROXY.format(folder=tmp_path, port=port, log=log))
        command = f"exec nginx -p {tmp_path} -c {config}"
    else:
        config.write_text(FRONTEND.format(port=port, log=log))
        command = f"exec haproxy -f {config} > {access}"
    machine.launch()
    day = f"t={time.time() - 79_200:.3f}"
    with FakeServer(machine) as server:
        logs = f'{{follow = "{access}", format = "{proxy}"}}'
        settings = {"cluster": "aws", "workers": 0, "logs": logs}
        agent = start_agent(tmp_path, server, **settings)
        with running("bash", "-c", command):
            until(lambda: ask(port, "/health") == 200, "it answers")
            until((tmp_path / "run" / "agent.sock").exists, "the agent runs")
            time.sleep(0.5)
            paths = ["/%ff", "/%00a", "/%22%5c", "/%0a", "/%e2%80%a8", "/a?b=%ff", "/" + "x" * 2000]
            for path in paths:
                assert ask(port, path, **{"X-Request-Start": day, "X-Request-Id": "a" * 900}) in (
                    200, 400,
                )  # fmt: skip
            text = access.read_bytes().decode(errors="replace")
            lines = [json.loads(line) for line in text.split("\n") if line]
            mine = [line["request_id"] for line in lines if line["uri"] != "/health"]
            assert len(mine) == len(paths)
            until(lambda: len(machine.logs()) >= len(mine), "all are search logs")
        agent.kill()
        agent.wait()
    assert sorted(log["request_id"] for log in machine.logs()) == sorted(mine)
    assert all(log["enqueued_at"] == log["started_at"] for log in machine.logs())
