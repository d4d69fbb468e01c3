"""What a fleet is to have while no search log comes.

Silence alone is not zero load, so the fleet stays as it is. A request queue that was seen empty
for long enough makes it zero load; requests that wait in it are worth workers, logs or not.
"""

import math
from collections.abc import Sequence

from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.values import Need, ObjectivePolicy, PastNeed


def is_quiet(quiet_s: float, quiet_after_s: float) -> bool:
    """Tell whether the request queue was empty, and no request logged, for long enough."""
    return quiet_s >= quiet_after_s


def to_drain(waiting: int | None, service_mean_s: float, drain_s: float) -> int:
    """Return the workers that serve what waits within `drain_s`; one while a service is unknown.

    0 when nothing waits, or when that is not known.
    """
    return max(1, math.ceil(waiting * service_mean_s / drain_s)) if waiting else 0


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
