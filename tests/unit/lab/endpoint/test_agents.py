import pytest

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    GroupSpec,
    LifecycleHook,
    Physics,
    Purchase,
    Transition,
    WarmPool,
)
from spotkeeper_lab.endpoint.machines import Agents
from spotkeeper_lab.traces.market import market_of

POOL = "us-east-1a/g5.xlarge"


@pytest.fixture
def cloud() -> Cloud:
    """A group of one whose hooks hold whatever comes and goes; a worker is ready after 60 s."""
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


def test_a_worker_lets_its_instance_serve_once_it_can(cloud: Cloud) -> None:
    agents = Agents()
    cloud.advance(59.0)
    agents.look(cloud, ())
    assert states(cloud) == ["Pending:Wait"]
    cloud.advance(60.0)
    agents.look(cloud, ())
    assert states(cloud) == ["InService"]


def test_a_busy_worker_holds_its_instance_back(cloud: Cloud) -> None:
    agents = Agents()
    cloud.advance(60.0)
    agents.look(cloud, ())
    busy = cloud.group("od").instances[0].instance_id
    cloud.set_desired("od", 0)
    agents.look(cloud, (busy,))
    assert states(cloud) == ["Terminating:Wait"]
    agents.look(cloud, ())
    assert states(cloud) == []


def test_what_waits_in_a_warm_pool_is_not_held_up(cloud: Cloud) -> None:
    agents = Agents()
    cloud.put_warm_pool("od", WarmPool(prepared=2))
    cloud.advance(60.0)
    agents.look(cloud, ())
    assert [one.state for one in cloud.warm_pool("od")[1]] == ["Warmed:Stopped"]


def test_a_drain_longer_than_its_hook_is_kept_waiting(cloud: Cloud) -> None:
    agents = Agents()
    cloud.advance(60.0)
    agents.look(cloud, ())
    busy = cloud.group("od").instances[0].instance_id
    cloud.set_desired("od", 0)
    for at_s in range(120, 1800, 60):
        cloud.advance(float(at_s))
        agents.look(cloud, (busy,))
    assert states(cloud) == ["Terminating:Wait"]
