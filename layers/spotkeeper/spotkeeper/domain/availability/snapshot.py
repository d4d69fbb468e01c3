"""What a turn of the availability controller knows of the world before it makes anything of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.failure import LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import BusyShares, Fleet, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The marked instances that a search found, which only a controller without memory needs.

    `inside` are in one of the groups. `detached` are outside, with when they should have been gone,
    and AWS's own history proves that they were detached from their group. `unproven` are outside
    and only carry tags: they are reported, and never ended.
    """

    inside: frozenset[str] = frozenset()
    detached: Mapping[str, datetime] = field(default_factory=dict)
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that was read for one fleet's turn; failures are the recent ones only.

    `warned` maps instances named by events or spot requests to when they begin to be at risk;
    `sized` is what the health controller last asked of the spot group. `served` has the instants at
    which instances went into service, where an event told; `taken` are instances that AWS has
    taken, also those that their group still lists, `let_go` those that their group was asked to
    end. Without `can_defer` nothing is put off. `unreported` are in service without a log although
    requests flow, since when, `unheard` without one while too few requests came to tell; with
    `load_known` the load names the need, with `logged` search logs have come, ever. `sweep` is what
    a search for marked instances found, and `running` those of the detached that still run; both
    are None where nobody looked. `unread` says what could not be read, and why.
    """

    fleet: Fleet
    seen: Observation
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    warned: Mapping[str, datetime] = field(default_factory=dict)
    served: Mapping[str, datetime] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    let_go: frozenset[str] = frozenset()
    can_defer: bool = True
    silent: frozenset[str] = frozenset()
    unreported: Mapping[str, datetime] = field(default_factory=dict)
    unheard: frozenset[str] = frozenset()
    load_known: bool = False
    logged: bool = False
    sweep: Sweep | None = None
    running: frozenset[str] | None = None
    unread: tuple[str, ...] = ()
    sized: CapacityRequest | None = None
    busy_shares: BusyShares | None = None

    @property
    def now(self) -> datetime:
        """The instant of the turn."""
        return self.seen.seen_at

    @property
    def on_demand_refused(self) -> bool:
        """Whether on-demand was refused lately for a reason that counts."""
        return any(remedy(f.failure_class) is not Remedy.NONE for f in self.on_demand_failures)
