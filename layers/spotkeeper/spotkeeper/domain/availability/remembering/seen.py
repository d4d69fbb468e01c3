"""What a turn remembers of what it saw, whatever it then asks for and whatever AWS answers."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.assessing.counting import in_service, pending_increases
from spotkeeper.domain.availability.assessing.failures import explaining, newest_of_each
from spotkeeper.domain.availability.assessing.outside import still_outside
from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory, add_level, within
from spotkeeper.domain.availability.remembering.adoption import adoption_of
from spotkeeper.domain.availability.remembering.answers import BACKOFF_FIRST_S
from spotkeeper.domain.capacity_request import CapacityRequest

# A group may show the size before for so long after it was asked for another.
SHOWN_LATE = timedelta(seconds=60)


def remember_seen(seen: Assessment, at_risk: Mapping[str, datetime]) -> AvailabilityMemory:
    """Bring the memory of the turn before up to now."""
    old, snapshot, spot, now = seen.memory, seen.snapshot, seen.spot, seen.now
    policy, group, launching = seen.policy, snapshot.seen.spot, seen.launching
    sweep = snapshot.sweep
    memory = replace(
        old,
        groups=(group.name, snapshot.seen.on_demand.name),
        seen_at=now,
        need=spot.target,
        spot_seen=group.desired,
        in_service=in_service(group, seen.risky | snapshot.taken),
        silent=tuple(sorted(snapshot.silent)),
        risky=tuple(sorted(seen.risky)),
        gap_since=(old.gap_since or now) if spot.missing else None,
        pending_increases=pending_increases(
            old, spot, seen.spot_failures, launching.newest_spot, policy, now
        ),
        launching_since=launching.since,
        spot_launching=launching.spot,
        unserved=launching.unserved if spot.serving < spot.target else (),
        spot_failures=newest_of_each(explaining(old.spot_failures, snapshot.spot_failures, group)),
        on_demand_failures=newest_of_each(
            explaining(old.on_demand_failures, snapshot.on_demand_failures, snapshot.seen.on_demand)
        ),
        at_risk=at_risk,
        levels=add_level(old.levels, now, spot.serving, seen.risk.reach_s),
        risk=seen.risk.memory,
        drained=tuple(i for i in old.drained if i in seen.risky or i in seen.unmark),
        detached=still_outside(old, snapshot),
        swept_at=now if sweep else old.swept_at,
        unproven=sweep.unproven if sweep else old.unproven,
        wake_ups=tuple(at for at in old.wake_ups if at > now),
        capacity_requests=_current(old.capacity_requests, group.desired, now),
        resumed={g: at for g, at in old.resumed.items() if within(at, now, 3600)},
        unsure=None,
    )
    memory = replace(memory, adoption=adoption_of(old, memory, seen))
    return _back_off(memory, now, both_short=seen.both_short)


def _back_off(memory: AvailabilityMemory, now: datetime, *, both_short: bool) -> AvailabilityMemory:
    """Wait for a minute before the first try."""
    if not both_short:
        return replace(memory, backoff_s=0, retry_at=None) if memory.backoff_s else memory
    if memory.retry_at is not None:
        return memory
    retry_at = now + timedelta(seconds=BACKOFF_FIRST_S)
    return replace(memory, backoff_s=BACKOFF_FIRST_S, retry_at=retry_at)


def _current(
    requests: tuple[CapacityRequest, ...], desired: int, now: datetime
) -> tuple[CapacityRequest, ...]:
    """Forget spares once they are given back: a desired capacity set later is all need."""
    back = [r for r in requests if r.need == desired and now - r.at >= SHOWN_LATE]
    return () if back and all(now - r.at >= SHOWN_LATE for r in requests) else requests
