"""Short ways to say what a test is about: fleets, groups, situations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    Drain,
    EndBackfill,
    EndSpare,
    ReplaceEarly,
    RequestSpot,
    SuspendAzRebalance,
    Terminate,
)
from spotkeeper.domain.availability.count import Count
from spotkeeper.domain.availability.decide import Plan, alarms_of, apply, assess, plan
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Action, Answer, Controller, DecisionRecord
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Fleet, Group, Instance, Observation, Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy

TABLE = "spotkeeper"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The instant this many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def ids(prefix: str, count: int) -> list[str]:
    """`count` instance ids, distinguished by a one-letter hexadecimal prefix."""
    return [f"i-{prefix}{number:016x}" for number in range(count)]


def held(**changes: Any) -> DecisionRecord:
    """The record of a turn that held; what a test is about is among the `changes`."""
    plain = DecisionRecord(
        fleet="ocr", controller=Controller.HEALTH, at=NOON, action=Action.HOLD,
        rule="at target", reason="nothing is missing", seen={},
    )  # fmt: skip
    return replace(plain, **changes)


def instances(
    serving: Iterable[str] = (), launching: Iterable[str] = (), leaving: Iterable[str] = ()
) -> tuple[Instance, ...]:
    phases = (
        (Phase.IN_SERVICE, serving),
        (Phase.LAUNCHING, launching),
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
    return LaunchFailure(at=at(seconds), failure_class=failure_class, message=message)


@dataclass(frozen=True, slots=True)
class Turn:
    """A plan as sizes and lists, and the memory after AWS has accepted all of it."""

    plan: Plan
    memory: AvailabilityMemory

    def of[T](self, kind: type[T]) -> list[T]:
        return [action for action in self.plan.actions if isinstance(action, kind)]

    @property
    def action(self) -> Action:
        return self.plan.action

    @property
    def rule(self) -> str:
        return self.plan.rule

    @property
    def reason(self) -> str:
        return self.plan.reason

    @property
    def alarms(self) -> tuple[str, ...]:
        return alarms_of(self.plan.assessment, self.memory)

    @property
    def on_demand_desired(self) -> int:
        sizes = [a for a in self.plan.actions if isinstance(a, Backfill | CancelBackfill)]
        return sizes[0].desired if sizes else self.on_demand.target

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(end.instance_id for end in self.of(EndBackfill))

    @property
    def spot_desired(self) -> int:
        asks = self.of(RequestSpot)
        return asks[0].desired if asks else self.plan.assessment.snapshot.seen.spot.desired

    @property
    def spot_ends(self) -> tuple[str, ...]:
        return tuple(end.instance_id for end in self.of(EndSpare))

    @property
    def drain(self) -> tuple[str, ...]:
        return tuple(mark.instance_id for mark in self.of(Drain))

    @property
    def gone_at(self) -> datetime:
        return self.of(Drain)[0].gone_at

    @property
    def detach(self) -> tuple[str, ...]:
        return tuple(it.instance_id for it in self.of(ReplaceEarly))

    @property
    def terminate(self) -> tuple[str, ...]:
        return tuple(it.instance_id for it in self.of(Terminate))

    @property
    def suspend(self) -> tuple[str, ...]:
        return tuple(it.group for it in self.of(SuspendAzRebalance))

    @property
    def look_again_at(self) -> datetime | None:
        return self.plan.wake_up.at if self.plan.wake_up else None

    @property
    def spot(self) -> Count:
        return self.plan.assessment.spot

    @property
    def on_demand(self) -> Count:
        return self.plan.assessment.on_demand

    @property
    def shortfall(self) -> int:
        return self.plan.assessment.shortfall


def turn(
    seconds: float,
    spot: Group,
    on_demand: Group,
    memory: AvailabilityMemory | None = None,
    of: Fleet | None = None,
    **more: object,
) -> Turn:
    """Plan one availability turn, `seconds` after noon. AWS accepts all its requests.

    The load is known unless `more` overrides it.
    """
    snapshot = Snapshot(
        fleet=of or fleet(),
        seen=Observation(seen_at=at(seconds), spot=spot, on_demand=on_demand),
        **{"load_known": True} | more,  # type: ignore[arg-type]
    )
    wanted = plan(assess(snapshot, memory or AvailabilityMemory()))
    return Turn(wanted, answered(wanted))


def answered(wanted: Plan, answers: Mapping[int, Answer] | None = None) -> AvailabilityMemory:
    """The memory after a plan; AWS accepts each action but those whose number has an answer."""
    assessment = wanted.assessment
    asked: list[AvailabilityAction] = [*([wanted.wake_up] if wanted.wake_up else [])]
    asked += wanted.actions
    given = [(answers or {}).get(number, Answer.DONE) for number in range(len(asked))]
    return apply(wanted.memory, asked, given, assessment.now)
