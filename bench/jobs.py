"""Jobs on machines that are killed: real agents, a real training, S3 by moto, no AWS account.

`python -m bench.jobs --kills 500` takes some 40 minutes of one core. Agents are killed and started
again as systemd does, machines vanish, are warned, or go on although another one has the job.
"""

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import boto3
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from bench._figures import Figure, show
from spotkeeper_worker.testing import FakeMachine, FakeServer, until

KILLS = 40
EPOCHS = 30
BUCKET = "the-jobs"
TRAIN = Path(__file__).parents[1] / "tests" / "worker" / "train.py"
STATES: dict[str, dict[str, Any]] = {
    "publish": {"checkpoints": "checkpoints", "complete": None, "keep": 2},
    "plain": {"checkpoints": "checkpoints", "complete": "done", "keep": 2},
}
ENDS = ("agent", "agent", "agent", "machine", "warning", "split")
LAST_WORD_S = 120.0


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Serve S3, and write, delete and list one at a time.

    moto looks at a condition and writes in two steps, and fails to list while an object is deleted.
    """
    one_at_a_time, patched = threading.Lock(), cast("Any", S3Response)
    names = ("put_object", "delete_object", "list_objects_v2")
    own = {name: getattr(patched, name) for name in names}

    def alone(call: Callable[[S3Response], Any]) -> Callable[[S3Response], Any]:
        def called(response: S3Response) -> Any:
            with one_at_a_time:
                return call(response)

        return called

    for name, call in own.items():
        setattr(patched, name, alone(call))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        for name, call in own.items():
            setattr(patched, name, call)


def client(endpoint: str) -> Any:
    """A client of it."""
    keys: Any = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


@dataclass
class Host:
    """A machine of a job: its metadata, its disk, and its agent under what stands for systemd."""

    endpoint: str
    folder: Path
    job: str
    number: int
    machine: FakeMachine = field(default_factory=FakeMachine)
    agent: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.machine.instance_id = f"i-{self.number:017x}"
        assert self.machine.tags is not None
        self.machine.tags |= {"spotkeeper:job": self.job, "spotkeeper:attempt": str(self.number)}
        self.folder.mkdir(exist_ok=True)
        self._server = FakeServer(self.machine)
        self._server.__enter__()

    def grant(self) -> None:
        """Let it run the job; a later machine has a higher generation."""
        assert self.machine.tags is not None
        self.machine.tags["spotkeeper:grant"] = str(self.number)

    def start(self) -> None:
        """Start the agent."""
        kept = {name: text for name, text in os.environ.items() if name[:4] != "AWS_"}
        disks = str(self.folder.parent / "disks")
        environment = {
            **kept, **self._server.environment(), "AWS_ENDPOINT_URL_S3": self.endpoint,
            "MALLOC_ARENA_MAX": "1",
            "SPOTKEEPER_JOB_BUCKET": BUCKET, "SPOTKEEPER_JOB_QUEUE_URL": self._server.queue_url,
            "SPOTKEEPER_JOB_FOLDER": str(self.folder), "SPOTKEEPER_JOB_TICK_S": "0.05",
            "SPOTKEEPER_JOB_DISKS": kept.get("SPOTKEEPER_JOB_DISKS", disks),
            "SPOTKEEPER_JOB_SHUTDOWN": json.dumps(["touch", str(self.folder / "off")]),
        }  # fmt: skip
        environment.pop("SPOTKEEPER_SEARCH_LOG_QUEUE_URL")
        with (self.folder / "agent.log").open("ab") as log:
            command = [sys.executable, "-m", "spotkeeper_worker", "job"]
            self.agent = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    def kill(self) -> None:
        """Kill the agent and its control group."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
        for pid in processes(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not processes(self.folder), "its processes ended", LAST_WORD_S)

    @property
    def is_off(self) -> bool:
        """Whether it shut itself down."""
        return (self.folder / "off").exists()

    def reports(self) -> list[dict[str, Any]]:
        """What its agents reported, each once."""
        with self.machine.changed:
            return [json.loads(body) for body in dict.fromkeys(self.machine.bodies)]

    def close(self) -> None:
        """End everything of it."""
        self.kill()
        self._server.__exit__()


def processes(folder: Path) -> list[int]:
    """The processes that run a command of this folder's job: they work in it."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if (each / "cwd").resolve().is_relative_to(folder / "work"):
                    state = (each / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [] if state == "Z" else [int(each.name)]
    return found


@dataclass
class Run:
    """One job, machine after machine, until it is done."""

    endpoint: str
    folder: Path
    job: str
    how: str
    draw: random.Random
    kills: int
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._s3 = client(self.endpoint)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(TRAIN, "train.py")
        document = {
            "version": 1, "name": self.job, "command": [sys.executable, "train.py"],
            "code": "code.tar.gz", "git": None, "user": None,
            "environment": {"EPOCHS": str(EPOCHS), "HOW": self.how},
            "machine": {}, "state": STATES[self.how], "end": {"idle_after": 1800},
        }  # fmt: skip
        self.put("code.tar.gz", packed.getvalue())
        self.put("document.json", json.dumps(document).encode())

    def put(self, name: str, body: bytes) -> None:
        """Write an object of the job."""
        self._s3.put_object(Bucket=BUCKET, Key=f"jobs/{self.job}/{name}", Body=body)

    def head(self) -> dict[str, Any]:
        """What the bucket says of the job."""
        try:
            answer = self._s3.get_object(Bucket=BUCKET, Key=f"jobs/{self.job}/head.json")
        except self._s3.exceptions.NoSuchKey:
            return {"done": False, "files": []}
        return dict(json.loads(answer["Body"].read()))

    def weights(self) -> str:
        """A hash of everything in the newest checkpoint."""
        found = hashlib.sha256()
        for file in sorted(self.head()["files"], key=lambda each: str(each["path"])):
            body = self._s3.get_object(Bucket=BUCKET, Key=file["key"])["Body"].read()
            found.update(file["path"].encode() + body)
        return found.hexdigest()

    def launch(self) -> Host:
        """Start the next machine, which waits for its grant."""
        number = len(self.hosts) + 1
        host = Host(self.endpoint, self.folder / str(number), self.job, number)
        self.hosts.append(host)
        host.start()
        return host

    def run(self) -> None:
        """Kill until the kills are used up, then wait for the end."""
        host = self.launch()
        host.grant()
        wake = threading.Event()
        while sum(self.ended.values()) < self.kills:
            wake.wait(self.draw.uniform(0.0, 4.0))
            if self.head()["done"]:
                break
            how = self.draw.choice(ENDS)
            self.ended[how] += 1
            if how == "agent":
                host.kill()
                host.start()
            else:
                host = self._next(host, how)
        ends = time.monotonic() + 600
        while not self.head()["done"]:
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.job} is not done within 10 minutes")
            wake.wait(0.2)
        until(lambda: host.is_off, "the machine is off", LAST_WORD_S)
        self._judge(host)

    def _next(self, host: Host, how: str) -> Host:
        if how == "machine":
            host.close()
        elif how == "warning":
            host.machine.interrupt(32.0)
        after = self.launch()
        if how == "warning":
            until(lambda: host.is_off, "it leaves", LAST_WORD_S)
            if not self.head()["done"] and host.reports()[-1]["event"] != "left":
                self.wrong.append(f"a warned machine reported {host.reports()[-1]['event']}")
            host.close()
        after.grant()
        if how == "split":
            # Nobody ends the older machine: its next commit has to.
            until(lambda: host.is_off, "the older machine stops", LAST_WORD_S)
            if processes(host.folder):
                self.wrong.append("a machine that is off has a process left")
            host.close()
        return after

    def _judge(self, last: Host) -> None:
        events = [report["event"] for report in last.reports()]
        if events[-1] != "exited" or last.reports()[-1]["exit_code"] != 0:
            self.wrong.append(f"the last machine reported {events}")
        for host in self.hosts:
            if b"half a checkpoint" in host.folder.joinpath("agent.log").read_bytes():
                self.wrong.append("half a checkpoint was loaded")
            if processes(host.folder):
                self.wrong.append("a process is left")
        head = self.head()
        kept = {file["key"] for step in (head, head["previous"]) for file in step["files"]}
        listed = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=f"jobs/{self.job}/steps/")
        for key in {each["Key"] for each in listed.get("Contents", ())} - kept:
            self.wrong.append(f"{key} is left")

    def close(self) -> None:
        """End what is left."""
        for host in self.hosts:
            host.close()


def killed(endpoint: str, folder: Path, lane: int, kills: int) -> tuple[Counter[str], list[str]]:
    """Run jobs until that number of kills is done; return the kills, and what is wrong."""
    draw, ended, wrong = random.Random(lane), Counter[str](), []
    expected: dict[str, str] = {}
    while sum(ended.values()) < kills:
        how = draw.choice(sorted(STATES))
        undisturbed = how not in expected
        number = len(list(folder.glob(f"{lane}-*")))
        job = f"job-{lane}-{number}"
        place = folder / f"{lane}-{number}"
        place.mkdir()
        left = 0 if undisturbed else min(20, kills - sum(ended.values()))
        run = Run(endpoint, place, job, how, draw, left)
        try:
            run.run()
            weights = run.weights()
        except TimeoutError as error:
            wrong.append(f"{job}: {error}")
            ended["timeout"] += 1
            continue
        finally:
            run.close()
        ended += run.ended
        wrong += [f"{job}: {each}" for each in run.wrong]
        if weights != expected.setdefault(how, weights):
            wrong.append(f"{job}: the weights differ")
    return ended, wrong


def disturbed(kills: int, lanes: int = 2) -> tuple[Counter[str], list[str]]:
    """Run jobs in lanes side by side."""
    with s3() as endpoint, tempfile.TemporaryDirectory() as name:
        client(endpoint).create_bucket(Bucket=BUCKET)
        with ThreadPoolExecutor(lanes) as pool:
            each = -(-kills // lanes)
            done = pool.map(lambda lane: killed(endpoint, Path(name), lane, each), range(lanes))
            ended, wrong = Counter[str](), []
            for counted, found in done:
                ended += counted
                wrong += found
    return ended, wrong


def main() -> None:
    """Print how many promises were broken, and which."""
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--lanes", type=int, default=2)
    asked = parser.parse_known_args()[0]
    ended, wrong = disturbed(asked.kills, asked.lanes)
    counted = ", ".join(f"{count} {name}" for name, count in sorted(ended.items()))
    name = f"broken promises, kills: {counted}"
    figure = Figure(name=name, value=len(wrong), unit="", limit=0)
    show("Jobs", [figure], "\n".join(["real processes on this machine", *wrong]))


if __name__ == "__main__":
    main()
