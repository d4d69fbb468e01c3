from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spotkeeper.border import search_log
from spotkeeper_lab.cloud.values import InstanceView, Purchase
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING, STANDBY, TERMINATING
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.local_aws.wire import VirtualTime


def instance(number: int) -> InstanceView:
    return InstanceView(
        instance_id=f"i-{number:017x}",
        pool="us-east-1a/g5.xlarge",
        purchase=Purchase.SPOT,
        group="spot",
        state=IN_SERVICE,
        healthy=True,
        launched_s=0.0,
        in_service_s=0.0,
        serves_s=0.0,
        warned_s=None,
        gone_s=None,
        ended_s=None,
        lost=False,
    )


@pytest.fixture
def workers() -> Workers:
    found = Workers(VirtualTime(datetime(2026, 11, 20, tzinfo=UTC)))
    found.offer(2.0)
    return found


def test_workers_serve_what_is_offered_and_log_it(workers: Workers) -> None:
    bodies: list[str] = []
    for at_s in range(1, 301):
        workers.advance(float(at_s), tuple(instance(n) for n in range(1, 7)))
        bodies += workers.ship()
    logs = [log for body in bodies for log in search_log.read(body).logs]
    assert 200 < len(logs) <= workers.served < 400
    assert workers.served - len(logs) < 30
    # As the agent sends: a machine's logs together, ten seconds of them.
    assert len(bodies) < 200


@pytest.mark.parametrize("state", [PENDING, STANDBY, TERMINATING, "Warmed:Stopped"])
def test_who_is_not_in_service_takes_nothing(workers: Workers, state: str) -> None:
    workers.advance(60.0, (replace(instance(1), state=state),))
    assert workers.served == 0
    assert workers.queued > 0


@pytest.mark.parametrize("change", [{"gone_s": 60.0}, {"warned_s": -60.0}])
def test_who_leaves_takes_what_will_be_done_by_then(
    workers: Workers, change: dict[str, float]
) -> None:
    """By the library's own rule: five seconds, and its longest request, before it is gone."""
    leaving = replace(instance(1), **change)  # type: ignore[arg-type]
    for at_s in range(1, 50):
        workers.advance(float(at_s), (leaving,))
    assert workers.served > 5
    for at_s in range(50, 60):
        workers.advance(float(at_s), (leaving,))
    before, waiting = workers.served, workers.queued
    workers.advance(60.0, (leaving,))
    assert workers.queued >= waiting
    assert not workers.busy
    workers.advance(61.0, ())
    assert (workers.served, workers.lost) == (before, 0)


def test_the_request_of_a_lost_instance_is_served_by_another(workers: Workers) -> None:
    workers.advance(20.0, (instance(1),))
    workers.offer(0.0)
    waiting = workers.queued + 1
    before = workers.served
    workers.advance(600.0, (instance(2),))
    assert workers.lost == 1
    assert workers.served == before + waiting


def test_stopped_logs_are_lost(workers: Workers) -> None:
    workers.advance(60.0, (instance(1),))
    workers.stop(True)
    workers.advance(120.0, (instance(1),))
    assert workers.ship() == []
    workers.stop(False)
    assert workers.ship() == []


def test_whoever_is_in_service_logs_soon(workers: Workers) -> None:
    heard: set[str] = set()
    for at_s in range(1, 61):
        workers.advance(float(at_s), tuple(instance(n) for n in range(1, 9)))
        for body in workers.ship():
            heard |= {log.worker_id for log in search_log.read(body).logs}
    assert len(heard) == 8
