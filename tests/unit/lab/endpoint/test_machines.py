"""Workers and agents of a lab, in its time."""

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
)
from spotkeeper_lab.cloud.words import IN_SERVICE
from spotkeeper_lab.endpoint.machines import Agents, Workers, addressed
from spotkeeper_lab.local_aws.wire import VirtualTime
from spotkeeper_lab.traces.market import market_of

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
