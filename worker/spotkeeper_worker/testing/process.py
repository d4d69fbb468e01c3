"""A real agent beside a machine of pretence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spotkeeper_worker.testing.serving import FakeServer

DEADLINE_S = 60.0


def start_agent(
    folder: Path, server: FakeServer, stderr: Any = None, **settings: object
) -> subprocess.Popen[bytes]:
    """Start an agent that looks at the machine ten times a second."""
    quick = {"poll_s": 0.1, "tick_s": 0.05, "settle_s": 0.2, "send_after_s": 0.2, **settings}
    environment = {name: text for name, text in os.environ.items() if name[:4] != "AWS_"}
    environment.update(server.environment())
    environment["SPOTKEEPER_RUN_DIR"] = str(folder / "run")
    environment["SPOTKEEPER_SPOOL_DIR"] = str(folder / "spool")
    environment.update({f"SPOTKEEPER_{n.upper()}": str(v) for n, v in quick.items()})
    (folder / "run" / "workers").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "spotkeeper_worker", "run"]
    return subprocess.Popen(command, env=environment, stderr=stderr)


def until(holds: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait for something; raises TimeoutError with its name."""
    ends = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {within_s:g} s")
        time.sleep(0.01)
