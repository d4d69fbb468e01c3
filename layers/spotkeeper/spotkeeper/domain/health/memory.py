"""What the health half remembers of a fleet from turn to turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.load.request_queue import QueueMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """So many workers were needed at an instant; `held` when logs were missing then."""

    at: datetime
    workers: int
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMemory:
    """The state of one fleet's health half; an empty one is a fresh start.

    `suspects` maps an instance to when it was first seen silent or failing, `in_service_since`
    those in service to when that was first seen, `replaced` lists the replacements of the last
    hour, `silent` the instances that count as not serving. `starting` maps an instance whose
    workers never reported to when it was first seen, `start_ups` are the seconds that the last
    launches took to be in service. `service_mean_s` is the last known service time, for waking
    after the logs have gone, and `queue` the request queue of a fleet that has one.
    `onprem_suspects` maps a worker on premises to when it was first seen failing or slow.
    """

    needed: tuple[Needed, ...] = ()
    spot_ask: CapacityRequest | None = None
    suspects: Mapping[str, datetime] = field(default_factory=dict)
    in_service_since: Mapping[str, datetime] = field(default_factory=dict)
    replaced: tuple[datetime, ...] = ()
    silent: tuple[str, ...] = ()
    starting: Mapping[str, datetime] = field(default_factory=dict)
    start_ups: tuple[int, ...] = ()
    service_mean_s: float = 0.0
    queue: QueueMemory | None = None
    onprem_suspects: Mapping[str, datetime] = field(default_factory=dict)
