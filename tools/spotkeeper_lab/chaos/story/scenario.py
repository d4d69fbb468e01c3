"""What goes wrong in one run, drawn by its seed: faults, the cloud's manners, the load, the fleet.

Times are seconds from the start of the run; the first faults come after the fleet has settled.
"""

from dataclasses import dataclass, field
from enum import StrEnum

WARM_UP_S, FAULTS_S, TAIL_S = 1500.0, 4500.0, 4200.0
# Later than the longest cold start.
MET_AT_S = 480.0
SPOT_MAX = 12
LENGTHS_S = (90.0, 300.0, 900.0, 1800.0, 3600.0)


class Kind(StrEnum):
    """What can go wrong."""

    LOSS = "spot instances are taken, warned"
    UNWARNED_LOSS = "spot instances are taken without a warning"
    SPOT_DRY = "spot launches fail for want of capacity, and instances are taken"
    ON_DEMAND_DRY = "on-demand launches fail for want of capacity"
    LAUNCH_REFUSED = "spot launches fail for another reason"
    BAD_SPOT_IMAGE = "spot launches come into service and never serve"
    BAD_ON_DEMAND_IMAGE = "on-demand launches come into service and never serve"
    BOOT_LOOP = "new spot instances die while they start"
    EMPTY_WARNING = "a warning comes and nothing is taken"
    FOREIGN_EVENTS = "events of foreign instances"
    REBALANCE = "rebalance recommendations"
    HANG = "workers hang"
    LOGS_STOP = "no search logs are shipped"
    LOGS_LATE = "search logs are shipped minutes late"
    HALF_LOGS = "half of the workers ship no search logs"
    CLOCKS = "workers' clocks differ"
    THROTTLED = "AWS throttles calls"
    FAULTY = "AWS answers with faults of its own"
    ANSWERS_LOST = "answers are lost after calls had their effect"
    SLOW = "calls take seconds"
    FORBIDDEN = "a permission is missing"
    TABLE_DOWN = "the table is unreachable"
    STATE_LOST = "the fleet's state is deleted"
    STATE_UNREADABLE = "the fleet's state cannot be read"
    DOCUMENTS_DOWN = "the parameter store is unreachable"
    QUEUE_DOWN = "queues are unreachable"
    NO_TURNS = "the schedules stop"
    COLLECTOR_DOWN = "the collector fails"
    KILLED = "functions are killed half way"
    COLD = "functions start cold each time"
    OPERATOR_DESIRED = "an operator sets the spot group's desired capacity"
    OPERATOR_MAXIMUM = "an operator sets the spot group's maximum to 0, and back"
    OPERATOR_SUSPENDS = "an operator suspends launches, and resumes them"
    OPERATOR_ENDS = "an operator terminates instances"
    WRONG_DOCUMENT = "the fleet document is wrong for a while"
    ZONES_EVENED = "AWS ends an instance to even out zones"


class StartState(StrEnum):
    """How the fleet is met."""

    SERVING = "spot serves"
    EMPTY = "both groups are empty"
    ON_DEMAND = "on-demand serves, spot is empty"


LAUNCH_TEXTS = (
    "Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type "
    "(g5.xlarge) is not supported in your requested Availability Zone (us-east-1c). "
    "Launching EC2 instance failed.",
    "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count "
    "exceeded. Launching EC2 instance failed.",
    "Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment "
    "price of 0.0031. Launching EC2 instance failed.",
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to. Launching EC2 instance failed.",
    "The key pair gpu does not exist. Launching EC2 instance failed.",
    "Request limit exceeded. Launching EC2 instance failed.",
    "Something that nobody has read before. Launching EC2 instance failed.",
)


TOGETHER = (
    (Kind.EMPTY_WARNING, Kind.STATE_LOST),
    (Kind.EMPTY_WARNING, Kind.KILLED),
    (Kind.LOSS, Kind.KILLED),
    (Kind.LOSS, Kind.TABLE_DOWN),
    (Kind.LOSS, Kind.ANSWERS_LOST),
    (Kind.LOSS, Kind.SLOW),
    (Kind.LOSS, Kind.FORBIDDEN),
    (Kind.HANG, Kind.KILLED),
    (Kind.HANG, Kind.LOGS_LATE),
    (Kind.SPOT_DRY, Kind.ON_DEMAND_DRY),
    (Kind.SPOT_DRY, Kind.DOCUMENTS_DOWN),
    (Kind.SPOT_DRY, Kind.THROTTLED),
    (Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE),
    (Kind.BAD_SPOT_IMAGE, Kind.LOGS_STOP),
)
"""Faults that are worse when they come together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, from `at_s` on for `length_s`; `value` is how much of it."""

    kind: Kind
    at_s: float
    length_s: float = 0.0
    value: float = 0.0

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.length_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run; `loads` are erlangs from an instant on.

    `sized`: the load sizes the spot group; else an operator does. AWS suspends a group that has
    launched nothing for `suspend_after_s`: for a day in truth, for minutes here.
    """

    seed: int
    start: StartState = StartState.SERVING
    loads: tuple[tuple[float, float], ...] = ((0.0, 3.0),)
    faults: tuple[Fault, ...] = ()
    objective: bool = True
    queue_known: bool = True
    spot_min: int = 1
    group_maximum: int = SPOT_MAX
    onprem_workers: int = 0
    warm_pool: int = 0
    early_replacement: bool = True
    cold_start_s: float = 180.0
    launch_hook_s: float | None = 300.0
    hook_continues: bool = True
    event_delay_s: float = 5.0
    event_lost: float = 0.0
    event_twice: float = 0.0
    ghost_s: float = 90.0
    strict: bool = True
    sized: bool = True
    suspend_after_s: float | None = None
    service_s: float = field(default=6.0)

    @property
    def met_at_s(self) -> float:
        """When the functions are deployed: once on-demand serves, where that is the start."""
        return MET_AT_S if self.start is StartState.ON_DEMAND else 0.0

    @property
    def quiet_from_s(self) -> float:
        """From when on nothing goes wrong any more and the load is steady."""
        ends = [fault.end_s for fault in self.faults]
        return max([WARM_UP_S, *ends, *(at_s for at_s, _ in self.loads)])

    @property
    def end_s(self) -> float:
        """Where the run ends."""
        return self.quiet_from_s + TAIL_S
