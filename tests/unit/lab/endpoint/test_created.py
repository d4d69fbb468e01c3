from typing import Any

import pytest

from spotkeeper_lab.cloud.values import CloudError, Purchase, Transition
from spotkeeper_lab.endpoint.cloud.created import Groups, WarmPools, group_spec
from spotkeeper_lab.endpoint.serve import make_world
from spotkeeper_lab.endpoint.settings import LabSettings

ZONES = {"subnet-1": "us-east-1a", "subnet-2": "us-east-1b"}


def properties(on_demand: int = 0, **more: Any) -> dict[str, Any]:
    """What the stack's template asks of CloudFormation."""
    return {
        "AutoScalingGroupName": "mine",
        "MinSize": "1",
        "MaxSize": 5,
        "VPCZoneIdentifier": ["subnet-1", "subnet-2"],
        "MixedInstancesPolicy": {
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": on_demand},
            "LaunchTemplate": {
                "Overrides": [{"InstanceType": "g5.xlarge"}, {"InstanceType": "g6.xlarge"}]
            },
        },
    } | more


@pytest.fixture
def groups() -> Groups:
    world = make_world(LabSettings(desired=0), lambda: 1_800_000_000.0, lambda: 0.0)
    return Groups(world, ZONES.__getitem__, capacity=7)


def test_a_group_buys_in_every_zone_and_type() -> None:
    spec = group_spec("Spot", properties(), "stack", ZONES.__getitem__)
    assert spec.pools == (
        "us-east-1a/g5.xlarge",
        "us-east-1b/g5.xlarge",
        "us-east-1a/g6.xlarge",
        "us-east-1b/g6.xlarge",
    )
    assert (spec.minimum, spec.maximum, spec.desired) == (1, 5, 1)


@pytest.mark.parametrize(("share", "bought"), [(0, Purchase.SPOT), (100, Purchase.ON_DEMAND)])
def test_the_share_of_on_demand_says_what_is_bought(share: int, bought: Purchase) -> None:
    spec = group_spec("Spot", properties(share), "stack", ZONES.__getitem__)
    assert spec.purchase is bought


def test_a_created_group_launches_and_its_pools_are_known(groups: Groups) -> None:
    name, attributes = groups.create("Spot", properties(), "stack")
    assert attributes["Arn"].endswith("autoScalingGroupName/mine")
    with groups.world.now() as cloud:
        assert len(cloud.group(name).instances) == 1
    assert groups.world.capacities["us-east-1a/g6.xlarge"] == 7


def test_a_second_group_of_a_name_is_refused(groups: Groups) -> None:
    groups.create("Spot", properties(), "stack")
    with pytest.raises(CloudError, match="AlreadyExists"):
        groups.create("Spot", properties(), "stack")


def test_new_bounds_move_what_lies_outside(groups: Groups) -> None:
    groups.create("Spot", properties(), "stack")
    groups.update("mine", properties(), properties(MinSize=2, MaxSize=3), "stack")
    with groups.world.now() as cloud:
        view = cloud.group("mine")
    assert (view.minimum, view.maximum, view.desired) == (2, 3, 2)


def test_a_deleted_group_leaves_no_instance(groups: Groups) -> None:
    groups.create("Spot", properties(), "stack")
    groups.delete("mine", properties())
    with groups.world.now() as cloud:
        assert "mine" not in cloud.groups()
        assert cloud.instances() == ()


HOOKS = [
    {
        "LifecycleHookName": "spotkeeper-ready",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": "300",
        "DefaultResult": "CONTINUE",
    }
]


def test_a_created_group_has_its_hooks_and_its_grace(groups: Groups) -> None:
    asked = properties(LifecycleHookSpecificationList=HOOKS, HealthCheckGracePeriod="90")
    groups.create("Spot", asked, "stack")
    with groups.world.now() as cloud:
        (hook,) = cloud.hooks("mine")
        assert (hook.transition, hook.heartbeat_s) == (Transition.LAUNCHING, 300.0)
        assert cloud.group("mine").grace_s == 90.0


def test_an_update_changes_hooks_and_takes_those_that_are_gone(groups: Groups) -> None:
    groups.create("Spot", properties(LifecycleHookSpecificationList=HOOKS), "stack")
    changed = [HOOKS[0] | {"LifecycleHookName": "other"}]
    groups.update("mine", {}, properties(LifecycleHookSpecificationList=changed), "stack")
    with groups.world.now() as cloud:
        assert [hook.name for hook in cloud.hooks("mine")] == ["other"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"CapacityRebalance": True}, "CapacityRebalance"),
        ({"MaxInstanceLifetime": 86400}, "MaxInstanceLifetime"),
        ({"TargetGroupARNs": ["arn"], "PlacementGroup": "p"}, "PlacementGroup, TargetGroupARNs"),
    ],
)
def test_what_would_have_no_effect_is_refused_by_its_name(
    groups: Groups, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(CloudError, match=f"{named}: not simulated"):
        groups.create("Spot", properties(**asked), "stack")


def test_what_is_off_asks_for_nothing(groups: Groups) -> None:
    assert groups.create("Spot", properties(CapacityRebalance="false"), "stack")[0] == "mine"


def test_a_warm_pool_comes_and_goes_with_its_stack(groups: Groups) -> None:
    groups.create("OnDemand", properties(100), "stack")
    pools = WarmPools(groups.world)
    asked = {"AutoScalingGroupName": "mine", "MaxGroupPreparedCapacity": "3"}
    name, _ = pools.create("WarmPool", asked, "stack")
    with groups.world.now() as cloud:
        assert len(cloud.warm_pool("mine")[1]) == 2
    pools.update(name, asked, asked | {"MaxGroupPreparedCapacity": "1"}, "stack")
    with groups.world.now() as cloud:
        assert cloud.warm_pool("mine")[1] == ()
    pools.delete(name, asked)
    with groups.world.now() as cloud:
        assert cloud.warm_pool("mine")[0] is None
    groups.delete("mine", properties())
    pools.delete(name, asked)
