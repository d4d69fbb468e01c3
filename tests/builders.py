"""Short ways to say what a test is about: fleets, groups, situations, facts of AWS."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from spotkeeper.domain.availability.decide import Plan, alarms_of, apply, assess, plan, reason_of
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import (
    Action,
    Answer,
    AvailabilityFigures,
    Controller,
    DecisionRecord,
    Failure,
    HealthFigures,
    Outcome,
    Request,
    RequestKind,
)
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Fleet, Group, Instance, Observation, Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy

TABLE = "spotkeeper"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
EVIDENCE = Path(__file__).parent / "evidence"
SUMS = EVIDENCE / "SHA256SUMS"


def evidence(name: str) -> list[dict[str, str]]:
    """The rows of a table of facts about AWS, each with its source, as they were read there.

    No test runs on a row that was changed: `sha256sum *.tsv > SHA256SUMS` there after a new one.
    """
    content = (EVIDENCE / f"{name}.tsv").read_bytes()
    known = f"{sha256(content).hexdigest()}  {name}.tsv" in SUMS.read_text(encoding="utf-8")
    assert known or name == "rights", f"tests/evidence/{name}.tsv was changed"
    lines = [line for line in content.decode().split("\n") if not line.startswith("#")]
    return list(csv.DictReader(lines, dialect="excel-tab", quoting=csv.QUOTE_NONE))


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
        rule="at target", reason="nothing is missing",
    )  # fmt: skip
    return replace(plain, **changes)


def counted(record: DecisionRecord) -> AvailabilityFigures:
    """The figures of an availability turn."""
    assert record.availability
    return record.availability


def judged(record: DecisionRecord) -> HealthFigures:
    """The figures of a health turn."""
    assert record.health
    return record.health


def done(kind: RequestKind, *ids: str, group: str = "", desired: int | None = None) -> Outcome:
    """The outcome of a request that AWS accepted."""
    request = Request(kind=kind, group=group, desired=desired, instances=ids)
    return Outcome(request=request)


def backfilled(desired: int, error: Failure | None = None, group: str = "on-demand") -> Outcome:
    """The outcome of a request to raise the on-demand group."""
    answer = Answer.REFUSED if error else Answer.DONE
    raised = done(RequestKind.BACKFILL, group=group, desired=desired)
    return replace(raised, answer=answer, error=error)


def instances(
    serving: Iterable[str] = (), launching: Iterable[str] = (), leaving: Iterable[str] = ()
) -> tuple[Instance, ...]:
    phases = ((Phase.IN_SERVICE, serving), (Phase.LAUNCHING, launching), (Phase.LEAVING, leaving))
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


class Turn:
    """A plan as sizes and lists, and the memory after AWS has accepted all of it."""

    def __init__(self, plan: Plan, memory: AvailabilityMemory) -> None:
        self.plan, self.memory, seen = plan, memory, plan.assessment
        self.action, self.rule, self.reason = plan.size.action, plan.size.rule, reason_of(plan)
        self.spot, self.on_demand, self.shortfall = seen.spot, seen.on_demand, seen.shortfall
        self.alarms = alarms_of(seen, memory)
        size = {each.group: each.desired for each in plan.requests if each.desired is not None}
        spot, on_demand = seen.snapshot.groups.spot, seen.snapshot.groups.on_demand
        self.on_demand_desired = size.get(on_demand.name, seen.on_demand.target)
        self.spot_desired = size.get(spot.name, spot.desired)
        self.ends = self.of(RequestKind.END)
        self.on_demand_after = self.on_demand_desired - len(self.ends)
        self.drain = self.of(RequestKind.DRAIN)
        self.detach = self.of(RequestKind.REPLACE_EARLY)
        self.terminate = self.of(RequestKind.TERMINATE)
        self.look_again_at = plan.wake_up.at if plan.wake_up else None

    def of(self, kind: RequestKind) -> tuple[str, ...]:
        """The instances of the requests of a kind; its groups where it is about groups."""
        some = [each for each in self.plan.requests if each.kind is kind]
        return tuple(name for each in some for name in each.instances or (each.group,))


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
        groups=Observation(seen_at=at(seconds), spot=spot, on_demand=on_demand),
        **{"load_known": True} | more,  # type: ignore[arg-type]
    )
    wanted = plan(assess(snapshot, memory or AvailabilityMemory()))
    return Turn(wanted, answered(wanted))


def answered(wanted: Plan, answers: Mapping[int, Answer] | None = None) -> AvailabilityMemory:
    """The memory after a plan; AWS accepts each action but those whose number has an answer."""
    requests = (*([wanted.wake_up] if wanted.wake_up else []), *wanted.requests)
    given = [(each, (answers or {}).get(n, Answer.DONE)) for n, each in enumerate(requests)]
    return apply(wanted.memory, wanted.assessment, given)
