"""Clouds of one pool, with hooks, for the tests of an instance's life."""

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    GroupSpec,
    LifecycleHook,
    Physics,
    Purchase,
    Result,
    Transition,
)
from spotkeeper_lab.traces.market import market_of

POOL = "us-east-1a/g5.xlarge"


SPOT, ON_DEMAND = "spot", "od"


READY = LifecycleHook(
    name="ready", transition=Transition.LAUNCHING, heartbeat_s=300.0, default=Result.CONTINUE
)


DRAIN = LifecycleHook(name="drain", transition=Transition.TERMINATING, heartbeat_s=90.0)


def make(
    *hooks: LifecycleHook, desired: int = 0, grace_s: float = 0.0, physics: Physics | None = None
) -> Cloud:
    """An empty spot group beside an on-demand group of `desired` with hooks."""
    groups = [
        GroupSpec(name=SPOT, purchase=Purchase.SPOT, minimum=0, maximum=9, pools=(POOL,)),
        GroupSpec(
            name=ON_DEMAND,
            purchase=Purchase.ON_DEMAND,
            minimum=0,
            maximum=9,
            desired=desired,
            pools=(POOL,),
            hooks=hooks,
            grace_s=grace_s,
        ),
    ]
    market = market_of("lifecycle", 864_000.0, {POOL: [(0.0, 9)]})
    return Cloud(market, groups, physics or Physics(cold_start_s=20.0))


def states(cloud: Cloud, group: str = ON_DEMAND) -> list[str]:
    return [one.state for one in cloud.group(group).instances]


def first(cloud: Cloud, group: str = ON_DEMAND) -> str:
    return cloud.group(group).instances[0].instance_id


def pool_states(cloud: Cloud) -> list[str]:
    return [one.state for one in cloud.warm_pool(ON_DEMAND)[1]]
