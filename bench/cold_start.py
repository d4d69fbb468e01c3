"""Cold starts of what is deployed: built functions with their layers, and their first call.

Needs `make local-build` and the local AWS's environment. Each start is a new process with nothing
but the standard library and the layers on its path; its calls go to a local AWS over the wire.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench._figures import Figure, show
from spotkeeper_lab.endpoint.settings import LabSettings
from spotkeeper_lab.endpoint.story import LabClient
from spotkeeper_lab.endpoint.up import BUILT, PARTS, PYTHON, running
from spotkeeper_lab.local_aws.table import create_table

ROOT = Path(__file__).parents[1]
BUILD = ROOT / BUILT.parent
LAYERS = ("SpotkeeperLayer", "DependenciesLayer")
EVENTS = {
    "CheckAvailability": "schedule",
    "CheckHealth": "schedule",
    "HandleInterruption": "spot_interruption_warning",
}
EMPTY = "an empty function with boto3"
RUNS = 5
PORT = 4580
INIT_S, FIRST_CALL_S = 0.6, 0.4
LOOK = """
import json, sys, time
from types import SimpleNamespace
event = json.loads(sys.argv[1])
began = time.perf_counter()
import app
loaded = time.perf_counter()
arn = "arn:aws:lambda:us-east-1:123456789012:function:f"
app.handler(event, SimpleNamespace(
    function_name="f", memory_limit_in_mb=512, invoked_function_arn=arn, aws_request_id="r"))
print(loaded - began, time.perf_counter() - loaded, file=sys.stderr)
"""
EMPTY_APP = """
import boto3
def handler(event, context):
    boto3.client("dynamodb").list_tables()
"""
DOCUMENT = {"version": 1, "spot_group": "ocr-spot", "on_demand_group": "ocr-on-demand",
            "mode": "act", "bounds": {"spot_min": 0, "spot_max": 9, "on_demand_max": 9},
            "objective": {"wait_s": 10, "share": 0.95}}  # fmt: skip


class Start(NamedTuple):
    """Seconds to import a function, and of its first call."""

    init_s: float
    first_call_s: float


def main() -> None:
    """Print each start beside its limit and as a ratio to the empty function."""
    if not (BUILD / LAYERS[0]).exists() or not (ROOT / PYTHON).exists():
        sys.exit("nothing is built: make local-build .venv-aws/.installed")
    with tempfile.TemporaryDirectory() as folder, _account(Path(folder)) as environment:
        bare = _without_byte_code(Path(folder) / "bare")
        starts = {name: _least(BUILD, name, environment) for name in (EMPTY, *EVENTS)}
        without = _least(bare, "HandleInterruption", environment)
    show("Cold starts of built functions", _figures(starts, without), caption=_CAPTION)


_CAPTION = f"least of {RUNS} new processes on this machine"


def _figures(starts: Mapping[str, Start], without: Start) -> Iterator[Figure]:
    empty = starts[EMPTY]
    for name, start in starts.items():
        ours = name != EMPTY
        yield Figure(
            name=f"{name}: init", value=start.init_s, unit="s", limit=INIT_S if ours else None
        )
        yield Figure(
            name=f"{name}: first call",
            value=start.first_call_s,
            unit="s",
            limit=FIRST_CALL_S if ours else None,
        )
        if ours:
            ratio = sum(start) / sum(empty)
            yield Figure(name=f"{name}: both, to the empty function", value=ratio, unit="x")
    ratio = without.init_s / starts["HandleInterruption"].init_s
    yield Figure(name="HandleInterruption: init without byte code, to with", value=ratio, unit="x")


@contextmanager
def _account(folder: Path) -> Iterator[dict[str, str]]:
    """A local AWS with a fleet in it; the environment of a function there."""
    for name in PARTS:
        (folder / name).symlink_to(ROOT / name)
    with running(LabSettings(port=PORT, auth=False, cold_start_s=0.0), folder):
        lab = LabClient(PORT, folder)
        create_table(lab.aws("dynamodb"), "bench")
        queue = lab.aws("sqs").create_queue(QueueName="bench")["QueueUrl"]
        document = json.dumps(DOCUMENT)
        lab.aws("ssm").put_parameter(Name="/bench/fleets/main", Value=document, Type="String")
        yield lab.environment | {
            "POWERTOOLS_SERVICE_NAME": "bench",
            "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
            "TABLE_NAME": "bench",
            "FLEET_DOCUMENTS_PATH": "/bench/fleets",
            "WAKE_UP_QUEUE_URL": queue,
            "STACK_NONCE": "bench",
        }


def _without_byte_code(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for part in (*LAYERS, *EVENTS):
        shutil.copytree((BUILD / part).resolve(), folder / part, ignore=ignored)
    return folder


def _least(built: Path, function: str, environment: Mapping[str, str]) -> Start:
    starts = [_start(built, function, environment) for _ in range(RUNS)]
    return Start(*(min(column) for column in zip(*starts, strict=True)))


def _start(built: Path, function: str, environment: Mapping[str, str]) -> Start:
    with tempfile.TemporaryDirectory() as folder:
        place = built / function if function in EVENTS else Path(folder)
        if function not in EVENTS:
            (place / "app.py").write_text(EMPTY_APP)
        paths = [place, *(built / layer / "python" for layer in LAYERS)]
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-c", LOOK, _event(function)],
            env={**environment, "PYTHONPATH": ":".join(str(path.resolve()) for path in paths)},
            capture_output=True,
            text=True,
            check=True,
        )
    return Start(*map(float, done.stderr.splitlines()[-1].split()))


def _event(function: str) -> str:
    event = ROOT / "events" / f"{EVENTS.get(function, 'schedule')}.json"
    return event.read_text().replace("i-0abc1234def567890", "i-00000000000000001")


if __name__ == "__main__":
    main()
