"""What is remembered to defer backfill: how long warm starts take, and who is gone when."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.risk_memory import DeferralMemory, Start
from spotkeeper.domain.fleet import Group, Instance, Observation, Phase

# So many of the last starts count.
STARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """So many instances of the shortfall can wait, the first of them until `until`."""

    instances: int = 0
    until: datetime | None = None


def watch_starts(
    memory: DeferralMemory,
    on_demand: Group,
    served: Mapping[str, datetime],
    now: datetime,
    refused: bool = False,
) -> DeferralMemory:
    """Measure how long on-demand takes to serve: from the last turn without it at the latest.

    Turns come late, so a start may look longer than it was; `served` are instants that events told.
    What comes after AWS refused a launch says nothing: how long it waited to be launched is in it.
    """
    present = {i.instance_id: i for i in on_demand.instances if i.phase is not Phase.LEAVING}
    begun = [] if refused else _begun(memory, present)
    starts = [
        _followed(start, present, served, now)
        for start in (*memory.starts, *begun)
        if start.served or start.instance_id in present
    ]
    starting = [start for start in starts if not start.served]
    done = sorted((s for s in starts if s.served), key=lambda s: s.served or now)
    return replace(memory, seen_at=now, known=tuple(present), starts=(*done[-STARTS:], *starting))


def _begun(memory: DeferralMemory, present: Mapping[str, Instance]) -> list[Start]:
    """Name those that came since the last turn; a first turn cannot tell."""
    if memory.seen_at is None:
        return []
    new = (i for i in present if i not in memory.known)
    return [Start(instance_id=i, began=memory.seen_at) for i in new]


def _followed(
    start: Start,
    present: Mapping[str, Instance],
    served: Mapping[str, datetime],
    now: datetime,
) -> Start:
    instance = present.get(start.instance_id)
    known = [start.served] if start.served else []
    if instance is not None and instance.phase is Phase.IN_SERVICE:
        known.append(now)
    if start.instance_id in served:
        known.append(max(served[start.instance_id], start.began))
    return replace(start, served=min(known)) if known else start


def watch_warned(
    memory: DeferralMemory,
    seen: Observation,
    at_risk: Mapping[str, datetime],
    silent: Set[str],
    outside: Set[str],
    notice: timedelta,
) -> DeferralMemory:
    """Remember when the warned instances that serve will be gone.

    Of those that have left their group, only detached ones, `outside`, still serve.
    """
    now = seen.seen_at
    inside = {i.instance_id for i in seen.spot.instances}
    warned = at_risk.keys() - silent
    gone = {
        i.instance_id: at_risk[i.instance_id] + notice
        for i in seen.spot.instances
        if i.instance_id in warned
        and i.phase is Phase.IN_SERVICE
        and i.healthy
        and at_risk[i.instance_id] <= now
    }
    kept = {i: at for i, at in memory.gone_at.items() if i in outside and i not in inside}
    return replace(
        memory,
        gone_at={i: at for i, at in {**kept, **gone}.items() if at > now},
    )
