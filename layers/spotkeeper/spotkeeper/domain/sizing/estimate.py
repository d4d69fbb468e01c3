"""What a sizing rule finds, and the bounds within which it is asked for."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory, Needed, OnPremCount
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.workers import hears_of_all, onprem_at_once

# A worker on premises counts for two more minutes after the window in which it logged.
KEPT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a rule found: the need of now, the workers to have, and what it remembers.

    `bound` names what keeps the size from the need; `stale` says that logs should come and do not.
    """

    rule: str
    reason: str
    workers: int
    steady: int
    needed: tuple[Needed, ...]
    missing: int = 0
    bound: str = ""
    stale: bool = False


def bounds(fleet: Fleet, spot: Group) -> tuple[int, int]:
    """Give the fewest and the most instances that the operator and the group allow."""
    most = min(fleet.bounds.spot_max, spot.maximum)
    return min(max(fleet.bounds.spot_min, spot.minimum), most), most


def instances_for(workers: int, fleet: Fleet, spot: Group) -> tuple[int, str]:
    """Turn workers into instances within the bounds, and name the bound that mattered."""
    wanted = math.ceil(max(0, workers) / fleet.workers_per_instance)
    least, most = bounds(fleet, spot)
    if wanted > most:
        return most, "spot maximum"
    if wanted < least:
        return least, "spot minimum"
    return wanted, ""


def recent_needs(
    memory: HealthMemory, now: datetime, workers: int, scale_in_after_s: int
) -> tuple[Needed, ...]:
    """Keep the needs of the stabilisation window, only those that no later one exceeds."""
    start = now - timedelta(seconds=scale_in_after_s)
    kept = [n for n in memory.needed if n.at > start and n.workers > workers]
    return (*kept, Needed(at=now, workers=workers))


def recent_onprem(
    load: Load, fleet: Fleet, memory: HealthMemory, now: datetime
) -> tuple[int, tuple[OnPremCount, ...]]:
    """Count the workers on premises to use before the cloud, and what to remember of that.

    The fewest that ran lately: a restart under new ids must not end the cloud's workers, and the
    old ids stay in the window for as long as it is. Counts are kept where nobody is missed by
    chance, and as far as no later one is less. Whoever can send logs can claim workers: where it
    is known how many there are, no more count.
    """
    running = onprem_at_once(load)
    live = min(running, fleet.onprem_workers or running)
    since = now - timedelta(seconds=load.window_s + KEPT_S)
    recent = [one for one in memory.onprem if one.at > since]
    least = min([live, *(one.workers for one in recent)])
    if not (memory.flow.is_whole(load.window_s, now) and hears_of_all(load, least)):
        return live, ()
    return least, (
        *(one for one in recent if one.workers < live),
        OnPremCount(at=now, workers=live),
    )
