"""Real brokers on loopback: a RabbitMQ for each test file, and a Redis."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from spotkeeper_worker.testing import until
from tests.ports import free_ports

# Debian's wrapper of the same name changes to another user; this one does not.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Rabbit:
    """A broker with its files in `folder`; without RabbitMQ the test is skipped."""

    def __init__(self, folder: Path) -> None:
        if not SERVER.exists() or shutil.which("erl") is None:
            pytest.skip("there is no rabbitmq-server here (apt-get install rabbitmq-server)")
        folder.mkdir()
        self._folder = folder
        self.port, self._management_port, distribution, epmd = free_ports(4)
        self.management_url = f"http://127.0.0.1:{self._management_port}"
        (folder / "rabbit.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self._management_port}\n"
            "collect_statistics_interval = 500\n"
            "log.console = true\n"
            "log.console.level = error\n"
        )
        (folder / "plugins").write_text("[rabbitmq_management].")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }
        with (folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [SERVER], env=self._environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        ports = (self._management_port, self.port)
        until(lambda: all(listens(port) for port in ports), "the broker listens", 120)

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "%2F") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/{vhost}?heartbeat=10"

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        until(self._port_mapper_ended, "the broker's port mapper ended")

    def _port_mapper_ended(self) -> bool:
        asked = ["epmd", "-kill"]
        ended = subprocess.run(asked, env=self._environment, capture_output=True, check=False)
        return b"living nodes" not in ended.stdout + ended.stderr


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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    with contextlib.closing(Rabbit(tmp_path_factory.mktemp("broker") / "rabbit")) as found:
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


@pytest.fixture
def queue(broker: Rabbit, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(broker, f"{getattr(request, 'param', 'requests')}-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()
