"""Since when an instance is launching: launched is not serving, and an heir has its age.

An instance in service whose workers have not reported although requests flow is launching still. A
replacement of one that vanished before it served inherits its age: a boot loop, or spot that is
taken before it serves, would otherwise be launching for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.fleet import Group, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """The instances that are launching, by since when; `spot` are those of the spot group.

    `unserved` is since when those were launching that vanished unserved and have no heir yet.
    """

    since: Mapping[str, datetime]
    spot: tuple[str, ...]
    unserved: tuple[datetime, ...]

    @property
    def newest_spot(self) -> datetime | None:
        """When the newest of the spot instances was first seen."""
        return max((self.since[i] for i in self.spot), default=None)


def who_is_launching(memory: AvailabilityMemory, snapshot: Snapshot) -> Launching:
    """Note since when each instance is launching, and forget those that serve or are gone."""
    spot, on_demand = (
        _launching(g, snapshot) for g in (snapshot.seen.spot, snapshot.seen.on_demand)
    )
    heirs = [i for i in spot if i not in memory.launching_since]
    ages = sorted((*memory.unserved, *_vanished(memory, snapshot)))
    inherited = dict(zip(heirs, ages, strict=False))
    since = {
        i: memory.launching_since.get(i, inherited.get(i, first))
        for i, first in (*spot.items(), *on_demand.items())
    }
    return Launching(since=since, spot=tuple(spot), unserved=tuple(ages[len(inherited) :]))


def _launching(group: Group, snapshot: Snapshot) -> dict[str, datetime]:
    """Give the instances of a group that are launching, with when that was seen first."""
    unreported, now = snapshot.unreported, snapshot.now
    return {
        i.instance_id: unreported.get(i.instance_id, now)
        for i in group.instances
        if i.phase is Phase.LAUNCHING
        or (i.phase is Phase.IN_SERVICE and i.instance_id in unreported)
    }


def _vanished(memory: AvailabilityMemory, snapshot: Snapshot) -> list[datetime]:
    """Give the ages of the spot instances that vanished unserved; a smaller group lets them go."""
    if not memory.spot_launching:
        return []
    group = snapshot.seen.spot
    there = {i.instance_id for i in group.instances if i.phase is not Phase.LEAVING}
    gone = [memory.launching_since[i] for i in memory.spot_launching if i not in there]
    let_go = max(0, (memory.spot_seen or 0) - group.desired)
    return sorted(gone)[: max(0, len(gone) - let_go)]
