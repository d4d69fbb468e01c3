"""Real brokers on loopback: a RabbitMQ for all processes of a test run, and a Redis."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from spotkeeper_worker.testing import until

# Debian's wrapper of the same name changes to another user; this one does not.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
MISSING = "there is no rabbitmq-server here (apt-get install rabbitmq-server)"

_STARTED: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Rabbit:
    """Where the broker listens, for AMQP and for its management."""

    port: int
    management_port: int

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "%2F") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/{vhost}?heartbeat=10"

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.management_port}"


def installed() -> bool:
    """Whether Debian's rabbitmq-server, and the Erlang that it needs, are here."""
    return SERVER.exists() and shutil.which("erl") is not None


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[Rabbit]:
    """Use the broker whose files are in `folder`: who comes first starts it, the last ends it."""
    folder.mkdir(exist_ok=True)
    with _locked(folder) as state:
        if not state.get("users"):
            state.update(_start(folder))
        state["users"] = state.get("users", 0) + 1
        rabbit = Rabbit(state["port"], state["management_port"])
    try:
        yield rabbit
    finally:
        with _locked(folder) as state:
            state["users"] -= 1
            if not state["users"]:
                _end(state)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "state.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else {}
        yield state
        path.write_text(json.dumps(state))


def restart(folder: Path) -> None:
    """Stop the broker whose files are in `folder` as a service manager does, and start it again."""
    with _locked(folder) as state:
        os.kill(state["pid"], signal.SIGTERM)
        _wait(state["pid"])
        state["pid"] = _launch(folder, state)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(folder: Path) -> dict[str, Any]:
    port, management_port, distribution, epmd = free_ports(4)
    (folder / "rabbit.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "management.tcp.ip = 127.0.0.1\n"
        f"management.tcp.port = {management_port}\n"
        "collect_statistics_interval = 500\n"
        "log.console = true\n"
        "log.console.level = error\n"
    )
    (folder / "plugins").write_text("[rabbitmq_management].")
    state = {
        "port": port, "management_port": management_port, "epmd": epmd,
        "distribution": distribution,
    }  # fmt: skip
    return {**state, "pid": _launch(folder, state)}


def _launch(folder: Path, state: dict[str, Any]) -> int:
    """Start the broker of a folder; answers its process."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(state["epmd"]),
        "RABBITMQ_NODENAME": f"test{state['port']}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_DIST_PORT": str(state["distribution"]),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
    }
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [SERVER], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    _STARTED[process.pid] = process
    ports = (state["management_port"], state["port"])
    until(lambda: all(listens(port) for port in ports), "the broker listens", 120)
    return process.pid


def _end(state: dict[str, Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(state["pid"], signal.SIGKILL)
    _wait(state["pid"])
    epmd = shutil.which("epmd")
    if epmd:
        environment = {**os.environ, "ERL_EPMD_PORT": str(state["epmd"])}
        until(lambda: _ended(epmd, environment), "the broker's port mapper ended")


def _wait(pid: int) -> None:
    """Wait for the end of a broker that this process started; others are still in use."""
    process = _STARTED.pop(pid, None)
    if process:
        process.wait(60)


def _ended(epmd: str, environment: dict[str, str]) -> bool:
    ended = subprocess.run([epmd, "-kill"], env=environment, capture_output=True, check=False)
    return b"living nodes" not in ended.stdout + ended.stderr


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def redis(folder: Path, password: str = "") -> Iterator[str]:
    """A Redis on loopback, by the URL of its database 0; without one the test is skipped."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here (apt-get install redis-server)")
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--dir", str(folder), *(["--requirepass", password] if password else [])]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: listens(port), "Redis listens")
            yield f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}/0"
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    if not installed():
        pytest.skip(MISSING)
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared(folder / "rabbit") as found:
        yield found


class Queue:
    """A queue of the broker, as its publisher has it."""

    def __init__(self, broker: Rabbit, name: str) -> None:
        self.name = name
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
        self.channel = self.connection.channel()
        self.channel.queue_declare(name, durable=True)

    def send(self, body: bytes, **properties: Any) -> None:
        about = pika.BasicProperties(delivery_mode=2, **properties)
        self.channel.basic_publish("", self.name, body, about)

    @property
    def waiting(self) -> int:
        """Messages that are ready; those that a worker holds are not."""
        return int(self.channel.queue_declare(self.name, passive=True).method.message_count)

    @property
    def listeners(self) -> int:
        """Workers that listen to it."""
        return int(self.channel.queue_declare(self.name, passive=True).method.consumer_count)

    def close(self) -> None:
        if self.connection.is_open:
            self.channel.queue_delete(self.name)
            self.connection.close()


@pytest.fixture(params=["requests", "anfragen-ü-日本"])
def queue(broker: Rabbit, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(broker, f"{request.param}-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()
