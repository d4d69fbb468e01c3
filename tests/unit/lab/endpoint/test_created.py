from typing import Any

import pytest

from spotkeeper_lab.cloud.values import CloudError, Purchase
from spotkeeper_lab.endpoint.created import Groups, group_spec
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
