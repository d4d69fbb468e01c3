"""What the availability controller remembers of a fleet from turn to turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.availability.risk_memory import RiskMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.failure import LaunchFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIncrease:
    """An increase of the spot group's desired capacity that may still be filled."""

    at: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """From `at` on, so many spot instances were serving."""

    at: datetime
    serving: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A fleet met at `since`, of which on-demand `holds` so many: the load may need them."""

    since: datetime
    holds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """At `at` the on-demand group of `before` was asked for another size; the answer was lost."""

    at: datetime
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityMemory:
    """The state of one fleet's availability controller; an empty one is a fresh start.

    What the last turn saw of its two `groups`, for example: `need` 6 of the `spot_seen` 7 that the
    spot group was asked for, `in_service` 5, one of them `silent`, one other `risky`; `gap_since`
    12:00, when the first was missing; `pending_increases` are those that launches may still fill;
    `launching_since` and `at_risk` since when; `levels` how many served from when on.
    `spot_launching` of them are of the spot group, `unserved` since when those were launching that
    vanished before they served, and `spot_failures` and `on_demand_failures` explain a gap for as
    long as it lasts. `adoption` is there until what on-demand serves is known needless, `swept_at`
    when marked instances were searched for, `unproven` those found that only carry tags.

    What AWS accepted: `capacity_requests` those that the spot group's desired capacity may show,
    `drained` who is marked, `detached` who was taken out of the group when and is not known to have
    ended, `wake_ups` the turns asked for. `release_due` says since when a release waits for the
    busy, `backoff_s` and `retry_at` how long on-demand stays where both groups are short, `resumed`
    when each group was last let launch again, `unsure` what is to be looked up.
    """

    groups: tuple[str, ...] = ()
    seen_at: datetime | None = None
    need: int | None = None
    spot_seen: int | None = None
    in_service: int = 0
    silent: tuple[str, ...] = ()
    risky: tuple[str, ...] = ()
    gap_since: datetime | None = None
    pending_increases: tuple[PendingIncrease, ...] = ()
    launching_since: Mapping[str, datetime] = field(default_factory=dict)
    at_risk: Mapping[str, datetime] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    risk: RiskMemory = field(default_factory=RiskMemory)
    spot_launching: tuple[str, ...] = ()
    unserved: tuple[datetime, ...] = ()
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    adoption: Adoption | None = None
    swept_at: datetime | None = None
    unproven: tuple[str, ...] = ()

    capacity_requests: tuple[CapacityRequest, ...] = ()
    drained: tuple[str, ...] = ()
    detached: Mapping[str, datetime] = field(default_factory=dict)
    wake_ups: tuple[datetime, ...] = ()
    release_due: datetime | None = None
    backoff_s: int = 0
    retry_at: datetime | None = None
    resumed: Mapping[str, datetime] = field(default_factory=dict)
    unsure: Unsure | None = None


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


def within(at: datetime | None, now: datetime, seconds: float) -> bool:
    """Say whether an instant, if there was one, lies less than so many seconds back."""
    return at is not None and now - at < timedelta(seconds=seconds)
