"""A fleet that is met for the first time, or whose memory was lost, is taken as it is (rule 12).

So is one that has other groups than before, or that nobody turned for long: others may have moved
its groups meanwhile. On-demand may be all that serves, or a part of what the load needs: nothing is
given back until the load is known, and, where nobody sized the spot group by it since, until spot
has served what on-demand does.
"""

from dataclasses import replace

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import Adoption, AvailabilityMemory, settled, within
from spotkeeper.domain.availability.snapshot import Snapshot

# Turns come within two minutes, unless the fleet is paused, only observed, or nobody runs them.
LOOKED_AFTER_S = 600


def still_known(memory: AvailabilityMemory, snapshot: Snapshot) -> AvailabilityMemory:
    """Give what of the memory is about the groups of today and about now.

    Of other groups that is who was taken out of them, whom nobody else ends.
    """
    groups = (snapshot.seen.spot.name, snapshot.seen.on_demand.name)
    if memory.groups not in ((), groups):
        memory = AvailabilityMemory(detached=memory.detached)
    if snapshot.sweep:
        # What was marked inside of a group before the memory was lost still refuses work.
        drained = tuple(sorted({*memory.drained, *snapshot.sweep.inside}))
        memory = replace(memory, drained=drained)
    if memory.seen_at is None or within(memory.seen_at, snapshot.now, LOOKED_AFTER_S):
        return memory
    # Nobody knows when what came meanwhile began to start, nor what became of what was starting.
    starts = tuple(start for start in memory.risk.deferral.starts if start.served)
    deferral = replace(memory.risk.deferral, seen_at=None, starts=starts)
    risk = replace(memory.risk, deferral=deferral)
    return replace(
        memory,
        levels=(),
        release_due=None,
        risk=risk,
        spot_launching=(),
        unserved=(),
        pending_increases=(),
    )


def adoption_of(
    before: AvailabilityMemory, memory: AvailabilityMemory, seen: Assessment
) -> Adoption | None:
    """Say what is still adopted: less where a person lowers on-demand, nothing once spot serves."""
    target, now = seen.on_demand.target, seen.now
    if not within(before.seen_at, now, LOOKED_AFTER_S):
        adopted = Adoption(since=now, holds=target)
    elif before.adoption is None:
        return None
    else:
        adopted = Adoption(since=before.adoption.since, holds=min(before.adoption.holds, target))
    return None if not adopted.holds or _spot_is_enough(adopted, memory, seen) else adopted


def _spot_is_enough(adopted: Adoption, memory: AvailabilityMemory, seen: Assessment) -> bool:
    """Tell whether the spot group is asked for what is needed: by its operator, or by the load.

    Where no search log came in ten minutes nobody sends any: an operator sizes.
    """
    snapshot = seen.snapshot
    served = settled(memory.levels, seen.now, seen.risk.settle_s) >= adopted.holds
    if snapshot.load_known:
        return served or snapshot.sized is not None
    never_logged = not snapshot.logged and not within(adopted.since, seen.now, LOOKED_AFTER_S)
    return served and (never_logged or not snapshot.fleet.sizing.enabled)
