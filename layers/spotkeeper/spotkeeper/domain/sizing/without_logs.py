"""A fleet whose search logs do not come: silence is not zero load, unless a queue proves it.

What the load needed is held, the bounds rule as ever, and what waits in the request queue wakes the
fleet.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory, Needed
from spotkeeper.domain.load.request_queue import (
    expects_logs,
    is_blind,
    known_length,
    known_waiting,
    told,
)
from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.estimate import Estimate, bounds, recent_needs
from spotkeeper.domain.sizing.values import DRAIN_S, Need, ObjectivePolicy, PastNeed


def is_quiet(quiet_s: float, quiet_after_s: float) -> bool:
    """Tell whether the request queue was empty, and no request logged, for long enough."""
    return quiet_s >= quiet_after_s


def to_drain(waiting: int | None, service_mean_s: float, drain_s: float) -> int:
    """Return the workers that serve what waits within `drain_s`; one while a service is unknown.

    0 when nothing waits, or when that is not known.
    """
    return max(1, math.ceil(waiting * service_mean_s / drain_s)) if waiting else 0


def when_quiet(quiet_s: float, now: datetime) -> Estimate:
    """Find no need: the request queue proves that nothing came."""
    reason = f"no request for {quiet_s:.0f} s, nothing waits or is in flight"
    needed = (Needed(at=now, workers=0),)
    return Estimate(rule="quiet", reason=reason, workers=0, steady=0, needed=needed)


def explained(memory: HealthMemory, now: datetime) -> bool:
    """Tell whether chance explains the silence: requests are rare, and none is known to wait."""
    known = memory.flow.newest is not None and not memory.flow.is_missing(now)
    return known and not known_waiting(memory.queue)


def in_silence(
    newest: datetime | None,
    fleet: Fleet,
    spot: Group,
    current: int,
    serving: int,
    memory: HealthMemory,
    now: datetime,
) -> tuple[Estimate, int]:
    """Hold within the bounds, or wake: what waits has no log, since nobody served it.

    Answers what was found, and the instances that it makes.
    """
    least, most = bounds(fleet, spot)
    waking = _waking(fleet, current, memory, now)
    wanted = max(current, least, math.ceil(waking / fleet.workers_per_instance))
    instances = min(wanted, most)
    age = f"the newest is {(now - newest).total_seconds():.0f} s old" if newest else ""
    stale = expects_logs(memory.queue, serving)
    found = Estimate(
        rule="wake" if waking else "spot minimum",
        reason=f"search logs are stale ({age or 'none ever arrived'}){told(memory.queue)}",
        workers=max(waking, memory.needed[-1].workers if memory.needed else 0),
        steady=waking,
        needed=_held(fleet, memory, waking, serving, now),
        missing=max(0, waking - instances * fleet.workers_per_instance) if fleet.objective else 0,
        bound=_bound(current, instances, wanted, stale=stale),
        stale=stale,
    )
    return found, instances


def _waking(fleet: Fleet, current: int, memory: HealthMemory, now: datetime) -> int:
    """Give the workers to begin with: for what waits; one where nobody could tell that it does.

    At zero nobody logs. Without a queue that shows what waits, only a worker tells.
    """
    slots = to_drain(known_waiting(memory.queue), memory.service_mean_s, DRAIN_S)
    waking = math.ceil(slots / fleet.slots)
    unseen = memory.queue is None and memory.flow.newest is not None
    alone = not current and known_length(memory.queue) is None
    return max(waking, int(alone and (unseen or is_blind(memory.queue, now))))


def _bound(current: int, instances: int, wanted: int, *, stale: bool) -> str:
    if instances > current:
        return ""
    if wanted > instances:
        return "spot maximum"
    return "stale search logs" if stale else "quiet"


def _held(
    fleet: Fleet, memory: HealthMemory, waking: int, serving: int, now: datetime
) -> tuple[Needed, ...]:
    """Hold what was needed before: the windows are part empty for a while after a silence.

    A silence that chance explains holds nothing beyond its time: requests are rare. Where nothing
    serves, requests leave no logs, and their silence explains nothing.
    """
    if serving and memory.flow.newest is not None and not memory.flow.is_missing(now):
        return memory.needed
    if fleet.objective is None:
        before = max((n.workers for n in memory.needed), default=0)
        needs = recent_needs(memory, now, max(waking, before), fleet.sizing.scale_in_after_s)
        # Held, not known: what waits names no load, and adopted on-demand stays until one is.
        return (*needs[:-1], replace(needs[-1], held=True)) if needs[-1].workers else ()
    if not memory.needed:
        return memory.needed
    before = max(n.workers for n in memory.needed if n.held or n is memory.needed[-1])
    held_now = Needed(at=now, workers=before, held=True)
    return (*(n for n in memory.needed if not n.held), held_now)


def size_in_silence(
    load: LoadSummary, have: int, past: Sequence[PastNeed], policy: ObjectivePolicy
) -> Need:
    """Hold, but have what clears the requests that are known to wait."""
    waking = to_drain(load.queued, load.service_mean_s, policy.drain_s)
    wanted = max(have, policy.min_workers, waking)
    workers = min(wanted, policy.max_workers)
    reason = f"no search log for {load.newest_log_age_s:.0f} s: hold {workers}"
    if waking > have:
        reason = f"{load.queued} requests wait and no search log is fresh: {waking} to start with"
    newest = min(
        past,
        key=lambda need: (need.age_s, -need.workers),
        default=PastNeed(age_s=0.0, workers=workers),
    )
    missing = max(0, waking - workers)
    return Need(
        workers=workers, load_workers=newest.workers, held=True, reason=reason, missing=missing
    )
