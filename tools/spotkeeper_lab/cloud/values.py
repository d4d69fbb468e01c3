"""What the simulated cloud is made of and what it shows: specifications, views, events, errors.

Times are seconds from the start of the market.
"""

from dataclasses import dataclass
from enum import StrEnum

PENDING = "Pending"
IN_SERVICE = "InService"
TERMINATING = "Terminating:Wait"
TERMINATED = "Terminated"
FAILED = "Failed"
SUCCESSFUL = "Successful"
IN_PROGRESS = "InProgress"

# Texts as AWS writes them; the classifier of the product reads them as it does in production.
SPOT_DRY = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity "
    "available that matches your request. Launching EC2 instance failed."
)
SPOT_FULL = (
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to "
    "your request configuration. Please adjust your request and try again. "
    "Launching EC2 instance failed."
)
ON_DEMAND_DRY = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested "
    "({zone}). Our system will be working on provisioning additional capacity. You can currently "
    "get {type} capacity by not specifying an Availability Zone in your request. "
    "Launching EC2 instance failed."
)
DIFFERENCE = (
    "an instance was started in response to a difference between desired and actual capacity, "
    "increasing the capacity from {have} to {want}."
)


class CloudError(Exception):
    """AWS refuses a call: its error code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Purchase(StrEnum):
    """How a group buys its instances."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class EventKind(StrEnum):
    """What the cloud tells of; each is one EventBridge event."""

    FULFILLED = "fulfilled"
    LAUNCH_SUCCESSFUL = "launch_successful"
    LAUNCH_UNSUCCESSFUL = "launch_unsuccessful"
    WARNING = "warning"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """An Auto Scaling group; `pools` are "zone/type", of the market where it buys spot."""

    name: str
    purchase: Purchase
    minimum: int
    maximum: int
    desired: int = 0
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How the cloud behaves; shares are probabilities per instance, times are in seconds.

    A warm pool belongs to every on-demand group: `warm_pool` stopped instances, each of which
    serves `warm_start_s` after its launch. One that was ended is stopped again and may be launched
    as long after. `event_delay_s` is the longest way of an event; an instance that is ended
    politely stays for `terminate_hook_s`.
    """

    cold_start_s: float = 120.0
    warm_start_s: float | None = None
    warm_pool: int = 0
    notice_s: float = 120.0
    notice_lost: float = 0.0
    event_delay_s: float = 0.0
    on_demand_failure: float = 0.0
    retry_s: float = 15.0
    terminate_hook_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance; `state` is AWS's LifecycleState, `group` is empty once it is in none.

    `lost` says that the market took it, `gone_s` when its workers were told that it will be gone.
    """

    instance_id: str
    pool: str
    purchase: Purchase
    group: str
    state: str
    healthy: bool
    launched_s: float
    in_service_s: float | None
    warned_s: float | None
    gone_s: float | None
    ended_s: float | None
    lost: bool

    @property
    def draining(self) -> bool:
        """Whether its workers were told that it will be gone."""
        return self.gone_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as DescribeAutoScalingGroups shows it; the same object until it changes."""

    name: str
    purchase: Purchase
    desired: int
    minimum: int
    maximum: int
    suspended: frozenset[str]
    instances: tuple[InstanceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A launch, as DescribeScalingActivities shows it."""

    activity_id: str
    group: str
    start_s: float
    end_s: float | None
    status_code: str
    message: str
    cause: str
    description: str
    instance_id: str
    pool: str

    @property
    def zone(self) -> str:
        """The availability zone of its pool."""
        return self.pool.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent:
    """Something that happened at `at_s` and is told at `deliver_s`."""

    kind: EventKind
    at_s: float
    deliver_s: float
    group: str
    instance_id: str = ""
    activity: Activity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRequestView:
    """The request of a spot instance that AWS takes back, or took within the last hour."""

    request_id: str
    instance_id: str
    status_code: str
    updated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What was used so far; seconds count from an instance's launch to its end."""

    spot_s: float
    on_demand_s: float
    spot_launches: int
    on_demand_launches: int
    losses: int
