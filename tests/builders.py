"""Short ways to say what a test is about: fleets, groups, situations."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from spotkeeper.domain.availability.decide import AvailabilityDecision, decide
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.situation import Situation
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import (
    AvailabilityPolicy,
    Bounds,
    Fleet,
    Group,
    Instance,
    Observation,
    Phase,
    SizingPolicy,
    WorkerHealthPolicy,
)

TABLE = "spotkeeper"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The instant so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def ids(prefix: str, count: int) -> list[str]:
    """`count` instance ids, told apart by a one-letter hexadecimal prefix."""
    return [f"i-{prefix}{number:016x}" for number in range(count)]


def instances(
    serving: Iterable[str] = (), coming: Iterable[str] = (), leaving: Iterable[str] = ()
) -> tuple[Instance, ...]:
    """Instances by phase, all in one pool."""
    phases = (
        (Phase.IN_SERVICE, serving),
        (Phase.COMING, coming),
        (Phase.LEAVING, leaving),
    )
    return tuple(
        Instance(instance_id=i, pool="us-east-1a/g4dn.xlarge", phase=phase)
        for phase, members in phases
        for i in members
    )


def group(
    name: str, desired: int, members: tuple[Instance, ...] = (), *, maximum: int = 100
) -> Group:
    """A group with AZRebalance already suspended."""
    return Group(
        name=name,
        desired=desired,
        minimum=0,
        maximum=maximum,
        instances=members,
        suspended=frozenset({"AZRebalance"}),
    )


def fleet(
    *,
    spot_max: int = 100,
    on_demand_max: int = 100,
    workers_per_instance: int = 1,
    availability: AvailabilityPolicy | None = None,
    sizing: SizingPolicy | None = None,
    worker_health: WorkerHealthPolicy | None = None,
) -> Fleet:
    """A fleet named ocr with groups spot and on-demand."""
    return Fleet(
        name="ocr",
        spot_group="spot",
        on_demand_group="on-demand",
        workers_per_instance=workers_per_instance,
        bounds=Bounds(spot_min=0, spot_max=spot_max, on_demand_max=on_demand_max),
        availability=availability or AvailabilityPolicy(),
        sizing=sizing or SizingPolicy(),
        worker_health=worker_health or WorkerHealthPolicy(),
    )


def failure(
    failure_class: FailureClass, seconds: float = 0, message: str = "refused"
) -> LaunchFailure:
    """A launch failure at an instant."""
    return LaunchFailure(at=at(seconds), failure_class=failure_class, message=message)


def turn(
    seconds: float,
    spot: Group,
    on_demand: Group,
    memory: AvailabilityMemory | None = None,
    of: Fleet | None = None,
    **more: object,
) -> AvailabilityDecision:
    """Decide one availability turn so many seconds after noon."""
    return decide(
        Situation(
            fleet=of or fleet(),
            seen=Observation(seen_at=at(seconds), spot=spot, on_demand=on_demand),
            memory=memory or AvailabilityMemory(),
            **more,  # type: ignore[arg-type]
        )
    )
