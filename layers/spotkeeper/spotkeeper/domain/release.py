"""Which backfill instances are released first (design rule 5)."""

from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import BusyShares, Group, Phase
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.summarise import summarise

# This much of the search logs shows which instances are busy.
BUSY_WINDOW = timedelta(minutes=2)
# Below this share of the last minutes a worker counts as idle.
IDLE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """`desired` is lowered by what never launched; `ends` are ended one by one.

    `launching` is how many it waits for: AWS refuses to end an instance that is being launched.
    """

    desired: int
    ends: tuple[str, ...] = ()
    launching: int = 0


def busy_shares(digests: Iterable[LoadDigest], now: datetime, slots: int) -> BusyShares:
    """Return the busiest worker's load rate of each instance that finished something."""
    shares: defaultdict[str, float] = defaultdict(float)
    for worker in summarise(digests, now, int(BUSY_WINDOW.total_seconds()), slots=slots).workers:
        if worker.instance_id:
            shares[worker.instance_id] = max(shares[worker.instance_id], worker.load_rate)
    return shares


def plan_release(
    group: Group,
    step: int,
    busy_shares: BusyShares | None,
    *,
    busy_too: bool,
    suspects: Container[str] = (),
) -> ReleasePlan:
    """Choose `step` instances: never launched, suspects, launching, idle, then busy.

    A launching instance is released once it has launched ("Scaling Activity is In Progress",
    AutoSpotting#354), or at once if no instance serves and none is to stay: AWS cannot end a wrong
    one then, and a launch that fails is not tried again. Busy ones are chosen only with
    `busy_too`, least busy first; their terminate hook lets the current request finish. Without
    `busy_shares` none counts as busy.
    """
    present = [i for i in group.instances if i.phase is not Phase.LEAVING]
    unlaunched = min(step, max(0, group.desired - len(present)))
    serving = [i for i in present if i.phase is Phase.IN_SERVICE]
    if not serving and step >= group.desired:
        return ReleasePlan(desired=group.desired - step)
    shares = busy_shares or {}
    bad = sorted([i.instance_id for i in serving if i.instance_id in suspects])
    bad = bad[: step - unlaunched]
    good = [i.instance_id for i in serving if i.instance_id not in suspects]
    launching = min(step - unlaunched - len(bad), len(present) - len(serving))
    ranks = sorted([(shares.get(i, 0.0), i) for i in good])
    free = [*bad, *[i for share, i in ranks if busy_too or share < IDLE_SHARE]]
    return ReleasePlan(
        desired=group.desired - unlaunched,
        ends=tuple(free[: step - unlaunched - launching]),
        launching=launching,
    )
