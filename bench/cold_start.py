"""Cold starts of what is deployed: built functions with their layers, with and without byte code.

Needs `make local-build`. Nothing but the standard library and the layers is on the path.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

BUILT = Path("build/local-aws/sam")
LAYERS = ("SpotkeeperLayer", "DependenciesLayer")
FUNCTIONS = ("CollectSearchLogs", "CheckHealth", "CheckAvailability", "HandleInterruption")
EMPTY = "an empty function with boto3"
RUNS = 5
LOOK = "import time; began = time.perf_counter(); import {name}; print(time.perf_counter() - began)"
ENVIRONMENT = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
}


def main() -> None:
    """Print the seconds of each import and the ratio to the empty function."""
    if not BUILT.exists():
        sys.exit("nothing is built: make local-build")
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder)
        for layer in LAYERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(BUILT / layer, bare / layer, ignore=ignored)
        table = Table("imports", "with byte code, s", "ratio", "without, s", "times")
        empty = _least(BUILT, None)
        for name in (EMPTY, *FUNCTIONS):
            function = None if name == EMPTY else name
            compiled, source = _least(BUILT, function), _least(bare, function)
            ratios = (f"{compiled / empty:.2f}x", f"{source / compiled:.1f}")
            table.add_row(name, f"{compiled:.2f}", ratios[0], f"{source:.2f}", ratios[1])
    table.caption = f"least of {RUNS} new processes on this machine"
    Console().print(table)


def _least(layers: Path, function: str | None) -> float:
    return min(_seconds(layers, function) for _ in range(RUNS))


def _seconds(layers: Path, function: str | None) -> float:
    paths = [str((layers / layer / "python").resolve()) for layer in LAYERS]
    if function:
        paths.insert(0, str((BUILT / function).resolve()))
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", LOOK.format(name="app" if function else "boto3")],
        env=ENVIRONMENT | {"PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
