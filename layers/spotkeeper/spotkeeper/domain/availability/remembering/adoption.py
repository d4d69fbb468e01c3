"""A fleet that is met for the first time, or whose memory was lost, is taken as it is (rule 12).

On-demand may be all that serves: nothing is given back until spot has served what on-demand does,
or until the load names the need.
"""

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import Adoption, AvailabilityMemory, settled


def adoption_of(
    before: AvailabilityMemory, memory: AvailabilityMemory, seen: Assessment
) -> Adoption | None:
    """Say what is still adopted: less where a person lowers on-demand, nothing once spot serves."""
    target, now = seen.on_demand.target, seen.now
    if before.spot_seen is None and before.seen_at is None:
        adopted = Adoption(since=now, holds=target)
    elif before.adoption is None:
        return None
    else:
        adopted = Adoption(since=before.adoption.since, holds=min(before.adoption.holds, target))
    served = settled(memory.levels, now, seen.risk.settle_s)
    if served >= adopted.holds or _load_names_the_need(seen):
        return None
    return adopted


def _load_names_the_need(seen: Assessment) -> bool:
    sizing, sized = seen.snapshot.fleet.sizing, seen.snapshot.sized
    return sizing.enabled and sized is not None and seen.snapshot.load_known
