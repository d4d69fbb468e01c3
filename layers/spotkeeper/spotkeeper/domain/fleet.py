"""What a fleet is: its groups as observed, and what the operator allows.

The words are those of docs/architecture.md. Every duration of a policy is in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from spotkeeper.domain.permission import Mode
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.names import group_name, request_queue
from spotkeeper.domain.settings.setting import Setting
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy


class Phase(StrEnum):
    """Where an instance stands in its group."""

    LAUNCHING = "launching"
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
    """An Auto Scaling group as it was observed; `suspended` are its stopped processes.

    AWS itself suspends a group that launched nothing for a day: `suspended_by_aws` are those.
    `owner` is the stack whose turns act on the group, empty where none has claimed it.
    """

    name: str
    desired: int
    minimum: int
    maximum: int
    instances: tuple[Instance, ...] = ()
    suspended: frozenset[str] = frozenset()
    suspended_by_aws: frozenset[str] = frozenset()
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One spot group, one on-demand group and any on-premises workers, sized together."""

    name: str
    spot_group: Annotated[str, group_name("Auto Scaling group that launches spot")]
    on_demand_group: Annotated[
        str, group_name("Auto Scaling group that launches on-demand; not `spot_group`")
    ]
    mode: Annotated[
        Mode,
        Setting(
            "`observe`: turns decide and record what they would request, and request nothing, "
            "until `spotkeeper mode` changes it. Set by the stack's `Mode`",
            "you [look first](first-week.md)",
        ),
    ] = Mode.ACT
    workers_per_instance: Annotated[
        int,
        Setting(
            "processes that serve on one instance",
            "an instance runs several",
            unit="workers",
            least=1,
            most=1000,
        ),
    ] = 1
    slots: Annotated[
        int,
        Setting(
            "requests that one worker serves at once",
            "a worker batches (vLLM, Triton)",
            unit="requests",
            least=1,
            most=1000,
        ),
    ] = 1
    onprem_workers: Annotated[
        int,
        Setting(
            "workers of your own, which serve before the cloud does: at most this many count, and "
            "missing ones are reported. 0: as many as send logs, and none is reported",
            "you have machines of your own",
            unit="workers",
            least=0,
            most=10_000,
        ),
    ] = 0
    request_queue_url: Annotated[str | None, request_queue()] = None
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


type BusyShares = Mapping[str, float]
"""Share of the last minutes that each instance's workers were busy, by instance id."""
