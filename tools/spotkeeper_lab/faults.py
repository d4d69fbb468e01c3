"""The faults of a virtual world, and the calls that AWS refuses while they last."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


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
    WRONG_DOCUMENT = "the fleet document is wrong or gone, or another names its groups"
    ZONES_EVENED = "AWS ends an instance to even out zones"
    HANGING = "calls of a service are not answered"
    TABLE_THROTTLED = "the table throttles calls"
    GROUP_DELETED = "the spot group is deleted, and made again at 0"
    ON_DEMAND_DELETED = "the on-demand group is deleted, and made again at 0"
    CLOCKS_FAR = "the clocks of half of the machines are ten minutes off"
    CLOCK_JUMPS = "the functions' clock is an hour ahead, and right again"
    FAIL = "workers fail each request"
    SLOWED = "workers serve four times slower"
    REFRESH = "an instance refresh replaces the spot instances"
    ZONAL_SHIFT = "a zone is lost, and a zonal shift keeps launches out of it"
    STANDBY = "an operator moves spot instances to standby, and back"


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
"""Faults that are worse together."""
BLIND = (Kind.LOGS_STOP, Kind.COLLECTOR_DOWN, Kind.LOGS_LATE)
"""While one of these lasts, spot may be taken as well."""


# A text of LAUNCH_TEXTS that only a person can mend, as a fault's value.
KEY_PAIR = 0.6
DRILLS = (
    ((Kind.HANG, 0.2, 0.0), (Kind.HANG, 0.2, 300.0), (Kind.HANG, 0.2, 600.0)),
    ((Kind.HANG, 2.0, 0.0),),
    ((Kind.BAD_SPOT_IMAGE, 0.1, 0.0),),
    ((Kind.LAUNCH_REFUSED, KEY_PAIR, 0.0),),
    ((Kind.SPOT_DRY, 0.9, 0.0), (Kind.ON_DEMAND_DRY, 0.5, 0.0)),
    ((Kind.HANG, 2.0, 0.0), (Kind.LAUNCH_REFUSED, KEY_PAIR, 0.0), (Kind.ON_DEMAND_DRY, 0.5, 0.0)),
    ((Kind.HALF_LOGS, 0.5, 0.0), (Kind.EMPTY_WARNING, 0.4, 3000.0)),
    ((Kind.BAD_SPOT_IMAGE, 0.5, 0.0), (Kind.UNWARNED_LOSS, 0.9, 60.0)),
    (
        (Kind.LOSS, 0.9, 0.0), (Kind.LOSS, 0.9, 900.0), (Kind.FAIL, 0.1, 3600.0),
        (Kind.SLOWED, 0.1, 3660.0),
    ),
    ((Kind.TABLE_DOWN, 0.5, 0.0), (Kind.LOSS, 0.9, 600.0)),
)  # fmt: skip
"""Situations in which only these faults happen: kind, value, and when, in seconds.

Where launches never serve, the load grows meanwhile. After a warning without a loss there is a
night without requests, for which the fleet may go to zero.
"""
WIDE = (
    Kind.HANGING, Kind.TABLE_THROTTLED, Kind.GROUP_DELETED, Kind.ON_DEMAND_DELETED, Kind.CLOCKS_FAR,
    Kind.CLOCK_JUMPS,
)  # fmt: skip
"""Drawn by wide runs only."""
DRILLED = (Kind.FAIL, Kind.SLOWED)
"""In drills and kept stories only."""
ACTS = (Kind.REFRESH, Kind.ZONAL_SHIFT, Kind.STANDBY)
"""What AWS or others do with the group, drawn beside the other faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, from `at_s` on for `length_s`; `value` is its size."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    kind: Kind
    at_s: float
    length_s: float = 0.0
    value: float = 0.0

    @property
    def end_s(self) -> float:
        return self.at_s + self.length_s

    def chosen[T](self, many: Sequence[T]) -> T:
        """The one of several that its size chooses."""
        return many[int(self.value * len(many)) % len(many)]


# One of them does not answer.
SERVICES = ("ec2", "sqs", "ssm", "dynamodb", "autoscaling")
# One of them the role may not call.
WRITES = (
    "set_desired_capacity",
    "terminate_instance_in_auto_scaling_group",
    "detach_instances",
    "create_tags",
    "suspend_processes",
    "terminate_instances",
    "describe_scaling_activities",
    "describe_spot_instance_requests",
)
OF_AWS = (
    Kind.THROTTLED,
    Kind.FAULTY,
    Kind.FORBIDDEN,
    Kind.TABLE_DOWN,
    Kind.TABLE_THROTTLED,
    Kind.DOCUMENTS_DOWN,
    Kind.QUEUE_DOWN,
    Kind.ANSWERS_LOST,
    Kind.SLOW,
    Kind.KILLED,
    Kind.NO_TURNS,
)
"""What is wrong with AWS or the schedules, for all fleets."""


def refusal_of(
    fault: Fault, service: str, operation: str, rng: random.Random
) -> tuple[str, str] | None:
    """AWS's code and message for a call that it refuses while a fault lasts."""
    match fault.kind, service:
        case Kind.THROTTLED, "autoscaling" | "ec2" if rng.random() < 0.3 + 0.6 * fault.value:
            return "Throttling", "Rate exceeded"
        case Kind.FAULTY, _ if rng.random() < 0.6 * fault.value:
            return "InternalFailure", "An internal error has occurred"
        case Kind.FORBIDDEN, _ if operation == fault.chosen(WRITES):
            return "AccessDenied", "User is not authorized to perform this"
        case Kind.TABLE_THROTTLED, "dynamodb" if rng.random() < 0.5 + 0.5 * fault.value:
            text = "The level of throughput was exceeded"
            return "ProvisionedThroughputExceededException", text
        case ((Kind.TABLE_DOWN, "dynamodb") | (Kind.DOCUMENTS_DOWN, "ssm")
              | (Kind.QUEUE_DOWN, "sqs")):  # fmt: skip
            return "ServiceUnavailable", "Service unavailable"
    return None
