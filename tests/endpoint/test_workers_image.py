"""The worker's image and its container, by the commands of docs/workers.md and of its systemd unit.

On Ubuntu 22.04 with its own Python, as in the image that the Dockerfile begins with; CUDA is not in
it where no registry is, and a container gets no GPU where Docker has none: it is requested, Docker
refuses it, and the rest runs without one.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent
from spotkeeper_worker.testing import until as soon
from tests.endpoint import containers
from tests.endpoint.conftest import CHECKOUT
from tests.worker.conftest import moto_url
from tests.worker.page import of

__all__ = ["moto_url"]
WORKER = CHECKOUT / "worker"
UNIT = (WORKER / "examples/systemd/spotkeeper-worker@.service").read_text().replace("\\\n", "")
IMAGE = "ocr-worker"
NO_GPU = "could not select device driver"
REQUESTS, LATER = 30, 20


@pytest.fixture(scope="module")
def host() -> Iterator[str | None]:
    """A Docker that has the worker's image, made as the page says."""
    with tempfile.TemporaryDirectory() as name, containers.running(Path(name)) as host:
        folder = Path(name)
        (base,) = re.findall(r"^FROM (\S+)$", (WORKER / "examples/Dockerfile").read_text(), re.M)
        containers.base_image(base, folder, host)
        shutil.copytree(WORKER, folder / "checkout/worker")
        path = f"{CHECKOUT}/.venv-sam/bin:{os.environ['PATH']}"
        for line in (*of("pip wheel"), *of("docker build")):
            done = subprocess.run(
                ["bash", "-ec", line], cwd=folder / "checkout", capture_output=True, text=True,
                env=dict(os.environ) | containers.environment(host) | {"PATH": path},
                check=False, timeout=400,
            )  # fmt: skip
            assert done.returncode == 0, line + done.stdout[-3000:] + done.stderr[-3000:]
        yield host


def test_the_image_has_what_a_worker_needs_and_runs_as_another_than_root(host: str | None) -> None:
    code = "import os, sys, boto3, spotkeeper_worker.sqs; print(os.getuid(), sys.version_info[:2])"
    told = containers.docker("run", "--rm", IMAGE, "python3", "-c", code, host=host)
    assert told.strip() == "1000 (3, 10)"


@dataclass
class Unit:
    """The systemd unit of one worker, its lines run one by one."""

    folder: Path
    host: str | None

    def line(self, name: str, nth: int = 0) -> list[str]:
        """A line's words; the host's two folders are the test's."""
        text = re.findall(rf"^{name}=(-?)(.+)$", UNIT, re.M)[nth][1]
        for written, mine in (
            ("%i", "0"),
            ("${IMAGE}", IMAGE),
            ("${SPOTKEEPER_GID}", str(os.getgid())),
            ("/etc/spotkeeper/worker.env", str(self.folder / "worker.env")),
            ("--volume /run/spotkeeper:", f"--volume {self.folder}/run:"),
            ("--volume /var/spool/spotkeeper:", f"--volume {self.folder}/spool:"),
        ):
            text = text.replace(written, mine)
        program, *rest = shlex.split(text)
        assert program == "/usr/bin/docker"
        return ["docker", *rest]

    def run(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words, env=containers.environment(self.host), capture_output=True, text=True,
            check=False, timeout=150,
        )  # fmt: skip

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the container, without a GPU where this Docker refuses one."""
        words = self.line("ExecStart")
        (asked,) = of("docker run")
        assert shlex.join(words).startswith("docker run ")
        assert set(shlex.split(asked)) <= set(words)
        if not containers.has_gpu(self.host):
            refused = self.run(words)
            assert refused.returncode != 0 and NO_GPU in refused.stderr, refused.stderr
            at = words.index("--gpus")
            del words[at : at + 2]
        environment = containers.environment(self.host)
        with (self.folder / "worker").open("wb") as said:
            return subprocess.Popen(words, env=environment, stdout=said, stderr=said)


def worker_env(**mine: str) -> str:
    """The example's worker.env, its image and queue being the test's."""
    config: Any = yaml.safe_load((WORKER / "examples/ecs-gpu.cloud-config.yaml").read_text())
    (text,) = (f["content"] for f in config["write_files"] if f["path"].endswith("worker.env"))
    lines = dict(line.split("=", 1) for line in text.split()) | mine
    return "".join(f"{name}={value}\n" for name, value in lines.items())


@pytest.fixture
def sqs(moto_url: str) -> Iterator[Any]:
    keys: Any = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    with closing(boto3.client("sqs", "eu-central-1", endpoint_url=moto_url, **keys)) as client:
        yield client


def test_a_container_serves_drains_and_loses_nothing(
    host: str | None, sqs: Any, tmp_path: Path
) -> None:
    """The agent is on the machine; the container has two folders of it, and its network."""
    queue = sqs.create_queue(QueueName="requests")["QueueUrl"]
    send(sqs, queue, REQUESTS)
    (tmp_path / "worker.env").write_text(
        worker_env(
            IMAGE=IMAGE, REQUEST_QUEUE_URL=queue, AWS_ENDPOINT_URL_SQS=sqs.meta.endpoint_url,
            AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing",
        )
    )  # fmt: skip
    unit = Unit(tmp_path, host)
    machine = FakeMachine()
    with FakeServer(machine) as server, (tmp_path / "agent").open("wb") as said:
        agent = start_agent(tmp_path, server, said, hook_settles_s=3)
        try:
            machine.launch()
            for nth in range(2):
                unit.run(unit.line("ExecStartPre", nth))
            container = unit.start()
            soon(lambda: len(machine.logs()) == REQUESTS, "all are served and logged", 60)
            machine.scale_in()
            soon(lambda: len(machine.completed) == 2, "the machine may go", 60)
            send(sqs, queue, LATER)
            told = unit.run(["docker", "exec", "worker-0", "cat", "/run/spotkeeper/notice.json"])
            assert not json.loads(told.stdout)["serve_until"], told.stdout
            stopped = unit.run(unit.line("ExecStop"))
            assert stopped.returncode == 0, stopped.stderr
            assert container.wait(60) == 0, (tmp_path / "worker").read_text()
        finally:
            agent.terminate()
            agent.wait(60)
    logs = machine.logs()
    assert len({log["request_id"] for log in logs}) == REQUESTS
    assert {log["worker_id"] for log in logs} == {"gpu-0"}
    assert waiting(sqs, queue) == LATER


def send(sqs: Any, queue: str, count: int) -> None:
    for _ in range(count):
        sqs.send_message(QueueUrl=queue, MessageBody="a page")


def waiting(sqs: Any, queue: str) -> int:
    """Requests of the queue that are nobody's."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    assert found["ApproximateNumberOfMessagesNotVisible"] == "0"
    return int(found["ApproximateNumberOfMessages"])


def test_a_stop_waits_for_as_long_as_a_request_may_take() -> None:
    (line,) = of("docker stop")
    assert re.search(rf"^ExecStop=/usr/bin/{line} -t 120 ", UNIT, re.M)
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)[0]) > 120
