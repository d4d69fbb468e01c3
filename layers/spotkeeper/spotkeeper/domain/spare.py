"""Spare spot instances: asked for in a spell of losses that came without warning.

Losses cluster in time: after one that no warning announced, the next is likely, and nothing that is
launched after it serves soon enough. A warned loss needs no spare, its replacement is early.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.pool import most_in_a_pool


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


def wanted_spares(fleet: Fleet, spot: Group, need: int, proven: int, *, spell: bool) -> int:
    """Give the spares to hold: in a spell all, after it those held while they are worth it.

    They are until as many instances as needed are `proven`, if they cover the loss of any pool:
    a spare beside instances that go all at once saves nothing.
    """
    full = covering_spares(fleet, spot, need)
    if spell:
        return full
    kept = min(full, spot.desired - need)
    return kept if proven < need and most_in_a_pool(spot) <= kept else 0


def covering_spares(fleet: Fleet, spot: Group, need: int) -> int:
    """Give the spares that a spell asks for, within the operator's and the group's maximum."""
    most = max(0, min(fleet.bounds.spot_max, spot.maximum) - need)
    return min(most, math.ceil(fleet.availability.spare_share * need))
