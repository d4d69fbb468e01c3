"""Who serves, who is coming, and how many are missing (design rules 3 and 4)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.availability_memory import Ask, AvailabilityMemory
from spotkeeper.domain.failure import LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import AvailabilityPolicy, Group, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A group's instances by what they are worth to the fleet.

    `late` are past the launch deadline, `missing` are asked for but not in the group.
    """

    desired: int
    serving: int
    coming: int
    late: int
    at_risk: int
    missing: int


def count(
    group: Group,
    coming_since: Mapping[str, datetime],
    at_risk: Set[str],
    silent: Set[str],
    deadline: datetime,
) -> Count:
    """Count a group; an instance at risk never counts, a late one no longer does.

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
        desired=group.desired,
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
    desired: int,
    missing: int,
    failures: tuple[LaunchFailure, ...],
    newest_coming: datetime | None,
    policy: AvailabilityPolicy,
    now: datetime,
) -> tuple[Ask, ...]:
    """Keep the increases of desired that a launch may still fill, newest first to be trimmed.

    An ask ends with its grace, or once a launch failed after it while nothing came: one empty
    zone logs failures while the group still fills. A first turn takes desired as just asked.
    """
    grown = desired - (memory.spot_desired or 0)
    asks = (*memory.asks, Ask(at=now, count=grown)) if grown > 0 else memory.asks
    kept: list[Ask] = []
    left = missing
    for ask in asks:
        filling = newest_coming is not None and newest_coming >= ask.at
        expired = now - ask.at >= timedelta(seconds=policy.request_grace_s)
        if expired or left <= 0 or (not filling and _refused_since(failures, ask.at)):
            continue
        kept.append(Ask(at=ask.at, count=min(ask.count, left)))
        left -= ask.count
    return tuple(kept)


def _refused_since(failures: tuple[LaunchFailure, ...], at: datetime) -> bool:
    return any(f.at >= at and remedy(f.failure_class) is not Remedy.NONE for f in failures)
