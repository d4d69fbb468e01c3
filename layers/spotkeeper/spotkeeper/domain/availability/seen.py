"""What a turn remembers of what it saw, whatever it then asks for and whatever AWS answers."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.counting import (
    Count,
    in_service,
    newest_coming,
    pending_increases,
)
from spotkeeper.domain.availability.interruption import still_outside
from spotkeeper.domain.availability.memory import AvailabilityMemory, add_level, within
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.failure import FailureClass, LaunchFailure

LAUNCH = "Launch"
BACKOFF_FIRST_S = 60
BACKOFF_LONGEST_S = 900


def remember_seen(
    seen: Assessment, at_risk: Mapping[str, datetime], coming_since: Mapping[str, datetime]
) -> AvailabilityMemory:
    """Bring the memory of the turn before up to now."""
    old, snapshot, spot, now = seen.memory, seen.snapshot, seen.spot, seen.now
    policy, group = seen.policy, snapshot.seen.spot
    newest = newest_coming(snapshot, coming_since)
    memory = replace(
        old,
        need=spot.target,
        spot_seen=group.desired,
        in_service=in_service(group, seen.risky),
        silent=tuple(sorted(snapshot.silent)),
        risky=tuple(sorted(seen.risky)),
        gap_since=(old.gap_since or now) if spot.missing else None,
        asks=pending_increases(old, spot, seen.spot_failures, newest, policy, now),
        first_seen_coming=coming_since,
        at_risk=at_risk,
        levels=add_level(old.levels, now, spot.serving, seen.risk.reach_s),
        risk=seen.risk.memory,
        drained=tuple(i for i in old.drained if i in seen.risky),
        detached=still_outside(old, snapshot),
        wake_ups=tuple(at for at in old.wake_ups if at > now),
        flaps=tuple(f for f in old.flaps if within(f, now, policy.breaker_window_s)),
    )
    return _back_off(memory, now, both_short=seen.both_short)


def both_short(snapshot: Snapshot, spot: Count, on_demand: Count) -> bool:
    """Say whether on-demand was asked, does not come, and AWS says why (rule 7)."""
    gap = spot.target - spot.serving - on_demand.serving
    return snapshot.on_demand_refused and gap > 0 and on_demand.missing > 0


def suspended_launches(snapshot: Snapshot) -> tuple[LaunchFailure, ...]:
    """Read a suspended Launch process as a configuration failure: nothing will come."""
    group, now = snapshot.seen.spot, snapshot.now
    if LAUNCH not in group.suspended:
        return ()
    message = f"the Launch process of {group.name} is suspended: resume it"
    return (LaunchFailure(at=now, failure_class=FailureClass.CONFIGURATION, message=message),)


def _back_off(memory: AvailabilityMemory, now: datetime, *, both_short: bool) -> AvailabilityMemory:
    if not both_short:
        return replace(memory, backoff_s=0, retry_at=None) if memory.backoff_s else memory
    if memory.retry_at is not None and now < memory.retry_at:
        return memory
    backoff = min(BACKOFF_LONGEST_S, max(BACKOFF_FIRST_S, 2 * memory.backoff_s))
    return replace(memory, backoff_s=backoff, retry_at=now + timedelta(seconds=backoff))
