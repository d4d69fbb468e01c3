"""What a health turn wants of AWS: each action is about one thing, and says why."""

from dataclasses import dataclass

from spotkeeper.domain.capacity_request import CapacityRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeSpot:
    """Ask the spot group for `desired`; `request` tells the need in it from the spares."""

    group: str
    desired: int
    request: CapacityRequest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndInstance:
    """End an instance of the spot group, and lower its desired capacity by one."""

    instance_id: str
    request: CapacityRequest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceWorker:
    """Have the group of an instance replace it: its workers do not work."""

    instance_id: str
    reason: str


type HealthAction = ResizeSpot | EndInstance | ReplaceWorker


def text_of(action: HealthAction) -> str:
    """Tell what an action asks for, as records say it."""
    match action:
        case ResizeSpot(group=group, desired=desired):
            return f"{group}: desired {desired}"
        case EndInstance(instance_id=instance_id):
            return f"end {instance_id}"
        case ReplaceWorker(instance_id=instance_id, reason=reason):
            return f"replace {instance_id}: {reason}"
