"""Spare spot instances: asked for in a spell of losses that came without warning.

Losses cluster in time: after one that no warning announced, the next is likely, and nothing that is
launched after it serves soon enough. A warned loss needs no spare, its replacement is early.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.pool import count_proven, covered_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotAsk:
    """What a half asked the spot group for: what the load needs, and spares on top."""

    at: datetime
    need: int
    spare: int

    @property
    def desired(self) -> int:
        """The group's desired capacity that this makes."""
        return self.need + self.spare


def need_of(desired: int, asks: Iterable[SpotAsk | None]) -> int:
    """Tell the need in a desired capacity; one that no half asked for is all need.

    An operator or a scaling policy who sets the group is thereby right at once. While spares are
    given back one by one, desired lies between need and what was asked.
    """
    known = [ask for ask in asks if ask is not None and ask.need <= desired <= ask.desired]
    exact = [ask for ask in known if ask.desired == desired]
    newest = max(exact or known, key=lambda ask: ask.at, default=None)
    return desired if newest is None else newest.need


def spell_spares(fleet: Fleet, spot: Group, need: int) -> int:
    """Give the spares that a spell asks for, within the operator's and the group's maximum."""
    most = max(0, min(fleet.bounds.spot_max, spot.maximum) - need)
    return min(most, math.ceil(fleet.availability.spare_share * need))


def kept_spares(
    fleet: Fleet, spot: Group, need: int, held_since: Mapping[str, datetime], now: datetime
) -> int:
    """Give those of the spares held that stay after a spell: for as long as they are worth it.

    Until as many instances as needed are proven, which takes the longer the more of the pools the
    spares cover: a spare beside instances that go all at once saves nothing.
    """
    kept = min(spell_spares(fleet, spot, need), spot.desired - need)
    if kept <= 0:
        return 0
    after_s = covered_share(spot, kept) * fleet.availability.proven_after_s
    return kept if count_proven(spot, held_since, after_s, now) < need else 0
