"""What the availability half remembers of a fleet from turn to turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.availability.bridge import BridgeMemory
from spotkeeper.domain.availability.spell import Loss
from spotkeeper.domain.availability.wave import Wave
from spotkeeper.domain.capacity_request import CapacityRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An increase of the spot group's desired capacity that may still be filled."""

    at: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """From `at` on, so many spot instances were serving."""

    at: datetime
    serving: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityMemory:
    """The state of one fleet's availability half; an empty one is a fresh start.

    `need` is the spot need when last seen and `spot_seen` the desired capacity that held it,
    `spot_asks` the last two asks of the spot group, `held_since` from when on each pool has held an
    instance that serves, `losses` those that no warning announced.
    """

    need: int | None = None
    spot_seen: int | None = None
    in_service: int = 0
    silent: tuple[str, ...] = ()
    spot_asks: tuple[CapacityRequest, ...] = ()
    held_since: Mapping[str, datetime] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    last_surprise: datetime | None = None
    gap_since: datetime | None = None
    asks: tuple[Ask, ...] = ()
    first_seen_coming: Mapping[str, datetime] = field(default_factory=dict)
    at_risk: Mapping[str, datetime] = field(default_factory=dict)
    drained: tuple[str, ...] = ()
    waves: tuple[Wave, ...] = ()
    detached: Mapping[str, datetime] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    last_backfill: datetime | None = None
    last_release: datetime | None = None
    release_due: datetime | None = None
    flaps: tuple[datetime, ...] = ()
    breaker_until: datetime | None = None
    backoff_s: int = 0
    retry_at: datetime | None = None
    bridging: BridgeMemory = field(default_factory=BridgeMemory)


def add_level(
    levels: tuple[Level, ...], now: datetime, serving: int, longest_s: int
) -> tuple[Level, ...]:
    """Append the level of now and drop what ended before the longest settle time began."""
    if not levels or levels[-1].serving != serving:
        levels = (*levels, Level(at=now, serving=serving))
    return levels[_in_force(levels, now, longest_s) or 0 :]


def settled(levels: tuple[Level, ...], now: datetime, settle_s: int) -> int:
    """Count the spot instances that served all through the settle time; 0 while unknown."""
    first = _in_force(levels, now, settle_s)
    return 0 if first is None else min(level.serving for level in levels[first:])


def _in_force(levels: tuple[Level, ...], now: datetime, seconds: int) -> int | None:
    """Find the level that held so many seconds ago; None where memory does not reach."""
    start = now - timedelta(seconds=seconds)
    for index in range(len(levels) - 1, -1, -1):
        if levels[index].at <= start:
            return index
    return None
