"""What holds an instance that launches or leaves: hooks, warm pools, standby, protection, grace."""

from dataclasses import replace

import pytest

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    ABANDONED,
    CANCELLED,
    CloudError,
    EventKind,
    LifecycleHook,
    Physics,
    Result,
    Transition,
    WarmPool,
    two_groups,
)
from spotkeeper_lab.traces.market import market_of

POOL, SPOT, ON_DEMAND = "us-east-1a/g5.xlarge", "spot", "od"
READY = LifecycleHook(
    name="ready", transition=Transition.LAUNCHING, heartbeat_s=300.0, default=Result.CONTINUE
)
DRAIN = LifecycleHook(name="drain", transition=Transition.TERMINATING, heartbeat_s=90.0)


def make(
    *hooks: LifecycleHook, desired: int = 0, grace_s: float = 0.0, physics: Physics | None = None
) -> Cloud:
    """An empty spot group beside an on-demand group of `desired` with hooks."""
    spot, on_demand = two_groups(SPOT, ON_DEMAND, pools=(POOL,), maximum=9)
    groups = [spot, replace(on_demand, desired=desired, hooks=hooks, grace_s=grace_s)]
    market = market_of("lifecycle", 864_000.0, {POOL: [(0.0, 9)]})
    return Cloud(market, groups, physics or Physics(cold_start_s=20.0))


def states(cloud: Cloud, group: str = ON_DEMAND) -> list[str]:
    return [one.state for one in cloud.group(group).instances]


def first(cloud: Cloud, group: str = ON_DEMAND) -> str:
    return cloud.group(group).instances[0].instance_id


def pool_states(cloud: Cloud) -> list[str]:
    return [one.state for one in cloud.warm_pool(ON_DEMAND)[1]]


def test_a_launched_instance_waits_until_its_hook_is_completed() -> None:
    """By its worker, or by a call."""
    cloud, own = (make(replace(READY, by_worker=by), desired=1) for by in (False, True))
    for at_s, state, by_worker in (
        (9.9, "Pending", "Pending"),
        (19.9, "Pending:Wait", "Pending:Wait"),
        (200.0, "Pending:Wait", "InService"),
    ):
        cloud.advance(at_s)
        own.advance(at_s)
        assert (states(cloud), states(own)) == ([state], [by_worker])
    cloud.complete(ON_DEMAND, "ready", first(cloud), Result.CONTINUE)
    assert states(cloud) == ["InService"]


def test_a_launch_that_is_abandoned_is_cancelled_and_done_again() -> None:
    cloud = make(READY, desired=1)
    cloud.advance(20.0)
    before = first(cloud)
    cloud.complete(ON_DEMAND, "ready", before, Result.ABANDON)
    (cancelled,) = cloud.failures(ON_DEMAND, 0.0)
    assert cancelled.status_code == CANCELLED
    assert cancelled.message == ABANDONED.format(token="00000001-0000-4000-8000-000000000000")
    assert states(cloud) == ["Pending"]
    assert first(cloud) != before


@pytest.mark.parametrize(
    ("default", "state", "told"),
    [(Result.CONTINUE, "InService", []), (Result.ABANDON, "Pending", ["Heartbeat Timeout"])],
)
def test_a_time_out_ends_as_the_hook_says(default: Result, state: str, told: list[str]) -> None:
    cloud = make(replace(READY, heartbeat_s=60.0, default=default), desired=1)
    cloud.advance(69.0)
    assert states(cloud) == ["Pending:Wait"]
    cloud.advance(70.0)
    assert states(cloud) == [state]
    failures = cloud.failures(ON_DEMAND, 0.0)
    assert [one.message.rpartition(": ")[2] for one in failures] == told


def test_a_heartbeat_begins_the_time_out_anew_a_hundred_times_at_most() -> None:
    hook = LifecycleHook(name="h", transition=Transition.LAUNCHING, heartbeat_s=60.0)
    cloud = make(hook, desired=1)
    cloud.advance(60.0)
    instance = first(cloud)
    for beat in range(150):
        cloud.advance(60.0 + beat * 50.0)
        if states(cloud) != ["Pending:Wait"] or first(cloud) != instance:
            break
        cloud.beat(ON_DEMAND, "h", instance)
    assert cloud.instance(instance).ended_s == pytest.approx(10.0 + 100 * 60.0)


def test_every_hook_is_waited_for_and_abandoning_one_ends_all() -> None:
    other = LifecycleHook(name="other", transition=Transition.LAUNCHING)
    cloud = make(READY, other, desired=1)
    cloud.advance(30.0)
    instance = first(cloud)
    cloud.complete(ON_DEMAND, "ready", instance, Result.CONTINUE)
    assert states(cloud) == ["Pending:Wait"]
    cloud.complete(ON_DEMAND, "other", instance, Result.ABANDON)
    assert cloud.instance(instance).ended_s == 30.0


def test_an_instance_that_leaves_is_held_and_replaced_beside_it() -> None:
    cloud = make(DRAIN, desired=2)
    cloud.advance(60.0)
    leaving = first(cloud)
    cloud.set_unhealthy(leaving)
    assert states(cloud) == ["Terminating:Wait", "InService", "Pending"]
    cloud.set_unhealthy(leaving)
    assert states(cloud)[0] == "Terminating:Wait"
    cloud.complete(ON_DEMAND, "drain", leaving, Result.CONTINUE)
    assert cloud.instance(leaving).ended_s == 60.0
    assert states(cloud) == ["InService", "Pending"]


def test_abandoning_a_terminate_hook_only_ends_sooner() -> None:
    cloud = make(DRAIN, desired=1)
    cloud.advance(60.0)
    leaving = first(cloud)
    cloud.set_desired(ON_DEMAND, 0)
    cloud.complete(ON_DEMAND, "drain", leaving, Result.ABANDON)
    assert cloud.instance(leaving).ended_s == 60.0
    assert cloud.failures(ON_DEMAND, 0.0) == []


def test_a_warm_pool_is_filled_beside_the_group_and_used_first() -> None:
    cloud = make(READY, physics=Physics(cold_start_s=20.0, warm_start_s=5.0))
    cloud.put_warm_pool(ON_DEMAND, WarmPool(prepared=2))
    assert pool_states(cloud) == ["Warmed:Pending"] * 2
    cloud.advance(20.0)
    assert pool_states(cloud) == ["Warmed:Pending:Wait"] * 2
    warm = [one.instance_id for one in cloud.warm_pool(ON_DEMAND)[1]]
    for one in warm:
        cloud.complete(ON_DEMAND, "ready", one, Result.CONTINUE)
    assert pool_states(cloud) == ["Warmed:Stopped"] * 2
    assert states(cloud) == []

    cloud.set_desired(ON_DEMAND, 1)
    cloud.advance(25.0)
    assert (first(cloud), states(cloud)) == (warm[0], ["Pending:Wait"])
    cloud.complete(ON_DEMAND, "ready", warm[0], Result.CONTINUE)
    assert states(cloud) == ["InService"]
    assert len(pool_states(cloud)) == 1


@pytest.mark.parametrize("reuse", [True, False])
def test_used_instances_return_to_the_pool_if_the_policy_says_so(reuse: bool) -> None:
    cloud = make(desired=1)
    cloud.put_warm_pool(ON_DEMAND, WarmPool(prepared=1, reuse=reuse))
    cloud.advance(60.0)
    assert pool_states(cloud) == []
    used = first(cloud)
    cloud.set_desired(ON_DEMAND, 0)
    cloud.advance(120.0)
    assert (states(cloud), pool_states(cloud)) == ([], ["Warmed:Stopped"])
    assert ([one.instance_id for one in cloud.warm_pool(ON_DEMAND)[1]] == [used]) is reuse
    assert cloud.instance(used).ended_s == (None if reuse else 60.0)


def test_a_group_that_buys_spot_gets_no_warm_pool() -> None:
    with pytest.raises(CloudError, match="Spot"):
        make().put_warm_pool(SPOT, WarmPool())


def test_a_suspended_process_is_not_done_until_it_is_resumed() -> None:
    cloud = make(desired=2)
    with pytest.raises(CloudError, match="AZRebalance"):
        cloud.suspend(ON_DEMAND, "Luanch")
    cloud.advance(60.0)
    cloud.suspend(ON_DEMAND, "Terminate")
    cloud.set_desired(ON_DEMAND, 1)
    assert len(states(cloud)) == 2
    cloud.resume(ON_DEMAND, "Terminate")
    assert len(states(cloud)) == 1

    cloud.suspend(ON_DEMAND, "ReplaceUnhealthy")
    sick = first(cloud)
    cloud.set_unhealthy(sick)
    assert (first(cloud), cloud.group(ON_DEMAND).instances[0].healthy) == (sick, False)
    cloud.resume(ON_DEMAND, "ReplaceUnhealthy")
    assert first(cloud) != sick


def test_while_health_is_not_checked_the_dead_stay() -> None:
    cloud = make(desired=1)
    cloud.advance(60.0)
    cloud.suspend(ON_DEMAND, "HealthCheck")
    dead = first(cloud)
    cloud.kill(dead)
    cloud.advance(6000.0)
    assert (first(cloud), states(cloud)) == (dead, ["InService"])
    cloud.resume(ON_DEMAND, "HealthCheck")
    assert first(cloud) != dead


def test_a_recommendation_is_reported_and_changes_nothing() -> None:
    cloud = make()
    cloud.set_desired(SPOT, 1)
    cloud.advance(60.0)
    cloud.recommend([first(cloud, SPOT)])
    told = [one.kind for one in cloud.advance(61.0)]
    assert (told, states(cloud, SPOT)) == ([EventKind.REBALANCE], ["InService"])
