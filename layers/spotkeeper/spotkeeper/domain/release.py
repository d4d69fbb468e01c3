"""Which backfill instances go first when they are given back (design rule 5)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.fleet import BusyShares, Group, Instance, Phase

# Below this share of the last minutes a worker counts as idle.
IDLE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """`desired` is lowered by what never launched; `ends` are ended one by one.

    `launching` are waited for: AWS refuses to end what is being launched.
    """

    desired: int
    ends: tuple[str, ...] = ()
    launching: int = 0


def plan_release(
    group: Group,
    step: int,
    busy_shares: BusyShares | None,
    *,
    busy_too: bool,
    held_since: Mapping[str, datetime] | None = None,
) -> ReleasePlan:
    """Choose `step` instances to give back: never launched, launching, idle, then busy.

    What is launching is given back once it has launched ("Scaling Activity is In Progress",
    AutoSpotting#354). Busy ones are chosen only when `busy_too`, least busy first; their terminate
    hook lets the current request finish. Without `busy_shares` nobody is known to be busy. With
    `held_since`, those of the pool that has held the fleet for the shortest time go before the
    idle.
    """
    present = [i for i in group.instances if i.phase is not Phase.LEAVING]
    unlaunched = min(step, max(0, group.desired - len(present)))
    serving = [i for i in present if i.phase is Phase.IN_SERVICE]
    launching = min(step - unlaunched, len(present) - len(serving))
    shares, since = busy_shares or {}, held_since or {}

    def free(instance: Instance) -> bool:
        return busy_too or shares.get(instance.instance_id, 0.0) < IDLE_SHARE

    def rank(instance: Instance) -> tuple[float, float, str]:
        pool_since = since.get(instance.pool)
        age = -pool_since.timestamp() if pool_since else -math.inf
        return (age, shares.get(instance.instance_id, 0.0), instance.instance_id)

    chosen = sorted(filter(free, serving), key=rank)[: step - unlaunched - launching]
    return ReleasePlan(
        desired=group.desired - unlaunched,
        ends=tuple(instance.instance_id for instance in chosen),
        launching=launching,
    )
