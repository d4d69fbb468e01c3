"""A snapshot counted: who serves, what is missing, what may be lost. Nothing is decided yet."""

from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.availability.assessing.counting import Count, shortfall_of
from spotkeeper.domain.availability.assessing.launching import Launching
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.risk.risk import Risk
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.settings.availability import AvailabilityPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Both groups counted, and the memory brought up to now: all that was seen, nothing done.

    `risky` are the instances at risk now, `newly_risky` those of them that were not when last
    seen, `unmark` those whose warning has lapsed and that are marked still. The failures are those
    that explain a gap, a suspended Launch process among them. `found` is how far on-demand has
    moved by a request whose answer was lost, `groups_before` are those of the turn before.
    """

    snapshot: Snapshot
    memory: AvailabilityMemory
    spot: Count
    on_demand: Count
    risk: Risk
    risky: frozenset[str]
    newly_risky: frozenset[str]
    unmark: tuple[str, ...]
    launching: Launching
    spot_failures: tuple[LaunchFailure, ...]
    on_demand_failures: tuple[LaunchFailure, ...]
    both_short: bool
    found: int
    groups_before: tuple[str, ...]

    @property
    def now(self) -> datetime:
        """The instant of the turn."""
        return self.snapshot.now

    @property
    def policy(self) -> AvailabilityPolicy:
        """What the operator allows."""
        return self.snapshot.fleet.availability

    @property
    def target_serving(self) -> int:
        """How many instances should serve, of either group."""
        return self.spot.target + self.risk.extra

    @property
    def shortfall(self) -> int:
        """How many of those lack, with nothing that brings them soon enough."""
        increases, warm = self.memory.pending_increases, self.policy.on_demand_warm
        return shortfall_of(self.spot, self.target_serving, increases, on_demand_warm=warm)

    @property
    def short_now(self) -> int:
        """How much of the shortfall cannot wait: warned instances serve on for the rest."""
        return max(0, self.shortfall - self.risk.deferral.instances)

    @property
    def deferred(self) -> bool:
        """Whether on-demand will have to be asked for more, but not yet."""
        asked = self.on_demand.target - self.on_demand.at_risk
        return max(self.short_now, asked) < self.shortfall

    @property
    def failures(self) -> tuple[LaunchFailure, ...]:
        """The recent launch failures of both groups."""
        return (*self.spot_failures, *self.on_demand_failures)

    @property
    def unfilled(self) -> int:
        """Instances that neither group serves at this moment."""
        spot, on_demand = self.spot, self.on_demand
        there = spot.serving + spot.unheard + on_demand.serving + on_demand.unheard
        return max(0, spot.target - there)
