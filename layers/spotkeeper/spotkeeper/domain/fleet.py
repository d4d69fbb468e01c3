"""What a fleet is: its groups as observed, and what the operator allows.

The words are those of docs/architecture.md. Every duration of a policy is in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from spotkeeper.domain.permission import Mode


class Phase(StrEnum):
    """Where an instance stands in its group."""

    COMING = "coming"
    IN_SERVICE = "in_service"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance of a group; `pool` is `zone/type`."""

    instance_id: str
    pool: str
    phase: Phase
    healthy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An Auto Scaling group as it was observed; `suspended` are processes, whoever stopped them.

    AWS itself suspends a group that launched nothing for a day: `suspended_by_aws` are those.
    """

    name: str
    desired: int
    minimum: int
    maximum: int
    instances: tuple[Instance, ...] = ()
    suspended: frozenset[str] = frozenset()
    suspended_by_aws: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many instances the operator allows; `on_demand_max` bounds the backfill."""

    spot_min: int
    spot_max: int
    on_demand_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """How load becomes workers."""

    enabled: bool = True
    target_load_rate: float = 0.7
    window_s: int = 300
    # Requests come in bursts; giving capacity back sooner than a cold start costs twice.
    scale_in_after_s: int = 900
    # Workers ship logs every few seconds; two missed turns mean that shipping has stopped.
    stale_after_s: int = 180
    # No request for so long, and an empty request queue: down to the least. A sooner end would pay
    # for a cold start more often than it saves one's length.
    quiet_after_s: int = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The promise about waiting: `share` of the requests start within `wait_s`.

    `start_up_s` is how long an instance takes to serve, until launches of the fleet tell.
    """

    wait_s: float
    share: float
    start_up_s: int = 240


class RebalanceMeaning(StrEnum):
    """What a rebalance recommendation means; thrashes below five minutes, so ignored by default."""

    IGNORE = "ignore"
    AT_RISK = "at_risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityPolicy:
    """How the gap in the spot group is filled and given back."""

    # A launched instance counts as coming for this long; then its start has failed.
    launch_deadline_s: int = 600
    # An increase of desired counts as coming for this long before a launch is seen.
    request_grace_s: int = 120
    # Backfill while spot fails for a reason that more instances will not cure.
    configuration_cap: int = 2
    # A busy backfill instance is waited for this long, then drained by the terminate hook.
    busy_patience_s: int = 120
    # AWS warns so long before it takes an instance; 0: no warning comes, any loss is a surprise.
    notice_s: int = 120
    # For so long after a loss without warning a spell is on: another loss is likely, spares are
    # held, and on-demand stays until spot has served for a third of it.
    spell_s: int = 1800
    # Spares held in a spell, as a share of the need (rounded up).
    spare_share: float = 0.05
    # After a spell a spare stays until the need has held so long, times the pools that it covers.
    proven_after_s: int = 28_800
    # A notice may be lost: while a pool is warned, so many more of it are taken for warned, as a
    # share of the warned (rounded up); 0 trusts every notice.
    lost_notice_share: float = 0.15
    early_replacement: bool = True
    rebalance: RebalanceMeaning = RebalanceMeaning.IGNORE
    suspend_az_rebalance: bool = True
    # The on-demand group has a warm pool: it serves sooner than a spot instance that is coming.
    on_demand_warm: bool = False
    # A warm start is asked for so long, and the time it takes, before a warned instance is gone.
    bridge_margin_s: int = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealthPolicy:
    """When an instance in service is replaced because its workers do not work."""

    enabled: bool = True
    # Silence shorter than this may be one long request; beyond it, chance decides.
    silent_after_s: int = 300
    failing_share: float = 0.9
    failing_requests: int = 5
    # A throttled GPU serves three times slower than its peers; few requests prove nothing.
    slow_factor: float = 3.0
    slow_requests: int = 10
    replacements_per_hour: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One spot group, one on-demand group and any on-premises workers, sized together."""

    name: str
    spot_group: str
    on_demand_group: str
    # What its turns may do, unless an operator said otherwise.
    mode: Mode = Mode.ACT
    workers_per_instance: int = 1
    onprem_workers: int = 0
    # Where the requests wait for a worker; not known for every fleet.
    request_queue_url: str | None = None
    bounds: Bounds
    objective: Objective | None = None
    sizing: SizingPolicy = field(default_factory=SizingPolicy)
    availability: AvailabilityPolicy = field(default_factory=AvailabilityPolicy)
    worker_health: WorkerHealthPolicy = field(default_factory=WorkerHealthPolicy)
    # Settings of earlier releases that its document has: read, and not used.
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Both groups of a fleet at one instant; `seen_at` is aware."""

    seen_at: datetime
    spot: Group
    on_demand: Group

    def __post_init__(self) -> None:
        if self.seen_at.tzinfo is None:
            raise ValueError("an observation's time needs a zone: pass an aware datetime")


type BusyShares = Mapping[str, float]
"""Share of the last minutes that each instance's workers were busy, by instance id."""
