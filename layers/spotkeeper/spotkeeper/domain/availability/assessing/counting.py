"""Who serves, who is launching, and how many are missing (design rules 3 and 4)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import AvailabilityMemory, PendingIncrease
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.capacity_request import required_capacity
from spotkeeper.domain.failure import LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A group's instances by what they are worth to the fleet.

    `target` is the spot need or the on-demand desired; `late` are past the launch deadline,
    `missing` are asked for but not in the group. `unheard` are in service and may serve: nothing is
    launched in their stead, and nothing is given back for them.
    """

    target: int
    serving: int
    launching: int
    late: int
    at_risk: int
    missing: int
    unheard: int = 0


def count(
    group: Group,
    target: int,
    launching_since: Mapping[str, datetime],
    at_risk: Set[str],
    gone: Set[str],
    deadline: datetime,
    unheard: Set[str] = frozenset(),
) -> Count:
    """Count a group against its target; who is at risk never counts, who is late no longer does.

    `launching_since` says since when, and who is late from `deadline` on; `gone` are those that
    neither serve nor will: silent, or taken by AWS while the group still lists them.
    """
    serving = launching = late = risky = present = quiet = 0
    for instance in group.instances:
        who, phase = instance.instance_id, instance.phase
        if phase is Phase.LEAVING:
            continue
        present += 1
        if who in at_risk:
            risky += 1
        elif who in gone:
            continue
        elif who in launching_since:
            launching += launching_since[who] > deadline
            late += launching_since[who] <= deadline
        elif who in unheard:
            quiet += instance.healthy
        else:
            serving += instance.healthy
    return Count(
        target=target,
        serving=serving,
        launching=launching,
        late=late,
        at_risk=risky,
        missing=max(0, group.desired - present),
        unheard=quiet,
    )


def count_groups(
    snapshot: Snapshot,
    memory: AvailabilityMemory,
    launching_since: Mapping[str, datetime],
    risky: Set[str],
) -> tuple[Count, Count]:
    """Count the spot group against the need in its desired capacity, on-demand against its own.

    Where the load does not size the fleet, what it asked for once says nothing any more.
    """
    seen, gone = snapshot.seen, snapshot.silent | snapshot.taken
    deadline_s = snapshot.fleet.availability.launch_deadline_s
    deadline = seen.seen_at - timedelta(seconds=deadline_s)
    sized = snapshot.sized if snapshot.fleet.sizing.enabled else None
    need = required_capacity(seen.spot.desired, (*memory.capacity_requests, sized))
    back = seen.on_demand
    return (
        count(seen.spot, need, launching_since, risky, gone, deadline, snapshot.unheard),
        count(back, back.desired, launching_since, risky, gone, deadline, snapshot.unheard),
    )


def pending_increases(
    memory: AvailabilityMemory,
    spot: Count,
    failures: tuple[LaunchFailure, ...],
    newest_launch: datetime | None,
    policy: AvailabilityPolicy,
    now: datetime,
) -> tuple[PendingIncrease, ...]:
    """Keep the increases of the need that launches may still fill, as far as they are unfilled.

    What of one is missing yet ends with its grace, or once a launch failed after it, unless an
    instance came within the grace: one empty zone logs failures while the group still fills. It is
    dated by the last turn that saw the old need, as a launch may have failed since; a first turn
    takes the need as just asked.
    """
    grace = timedelta(seconds=policy.request_grace_s)
    longest = timedelta(seconds=policy.launch_deadline_s)
    grown = spot.target - (memory.need or 0)
    since = memory.seen_at or now
    increases = memory.pending_increases
    if grown > 0:
        increases = (*increases, PendingIncrease(at=since, count=grown))
    kept: list[PendingIncrease] = []
    filling = newest_launch is not None and now - newest_launch < grace
    launching, missing = spot.launching, spot.missing
    for increase in increases:
        begun = newest_launch is not None and newest_launch >= increase.at
        young = now - increase.at < grace and not _refused_since(failures, increase.at)
        waits = young or (begun and filling and now - increase.at < longest)
        launched = min(increase.count, launching) if begun or waits else 0
        due = min(increase.count - launched, missing) if waits else 0
        launching, missing = launching - launched, missing - due
        if launched + due:
            kept.append(PendingIncrease(at=increase.at, count=launched + due))
    return tuple(kept)


def shortfall_of(
    spot: Count, target: int, increases: tuple[PendingIncrease, ...], *, on_demand_warm: bool
) -> int:
    """Count the instances that the need lacks and that nothing brings soon enough (rule 3).

    What is launching counts, unless on-demand is warm and would serve sooner; then only the growth
    of the need is waited for.
    """
    growth = sum(increase.count for increase in increases)
    if on_demand_warm:
        waited_for = min(growth, spot.launching + spot.missing)
    else:
        waited_for = spot.launching + min(max(0, growth - spot.launching), spot.missing)
    return max(0, target - spot.serving - spot.unheard - waited_for)


def both_short(snapshot: Snapshot, spot: Count, on_demand: Count) -> bool:
    """Say whether on-demand was asked, does not come, and AWS says why (rule 7)."""
    gap = spot.target - spot.serving - spot.unheard - on_demand.serving
    return snapshot.on_demand_refused and gap > 0 and on_demand.missing > 0


def in_service(group: Group, risky: frozenset[str]) -> int:
    """Count the instances in service that are not at risk."""
    serving = [i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE]
    return len(serving) - len(risky.intersection(serving)) if risky else len(serving)


def _refused_since(failures: tuple[LaunchFailure, ...], at: datetime) -> bool:
    return any(f.at >= at and remedy(f.failure_class) is not Remedy.NONE for f in failures)
