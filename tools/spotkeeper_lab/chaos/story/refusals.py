"""Which calls AWS refuses while a fault lasts."""

import random
from collections.abc import Callable, Mapping

from spotkeeper_lab.chaos.story.scenario import Fault, Kind

type Refuse = Callable[[Fault, str, str, random.Random], tuple[str, str] | None]


def _throttles(fault: Fault, service: str, _: str, rng: random.Random) -> tuple[str, str] | None:
    if service in ("autoscaling", "ec2") and rng.random() < 0.3 + 0.6 * fault.value:
        return "Throttling", "Rate exceeded"
    return None


def _faulty(fault: Fault, _: str, __: str, rng: random.Random) -> tuple[str, str] | None:
    if rng.random() < 0.6 * fault.value:
        return "InternalFailure", "An internal error has occurred"
    return None


WRITES = (
    "set_desired_capacity",
    "terminate_instance_in_auto_scaling_group",
    "detach_instances",
    "create_tags",
    "set_instance_health",
    "terminate_instances",
    "describe_scaling_activities",
    "describe_spot_instance_requests",
)


def forbidden(fault: Fault) -> str:
    """The operation that the role may not call."""
    return WRITES[int(fault.value * len(WRITES)) % len(WRITES)]


def _forbids(
    fault: Fault, service: str, operation: str, rng: random.Random
) -> tuple[str, str] | None:
    del service, rng
    if operation == forbidden(fault):
        return "AccessDenied", "User is not authorized to perform this"
    return None


def _down(*services: str) -> Refuse:
    def refuse(
        fault: Fault, service: str, operation: str, rng: random.Random
    ) -> tuple[str, str] | None:
        del fault, operation, rng
        return ("ServiceUnavailable", "Service unavailable") if service in services else None

    return refuse


def _nothing(*_: object) -> None:
    return None


REFUSALS: Mapping[Kind, Refuse] = {
    Kind.THROTTLED: _throttles,
    Kind.FAULTY: _faulty,
    Kind.FORBIDDEN: _forbids,
    Kind.TABLE_DOWN: _down("dynamodb"),
    Kind.DOCUMENTS_DOWN: _down("ssm"),
    Kind.QUEUE_DOWN: _down("sqs"),
    Kind.ANSWERS_LOST: _nothing,
    Kind.SLOW: _nothing,
    Kind.KILLED: _nothing,
    Kind.NO_TURNS: _nothing,
}
"""What is wrong with AWS or the schedules, for all fleets, and which calls it refuses."""

OPTIONAL = frozenset({"describe_scaling_activities", "describe_spot_instance_requests"})
"""Reads that only explain: without them a turn does what it does."""


def disturbs(fault: Fault) -> bool:
    """Whether turns may fail for a fault."""
    if fault.kind is Kind.FORBIDDEN:
        return forbidden(fault) not in OPTIONAL
    return fault.kind in REFUSALS
