"""What a turn of the availability controller read, before anything is concluded from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.failure import LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import BusyShares, Fleet, Observation
from spotkeeper.domain.spread import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The marked instances that a search found; only a controller without memory searches.

    `inside` are in one of the groups. `detached` are in no group, with when they should have been
    gone, and AWS's own history shows that they were detached from their group. `unproven_marks` are
    of no group and only carry tags, or not those that the role needs: they are reported, and never
    ended.
    """

    inside: frozenset[str] = frozenset()
    detached: Mapping[str, datetime] = field(default_factory=dict)
    unproven_marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that was read for one turn of one fleet.

    * The failures are the recent ones only.
    * `warned` maps instances that events or spot requests name to when they begin to be at risk.
    * `served` maps instances to when they went into service, where an event reported it.
    * `taken` are instances that AWS has taken, including those that their group still lists.
    * Without `can_defer`, no backfill is deferred.
    * `silent` are instances whose workers do not serve; `unreported` are in service without a log
      although requests flow, with since when; `unproven` are in service without a log, with since
      when, while there were too few requests to tell.
    * With `load_known`, the load names the need; with `logged`, search logs have arrived, ever.
      They are known without a gap for `logs_known_for`; with `logs_missing`, they have stopped.
      `size_limited` says whether it needs more than was requested of the spot group; None where the
      load does not size the group, or nothing was requested yet.
    * `sweep` is the result of a search for marked instances; `running` are those of the instances
      that AWS takes, or that are detached and overdue, that have not ended; both are None when they
      were not read.
    * `on_demand_launched` is when the oldest on-demand instance was launched; read only where no
      memory says since when on-demand is in use.
    * With `claims`, groups that no stack owns are claimed.
    * With `health_lost`, the health controller's memory is damaged, or its turns have stopped:
      nobody knows what serves.
    * `left` are the groups that earlier documents named and that still have instances, with how
      many, None where that is not known.
    * `unread` names what could not be read, and why.
    * `share` is what a home of several regions says to this one; None for a fleet of one region.
    """

    fleet: Fleet
    groups: Observation
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    warned: Mapping[str, datetime] = field(default_factory=dict)
    served: Mapping[str, datetime] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    can_defer: bool = True
    silent: frozenset[str] = frozenset()
    unreported: Mapping[str, datetime] = field(default_factory=dict)
    unproven: Mapping[str, datetime] = field(default_factory=dict)
    load_known: bool = False
    logged: bool = False
    logs_known_for: timedelta = timedelta()
    logs_missing: bool = False
    sweep: Sweep | None = None
    running: frozenset[str] | None = None
    on_demand_launched: datetime | None = None
    claims: bool = False
    left: Mapping[str, int | None] = field(default_factory=dict)
    health_lost: bool = False
    unread: tuple[str, ...] = ()
    size_limited: bool | None = None
    busy_shares: BusyShares | None = None
    share: Share | None = None

    @property
    def now(self) -> datetime:
        """The instant of the turn."""
        return self.groups.seen_at

    @property
    def need(self) -> int:
        """What the fleet must serve: its share, or as many as its spot group should have."""
        return self.share.cover if self.share else self.groups.spot.desired

    @property
    def on_demand_refused(self) -> bool:
        """Whether on-demand was refused recently for a reason that counts."""
        return any(remedy(f.failure_class) is not Remedy.NONE for f in self.on_demand_failures)
