"""Warnings come in bursts: AWS takes many of a pool at once, and a warning may be lost.

So while a burst runs, a few of the pool's other instances are taken for warned too. How many
follows from how many warnings are seen: where one in ten is lost, nine seen stand for ten losses.
"""

import math
from collections import Counter
from collections.abc import Mapping, Set
from datetime import datetime, timedelta

from spotkeeper.domain.availability.risk_memory import WarningBurst
from spotkeeper.domain.fleet import Group, Phase

# Events are up to half a minute late: a burst may run on so long after its notice.
LATE = timedelta(seconds=30)


def add_bursts(
    bursts: tuple[WarningBurst, ...],
    spot: Group,
    newly_warned: Mapping[str, datetime],
    notice_s: int,
    now: datetime,
) -> tuple[WarningBurst, ...]:
    """Add what is warned anew, by instance and time, and forget the bursts that are over."""
    pools: dict[str, list[datetime]] = {}
    for instance in spot.instances:
        if instance.instance_id in newly_warned:
            pools.setdefault(instance.pool, []).append(newly_warned[instance.instance_id])
    lifetime = timedelta(seconds=notice_s) + LATE
    running = (burst for burst in bursts if now - burst.since < lifetime)
    added = (
        WarningBurst(since=min(since), pool=pool, warned=len(since))
        for pool, since in sorted(pools.items())
    )
    return (*running, *added)


def lost_warnings(
    bursts: tuple[WarningBurst, ...], spot: Group, risky: Set[str], lost_notice_share: float
) -> int:
    """Guess how many instances of the warned pools go without a warning, rounded up by pool."""
    if not bursts:
        return 0
    warned: Counter[str] = Counter()
    for burst in bursts:
        warned[burst.pool] += burst.warned
    others = Counter(
        i.pool for i in spot.instances if i.phase is Phase.IN_SERVICE and i.instance_id not in risky
    )
    return sum(
        min(others[pool], math.ceil(lost_notice_share * count)) for pool, count in warned.items()
    )
