"""Which failures explain a gap: the last ones, for as long as it lasts (rule 6).

AWS waits longer between its tries the longer a group fails; a gap must not forget its class.
"""

from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.failure import FailureClass, LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import Group, Phase

LAUNCH = "Launch"


def explain_gaps(snapshot: Snapshot, memory: AvailabilityMemory) -> Snapshot:
    """Add to what was read what explained a gap before, and what a suspended Launch says."""
    seen, now = snapshot.seen, snapshot.now
    spot = explaining(memory.spot_failures, snapshot.spot_failures, seen.spot)
    back = explaining(memory.on_demand_failures, snapshot.on_demand_failures, seen.on_demand)
    return replace(
        snapshot,
        spot_failures=(*spot, *_suspended_launches(seen.spot, now)),
        on_demand_failures=(*back, *_suspended_launches(seen.on_demand, now)),
    )


def explaining(
    known: tuple[LaunchFailure, ...], read: tuple[LaunchFailure, ...], group: Group
) -> tuple[LaunchFailure, ...]:
    """Give what was read, or what was known while instances are missing and nothing newer is told.

    Once all are launched, what failed before explains nothing of those that do not serve.
    """
    if not known or any(remedy(failure.failure_class) is not Remedy.NONE for failure in read):
        return read
    present = sum(i.phase is not Phase.LEAVING for i in group.instances)
    return read if present >= group.desired else (*read, *known)


def newest_of_each(failures: tuple[LaunchFailure, ...]) -> tuple[LaunchFailure, ...]:
    """Keep the newest failure of each class: that is enough to remember."""
    return tuple({f.failure_class: f for f in sorted(failures, key=lambda f: f.at)}.values())


def has_gap(group: Group) -> bool:
    """Say whether a group has fewer in service than it was asked for."""
    return sum(i.phase is Phase.IN_SERVICE for i in group.instances) < group.desired


def _suspended_launches(group: Group, now: datetime) -> tuple[LaunchFailure, ...]:
    """Read a suspended Launch process as a failure: nothing will come.

    What a person suspended is a configuration; what AWS suspended, after a day of failed launches,
    is missing capacity.
    """
    if LAUNCH not in group.suspended:
        return ()
    by_aws = LAUNCH in group.suspended_by_aws
    failure_class = FailureClass.CAPACITY if by_aws else FailureClass.CONFIGURATION
    told = "AWS suspended it, it is resumed" if by_aws else "resume it"
    message = f"the Launch process of {group.name} is suspended: {told}"
    return (LaunchFailure(at=now, failure_class=failure_class, message=message),)
