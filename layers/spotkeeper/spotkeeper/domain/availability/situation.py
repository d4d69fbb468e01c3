"""What a turn of the availability half knows, and what it makes of it before it decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.availability.bridge import Bridge
from spotkeeper.domain.availability.counting import Count, shortfall_of
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.failure import FailureClass, LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import Activity, AvailabilityPolicy, Fleet, Group, Observation

LAUNCH = "Launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a turn of the availability half knows; failures are the recent ones only.

    `warned` maps instances named by events or spot requests to when they begin to be at risk;
    `sized` is what the health half last asked the spot group for. `served` has the instants at
    which instances went into service, where an event told; `taken` are detached instances that AWS
    has taken. Without `may_wait` nothing is put off.
    """

    fleet: Fleet
    seen: Observation
    memory: AvailabilityMemory = field(default_factory=AvailabilityMemory)
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    warned: Mapping[str, datetime] = field(default_factory=dict)
    served: Mapping[str, datetime] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    may_wait: bool = True
    silent: frozenset[str] = frozenset()
    sized: CapacityRequest | None = None
    activity: Activity | None = None

    @property
    def on_demand_refused(self) -> bool:
        """Whether on-demand was refused lately for a reason that counts."""
        return any(remedy(f.failure_class) is not Remedy.NONE for f in self.on_demand_failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A situation counted: the memory brought up to now, both groups, what is missing.

    `spell` says that losses come without warning (never where on-demand is warm: it is back
    before the next one is likely), `spares` how many are held against them, in a spell in either
    group, after it in the spot group only;
    `hedge` are backfilled for warnings that may be lost, and `bridge` is what of all this can wait;
    `risky` are the instances at risk now, `spot_failures` include a suspended Launch process.
    """

    situation: Situation
    memory: AvailabilityMemory
    spot: Count
    on_demand: Count
    spell: bool
    spares: int
    hedge: int
    bridge: Bridge
    risky: frozenset[str]
    spot_failures: tuple[LaunchFailure, ...]
    both_short: bool

    @property
    def now(self) -> datetime:
        """The instant of the turn."""
        return self.situation.seen.seen_at

    @property
    def policy(self) -> AvailabilityPolicy:
        """What the operator allows."""
        return self.situation.fleet.availability

    @property
    def goal(self) -> int:
        """How many instances should serve, of either group.

        A spare counts once spot was asked for it: on-demand is for what spot then does not launch.
        """
        asked = max(0, self.situation.seen.spot.desired - self.spot.target)
        return self.spot.target + max(self.hedge, min(self.spares, asked) if self.spell else 0)

    @property
    def shortfall(self) -> int:
        """How many of the goal lack, with nothing that brings them soon enough."""
        asks, warm = self.memory.asks, self.policy.on_demand_warm
        return shortfall_of(self.spot, self.goal, asks, on_demand_warm=warm)

    @property
    def short_now(self) -> int:
        """How much of the shortfall cannot wait: warned instances serve on for the rest."""
        return max(0, self.shortfall - self.bridge.instances)

    @property
    def put_off(self) -> bool:
        """Whether on-demand will have to be asked for more, but not yet."""
        asked = self.on_demand.target - self.on_demand.at_risk
        return max(self.short_now, asked) < self.shortfall

    @property
    def failures(self) -> tuple[LaunchFailure, ...]:
        """The recent launch failures of both groups."""
        return (*self.spot_failures, *self.situation.on_demand_failures)


def suspended_launches(group: Group, now: datetime) -> tuple[LaunchFailure, ...]:
    """Read a suspended Launch process as a configuration failure: nothing will come."""
    if LAUNCH not in group.suspended:
        return ()
    message = f"the Launch process of {group.name} is suspended: resume it"
    return (LaunchFailure(at=now, failure_class=FailureClass.CONFIGURATION, message=message),)


def within(at: datetime | None, now: datetime, seconds: float) -> bool:
    """Say whether an instant, if there was one, lies less than so many seconds back."""
    return at is not None and now - at < timedelta(seconds=seconds)
