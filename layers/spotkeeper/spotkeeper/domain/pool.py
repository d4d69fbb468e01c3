"""Which pools have held the fleet for long: old instances are safer, and pools differ in it."""

from collections import Counter
from collections.abc import Mapping, Set
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Group, Instance, Phase


def remember_pools(
    held_since: Mapping[str, datetime], spot: Group, risky: Set[str], now: datetime
) -> dict[str, datetime]:
    """Note from when on each pool has held an instance that serves; one that lost all forgets."""
    held = {i.pool for i in _serving(spot) if i.instance_id not in risky}
    return {pool: held_since.get(pool, now) for pool in sorted(held)}


def count_proven(
    spot: Group, held_since: Mapping[str, datetime], proven_after_s: int, now: datetime
) -> int:
    """Count the instances in service whose pool has held the fleet for so long."""
    before = now - timedelta(seconds=proven_after_s)
    return sum(held_since.get(i.pool, now) <= before for i in _serving(spot))


def most_in_a_pool(spot: Group) -> int:
    """Count the instances in service that one pool can take with it."""
    return max(Counter(i.pool for i in _serving(spot)).values(), default=0)


def _serving(spot: Group) -> list[Instance]:
    return [i for i in spot.instances if i.phase is Phase.IN_SERVICE]
