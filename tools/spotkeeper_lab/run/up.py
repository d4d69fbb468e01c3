"""Start the local AWS as a process of its own, wait until it answers, and end all of it again.

It runs in an environment of its own, because ministack and the deployed layers want different
releases of boto3.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from spotkeeper_lab.cloud.values import DRAINS, GroupSpec, Physics, two_groups


class LabSettings(BaseModel):
    """One lab: its endpoint, its groups and its market; times are in seconds.

    `pools` are "zone/type" with how many spot instances each can hold. Those `elsewhere` are
    another region's, whose two groups have its name in theirs, and want nothing at first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(default=4566, ge=1024, le=65535)
    auth: bool = True
    spot_group: str = "ocr-spot"
    on_demand_group: str = "ocr-on-demand"
    desired: NonNegativeInt = 3
    maximum: int = Field(default=20, ge=1)
    pools: dict[str, NonNegativeInt] = {
        "us-east-1a/g5.xlarge": 4,
        "us-east-1b/g5.xlarge": 4,
        "us-east-1c/g5.xlarge": 4,
    }
    elsewhere: dict[str, NonNegativeInt] = {
        "us-east-2a/g5.xlarge": 4,
        "us-east-2b/g5.xlarge": 4,
    }
    physics: Physics = Physics(cold_start_s=20.0, notice_s=120.0, event_delay_s=1.0)

    def groups(self) -> tuple[GroupSpec, ...]:
        """Both groups, as a stack adopts them, and those of the other region."""
        most, names = self.maximum, (self.spot_group, self.on_demand_group)
        there = [f"{name}-{ELSEWHERE}" for name in names]
        pools = tuple(self.pools)
        groups = (
            *two_groups(*names, pools=pools, maximum=most, desired=self.desired),
            *two_groups(*there, pools=tuple(self.elsewhere), maximum=most),
        )
        drain = replace(DRAINS, name="spotkeeper-drain", heartbeat_s=120.0)
        return tuple(replace(one, template=TEMPLATE, hooks=(drain,)) for one in groups)


# The version of the launch template that groups begin with.
TEMPLATE = "7"
# The other region of a lab.
ELSEWHERE = "us-east-2"
FOLDER = Path("build/local-aws")
PYTHON = Path(".venv-aws/bin/python")
BUILT = FOLDER / "sam/template.yaml"
# What of a checkout a lab runs on: another folder that has these may have a lab of its own.
PARTS = (PYTHON.parts[0], "tools", "layers", "worker")
HOST = "127.0.0.1"
# What a job's command may need to find programs, and to install packages.
INSTALLING = ("PATH", "HOME", "PIP_", "SSL_CERT", "HTTPS_PROXY", "https_proxy")
READY_WITHIN_S = 60.0
END_WITHIN_S = 10.0
LAST_LINES = 12
# A refusal is an answer, not a reason to ask again.
ONCE = Config(retries={"total_max_attempts": 1})


class LabError(Exception):
    """The lab cannot be started; the message says what to do."""


@dataclass(frozen=True, slots=True)
class LabClient:
    """The lab at a port of this machine."""

    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def look(self, page: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/_lab/{page}", timeout=30) as answer:
            return json.load(answer)

    def post(self, page: str, body: object) -> Any:
        """Send a command to the lab: `faults`, `skip` or `begin`."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_lab/{page}", data, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def order(self, **fault: object) -> str:
        """Order a fault; return what was done."""
        return str(self.post("faults", fault)["done"])

    def aws(self, service: str, region: str = REGION, **credentials: str) -> Any:
        """Make a client of a service; as the account's root without credentials."""
        keys: Any = credentials or {
            "aws_access_key_id": ACCOUNT,
            "aws_secret_access_key": "test",
        }
        session: Any = boto3.session.Session(region_name=region, **keys)
        return session.client(service, endpoint_url=self.url, config=ONCE)


@dataclass(frozen=True, slots=True)
class Lab(LabClient):
    process: "subprocess.Popen[bytes]"
    took_s: float


def environment(port: int, checkout: Path) -> dict[str, str]:
    """What another shell needs to deploy here instead of to AWS."""
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAM_TEMPLATE_FILE": str(checkout / BUILT),
        "SAM_CLI_TELEMETRY": "0",
    }


@contextmanager
def running(settings: LabSettings, checkout: Path) -> Iterator[Lab]:
    """A lab, until the block ends in whatever way; raises LabError when there can be none."""
    folder, python = checkout / FOLDER, checkout / PYTHON
    if not python.exists():
        raise LabError(f"{PYTHON} is missing: run make local-aws once, which makes it")
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    log = folder / "endpoint.log"
    with _signals_end_it(), _only_one(folder / "lock"), log.open("wb") as output:
        _free(settings.port)
        (folder / "settings.json").write_text(settings.model_dump_json())
        sources = (checkout / each for each in ("tools", "layers/spotkeeper", "worker"))
        began_s = time.monotonic()
        process = subprocess.Popen(
            [str(python), "-m", "spotkeeper_lab.run.serve", str(folder / "settings.json")],
            cwd=folder,
            env={
                **{name: os.environ[name] for name in os.environ if name.startswith(INSTALLING)},
                "PYTHONPATH": os.pathsep.join(map(str, sources)),
                "TMPDIR": str(folder / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for(process, settings.port, log)
            yield Lab(settings.port, process, time.monotonic() - began_s)
        finally:
            # With its whole session, every function that it runs.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_WITHIN_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < until_s:
        health = f"http://{HOST}:{port}/_ministack/health"
        with suppress(OSError), urllib.request.urlopen(health, timeout=1):
            return
        time.sleep(0.1)
    ended = process.poll() is not None
    why = "ended at once" if ended else f"does not answer within {READY_WITHIN_S:g} s"
    last = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    raise LabError(f"the endpoint {why}:\n{last}")


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let the signals that would end this process at once end it in order."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                "a lab of this checkout is up already: end it first (Ctrl-C in its shell)"
            ) from None
        yield


def _free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise LabError(f"port {port} is in use: choose another with --port") from None
