"""How many workers the load needs, and how many spot instances that makes (design rule 2)."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health_memory import HealthMemory, Needed
from spotkeeper.domain.load import Cluster, Load
from spotkeeper.domain.spare import SpotAsk


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the spot group should be asked for, and why; `workers` is the need before bounds.

    `spot_desired` is the need in instances and the spares that the availability half holds.
    """

    action: Action
    rule: str
    reason: str
    workers: int
    spot_desired: int
    stale: bool
    memory: HealthMemory


def size(
    load: Load, fleet: Fleet, spot: Group, spares: int, memory: HealthMemory, now: datetime
) -> Sizing:
    """Size the spot group: up at once, down to the most that the recent past needed.

    `spares` of its desired capacity are the availability half's, and stay on top. Without fresh
    search logs nothing is known, so the group stays as it is: silence is not zero load.
    """
    age_s = _age_s(load, now)
    if age_s is None or age_s > fleet.sizing.stale_after_s:
        return _hold_stale(age_s, spot, memory)
    workers = workers_needed(load, fleet.sizing.target_load_rate)
    needed = _recent(memory, now, workers, fleet.sizing.scale_in_after_s)
    steady = max(past.workers for past in needed)
    onprem = sum(worker.cluster is Cluster.ONPREM for worker in load.workers)
    instances, rule = _instances(steady - onprem, fleet, spot)
    current = spot.desired - spares
    desired = min(instances + spares, spot.maximum)
    action = Action.HOLD if instances == current else Action.RESIZE
    after = replace(memory, needed=needed)
    if action is Action.RESIZE and fleet.sizing.enabled:
        ask = SpotAsk(at=now, need=instances, spare=desired - instances)
        after = replace(after, spot_ask=ask)
    reason = (
        f"load {load.offered:.1f} erlangs at {fleet.sizing.target_load_rate:.0%} "
        f"needs {workers} workers (most lately: {steady}), {onprem} on premises: "
        f"spot {current} -> {instances}" + (f" and {spares} spare" if spares else "")
    )
    rule = rule or ("at target" if action is Action.HOLD else "load rate")
    return Sizing(
        action=action,
        rule=rule,
        reason=reason,
        workers=workers,
        spot_desired=desired,
        stale=False,
        memory=after,
    )


def workers_needed(load: Load, target_load_rate: float) -> int:
    """Give the fewest workers that hold the target load rate; one while there is any load.

    What the live workers are busy with is the least that is offered: behind a backlog longer than
    the window, nothing that arrived lately has finished, and arrivals alone would read as no load.
    """
    busy = sum(worker.load_rate for worker in load.workers)
    least = 1 if load.arrival_rate or busy else 0
    return max(least, math.ceil(round(max(load.offered, busy) / target_load_rate, 6)))


def _age_s(load: Load, now: datetime) -> float | None:
    return None if load.newest is None else (now - load.newest).total_seconds()


def _hold_stale(age_s: float | None, spot: Group, memory: HealthMemory) -> Sizing:
    last = "none ever came" if age_s is None else f"the newest is {age_s:.0f} s old"
    reason = f"search logs are stale ({last}): spot stays {spot.desired}"
    return Sizing(
        action=Action.HOLD,
        rule="stale search logs",
        reason=reason,
        workers=memory.needed[-1].workers if memory.needed else 0,
        spot_desired=spot.desired,
        stale=True,
        memory=memory,
    )


def _recent(
    memory: HealthMemory, now: datetime, workers: int, scale_in_after_s: int
) -> tuple[Needed, ...]:
    """Keep the needs of the stabilisation window, only those that no later one exceeds."""
    start = now - timedelta(seconds=scale_in_after_s)
    kept = [n for n in memory.needed if n.at > start and n.workers > workers]
    return (*kept, Needed(at=now, workers=workers))


def _instances(workers: int, fleet: Fleet, spot: Group) -> tuple[int, str]:
    """Turn workers into instances within the operator's and the group's bounds."""
    wanted = math.ceil(max(0, workers) / fleet.workers_per_instance)
    least = max(fleet.bounds.spot_min, spot.minimum)
    most = min(fleet.bounds.spot_max, spot.maximum)
    if wanted > most:
        return most, "spot maximum"
    if wanted < least:
        return least, "spot minimum"
    return wanted, ""
