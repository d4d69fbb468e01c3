"""Spare spot instances: asked for while the risk of losses without warning is elevated.

Losses cluster in time: after one that no warning announced, the next is likely, and nothing that is
launched after it serves soon enough. A warned loss needs no spare, its replacement is early.
"""

import math
from collections.abc import Mapping
from datetime import datetime

from spotkeeper.domain.availability.risk.pools import count_proven, covered_share
from spotkeeper.domain.fleet import Fleet, Group


def elevated_spares(fleet: Fleet, spot: Group, need: int) -> int:
    """Give the spares that elevated risk asks for, within the fleet's and the group's maximum."""
    most = max(0, min(fleet.bounds.spot_max, spot.maximum) - need)
    return min(most, math.ceil(fleet.availability.spare_share * need))


def kept_spares(
    fleet: Fleet, spot: Group, need: int, held_since: Mapping[str, datetime], now: datetime
) -> int:
    """Give those of the spares held that stay after that: for as long as they are worth it.

    Until as many instances as needed are proven, which takes the longer the more of the pools the
    spares cover: a spare beside instances that go all at once saves nothing.
    """
    kept = min(elevated_spares(fleet, spot, need), spot.desired - need)
    if kept <= 0:
        return 0
    after_s = covered_share(spot, kept) * fleet.availability.proven_after_s
    return kept if count_proven(spot, held_since, after_s, now) < need else 0
