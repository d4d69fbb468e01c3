"""Who serves, who is coming, and how many are missing (design rules 3 and 4)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import Ask, AvailabilityMemory
from spotkeeper.domain.failure import LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import AvailabilityPolicy, Group, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A group's instances by what they are worth to the fleet.

    `target` is the spot need or the on-demand desired; `late` are past the launch deadline,
    `missing` are asked for but not in the group.
    """

    target: int
    serving: int
    coming: int
    late: int
    at_risk: int
    missing: int


def count(
    group: Group,
    target: int,
    coming_since: Mapping[str, datetime],
    at_risk: Set[str],
    silent: Set[str],
    deadline: datetime,
) -> Count:
    """Count a group against its target; who is at risk never counts, who is late no longer does.

    `deadline` is the instant before which an instance must have been seen coming to be late.
    """
    serving = coming = late = risky = present = 0
    for instance in group.instances:
        phase = instance.phase
        if phase is Phase.LEAVING:
            continue
        present += 1
        if instance.instance_id in at_risk:
            risky += 1
        elif phase is Phase.COMING:
            if coming_since[instance.instance_id] > deadline:
                coming += 1
            else:
                late += 1
        elif instance.healthy and instance.instance_id not in silent:
            serving += 1
    return Count(
        target=target,
        serving=serving,
        coming=coming,
        late=late,
        at_risk=risky,
        missing=max(0, group.desired - present),
    )


def remember_coming(
    memory: AvailabilityMemory, groups: tuple[Group, ...], now: datetime
) -> dict[str, datetime]:
    """Note when each coming instance was first seen, and forget those that have come."""
    seen = memory.first_seen_coming
    return {
        instance.instance_id: seen.get(instance.instance_id, now)
        for group in groups
        for instance in group.instances
        if instance.phase is Phase.COMING
    }


def live_asks(
    memory: AvailabilityMemory,
    spot: Count,
    failures: tuple[LaunchFailure, ...],
    newest_coming: datetime | None,
    policy: AvailabilityPolicy,
    now: datetime,
) -> tuple[Ask, ...]:
    """Keep the increases of the need that launches may still fill, as far as they are unfilled.

    An ask ends with its grace, or once a launch failed after it, unless instances came meanwhile:
    one empty zone logs failures while the group still fills. A first turn takes the need as just
    asked.
    """
    grown = spot.target - (memory.need or 0)
    asks = (*memory.asks, Ask(at=now, count=grown)) if grown > 0 else memory.asks
    kept: list[Ask] = []
    left = spot.missing + spot.coming
    for ask in asks:
        filling = newest_coming is not None and newest_coming >= ask.at
        expired = now - ask.at >= timedelta(seconds=policy.request_grace_s)
        if left <= 0 or (not filling and (expired or _refused_since(failures, ask.at))):
            continue
        kept.append(Ask(at=ask.at, count=min(ask.count, left)))
        left -= ask.count
    return tuple(kept)


def shortfall_of(spot: Count, goal: int, asks: tuple[Ask, ...], *, on_demand_warm: bool) -> int:
    """Count the instances that the need lacks and that nothing brings soon enough (rule 3).

    What is coming counts, unless on-demand is warm and would serve sooner; then only the growth of
    the need is waited for.
    """
    growth = sum(ask.count for ask in asks)
    if on_demand_warm:
        waited_for = min(growth, spot.coming + spot.missing)
    else:
        waited_for = spot.coming + min(max(0, growth - spot.coming), spot.missing)
    return max(0, goal - spot.serving - waited_for)


def _refused_since(failures: tuple[LaunchFailure, ...], at: datetime) -> bool:
    return any(f.at >= at and remedy(f.failure_class) is not Remedy.NONE for f in failures)
