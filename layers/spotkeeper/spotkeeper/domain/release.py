"""Which backfill instances go first when they are given back (design rule 5)."""

from dataclasses import dataclass

from spotkeeper.domain.fleet import Activity, Group, Phase

# Below this share of the last minutes a worker counts as idle.
IDLE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """`desired` is lowered by what never launched; `ends` are ended one by one."""

    desired: int
    ends: tuple[str, ...] = ()
    waiting_for_busy: int = 0


def plan_release(
    group: Group, step: int, activity: Activity | None, *, busy_too: bool
) -> ReleasePlan:
    """Choose `step` instances to give back: never launched, coming, idle, then busy.

    Busy ones are chosen only when `busy_too`, least busy first; their terminate hook lets the
    current request finish. Without `activity` nobody is known to be busy.
    """
    present = [i for i in group.instances if i.phase is not Phase.LEAVING]
    unlaunched = min(step, max(0, group.desired - len(present)))
    shares = activity or {}
    candidates = sorted(
        (i.phase is not Phase.COMING, shares.get(i.instance_id, 0.0), i.instance_id)
        for i in present
    )
    free = [c for c in candidates if busy_too or not c[0] or c[1] < IDLE_SHARE]
    ends = tuple(instance_id for _, _, instance_id in free[: step - unlaunched])
    return ReleasePlan(
        desired=group.desired - unlaunched,
        ends=ends,
        waiting_for_busy=step - unlaunched - len(ends),
    )
