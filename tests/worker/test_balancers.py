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
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path

import pycurl
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.ports import free_ports
from tests.worker.page import ROOT

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]

APP = """
import asyncio
from spotkeeper_worker.asgi import SpotkeeperMiddleware

async def answer(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        for n in range(5):
            await asyncio.sleep(0.2)
            await send({"type": "websocket.send", "text": str(n)})
        return await send({"type": "websocket.close", "code": 1000})
    streams = scope["path"] == "/events"
    await asyncio.sleep(0.0 if streams else 0.05)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for n in range(5 if streams else 0):
        await asyncio.sleep(0.2)
        event = b"data: %d\\n\\n" % n
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if streams else b"text"})

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
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server on a machine, as its unit starts it."""
    uvicorn = (sys.executable, "-m", "uvicorn", "service:app", "--app-dir", folder, "--port", port)
    with running(*uvicorn, SPOTKEEPER_RUN_DIR=str(folder / "run")) as process:
        SERVERS[port] = process
        yield process


SERVERS: dict[int, subprocess.Popen[bytes]] = {}


def stop_server(port: int) -> None:
    """End the server as EC2 ends its instance."""
    SERVERS[port].kill()
    SERVERS[port].wait()


@contextlib.contextmanager
def machine_at(folder: Path, port: int) -> Iterator[tuple[FakeMachine, subprocess.Popen[bytes]]]:
    """A machine in service with an agent and a server; its group, and the server's process."""
    folder.mkdir()
    (folder / "service.py").write_text(APP)
    machine = FakeMachine()
    with FakeServer(machine) as server:
        machine.launch()
        # More than the load balancer takes to look twice.
        agent = start_agent(folder, server, settle_s=2.5)
        until((folder / "run" / "agent.sock").exists, "the agent runs")
        with serving(folder, port) as process:
            until(lambda: ask(port, "/spotkeeper/ready") == 200, "it serves")
            yield machine, process
        agent.kill()
        agent.wait()


class Users:
    """Clients of a load balancer: what each request became, by its kind."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.over = threading.Event()
        self.results: Counter[tuple[str, object]] = Counter()

    def kept_alive(self) -> None:
        """HTTP/1.1; a connection that the balancer closed while idle is no lost request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self.over.is_set():
            try:
                connection.request("GET", "/ocr")
                answer = connection.getresponse()
                complete = answer.read() == b"text"
                self.results["http/1.1", answer.status if complete else "short"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.results["http/1.1", type(error).__name__] += 1
                connection.close()
        connection.close()

    def http_2(self) -> None:
        client = pycurl.Curl()
        client.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE)
        client.setopt(pycurl.URL, f"http://127.0.0.1:{self._port}/ocr")
        client.setopt(pycurl.TIMEOUT, 30)
        client.setopt(pycurl.NOSIGNAL, 1)
        while not self.over.is_set():
            body = BytesIO()
            client.setopt(pycurl.WRITEDATA, body)
            try:
                client.perform()
                complete = body.getvalue() == b"text"
                status = client.getinfo(pycurl.RESPONSE_CODE) if complete else "short"
                self.results["http/2", status] += 1
            except pycurl.error as error:
                self.results["http/2", str(error)] += 1
        client.close()

    def events(self) -> None:
        while not self.over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.request("GET", "/events")
                answer = connection.getresponse()
                complete = answer.read().count(b"data:") == 5
                self.results["events", answer.status if complete else "short"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.results["events", type(error).__name__] += 1
            connection.close()

    def web_sockets(self) -> None:
        while not self.over.is_set():
            try:
                with connect(f"ws://127.0.0.1:{self._port}/live", proxy=None) as socket:
                    texts = list(socket)
                self.results["websocket", 200 if len(texts) == 5 else "short"] += 1
            except (OSError, WebSocketException) as error:
                self.results["websocket", type(error).__name__] += 1


def _completed(machine: FakeMachine, hooks: int) -> bool:
    return len(machine.completed) >= hooks


def _is_ready(port: int) -> bool:
    return ask(port, "/spotkeeper/ready") == 200


DEPARTURES = 20
INTERRUPTIONS = (4, 9)
REQUESTS = 10_000


@needs("haproxy")
def test_departures_cost_no_request_of_any_kind(tmp_path: Path) -> None:
    """Keep-alive, HTTP/2, WebSockets and server-sent events, through two machines in turn."""
    port, a, b = free_ports(3)
    (tmp_path / "haproxy.cfg").write_text(BALANCER.format(port=port, a=a, b=b))
    users = Users(port)
    kinds = [users.kept_alive] * 6 + [users.http_2] * 4 + [users.events, users.web_sockets] * 2
    threads = [threading.Thread(target=kind) for kind in kinds]
    with ExitStack() as ending:
        machines = []
        for name, own in (("a", a), ("b", b)):
            machine = ending.enter_context(machine_at(tmp_path / name, own))[0]
            until(partial(_completed, machine, 1), "the launch hook is complete")
            machines.append((name, own, machine))
        ending.enter_context(running("haproxy", "-f", tmp_path / "haproxy.cfg"))
        until(lambda: ask(port) == 200, "the load balancer answers")
        for thread in threads:
            thread.start()
        departures = 0
        while departures < DEPARTURES or sum(users.results.values()) < REQUESTS:
            name, own, machine = machines[departures % 2]
            hooks = len(machine.completed) + 1
            if departures in INTERRUPTIONS:
                machine.interrupt(in_s=10)
                time.sleep(10)
            else:
                machine.scale_in()
                until(partial(_completed, machine, hooks), "the terminate hook is complete")
            stop_server(own)
            departures += 1
            machine.action = None
            machine.launch()
            ending.enter_context(serving(tmp_path / name, own))
            until(partial(_is_ready, own), "it serves again")
            # The balancer looks at it again.
            time.sleep(1.5)
        users.over.set()
        for thread in threads:
            thread.join()
        assert all(machine.logs() for *_, machine in machines)
    assert {status for _, status in users.results} == {200}, users.results
    assert {kind for kind, _ in users.results} == {"http/1.1", "http/2", "events", "websocket"}


@needs("haproxy")
@needs("nginx")
def test_nginx_drains_by_the_page_s_command(tmp_path: Path, machine: FakeMachine) -> None:
    """Requests that take eight seconds run when the group ends its machine."""
    port, a, b = free_ports(3)
    page = (ROOT / "docs" / "load-balancers.md").read_text()
    ready = page.partition("```nginx")[2].partition("```")[0]
    command = page.partition("on_drain = ")[2].partition("\n")[0]
    for name, own in (("a", a), ("b", b)):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("slow", "quick"):
            (folder / file).write_text("x" * 4096)
        locations = f"root {folder}; location = /slow {{ limit_rate 512; }} {ready}"
        text = PROXY.replace('location / {{ return 200 "text"; }}', "{log}").replace(
            "  {log}\n", "", 1
        )
        config = text.format(folder=folder, port=own, log=locations)
        # Its folder is the test's own.
        own_config = "user root;\n" + config.replace("/run/", f"{folder}/")
        (folder / "nginx.conf").write_text(own_config)
    here = f"nginx -p {tmp_path}/a -c {tmp_path}/a/nginx.conf -s quit"
    for before, after in {
        "nginx -s quit": here, "/run/leaving": f"{tmp_path}/a/leaving", "sleep 20": "sleep 2",
        "/run/nginx.pid": f"{tmp_path}/a/pid", "sleep 1": "sleep 0.1",
    }.items():  # fmt: skip
        assert before in command
        command = command.replace(before, after)
    balancer = BALANCER.format(port=port, a=a, b=b).replace("/spotkeeper/ready", "/ready")
    (tmp_path / "haproxy.cfg").write_text(balancer)
    answers: Counter[tuple[object, int]] = Counter()
    over = threading.Event()

    def load(path: str) -> None:
        while not over.wait(0.02):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            answers[answer.status, len(answer.read())] += 1
            connection.close()

    machine.launch()
    settings = {"on_drain": command, "ready": f'{{http = "http://127.0.0.1:{a}/ready"}}'}
    with ExitStack() as ending:
        server = ending.enter_context(FakeServer(machine))
        nginx = [
            ending.enter_context(running("nginx", "-c", tmp_path / name / "nginx.conf"))
            for name in ("a", "b")
        ]
        agent = start_agent(tmp_path, server, **settings)
        ending.callback(agent.wait)
        ending.callback(agent.kill)
        until(partial(_completed, machine, 1), "the launch hook is complete")
        ending.enter_context(running("haproxy", "-f", tmp_path / "haproxy.cfg"))
        until(lambda: ask(port, "/ready") == 200, "the load balancer answers")
        paths = ["/slow"] * 8 + ["/quick"] * 2
        users = [threading.Thread(target=load, args=(path,)) for path in paths]
        for user in users:
            user.start()
        time.sleep(3)
        machine.scale_in()
        until(partial(_completed, machine, 2), "the terminate hook is complete")
        assert nginx[0].poll() == 0, "the hook was early"
        over.set()
        for user in users:
            user.join()
    assert set(answers) == {(200, 4096)}
    assert answers.total() > 200


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
    page = (ROOT / "docs" / "access-logs.md").read_text()
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
    with FakeServer(machine) as server, ExitStack() as ending:
        logs = f'{{follow = "{access}", format = "{proxy}"}}'
        settings = {"cluster": "aws", "workers": 0, "logs": logs}
        agent = start_agent(tmp_path, server, **settings)
        ending.callback(agent.wait)
        ending.callback(agent.kill)
        with running("bash", "-c", command):
            until(lambda: ask(port, "/health") == 200, "it answers")
            until((tmp_path / "run" / "agent.sock").exists, "the agent runs")
            time.sleep(0.5)
            paths = ["/%ff", "/%00a", "/%22%5c", "/%0a", "/%e2%80%a8", "/a?b=%ff", "/" + "x" * 2000]
            for path in paths:
                assert ask(port, path, **{"X-Request-Start": day, "X-Request-Id": "a" * 900}) in (
                    200, 400,
                )  # fmt: skip
            # A proxy answers first and writes its line then.
            until(
                lambda: len(logged(access)) == len(paths), "the proxy has written a line for each"
            )
            until(lambda: len(machine.logs()) >= len(paths), "all are search logs")
    assert sorted(log["request_id"] for log in machine.logs()) == sorted(logged(access))
    assert all(log["enqueued_at"] == log["started_at"] for log in machine.logs())


def logged(access: Path) -> list[str]:
    """The ids of the requests but the health check's in a proxy's whole lines."""
    text = access.read_bytes().decode(errors="replace")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    return [line["request_id"] for line in lines if line["uri"] != "/health"]
