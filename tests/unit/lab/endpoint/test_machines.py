"""Workers and agents of a lab, in its time."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spotkeeper.border import search_log
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    GroupSpec,
    InstanceView,
    LifecycleHook,
    Physics,
    Purchase,
    Transition,
    WarmPool,
)
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING, TERMINATING
from spotkeeper_lab.endpoint.machines import Agents, Workers, addressed
from spotkeeper_lab.local_aws.wire import VirtualTime
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.workers import VISIBILITY_S

POOL = "us-east-1a/g5.xlarge"


def instance(number: int) -> InstanceView:
    return InstanceView(
        instance_id=f"i-{number:017x}",
        pool=POOL,
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


def test_workers_serve_what_is_offered_and_each_is_logged_soon(workers: Workers) -> None:
    bodies: list[str] = []
    for at_s in range(1, 301):
        workers.advance(float(at_s), tuple(instance(n) for n in range(1, 7)))
        bodies += workers.ship()
        if at_s == 90:
            logs = [log for body in bodies for log in search_log.read(body).logs]
            assert len({log.worker_id for log in logs}) == 6
    logs = [log for body in bodies for log in search_log.read(body).logs]
    assert 200 < len(logs) <= workers.served < 400
    assert workers.served - len(logs) < 30
    # As the agent sends: a machine's logs together, ten seconds of them.
    assert len(bodies) < 200


@pytest.mark.parametrize("state", [PENDING, TERMINATING, "Warmed:Stopped"])
def test_an_instance_that_is_not_in_service_takes_nothing(workers: Workers, state: str) -> None:
    workers.advance(60.0, (replace(instance(1), state=state),))
    assert workers.served == 0
    assert workers.force.queued > 0


def test_the_request_of_a_lost_instance_is_served_by_another(workers: Workers) -> None:
    workers.advance(20.0, (instance(1),))
    workers.offer(0.0)
    waiting, before = workers.force.queued + workers.force.in_flight, workers.served
    workers.advance(21.0, (instance(2),))
    workers.advance(21.0 + VISIBILITY_S + 600.0, (instance(2),))
    assert workers.served == before + waiting
    assert workers.force.lost == []


def test_logs_of_a_silent_time_are_lost(workers: Workers) -> None:
    workers.advance(60.0, (instance(1),))
    workers.stop(120.0)
    workers.advance(119.0, (instance(1),))
    assert workers.ship() == []
    workers.advance(180.0, (instance(1),))
    assert workers.ship()


@pytest.fixture
def cloud() -> Cloud:
    """A group of one with hooks for launch and end; a worker is ready after 60 s."""
    group = GroupSpec(
        name="od",
        purchase=Purchase.ON_DEMAND,
        minimum=0,
        maximum=5,
        desired=1,
        pools=(POOL,),
        hooks=tuple(
            LifecycleHook(name=kind.name.lower(), transition=kind, heartbeat_s=600.0)
            for kind in Transition
        ),
    )
    market = market_of("agents", 86_400.0, {POOL: [(0.0, 0)]})
    return Cloud(market, [group], Physics(cold_start_s=60.0))


def states(cloud: Cloud) -> list[str]:
    return [one.state for one in cloud.group("od").instances]


def test_an_agent_completes_the_hook_once_the_worker_can_serve_or_is_idle(cloud: Cloud) -> None:
    agents = Agents()
    cloud.advance(59.0)
    agents.look(cloud, ())
    assert states(cloud) == ["Pending:Wait"]
    cloud.advance(60.0)
    agents.look(cloud, ())
    assert states(cloud) == ["InService"]
    busy = cloud.group("od").instances[0].instance_id
    cloud.set_desired("od", 0)
    # Heartbeats keep it for longer than its hook's time-out.
    for at_s in range(120, 1800, 60):
        cloud.advance(float(at_s))
        agents.look(cloud, (busy,))
    assert states(cloud) == ["Terminating:Wait"]
    agents.look(cloud, ())
    assert states(cloud) == []


def test_an_instance_of_a_warm_pool_is_not_held_up(cloud: Cloud) -> None:
    cloud.put_warm_pool("od", WarmPool(prepared=2))
    cloud.advance(60.0)
    Agents().look(cloud, ())
    assert [one.state for one in cloud.warm_pool("od")[1]] == ["Warmed:Stopped"]


def test_a_message_reaches_the_stacks_whose_fleet_has_the_instance(workers: Workers) -> None:
    workers.advance(30.0, [instance(1)])
    workers.advance(90.0, [instance(1)])
    (body, *_) = workers.ship()
    one, other = '{"spot_group": "spot"}', '{"spot_group": "asr", "on_demand_group": "spot-2"}'
    parameters = {
        "/spotkeeper/first/fleets/main": other,
        "/spotkeeper/first/fleets/asr": one,
        "/spotkeeper/second/fleets/main": other,
        "/spotkeeper/broken/fleets/main": "{",
        "/spotkeeper/first/fleets/asr.overrides": one,
        "/else/where": one,
    }
    groups = {instance(1).instance_id: "spot"}
    ((stack, message),) = addressed(body, groups, parameters)
    assert stack == "first"
    assert {log.fleet for log in search_log.read(message).logs} == {"asr"}
    assert not list(addressed(body, {}, parameters))
