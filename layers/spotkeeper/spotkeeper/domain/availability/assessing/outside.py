"""Instances outside of the spot group that may run: remembered, or proven to be detached."""

from datetime import datetime

from spotkeeper.domain.availability.memory import AvailabilityMemory, within
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.fleet import Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy


def still_outside(memory: AvailabilityMemory, snapshot: Snapshot) -> dict[str, datetime]:
    """Return the detached instances that may run: those remembered, and those a sweep proved.

    One that is back in the group never left it, and one that was looked for in vain has ended.
    """
    found = snapshot.sweep.detached if snapshot.sweep else {}
    known = {**found, **memory.detached}
    if not known:
        return {}
    ended = set(snapshot.taken)
    if snapshot.running is not None:
        due = overdue(memory, snapshot.fleet.availability, snapshot.now)
        ended |= due - snapshot.running - found.keys()
    group = snapshot.seen.spot
    ended |= {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}
    return {i: at for i, at in known.items() if i not in ended}


def overdue(memory: AvailabilityMemory, policy: AvailabilityPolicy, now: datetime) -> set[str]:
    """Name the detached instances past their deadline: whatever AWS leaves, nobody else ends."""
    deadline_s = policy.launch_deadline_s
    return {i for i, at in memory.detached.items() if not within(at, now, deadline_s)}
