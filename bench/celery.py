"""Celery's workers, killed and drained on real brokers, and what a task costs.

`python -m bench celery` takes some twenty minutes; with fewer `--events` less. Redis redelivers
after a kill only at its visibility time-out, an hour here: there machines are drained and ended
when they are idle, or at their end with tasks that run. On RabbitMQ they are killed, too.
"""

import argparse
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from bench._figures import Figure, show
from spotkeeper_worker.states import State
from tests.worker import brokers
from tests.worker.celery_shop import Machine, Shop

EVENTS = 500
MACHINES = 3
BATCH = 40
NOOPS = 4000
LONG = 0.05
AT_MOST_S = 120
SETTLE_S = 2
PAUSE = threading.Event()


def kill(machine: Machine, draw: random.Random) -> None:
    """The machine is gone, whatever runs."""
    PAUSE.wait(draw.uniform(0, 0.5))
    machine.kill()


def scale_in(machine: Machine, draw: random.Random) -> None:
    """The group waits for the terminate hook: the machine goes when it is idle."""
    PAUSE.wait(draw.uniform(0, 0.5))
    machine.say(State.DRAINING)
    # As the agent: none has run for SPOTKEEPER_SETTLE_S.
    still = time.monotonic() + SETTLE_S
    while time.monotonic() < still:
        PAUSE.wait(0.05)
        if re.search("busy=0*[1-9]", machine.roster):
            still = time.monotonic() + SETTLE_S
    machine.kill()


def interrupt(machine: Machine, draw: random.Random) -> None:
    """EC2 takes the machine at a time, whatever runs."""
    machine.say(State.DRAINING, until_s=3)
    PAUSE.wait(3)
    machine.kill()


PRODUCER = """
import sys
from tests.worker.celery_app import work
number = 0
for line in sys.stdin:
    for seconds in line.split():
        work.delay(f"r-{number}", float(seconds))
        number += 1
"""


def ends(url: str, folder: Path, events: int, kinds: "Sequence[Event]") -> tuple[int, int, float]:
    """End machines while tasks are published; answers published, lost, and the wait at the end."""
    draw = random.Random(events)
    shop = Shop(folder, url)
    machines = [shop.machine() for _ in range(MACHINES)]
    for machine in machines:
        machine.start()
    producer = shop.program(PRODUCER)
    for number in range(events):
        seconds = [draw.uniform(1, 6) if draw.random() < LONG else 0.02 for _ in range(BATCH)]
        print(*seconds, file=producer.stdin, flush=True)
        machine = machines[number % MACHINES]
        draw.choice(kinds)(machine, draw)
        machine.say(State.SERVING)
        machine.start()
    producer.communicate()
    published = events * BATCH
    began = time.monotonic()
    while len(shop.done) < published and time.monotonic() - began < AT_MOST_S:
        PAUSE.wait(0.1)
    lost = published - len(shop.done)
    for machine in machines:
        machine.close()
    return published, lost, time.monotonic() - began


type Event = Callable[[Machine, random.Random], None]


def task_ms(url: str, folder: Path) -> float:
    """CPU time that a task costs more than without Spotkeeper, in ms: best of three."""
    plain, joined = (
        min(noops(url, folder / f"{name}-{n}", **more) for n in range(3))
        for name, more in (("plain", {"PLAIN": "1"}), ("joined", {}))
    )
    return (joined - plain) * 1000


def noops(url: str, folder: Path, **more: str) -> float:
    """CPU seconds of worker and producer for a task that does nothing."""
    shop = Shop(folder, url, **more)
    machine = shop.machine()
    machine.start()
    before = machine.cpu_s
    shop.publish(f"for n in range({NOOPS}): work.apply_async((f'r-{{n}}', 0), ignore_result=True)")
    while len(shop.done) < NOOPS:
        PAUSE.wait(0.5)
    spent = machine.cpu_s - before
    machine.close()
    return spent / NOOPS


def main() -> None:
    """Print every figure of this file."""
    parser = argparse.ArgumentParser(prog="python -m bench celery", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    options = parser.parse_known_args()[0]
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with brokers.redis(folder) as url:
            cost = task_ms(url, folder)
            figures.append(Figure(name="a task: CPU", value=cost, unit="ms", limit=0.2))
            ran = ends(url, folder / "redis", options.events // 2, [scale_in, interrupt])
            figures += of("Redis, drains", options.events // 2, *ran)
        with closing(brokers.Rabbit(folder / "rabbit")) as broker:
            kinds = [kill, scale_in, interrupt]
            ran = ends(broker.url(), folder / "rabbitmq", options.events // 2, kinds)
            figures += of("RabbitMQ, kills and drains", options.events // 2, *ran)
    show("Celery's workers", figures, "real processes and brokers on this machine")


def of(where: str, events: int, published: int, lost: int, waited_s: float) -> list[Figure]:
    name = f"{where}: {events} ends, lost of {published:,} tasks"
    last = f"{where}: last task after the last end"
    return [
        Figure(name=name, value=lost, unit="", limit=0),
        Figure(name=last, value=waited_s, unit="s", limit=60),
    ]
