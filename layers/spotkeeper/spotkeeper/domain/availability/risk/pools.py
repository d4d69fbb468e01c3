"""Which pools have held the fleet for long: old instances are safer, and pools differ in it."""

from collections import Counter
from collections.abc import Mapping, Set
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Group, Phase


def remember_pools(
    held_since: Mapping[str, datetime], spot: Group, risky: Set[str], now: datetime
) -> dict[str, datetime]:
    """Note from when on each pool has held an instance that serves; one that lost all forgets."""
    held = {
        i.pool for i in spot.instances if i.phase is Phase.IN_SERVICE and i.instance_id not in risky
    }
    return {pool: held_since.get(pool, now) for pool in sorted(held)}


def count_proven(
    spot: Group, held_since: Mapping[str, datetime], proven_after_s: float, now: datetime
) -> int:
    """Count the instances in service whose pool has held the fleet for so long."""
    before = now - timedelta(seconds=proven_after_s)
    long = {pool for pool, since in held_since.items() if since <= before}
    return sum(i.pool in long for i in spot.instances if i.phase is Phase.IN_SERVICE)


def covered_share(spot: Group, spares: int) -> float:
    """Give the share of the pools that serve whose loss so many spares make up for; 0 for none."""
    held = Counter(i.pool for i in spot.instances if i.phase is Phase.IN_SERVICE)
    return sum(count <= spares for count in held.values()) / len(held) if held else 0.0
