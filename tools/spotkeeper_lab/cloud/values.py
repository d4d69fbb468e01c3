"""What the simulated cloud is made of and what it shows: specifications, views, events, texts.

Times are seconds from the start of the market.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

PENDING = "Pending"
PENDING_WAIT = "Pending:Wait"
IN_SERVICE = "InService"
STANDBY = "Standby"
TERMINATING = "Terminating:Wait"
TERMINATED = "Terminated"
WARMED = "Warmed:"
FAILED = "Failed"
CANCELLED = "Cancelled"
SUCCESSFUL = "Successful"
IN_PROGRESS = "InProgress"
LAUNCHING = frozenset({PENDING, PENDING_WAIT})

# Texts as AWS writes them; the classifier of the product reads them as it does in production.
# What a spot request says from the warning on (spot_request_statuses.tsv).
NO_CAPACITY = "instance-terminated-no-capacity"
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
HOOK_ABANDONED = (
    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was "
    "abandoned: Heartbeat Timeout"
)
DIED_STARTING = (
    "Instance became unhealthy while waiting for instance to be in InService state. "
    "Termination Reason: {reason}"
)
ABANDONED = (
    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was "
    "abandoned: Lifecycle Action Completed with ABANDON Result"
)
LAUNCH, TERMINATE = "Launch", "Terminate"
HEALTH_CHECK, REPLACE_UNHEALTHY = "HealthCheck", "ReplaceUnhealthy"
REFRESH = "InstanceRefresh"
PROCESSES = (
    LAUNCH, TERMINATE, "AddToLoadBalancer", "AlarmNotification", "AZRebalance", HEALTH_CHECK,
    REFRESH, REPLACE_UNHEALTHY, "ScheduledActions",
)  # fmt: skip
USER_SUSPENDED = "User suspended"
ADMINISTRATIVE = "Administrative suspension"
DIFFERENCE = (
    "an instance was started in response to a difference between desired and actual capacity, "
    "increasing the capacity from {have} to {want}."
)
# Why an instance left a group.
DETACHED = "instance {instance} was detached in response to a user request."
TAKEN_OUT = "instance {instance} was taken out of service in response to a user request."
ENDED = (
    "instance {instance} was taken out of service in response to a user request, shrinking the "
    "capacity from {have} to {left}."
)
SHRUNK = (
    "an instance was taken out of service in response to a difference between desired and actual "
    "capacity, shrinking the capacity from {have} to {left}."
)
REFRESHED = "an instance was taken out of service in response to an instance refresh."
FOUND_GONE = (
    "an instance was taken out of service in response to an EC2 health check indicating it has "
    "been terminated or stopped."
)
USER_HEALTH_CHECK = "an instance was taken out of service in response to a user health-check."


class CloudError(Exception):
    """AWS refuses a call: its error code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Invalid(CloudError):
    """AWS refuses a parameter, or what it would do to a group as it is."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationError", message)


class Purchase(StrEnum):
    """How a group buys its instances."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class EventKind(StrEnum):
    """What the cloud reports; each is one EventBridge event."""

    FULFILLED = "fulfilled"  # no rule of template.yaml lets it through
    LAUNCH_SUCCESSFUL = "launch_successful"
    LAUNCH_UNSUCCESSFUL = "launch_unsuccessful"
    REFRESH_STARTED = "refresh_started"
    WARNING = "warning"
    REBALANCE = "rebalance"
    TERMINATED = "terminated"


class Transition(StrEnum):
    """What a lifecycle hook holds an instance in."""

    LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
    TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"


class Result(StrEnum):
    """How a lifecycle action ends."""

    CONTINUE = "CONTINUE"
    ABANDON = "ABANDON"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleHook:
    """A lifecycle hook of a group; `heartbeat_s` passes between two signs of life at most.

    With `by_worker`, a launched instance goes on once its worker is ready.
    """

    name: str
    transition: Transition
    heartbeat_s: float = 3600.0
    default: Result = Result.ABANDON
    by_worker: bool = False

    @property
    def longest_s(self) -> float:
        """How long it holds an instance whatever the signs of life: 48 hours or 100 time-outs."""
        return min(48 * 3600.0, 100 * self.heartbeat_s)


# One holds what leaves for as long as requests take, one what launches.
READY = LifecycleHook(name="ready", transition=Transition.LAUNCHING, by_worker=True)
DRAINS = LifecycleHook(
    name="drain", transition=Transition.TERMINATING, heartbeat_s=30.0, default=Result.CONTINUE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmPool:
    """A group's warm pool: `prepared` instances of group and pool together (None: its maximum)."""

    minimum: int = 0
    prepared: int | None = None
    state: str = "Stopped"
    reuse: bool = False

    def size(self, desired: int, maximum: int) -> int:
        return max(self.minimum, (maximum if self.prepared is None else self.prepared) - desired)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """An Auto Scaling group; `pools` are "zone/type", of the market where it buys spot.

    For `grace_s` from when an instance is in service its health is not looked at. `template` is the
    version of its launch template, `own_templates` those of single types ("lt-.../version"). With
    `launch_first`, an instance maintenance policy of 100 %,
    what the group replaces stays until its successor is in service.
    """

    name: str
    purchase: Purchase
    minimum: int
    maximum: int
    desired: int = 0
    pools: tuple[str, ...]
    grace_s: float = 0.0
    hooks: tuple[LifecycleHook, ...] = ()
    template: str = ""
    own_templates: Mapping[str, str] = field(default_factory=dict)
    launch_first: bool = False


def two_groups(
    spot: str = "spot",
    on_demand: str = "on-demand",
    *,
    pools: tuple[str, ...],
    maximum: int,
    desired: int = 0,
    minimum: int = 0,
) -> tuple[GroupSpec, GroupSpec]:
    """Return a spot group that wants `desired` instances, and an empty on-demand group."""
    common: dict[str, Any] = {"maximum": maximum, "pools": pools}
    return (
        GroupSpec(name=spot, purchase=Purchase.SPOT, minimum=minimum, desired=desired, **common),
        GroupSpec(name=on_demand, purchase=Purchase.ON_DEMAND, minimum=0, **common),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How the cloud behaves; shares are probabilities per instance or event, times in seconds.

    With `begins_warm`, instances launched at second 0 serve at once.

    A warm pool belongs to every on-demand group: `warm_pool` stopped instances, each of which
    serves `warm_start_s` after its launch. One that was ended is stopped again and may be launched
    as long after (reuse on scale-in).

    With `on_demand_short`, on-demand is refused while no pool has any spot capacity.

    Events take up to `event_delay_s`, each its own time; some arrive twice, some never. The spot
    request of an instance that AWS takes back says `spot_status`, up to `status_delay_s` late.

    Stricter than most of the lab needs, as AWS is, and off by default:
    a dead instance stays in its group as it was until the health check finds it, `ghost_s` at most;
    a scale-in by desired capacity chooses by zone and chance (`aws_scale_in`);
    only an instance that runs and carries the mark can be terminated (`marks_needed`: the role's
    condition, and the tags of what was terminated are gone);
    a group whose launches have all failed for `suspend_after_s` is suspended by AWS;
    the retries of failed launches back off from `retry_s` to `retry_longest_s`;
    EC2 does not tell when an instance that the market took has ended (`ends_untold`).
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    cold_start_s: float = 120.0
    begins_warm: bool = False
    warm_start_s: float | None = None
    warm_pool: int = 0
    notice_s: float = 120.0
    notice_lost: float = 0.0
    event_delay_s: float = 0.0
    event_lost: float = 0.0
    event_twice: float = 0.0
    spot_status: str = NO_CAPACITY
    status_delay_s: float = 0.0
    on_demand_failure: float = 0.0
    on_demand_short: bool = False
    retry_s: float = 15.0
    retry_longest_s: float | None = None
    ghost_s: float = 0.0
    aws_scale_in: bool = False
    marks_needed: bool = False
    suspend_after_s: float | None = None
    ends_untold: bool = False


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance; `state` is AWS's LifecycleState, `group` is empty once it is in none.

    `lost` says that the market took it, `status_s` since when its spot request says that it goes,
    `gone_s` when it will be gone, as its workers know and `tags` the other tags that it was given,
    `serves_s` from when on its workers serve: never where it was launched from a bad image.
    """

    instance_id: str
    pool: str
    purchase: Purchase
    group: str
    state: str
    healthy: bool
    launched_s: float
    in_service_s: float | None
    serves_s: float | None
    warned_s: float | None
    gone_s: float | None
    ended_s: float | None
    lost: bool
    status_s: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    template: str = ""

    @property
    def draining(self) -> bool:
        """Whether its workers know that it will be gone."""
        return self.gone_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as DescribeAutoScalingGroups shows it; the same object until it changes.

    `suspensions` has AWS's reason for each suspended process.
    """

    name: str
    purchase: Purchase
    desired: int = 0
    minimum: int = 0
    maximum: int = 0
    suspensions: Mapping[str, str] = field(default_factory=dict)
    instances: tuple[InstanceView, ...] = ()
    grace_s: float = 0.0
    tags: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()
    template: str = ""
    own_templates: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A launch or an end, as DescribeScalingActivities shows it."""

    activity_id: str
    group: str
    start_s: float
    end_s: float | None
    status_code: str
    cause: str
    description: str
    pool: str
    message: str = ""
    instance_id: str = ""

    @property
    def zone(self) -> str:
        return self.pool.partition("/")[0]

    def __hash__(self) -> int:
        """Answers are remembered by activity: a hash of every field costs more than they do."""
        return hash((self.activity_id, self.status_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent:
    """Something that happened at `at_s` and is delivered at `deliver_s`."""

    kind: EventKind
    at_s: float
    deliver_s: float
    group: str
    instance_id: str = ""
    activity: Activity | None = None
