"""The worker side, measured on real processes: what it costs, and what it keeps.

`python -m bench worker` takes three to five minutes; with fewer `--kills`, `--machines` and
`--seconds` less.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench._figures import Figure, show
from spotkeeper_worker import AsyncWorker, Worker
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until

MACHINES = 20
ROUNDS = 3
EMITTED = 20_000
LOGS_PER_S = 100
MEASURED_S = 30.0
KILLS = 500
LANES = 4
PAGE_MIB = resource.getpagesize() / 2**20


class Scene:
    """A machine of pretence with a real agent and one worker, which serves."""

    def __init__(
        self, kind: type[Worker], folder: Path, server: FakeServer, **settings: object
    ) -> None:
        self.machine = server.machine
        self._start = partial(start_agent, folder, server, subprocess.DEVNULL, **settings)
        self.machine.launch()
        self.agent = self._start()
        self.worker = kind("gpu-0", folder / "run", margin_s=0.0)
        self.worker.ready()
        until(lambda: self.worker.may_take and bool(self.machine.completed), "it serves", 60)

    def kill(self) -> None:
        self.agent.kill()
        self.agent.wait()

    def start_again(self) -> None:
        self.agent = self._start()


@contextlib.contextmanager
def scene(kind: type[Worker] = Worker, **settings: object) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as name, FakeServer(FakeMachine()) as server:
        made = Scene(kind, Path(name), server, **settings)
        with made.worker:
            try:
                yield made
            finally:
                made.kill()


def emit_us(kind: type[Worker] = Worker) -> float:
    """Microseconds that a request spends in the library, best of several rounds.

    A round is short, so that one of them is not disturbed by what else runs on the machine.
    """
    best, rounds = float("inf"), 20

    async def serve(worker: Worker) -> None:
        for number in range(EMITTED // rounds):
            if isinstance(worker, AsyncWorker):
                async with worker.request(str(number), time.time()):
                    pass
            else:
                with worker.request(str(number), time.time()):
                    pass

    with scene(kind, poll_s=5, tick_s=1) as host:
        for _ in range(rounds):
            began = time.perf_counter()
            asyncio.run(serve(host.worker))
            best = min(best, (time.perf_counter() - began) / (EMITTED // rounds))
            until(lambda: host.worker._emitter.waiting == 0, "the agent has them", 60)
    return best * 1e6


def notice_s(machines: int) -> list[float]:
    """Seconds from a warning to a worker that knows of it, at the default poll."""

    def one(seed: int) -> list[float]:
        draw = random.Random(seed)
        took = []
        with scene(poll_s=5, tick_s=1) as host:
            for _ in range(ROUNDS):
                host.worker.wait(draw.uniform(0, 5))
                began = time.monotonic()
                host.machine.tag(3600)
                until(lambda: host.worker.draining, "it drains", 60)
                took.append(time.monotonic() - began)
                host.machine.untag()
                until(lambda: not host.worker.draining, "it serves", 60)
        return took

    with ThreadPoolExecutor(machines) as pool:
        return sorted(each for took in pool.map(one, range(machines)) for each in took)


def agent_at_work(measured_s: float) -> tuple[float, float, float]:
    """Percent of a core and MiB of an agent at 100 logs/s, and the message count by the hour."""
    with scene(poll_s=5, tick_s=1, send_after_s=5) as host:
        statm = Path(f"/proc/{host.agent.pid}/statm")
        pace = threading.Event()
        began, before = time.monotonic(), _cpu_s(host.agent.pid)
        number = 0
        while time.monotonic() - began < measured_s:
            while number < (time.monotonic() - began) * LOGS_PER_S:
                with host.worker.request(str(number), time.time()):
                    number += 1
            pace.wait(0.02)
        seconds = time.monotonic() - began
        cpu = (_cpu_s(host.agent.pid) - before) / seconds
        resident = int(statm.read_text().split()[1]) * PAGE_MIB
        return 100 * cpu, resident, len(host.machine.bodies) / seconds * 3600


def _cpu_s(pid: int) -> float:
    """Read a process's CPU clock: ticks of 10 ms in /proc are samples, and wrong by a quarter.

    Linux's clock id of a process is in include/linux/posix-timers.h (CPUCLOCK_SCHED).
    """
    return time.clock_gettime((~pid << 3) | 2)


def completed_under_a_request(kills: int) -> int:
    """How often a hook was completed while a request ran, agents being killed at random."""

    def one(seed: int) -> int:
        draw, wrong = random.Random(seed), 0
        with scene(poll_s=0.05, tick_s=0.02, settle_s=0.1, hook_settles_s=1) as host:
            for _ in range(kills // LANES):
                wrong += _kill_in_a_drain(host, draw)
        return wrong

    with ThreadPoolExecutor(LANES) as pool:
        return sum(pool.map(one, range(LANES)))


def _kill_in_a_drain(host: Scene, draw: random.Random) -> bool:
    """Kill the agent between the order to go and long after; a request runs throughout."""
    machine, worker = host.machine, host.worker
    before = len(machine.completed)
    with worker.request("r", time.time()):
        machine.scale_in()
        worker.wait(draw.uniform(0, 0.4))
        host.kill()
        host.start_again()
        worker.wait(draw.uniform(0, 0.6))
        wrong = len(machine.completed) > before
    until(lambda: len(machine.completed) > before, "the hook is complete", 60)
    machine.launch()
    until(lambda: worker.may_take, "it serves", 60)
    until(lambda: len(machine.completed) > before + 1, "the launch hook is complete", 60)
    return wrong


def main() -> None:
    """Print every figure of this file."""
    parser = argparse.ArgumentParser(prog="python -m bench worker", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--machines", type=int, default=MACHINES)
    parser.add_argument("--seconds", type=float, default=MEASURED_S)
    options = parser.parse_known_args()[0]
    # Each kill of an agent is a warning of its workers.
    logging.getLogger("spotkeeper").setLevel(logging.ERROR)
    took = notice_s(options.machines)
    percent, resident, messages = agent_at_work(options.seconds)
    wrong = completed_under_a_request(options.kills)
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    figures = [
        Figure(name=name, value=value, unit=unit, limit=limit)
        for name, value, unit, limit in (
            ("a request's time in the library", emit_us(), "us", 3),
            ("a request of asyncio: its time in the library", emit_us(AsyncWorker), "us", 20),
            (f"notice to draining, p99 of {len(took)}", p99, "s", 6),
            ("agent at 100 logs/s: a core", percent, "%", 0.5),
            ("agent at 100 logs/s: memory", resident, "MiB", 25),
            ("agent at 100 logs/s: messages an hour", messages, "", None),
            (f"hooks completed while a request ran, {options.kills} kills", wrong, "", 0),
        )
    ]
    show("The worker side", figures, "real processes on this machine")
