"""RabbitMQ is restarted under workers and a forwarder: a real broker, stopped as by its service."""

import threading
from contextlib import closing
from pathlib import Path

from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.worker.brokers import Queue, Rabbit
from tests.worker.test_rabbitmq import Stage, forwarder

REQUESTS, LOGS = 40, 30


def test_a_restart_serves_each_request_once_and_loses_no_log(tmp_path: Path) -> None:
    machine = FakeMachine()
    (tmp_path / "run").mkdir()
    with closing(Rabbit(tmp_path / "rabbit")) as broker, FakeServer(machine) as server:
        requests, logs = Queue(broker, "requests"), Queue(broker, "search-logs")
        stage = Stage(tmp_path / "run", broker, requests)
        forwards = forwarder(broker, logs, server)
        begun, over = threading.Event(), threading.Event()

        def handle(body: bytes) -> None:
            begun.set()
            assert over.wait(120)
            stage.served.append(body)

        stage.handle = handle
        bodies = [b"%d" % n for n in range(REQUESTS)]
        for body in bodies:
            requests.send(body, message_id=body.decode())
        assert begun.wait(60)
        for queue in (requests, logs):
            queue.connection.close()
        broker.restart()
        over.set()
        logs = Queue(broker, "search-logs")
        for n in range(LOGS):
            logs.send(b"%d" % n)
        until(lambda: len(stage.served) == REQUESTS, "all are served")
        until(lambda: len(set(machine.bodies)) == LOGS, "all logs are forwarded")
        stage.close()
        forwards.terminate()
        assert forwards.wait(60) == 0
        requests = Queue(broker, "requests")
        assert (requests.waiting, logs.waiting) == (0, 0)
        requests.close()
        logs.close()
    assert sorted(stage.served) == sorted(bodies)
