"""Cold starts: time and memory to import each function, beside an empty one that imports boto3."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RUNS = 7
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "AWS_DEFAULT_REGION": "us-east-1",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
}
LOOK = """
import time
began = time.perf_counter()
{work}
taken = time.perf_counter() - began
# Not ru_maxrss, which begins with what the parent had.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(taken, status["VmHWM"].split()[0])
"""
EMPTY = "import boto3\ndef handler(event, context): return {}"
APP = """
import importlib.util
spec = importlib.util.spec_from_file_location("app", {path!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


class Start(NamedTuple):
    """Milliseconds and MiB; the least of several runs of each."""

    ms: float
    mib: float


def measured(works: dict[str, str]) -> dict[str, Start]:
    """Run every piece of work in new processes, by turns so that a busy minute hits all alike."""
    runs: dict[str, list[Start]] = {name: [] for name in works}
    for _ in range(RUNS):
        for name, work in works.items():
            runs[name].append(_run(work))
    return {
        name: Start(min(run.ms for run in mine), min(run.mib for run in mine))
        for name, mine in runs.items()
    }


def _run(work: str) -> Start:
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(work=work)],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    seconds, kib = map(float, done.stdout.split())
    return Start(1000 * seconds, kib / 1024)


def main() -> None:
    """Print time, memory and the ratios to the empty function."""
    functions = sorted((ROOT / "functions").glob("*/app.py"))
    works = {"nothing": "pass", "an empty function with boto3": EMPTY}
    works |= {path.parent.name: APP.format(path=str(path)) for path in functions}
    starts = measured(works)
    empty = starts["an empty function with boto3"]
    table = Table("imports", "ms", "ratio", "MiB", "ratio", title="Importing a function")
    for name, start in starts.items():
        shares = (f"{start.ms / empty.ms:.2f}x", f"{start.mib / empty.mib:.2f}x")
        table.add_row(name, f"{start.ms:.0f}", shares[0], f"{start.mib:.0f}", shares[1])
    table.caption = f"least of {RUNS} new processes on this machine, byte code at hand"
    Console().print(table)


if __name__ == "__main__":
    main()
