import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spotkeeper.border import search_log
from spotkeeper_lab.cloud.values import InstanceView, Purchase
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING
from spotkeeper_lab.endpoint.machines.workers import Workers
from spotkeeper_lab.local_aws.answers import VirtualTime


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
    workers.advance(300.0, tuple(instance(n) for n in range(1, 7)))
    logs = [json.loads(line) for body in workers.ship() for line in body.splitlines()]
    assert 200 < workers.served == len(logs) < 400
    for log in logs:
        search_log.read(json.dumps(log))


@pytest.mark.parametrize("change", [{"state": PENDING}, {"gone_s": 120.0}])
def test_who_is_not_ready_or_drains_takes_nothing(
    workers: Workers, change: dict[str, object]
) -> None:
    workers.advance(60.0, (replace(instance(1), **change),))  # type: ignore[arg-type]
    assert workers.served == 0
    assert workers.queued > 0


def test_a_draining_worker_finishes_its_request(workers: Workers) -> None:
    workers.advance(20.0, (instance(1),))
    workers.offer(0.0)
    before = workers.served
    workers.advance(60.0, (replace(instance(1), gone_s=120.0),))
    assert workers.served == before + 1


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
    workers.stopped = True
    assert workers.ship() == []
    workers.stopped = False
    assert workers.ship() == []
