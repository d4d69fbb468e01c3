"""Ten requests on a machine of pretence: an agent, a worker, a warning, and nothing lost.

    python -m spotkeeper_worker.example

The worker is what a team writes; everything else stands in for AWS.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import tempfile
import time
from pathlib import Path

from spotkeeper_worker import Worker
from spotkeeper_worker.states import Hook
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until

REQUESTS = 10


def serve(worker: Worker, requests: queue.Queue[tuple[str, float]]) -> None:
    """The worker: this is all that a team writes."""
    worker.ready()
    while not worker.stopping:
        if not worker.may_take:
            worker.wait(0.05)
            continue
        try:
            request_id, enqueued_at = requests.get(timeout=0.05)
        except queue.Empty:
            continue
        if not worker.may_take:
            requests.put((request_id, enqueued_at))
            continue
        with worker.request(request_id, enqueued_at):
            time.sleep(0.01)
        if requests.empty():
            return


def main() -> int:
    """Serve ten requests, receive a notice, and leave; return 0 if no request was lost."""
    machine = FakeMachine()
    requests: queue.Queue[tuple[str, float]] = queue.Queue()
    for number in range(REQUESTS):
        requests.put((f"r-{number}", time.time()))
    with contextlib.ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        server = ending.enter_context(FakeServer(machine))
        machine.launch()
        agent = start_agent(folder, server)
        ending.callback(agent.wait, timeout=30)
        ending.callback(agent.terminate)
        worker = ending.enter_context(Worker("gpu-0", run_dir=folder / "run"))
        serve(worker, requests)
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
