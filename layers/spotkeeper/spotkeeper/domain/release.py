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
    """`desired` is lowered by what never launched; `ends` are ended one by one."""

    desired: int
    ends: tuple[str, ...] = ()
    waiting_for_busy: int = 0


def plan_release(
    group: Group,
    step: int,
    activity: BusyShares | None,
    *,
    busy_too: bool,
    held_since: Mapping[str, datetime] | None = None,
) -> ReleasePlan:
    """Choose `step` instances to give back: never launched, coming, idle, then busy.

    Busy ones are chosen only when `busy_too`, least busy first; their terminate hook lets the
    current request finish. Without `activity` nobody is known to be busy. With `held_since`, those
    of the pool that has held the fleet for the shortest time go before the idle.
    """
    present = [i for i in group.instances if i.phase is not Phase.LEAVING]
    unlaunched = min(step, max(0, group.desired - len(present)))
    shares, since = activity or {}, held_since or {}

    def free(instance: Instance) -> bool:
        idle = shares.get(instance.instance_id, 0.0) < IDLE_SHARE
        return busy_too or idle or instance.phase is Phase.COMING

    def rank(instance: Instance) -> tuple[bool, float, float, str]:
        pool_since = since.get(instance.pool)
        age = -pool_since.timestamp() if pool_since else -math.inf
        share = shares.get(instance.instance_id, 0.0)
        return (instance.phase is not Phase.COMING, age, share, instance.instance_id)

    chosen = sorted(filter(free, present), key=rank)[: step - unlaunched]
    ends = tuple(instance.instance_id for instance in chosen)
    return ReleasePlan(
        desired=group.desired - unlaunched,
        ends=ends,
        waiting_for_busy=step - unlaunched - len(ends),
    )
