"""A warm pool is filled beside its group, used first, and comes back where the policy says so."""

import pytest

from spotkeeper_lab.cloud.values import (
    CloudError,
    Physics,
    Purchase,
    Result,
    WarmPool,
)
from tests.unit.lab.cloud.life import ON_DEMAND, READY, SPOT, first, make, pool_states, states


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
    assert (states(cloud), cloud.ready(Purchase.ON_DEMAND)) == ([], 0)

    cloud.set_desired(ON_DEMAND, 1)
    cloud.advance(25.0)
    assert (first(cloud), states(cloud)) == (warm[0], ["Pending:Wait"])
    cloud.complete(ON_DEMAND, "ready", warm[0], Result.CONTINUE)
    assert states(cloud) == ["InService"]
    assert len(pool_states(cloud)) == 1


def test_used_instances_come_back_where_the_policy_says_so() -> None:
    cloud = make(desired=1)
    cloud.put_warm_pool(ON_DEMAND, WarmPool(prepared=1, reuse=True))
    cloud.advance(60.0)
    assert pool_states(cloud) == []
    used = first(cloud)
    cloud.set_desired(ON_DEMAND, 0)
    cloud.advance(120.0)
    assert [one.instance_id for one in cloud.warm_pool(ON_DEMAND)[1]] == [used]
    assert (states(cloud), pool_states(cloud)) == ([], ["Warmed:Stopped"])


def test_without_reuse_used_instances_end_and_others_are_prepared() -> None:
    cloud = make(desired=1)
    cloud.put_warm_pool(ON_DEMAND, WarmPool(prepared=1))
    cloud.advance(60.0)
    used = first(cloud)
    cloud.set_desired(ON_DEMAND, 0)
    cloud.advance(120.0)
    assert cloud.instance(used).ended_s == 60.0
    assert pool_states(cloud) == ["Warmed:Stopped"]


def test_a_deleted_warm_pool_ends_what_waits_in_it() -> None:
    cloud = make()
    cloud.put_warm_pool(ON_DEMAND, WarmPool(minimum=2, prepared=0))
    cloud.advance(60.0)
    cloud.delete_warm_pool(ON_DEMAND)
    assert (cloud.warm_pool(ON_DEMAND), cloud.instances()) == ((None, ()), ())
    with pytest.raises(CloudError, match="No warm pool"):
        cloud.delete_warm_pool(ON_DEMAND)


def test_a_group_that_buys_spot_gets_no_warm_pool() -> None:
    with pytest.raises(CloudError, match="Spot"):
        make().put_warm_pool(SPOT, WarmPool())


def test_a_warm_pool_of_no_said_size_fills_the_group_s_maximum() -> None:
    cloud = make(desired=4)
    cloud.put_warm_pool(ON_DEMAND, WarmPool())
    assert len(pool_states(cloud)) == 9 - 4
