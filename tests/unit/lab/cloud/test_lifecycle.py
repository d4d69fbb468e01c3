"""Lifecycle hooks hold an instance that comes or leaves, and let it go."""

from collections.abc import Callable

import pytest

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudError,
    EventKind,
    LifecycleHook,
    Purchase,
    Result,
    Transition,
)
from spotkeeper_lab.cloud.words import (
    ABANDONED,
    CANCELLED,
    HOOK_ABANDONED,
)
from tests.unit.lab.cloud.life import (
    DRAIN,
    ON_DEMAND,
    READY,
    first,
    make,
    states,
)


def test_a_launched_instance_waits_until_its_hook_is_completed() -> None:
    cloud = make(READY, desired=1)
    cloud.advance(9.9)
    assert states(cloud) == ["Pending"]
    told = cloud.advance(200.0)
    assert states(cloud) == ["Pending:Wait"]
    assert [e.kind for e in told if e.instance_id == first(cloud)] == [EventKind.LAUNCH_ACTION]
    cloud.complete(ON_DEMAND, "ready", first(cloud), Result.CONTINUE)
    assert states(cloud) == ["InService"]
    assert cloud.ready(Purchase.ON_DEMAND) == 1


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
    ("default", "state"), [(Result.CONTINUE, "InService"), (Result.ABANDON, "Pending")]
)
def test_a_time_out_ends_as_the_hook_says(default: Result, state: str) -> None:
    hook = LifecycleHook(
        name="h", transition=Transition.LAUNCHING, heartbeat_s=60.0, default=default
    )
    cloud = make(hook, desired=1)
    cloud.advance(69.0)
    assert states(cloud) == ["Pending:Wait"]
    cloud.advance(70.0)
    assert states(cloud) == [state]
    told = [one.message.rpartition(": ")[2] for one in cloud.failures(ON_DEMAND, 0.0)]
    assert told == (["Heartbeat Timeout"] if default is Result.ABANDON else [])
    assert HOOK_ABANDONED.endswith("Heartbeat Timeout")


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
    assert cloud.ready(Purchase.ON_DEMAND) == 1


def test_abandoning_a_terminate_hook_only_ends_sooner() -> None:
    cloud = make(DRAIN, desired=1)
    cloud.advance(60.0)
    leaving = first(cloud)
    cloud.set_desired(ON_DEMAND, 0)
    cloud.complete(ON_DEMAND, "drain", leaving, Result.ABANDON)
    assert cloud.instance(leaving).ended_s == 60.0
    assert cloud.failures(ON_DEMAND, 0.0) == []


@pytest.mark.parametrize(
    "act",
    [
        lambda cloud, one: cloud.complete(ON_DEMAND, "ready", one, Result.CONTINUE),
        lambda cloud, one: cloud.beat(ON_DEMAND, "ready", one),
    ],
)
def test_what_no_hook_holds_cannot_be_completed(act: Callable[[Cloud, str], None]) -> None:
    cloud = make(DRAIN, desired=1)
    cloud.advance(60.0)
    with pytest.raises(CloudError, match="No active Lifecycle Action found with instance ID i-"):
        act(cloud, first(cloud))


def test_a_hook_that_is_deleted_lets_go_what_it_held() -> None:
    cloud = make(READY, desired=1)
    cloud.advance(60.0)
    cloud.delete_hook(ON_DEMAND, "ready")
    assert states(cloud) == ["InService"]
    assert cloud.hooks(ON_DEMAND) == ()
