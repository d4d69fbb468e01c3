"""How many workers the load needs, and how many spot instances that makes (design rule 2).

A fleet with an objective is sized to its promise about waiting (`slo_sizing`), one without to a
target load rate.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health.memory import HealthMemory, Needed
from spotkeeper.domain.load.load import Cluster, Load
from spotkeeper.domain.load.request_queue import (
    expects_logs,
    is_blind,
    known_waiting,
    quiet_s,
    told,
)
from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.objective import size_to_objective
from spotkeeper.domain.sizing.silence import is_quiet, to_drain
from spotkeeper.domain.sizing.start_up import start_up_s
from spotkeeper.domain.sizing.values import DRAIN_S, Need, PastNeed, SizingPolicy

# What the objective's rule looks back on; as long as its longest window.
OBJECTIVE_WINDOW_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the spot group should be asked for, and why; `workers` is the need before bounds.

    `spot_desired` is the need in instances and the spares that the availability half holds;
    `missing` are the workers that the objective needs beyond the bounds.
    """

    action: Action
    rule: str
    reason: str
    workers: int
    spot_desired: int
    stale: bool
    memory: HealthMemory
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What an objective's sizing needs besides the load; `serving` instances of both groups."""

    summary: LoadSummary
    serving: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a rule found: the need of now, the workers to have, and what it remembers.

    `bound` names what keeps the size from the need; `stale` says that logs should come and do not.
    """

    rule: str
    reason: str
    workers: int
    steady: int
    needed: tuple[Needed, ...]
    missing: int = 0
    bound: str = ""
    stale: bool = False


def size(
    load: Load,
    fleet: Fleet,
    spot: Group,
    spares: int,
    memory: HealthMemory,
    now: datetime,
    outlook: Outlook | None = None,
) -> Sizing:
    """Size the spot group: up at once, down to the most that the recent past needed.

    `spares` of its desired capacity are the availability half's, and stay on top. Without fresh
    search logs nothing is known, so the group stays as it is: silence is not zero load. A request
    queue that was empty for long enough makes it zero, and requests in it wake the fleet.
    """
    age_s = _age_s(load, now)
    live = sum(worker.cluster is Cluster.ONPREM for worker in load.workers)
    # Whoever can send logs can claim workers: where it is known how many there are, no more count.
    onprem = min(live, fleet.onprem_workers or live)
    current = spot.desired - spares
    quiet = quiet_s(memory.queue, now)
    if is_quiet(quiet, fleet.sizing.quiet_after_s):
        found = _quiet(quiet, now)
    elif age_s is None or age_s > fleet.sizing.stale_after_s:
        return _in_silence(age_s, fleet, spot, spares, memory, now, outlook)
    elif fleet.objective is None or outlook is None:
        found = _by_load_rate(load, fleet, memory, now)
    else:
        found = _by_objective(outlook, fleet, spot, current, onprem, memory, now)
    instances, bound = _instances(found.steady - onprem, fleet, spot)
    found = replace(
        found,
        reason=f"{found.reason}, {onprem} on premises",
        bound="spot maximum" if found.missing else bound,
    )
    return _asked(found, instances, fleet, spot, spares, memory, now)


def _asked(
    found: _Found,
    instances: int,
    fleet: Fleet,
    spot: Group,
    spares: int,
    memory: HealthMemory,
    now: datetime,
) -> Sizing:
    """Ask for so many instances, the spares on top."""
    current = spot.desired - spares
    desired = min(instances + spares, spot.maximum)
    action = Action.HOLD if instances == current else Action.RESIZE
    after = replace(memory, needed=found.needed)
    if action is Action.RESIZE and fleet.sizing.enabled:
        ask = CapacityRequest(at=now, need=instances, spare=desired - instances)
        after = replace(after, spot_ask=ask)
    reason = f"{found.reason}: spot {current} -> {instances}" + (
        f" and {spares} spare" if spares else ""
    )
    return Sizing(
        action=action,
        rule=found.bound or ("at target" if action is Action.HOLD else found.rule),
        reason=reason,
        workers=found.workers,
        spot_desired=desired,
        stale=found.stale,
        memory=after,
        missing=found.missing,
    )


def _by_load_rate(load: Load, fleet: Fleet, memory: HealthMemory, now: datetime) -> _Found:
    target = fleet.sizing.target_load_rate
    workers = max(workers_needed(load, target), _with_queue(load, memory))
    needed = _recent(memory, now, workers, fleet.sizing.scale_in_after_s)
    steady = max(past.workers for past in needed)
    reason = (
        f"load {load.offered:.1f} erlangs at {target:.0%} "
        f"needs {workers} workers (most lately: {steady})"
    )
    return _Found(rule="load rate", reason=reason, workers=workers, steady=steady, needed=needed)


def _by_objective(
    outlook: Outlook,
    fleet: Fleet,
    spot: Group,
    current: int,
    onprem: int,
    memory: HealthMemory,
    now: datetime,
) -> _Found:
    """Find the fewest workers that keep the objective.

    What was asked for and does not serve yet counts as booting, seen or not: it is not asked for
    twice. On-demand instances stand in for spot that was asked for, so they add nothing.
    """
    serving = min(outlook.serving, current)
    need = size_to_objective(
        outlook.summary,
        onprem + serving * fleet.workers_per_instance,
        (current - serving) * fleet.workers_per_instance,
        [_past(needed, now) for needed in memory.needed],
        _policy(fleet, spot, onprem, memory),
    )
    return _Found(
        rule="objective",
        reason=need.reason,
        workers=need.workers + need.missing,
        steady=need.workers,
        needed=_remembered(memory, now, need),
        missing=need.missing,
    )


def _policy(fleet: Fleet, spot: Group, onprem: int, memory: HealthMemory) -> SizingPolicy:
    objective, (least, most) = fleet.objective, _bounds(fleet, spot)
    assert objective is not None
    return SizingPolicy(
        wait_s=objective.wait_s,
        share=objective.share,
        min_workers=least * fleet.workers_per_instance,
        max_workers=most * fleet.workers_per_instance + onprem,
        start_up_s=start_up_s(memory, objective.start_up_s),
        stale_s=fleet.sizing.stale_after_s,
    )


def _past(needed: Needed, now: datetime) -> PastNeed:
    age_s = (now - needed.at).total_seconds()
    return PastNeed(age_s=age_s, workers=needed.workers, held=needed.held)


def _remembered(memory: HealthMemory, now: datetime, need: Need) -> tuple[Needed, ...]:
    """Remember a need; of those before, what it does not exceed, and those held in a silence."""
    start = now - timedelta(seconds=OBJECTIVE_WINDOW_S)
    kept = (
        past
        for past in memory.needed
        if start <= past.at < now and (past.workers > need.load_workers or past.held)
    )
    return (*kept, Needed(at=now, workers=need.load_workers, held=need.held))


def workers_needed(load: Load, target_load_rate: float) -> int:
    """Give the fewest workers that hold the target load rate; one while there is any load.

    What the live workers are busy with is the least that is offered: behind a backlog longer than
    the window, nothing that arrived lately has finished, and arrivals alone would read as no load.
    """
    busy = sum(worker.load_rate for worker in load.workers)
    least = 1 if load.arrival_rate or busy else 0
    return max(least, math.ceil(round(max(load.offered, busy) / target_load_rate, 6)))


def _with_queue(load: Load, memory: HealthMemory) -> int:
    """Give the workers that serve the load and clear what waits; 0 when nothing is known to."""
    waiting = known_waiting(memory.queue)
    if not waiting:
        return 0
    waiting_s = waiting * (load.service_mean_s or memory.service_mean_s)
    return max(1, math.ceil(load.offered + waiting_s / DRAIN_S))


def _age_s(load: Load, now: datetime) -> float | None:
    return None if load.newest is None else (now - load.newest).total_seconds()


def _quiet(quiet: float, now: datetime) -> _Found:
    reason = f"no request for {quiet:.0f} s, nothing waits or is in flight"
    needed = (Needed(at=now, workers=0),)
    return _Found(rule="quiet", reason=reason, workers=0, steady=0, needed=needed)


def _in_silence(
    age_s: float | None,
    fleet: Fleet,
    spot: Group,
    spares: int,
    memory: HealthMemory,
    now: datetime,
    outlook: Outlook | None,
) -> Sizing:
    """Hold, or wake for what waits in the request queue: nobody has served it, so nobody logs."""
    current = spot.desired - spares
    queue, serving = memory.queue, outlook.serving if outlook else _in_service(spot)
    blind = not current and is_blind(queue, now)
    waking = max(to_drain(known_waiting(queue), memory.service_mean_s, DRAIN_S), int(blind))
    most = _bounds(fleet, spot)[1]
    instances = max(current, min(math.ceil(waking / fleet.workers_per_instance), most))
    last = "none ever came" if age_s is None else f"the newest is {age_s:.0f} s old"
    stale = expects_logs(queue, serving)
    found = _Found(
        rule="wake",
        reason=f"search logs are stale ({last}){told(queue)}",
        workers=max(waking, memory.needed[-1].workers if memory.needed else 0),
        steady=waking,
        needed=_held(fleet, memory, waking, now),
        missing=max(0, waking - instances * fleet.workers_per_instance) if fleet.objective else 0,
        bound="" if instances > current else "stale search logs" if stale else "quiet",
        stale=stale,
    )
    return _asked(found, instances, fleet, spot, spares, memory, now)


def _held(fleet: Fleet, memory: HealthMemory, waking: int, now: datetime) -> tuple[Needed, ...]:
    """Remember a silence: after it the windows are part empty, so what was needed before counts."""
    if fleet.objective is None and waking:
        return _recent(memory, now, waking, fleet.sizing.scale_in_after_s)
    if fleet.objective is None or not memory.needed:
        return memory.needed
    before = max(n.workers for n in memory.needed if n.held or n is memory.needed[-1])
    held = Needed(at=now, workers=before, held=True)
    return (*(n for n in memory.needed if not n.held), held)


def _in_service(spot: Group) -> int:
    return sum(i.phase is Phase.IN_SERVICE for i in spot.instances)


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
    least, most = _bounds(fleet, spot)
    if wanted > most:
        return most, "spot maximum"
    if wanted < least:
        return least, "spot minimum"
    return wanted, ""


def _bounds(fleet: Fleet, spot: Group) -> tuple[int, int]:
    least = max(fleet.bounds.spot_min, spot.minimum)
    return least, min(fleet.bounds.spot_max, spot.maximum)
