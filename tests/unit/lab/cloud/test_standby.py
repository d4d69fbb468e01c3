"""What else keeps an instance or a launch: standby, protection, grace, quotas."""

import pytest

from spotkeeper_lab.cloud.values import (
    CloudError,
    EventKind,
    Purchase,
)
from tests.unit.lab.cloud.life import (
    ON_DEMAND,
    SPOT,
    first,
    make,
    states,
)


def test_standby_serves_nothing_is_replaced_and_comes_back_on_top() -> None:
    cloud = make(desired=2)
    cloud.advance(60.0)
    aside = first(cloud)
    cloud.enter_standby(ON_DEMAND, [aside], decrement=False)
    assert states(cloud) == ["Standby", "InService", "Pending"]
    assert cloud.ready(Purchase.ON_DEMAND) == 1
    cloud.advance(120.0)
    cloud.exit_standby(ON_DEMAND, [aside])
    assert states(cloud) == ["InService"] * 3
    assert cloud.group(ON_DEMAND).desired == 3


def test_standby_with_a_decrement_is_not_replaced_and_keeps_the_minimum() -> None:
    cloud = make(desired=2)
    cloud.advance(60.0)
    cloud.enter_standby(ON_DEMAND, [first(cloud)], decrement=True)
    assert states(cloud) == ["Standby", "InService"]
    assert cloud.group(ON_DEMAND).desired == 1
    cloud.set_bounds(ON_DEMAND, 1, 1)
    with pytest.raises(CloudError, match="To place into standby 1 instances"):
        cloud.enter_standby(
            ON_DEMAND, [cloud.group(ON_DEMAND).instances[1].instance_id], decrement=True
        )
    with pytest.raises(CloudError, match="To exit from standby 1 instances"):
        cloud.exit_standby(ON_DEMAND, [first(cloud)])


def test_only_what_serves_goes_to_standby() -> None:
    cloud = make(desired=1)
    with pytest.raises(CloudError, match="not in InService"):
        cloud.enter_standby(ON_DEMAND, [first(cloud)], decrement=False)
    cloud.advance(60.0)
    with pytest.raises(CloudError, match="is not in Standby"):
        cloud.exit_standby(ON_DEMAND, [first(cloud)])


def test_a_scale_in_leaves_what_is_protected() -> None:
    cloud = make(desired=2)
    cloud.advance(60.0)
    kept = [one.instance_id for one in cloud.group(ON_DEMAND).instances]
    cloud.protect(ON_DEMAND, kept, protected=True)
    cloud.set_desired(ON_DEMAND, 0)
    assert states(cloud) == ["InService"] * 2
    cloud.protect(ON_DEMAND, kept[:1], protected=False)
    assert [one.instance_id for one in cloud.group(ON_DEMAND).instances] == kept[1:]


def test_who_is_protected_from_scale_in_is_ended_by_name_all_the_same() -> None:
    cloud = make(desired=2)
    cloud.advance(60.0)
    protected = first(cloud)
    cloud.protect(ON_DEMAND, [protected], protected=True)
    cloud.end(protected)
    assert protected not in [one.instance_id for one in cloud.group(ON_DEMAND).instances]
    assert cloud.group(ON_DEMAND).desired == 1


def test_what_is_young_is_not_replaced_for_its_health_unless_asked_for() -> None:
    cloud = make(desired=1, grace_s=300.0)
    cloud.advance(100.0)
    young = first(cloud)
    cloud.set_unhealthy(young, after_grace=True)
    assert cloud.group(ON_DEMAND).instances[0].healthy
    cloud.advance(320.0)
    cloud.set_unhealthy(young, after_grace=True)
    assert first(cloud) != young


def test_a_suspended_process_is_not_done_until_it_is_resumed() -> None:
    cloud = make(desired=2)
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


def test_an_unknown_process_is_refused() -> None:
    with pytest.raises(CloudError, match="AZRebalance"):
        make().suspend(SPOT, "Luanch")


def test_a_recommendation_is_told_and_changes_nothing() -> None:
    cloud = make()
    cloud.set_desired(SPOT, 1)
    cloud.advance(60.0)
    cloud.recommend([first(cloud, SPOT)])
    told = [one.kind for one in cloud.advance(61.0)]
    assert (told, states(cloud, SPOT)) == ([EventKind.REBALANCE], ["InService"])
