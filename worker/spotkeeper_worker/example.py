"""Ten requests on a machine of pretence: an agent, a worker, a warning, and nothing lost.

    python -m spotkeeper_worker.example

The worker is what a team writes; everything else stands in for AWS.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path

from spotkeeper_worker import Worker
from spotkeeper_worker.states import Hook
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until

REQUESTS = 10


def serve(worker: Worker, requests: list[str]) -> None:
    """The worker: this is all that a team writes."""
    worker.ready()
    while requests:
        if not worker.may_take:
            worker.wait(0.05)
            continue
        with worker.request(requests.pop(), time.time()):
            time.sleep(0.01)


def main() -> int:
    """Serve ten requests, receive a notice, and leave; return 0 if no request was lost."""
    machine = FakeMachine()
    with contextlib.ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        server = ending.enter_context(FakeServer(machine))
        machine.launch()
        agent = start_agent(folder, server)
        ending.callback(agent.wait, timeout=30)
        ending.callback(agent.terminate)
        worker = ending.enter_context(Worker("gpu-0", run_dir=folder / "run"))
        serve(worker, [f"r-{number}" for number in range(REQUESTS)])
        print(f"served {REQUESTS} requests; the group ends the machine now")
        until(lambda: bool(machine.completed), "the launch hook is complete")
        machine.scale_in()
        until(lambda: worker.draining, "the worker learns to drain")
        print(f"the worker drains: {worker.notice.reason if worker.notice else ''}")
        until(lambda: len(machine.completed) == len(Hook), "both hooks are complete")
    print(f"hooks completed: {', '.join(hook for hook, _ in machine.completed)}")
    ids = {log["request_id"] for log in machine.logs()}
    print(f"search logs that arrived: {len(ids)} of {REQUESTS}, lost: {REQUESTS - len(ids)}")
    return 0 if len(ids) == REQUESTS else 1


if __name__ == "__main__":
    sys.exit(main())
