"""A machine leaves its fleet and no request is lost: `make worker-demo`.

One agent, two workers and a request queue, each a process of its own on this machine; the metadata,
the group and SQS for search logs are of pretence. The queue is on RabbitMQ where that is installed,
and on moto's SQS where it is not.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from spotkeeper_worker import roster
from spotkeeper_worker.notice import read_notice
from spotkeeper_worker.testing import FakeMachine, FakeServer, rabbit, start_agent, until

REQUESTS = 120
SERVED_BEFORE = 30
SERVICE_S = 0.15
WORKERS = ("gpu-0", "gpu-1")
CODE = """
import sys, time
from spotkeeper_worker import Worker
kind, address, name, folder = sys.argv[1:]
def answer(body):
    time.sleep({service_s})
with Worker(name, folder, margin_s=0.5) as worker:
    worker.ready()
    worker.stop_on_signals()
    if kind == "rabbitmq":
        from spotkeeper_worker.rabbitmq import serve
        serve(worker, address, "requests", answer)
    else:
        import boto3
        from spotkeeper_worker.sqs import serve
        client = boto3.client("sqs", endpoint_url=address.rpartition("/")[0].rpartition("/")[0])
        serve(worker, address, answer, client=client, wait_s=1)
"""


@dataclass(frozen=True, slots=True)
class Requests:
    """A request queue: what workers are told of it, how to fill it, and how many wait."""

    kind: str
    address: str
    send: Callable[[int], None]
    waiting: Callable[[], int]


@contextlib.contextmanager
def on_rabbitmq(folder: Path) -> Iterator[Requests]:
    """Have the queue on a broker of its own."""
    import pika

    with rabbit.shared(folder) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
        channel = connection.channel()
        channel.queue_declare("requests", durable=True)

        def send(number: int) -> None:
            about = pika.BasicProperties(message_id=f"r-{number}", timestamp=int(time.time()))
            channel.basic_publish("", "requests", b"work", about)

        def waiting() -> int:
            return int(channel.queue_declare("requests", passive=True).method.message_count)

        yield Requests("rabbitmq", broker.url(), send, waiting)
        connection.close()


@contextlib.contextmanager
def on_sqs() -> Iterator[Requests]:
    """Have the queue on moto."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sqs = boto3.client("sqs", endpoint_url=f"http://{host}:{port}")
    url = sqs.create_queue(QueueName="requests")["QueueUrl"]

    def waiting() -> int:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return int(found["Attributes"]["ApproximateNumberOfMessages"])

    def send(number: int) -> None:
        sqs.send_message(QueueUrl=url, MessageBody=f"r-{number}")

    yield Requests("sqs", url, send, waiting)
    server.stop()


class Show:
    """What the terminal shows: the machine, its workers, and what became of the requests."""

    def __init__(self, machine: FakeMachine, folder: Path, requests: Requests) -> None:
        self.began = time.monotonic()
        self.events: list[tuple[str, str]] = []
        self._machine = machine
        self._folder = folder
        self._requests = requests

    def say(self, text: str) -> None:
        """Add an event."""
        self.events.append((f"{time.monotonic() - self.began:.1f} s", text))

    @property
    def served(self) -> int:
        """Requests whose search log has arrived, each counted once."""
        return len({log["request_id"] for log in self._machine.logs()})

    def __rich__(self) -> Table:
        notice = read_notice(self._folder / "run")
        workers = roster.read_roster(self._folder / "run", len(WORKERS), time.time())
        table = Table.grid(padding=(0, 2))
        state = notice.state.value if notice else "-"
        table.add_row("[b]machine[/]", f"{state} {notice.reason if notice else ''}")
        names = ", ".join((*workers.ready, *workers.not_ready)) or "none"
        table.add_row("[b]workers[/]", f"{names}: {workers.busy} busy, {workers.begun} begun")
        table.add_row("[b]requests[/]", f"{self.served} logged, {self._requests.waiting()} wait")
        for at, text in self.events:
            table.add_row(f"{at:>8}", text)
        return table


def play(machine: FakeMachine, folder: Path, requests: Requests, show: Show) -> None:
    """Serve, be warned, drain, and go."""
    until(lambda: bool(machine.completed), "the launch hook is complete")
    show.say("[green]both workers are ready: the launch hook is complete, the machine serves[/]")
    until(lambda: show.served >= SERVED_BEFORE, "it serves")
    machine.interrupt(in_s=120)
    machine.tag(in_s=120)
    machine.detach()
    show.say("[yellow]EC2 warns: the instance goes in 120 s. What can be done by then is served[/]")
    until(lambda: show.served >= 2 * SERVED_BEFORE, "it serves on")
    machine.scale_in()
    show.say("[red]the group ends the instance now: no request is begun any more[/]")
    until(lambda: len(machine.completed) > 1, "the terminate hook is complete")
    show.say("[green]both workers are idle, their logs are sent: the terminate hook is complete[/]")


def main() -> int:
    """Play once; answers 0 if no request was lost."""
    console = Console()
    machine = FakeMachine()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(FakeServer(machine))
        queue = on_rabbitmq(folder / "rabbit") if rabbit.installed() else on_sqs()
        console.print(f"starting {'RabbitMQ' if rabbit.installed() else 'an SQS of moto'} ...")
        requests = stack.enter_context(queue)
        for number in range(REQUESTS):
            requests.send(number)
        machine.launch()
        with (folder / "agent").open("wb") as said:
            agent = start_agent(folder, server, said, workers=len(WORKERS))
        code = CODE.format(service_s=SERVICE_S)
        command = [sys.executable, "-c", code, requests.kind, requests.address]
        workers = [
            subprocess.Popen([*command, name, str(folder / "run")], stderr=subprocess.DEVNULL)
            for name in WORKERS
        ]
        show = Show(machine, folder, requests)
        with Live(show, console=console, refresh_per_second=10):
            play(machine, folder, requests, show)
            for process in (*workers, agent):
                process.terminate()
                process.wait(30)
        if not console.is_terminal:
            console.line()  # Live leaves the last line open there
        until(lambda: show.served + requests.waiting() >= REQUESTS, "nothing is in flight")
        waiting = requests.waiting()
    lost = REQUESTS - show.served - waiting
    told = f"{show.served} served, {waiting} wait for other machines, {lost} lost"
    console.print(f"{REQUESTS} requests: {told}")
    return 1 if lost else 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")
    sys.exit(main())
