"""What the availability controller remembers of a fleet from turn to turn.

Everything in it can be lost: `decide.adopt` then takes the fleet as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.announcements import Announced
from spotkeeper.domain.failure import LaunchFailure

# While both groups are short, on-demand is tried again after 1, 2, 4 ... 15 minutes.
BACKOFF_FIRST_S = 60
BACKOFF_LONGEST_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIncrease:
    """An increase of the spot group's desired capacity that launches may still fill.

    For `unproven` of its `count`, instances are in service that are not known to serve yet.
    """

    at: datetime
    count: int
    unproven: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How many spot instances served from `at` on."""

    at: datetime
    serving: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """`count` launches of a group failed for reasons that nobody knows, and none succeeded.

    The first failed at `since`, the newest at `newest`.
    """

    group: str
    since: datetime
    newest: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A fleet that was adopted at `since` with `holds` on-demand instances: load may need them."""

    since: datetime
    holds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """A change of the on-demand group, of `before`, requested at `at`; the answer was lost."""

    at: datetime
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningBurst:
    """`warned` instances of a pool were seen warned together, the first of them at `since`."""

    since: datetime
    pool: str
    warned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of an on-demand instance: not there yet at `began`, in service at `served`."""

    instance_id: str
    began: datetime
    served: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralMemory:
    """What deferring backfill needs; empty unless on-demand is warm.

    `known` on-demand instances were seen at `seen_at`; `gone_at` is when AWS takes each warned
    instance that still serves.
    """

    seen_at: datetime | None = None
    known: tuple[str, ...] = ()
    starts: tuple[Start, ...] = ()
    gone_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskMemory:
    """What only `risk` reads, where on-demand is warm."""

    warning_bursts: tuple[WarningBurst, ...] = ()
    deferral: DeferralMemory = field(default_factory=DeferralMemory)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityMemory:
    """The state of one fleet's availability controller; an empty one is a fresh start.

    What the last turn saw:

    * `groups`, at `seen_at`; the `need`, and `spot_seen`, the spot group's desired capacity;
    * `risky`, the instances at risk, and `gap_since`, when the first instance was missing;
    * `explained_from`, when the present gap began, or the last was filled: what failed before
      explains nothing;
    * `pending_increases` that launches may still fill;
    * `launching_since` and `at_risk` with since when, and `spot_launching` of the spot group;
    * `unserved`, for each instance that vanished before it served and has no replacement: `seen_at`
      less the time for which it launched; `heirs`, when those with such an age were seen first;
    * `levels`, how many served from when on;
    * `spot_failures` and `on_demand_failures`, which explain a gap while it lasts, and how many
      launches are `unexplained`;
    * `adoption`, until what on-demand serves is known not to be needed;
    * `swept_at`, when marked instances were searched for, and `unproven_marks`, those that only
      carry tags;
    * `spot_missing`, whether the spot group was deleted, and not given its size again since;
    * `left`, the groups of earlier documents that still have instances;
    * `on_demand_since`, since when the on-demand group has had a desired capacity above 0;
    * `price`, that of a spot hour, USD, read at `priced_at`, of a fleet in several regions.

    What AWS accepted:

    * `drained`, the marked instances, and `detached`, those taken out of the group, with when, that
      are not known to have ended;
    * `wake_ups`, the turns requested; `resumed`, when each group's Launch process was resumed;
    * `release_due`, since when a release waits for busy instances;
    * `backoff_s` and `retry_at`, how long on-demand is left alone while both groups are short;
    * `unsure`, what has to be looked up because an answer was lost;
    * `announced`, which states the event bus was informed of.
    """

    groups: tuple[str, ...] = ()
    seen_at: datetime | None = None
    need: int | None = None
    spot_seen: int | None = None
    risky: tuple[str, ...] = ()
    gap_since: datetime | None = None
    explained_from: datetime | None = None
    pending_increases: tuple[PendingIncrease, ...] = ()
    launching_since: Mapping[str, datetime] = field(default_factory=dict)
    heirs: Mapping[str, datetime] = field(default_factory=dict)
    at_risk: Mapping[str, datetime] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    risk: RiskMemory = field(default_factory=RiskMemory)
    spot_launching: tuple[str, ...] = ()
    unserved: tuple[datetime, ...] = ()
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    adoption: Adoption | None = None
    swept_at: datetime | None = None
    unproven_marks: tuple[str, ...] = ()
    spot_missing: bool = False
    left: tuple[str, ...] = ()
    on_demand_since: datetime | None = None
    price: float | None = None
    priced_at: datetime | None = None

    drained: tuple[str, ...] = ()
    detached: Mapping[str, datetime] = field(default_factory=dict)
    wake_ups: tuple[datetime, ...] = ()
    release_due: datetime | None = None
    backoff_s: int = 0
    retry_at: datetime | None = None
    resumed: Mapping[str, datetime] = field(default_factory=dict)
    unsure: Unsure | None = None
    announced: Announced = field(default_factory=Announced)


def within(at: datetime | None, now: datetime, seconds: float) -> bool:
    """Say whether an instant, if there is one, is less than `seconds` ago."""
    return at is not None and now - at < timedelta(seconds=seconds)


def add_level(
    levels: tuple[Level, ...], now: datetime, serving: int, longest_s: int
) -> tuple[Level, ...]:
    """Append the present level, and drop those that ended before the longest settle time began."""
    if not levels or levels[-1].serving != serving:
        levels = (*levels, Level(at=now, serving=serving))
    return levels[_in_force(levels, now, longest_s) or 0 :]


def settled(levels: tuple[Level, ...], now: datetime, settle_s: int) -> int:
    """Count the spot instances that served during all of the settle time; 0 while unknown."""
    first = _in_force(levels, now, settle_s)
    return 0 if first is None else min(level.serving for level in levels[first:])


def _in_force(levels: tuple[Level, ...], now: datetime, seconds: int) -> int | None:
    """Find the level that held `seconds` ago; None where memory does not reach."""
    start = now - timedelta(seconds=seconds)
    for index in range(len(levels) - 1, -1, -1):
        if levels[index].at <= start:
            return index
    return None


def back_off(memory: AvailabilityMemory, now: datetime, *, both_short: bool) -> AvailabilityMemory:
    """Wait a minute before the first try while both groups are short (rule 7)."""
    if not both_short:
        return replace(memory, backoff_s=0, retry_at=None) if memory.backoff_s else memory
    if memory.retry_at is not None:
        return memory
    retry_at = now + timedelta(seconds=BACKOFF_FIRST_S)
    return replace(memory, backoff_s=BACKOFF_FIRST_S, retry_at=retry_at)


def refused_again(memory: AvailabilityMemory, at: datetime) -> AvailabilityMemory:
    """After another try while both groups are short, wait twice as long."""
    if memory.retry_at is None:
        return memory
    backoff_s = min(BACKOFF_LONGEST_S, 2 * memory.backoff_s)
    return replace(memory, backoff_s=backoff_s, retry_at=at + timedelta(seconds=backoff_s))
