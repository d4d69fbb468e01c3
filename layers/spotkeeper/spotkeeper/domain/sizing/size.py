"""How many workers the load needs, and how many spot instances that makes (design rule 2).

A fleet with an objective is sized to its promise about waiting (`objective`), one without to a
target load rate (`by_load_rate`); without logs, `without_logs` says what to do.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime

from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.flow import CERTAIN, UNHEARD, LogFlow
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import known_waiting, quiet_s
from spotkeeper.domain.load.workers import on_premises, onprem_at_once
from spotkeeper.domain.sizing.estimate import (
    Estimate,
    bounds,
    instances_for,
    recent_needs,
    recent_onprem,
)
from spotkeeper.domain.sizing.objective import ObjectiveInput, by_objective
from spotkeeper.domain.sizing.values import DRAIN_S
from spotkeeper.domain.sizing.without_logs import explained, in_silence, is_quiet, when_quiet

# A small fleet may become this much larger in a turn, whatever share of it that is.
ADDED_AT_ONCE = 10
# So large a share of the instances unheard of is more than chance and the odd hung worker.
MANY = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the spot group should be asked for, and why; `workers` is the need before bounds.

    `spot_desired` is the need in instances and the availability controller's spares; the
    `request` tells it which is which, None where nothing is to be asked. `missing` are the workers
    that the objective needs beyond the bounds.
    """

    action: Action
    rule: str
    reason: str
    workers: int
    spot_desired: int
    stale: bool
    memory: HealthMemory
    request: CapacityRequest | None = None
    missing: int = 0


def size(
    load: Load,
    fleet: Fleet,
    spot: Group,
    spares: int,
    memory: HealthMemory,
    now: datetime,
    outlook: ObjectiveInput | None = None,
) -> Sizing:
    """Size the spot group: up at once, down to the most that the recent past needed.

    `spares` of its desired capacity are the other controller's, and stay on top. Without fresh
    search logs nothing is known, so the group stays as it is: silence is not zero load. Where
    chance explains the silence, the fleet of an objective scales in, and never out. A request queue
    that was empty for long enough makes the need zero, and requests in it wake the fleet.
    """
    newest = load.newest or memory.flow.newest
    silent = load.newest is None or (now - load.newest).total_seconds() > fleet.sizing.stale_after_s
    current = spot.desired - spares
    quiet = quiet_s(memory.queue, now)
    if is_quiet(quiet, fleet.sizing.quiet_after_s):
        found, instances = _in_instances(when_quiet(quiet, now), onprem_at_once(load), fleet, spot)
    elif silent and not (outlook and outlook.serving and explained(memory, now)):
        serving = outlook.serving if outlook else _in_service(spot)
        found, instances = in_silence(newest, fleet, spot, current, serving, memory, now)
    else:
        onprem, counts = recent_onprem(load, fleet, memory, now)
        memory = replace(memory, onprem=counts)
        if fleet.objective is None or outlook is None:
            found = by_load_rate(load, fleet, onprem, memory, now)
        else:
            found = by_objective(outlook, fleet, spot, current, onprem, memory, now)
        found, instances = _in_instances(found, onprem, fleet, spot)
        if silent:
            instances = min(instances, max(current, bounds(fleet, spot)[0]))
    return _asked(found, instances, fleet, spot, spares, memory, now)


def _in_service(spot: Group) -> int:
    return sum(i.phase is Phase.IN_SERVICE for i in spot.instances)


def _in_instances(found: Estimate, onprem: int, fleet: Fleet, spot: Group) -> tuple[Estimate, int]:
    instances, bound = instances_for(found.steady - onprem, fleet, spot)
    bound = "spot maximum" if found.missing else bound
    reason = f"{found.reason}, {onprem} on premises"
    needed = found.needed[-1].workers - onprem if found.needed else 0
    if spot.minimum > fleet.bounds.spot_min and needed <= (
        (spot.minimum - 1) * fleet.workers_per_instance
    ):
        # The operator did not choose it, and only the group knows.
        bound = bound or "spot minimum"
        reason = f"{reason}; the group's MinSize is {spot.minimum}"
    return replace(found, reason=reason, bound=bound), instances


def partly_known(
    load: Load, memory: HealthMemory, fleet: Fleet, window_s: float, now: datetime
) -> tuple[str, LogFlow]:
    """Say why the load may be more than its logs tell, and remember since when; "" where it is not.

    The size is read off the last `window_s` seconds: all of them must be known.
    """
    flow = memory.flow
    if is_quiet(quiet_s(memory.queue, now), fleet.sizing.quiet_after_s):
        return "", flow
    if why := _partly_logged(load, memory):
        return why, replace(flow, partly_until=now)
    if not flow.is_whole(load.window_s, now):
        return f"no whole window of {load.window_s} s of logs is known yet", flow
    if flow.was_partly_known(window_s, now):
        return f"the load of the last {window_s:.0f} s is only partly known", flow
    return "", flow


def _partly_logged(load: Load, memory: HealthMemory) -> str:
    """Say why the logs tell only a part of the load; nothing where they tell all."""
    if memory.flow.late_workers:
        workers = f"{memory.flow.late_workers} workers"
        return f"logs of {workers} arrive over a minute late: are their clocks right?"
    serving = len(memory.in_service_since)
    unheard = sum(memory.expected.get(i, 0.0) >= UNHEARD for i in memory.in_service_since)
    if unheard > max(1, MANY * serving):
        return f"requests passed by {unheard} of {serving} instances in service without a log"
    finished = sum(worker.finished for worker in load.workers)
    failed = sum(worker.failed for worker in load.workers)
    if 2 * failed > finished:
        return f"{failed} of {finished} requests failed: what they would cost is not known"
    return ""


def hold_back(sizing: Sizing, fleet: Fleet, spot: Group, spares: int, why: str) -> Sizing:
    """Give nothing back for a load that is only partly known; the bounds rule all the same."""
    most = bounds(fleet, spot)[1]
    instances = min(spot.desired - spares, most)
    if not why or sizing.request is None or sizing.request.need >= instances:
        return sizing
    desired = min(instances + spares, most)
    request = replace(sizing.request, need=instances, spare=desired - instances)
    action = Action.HOLD if desired == spot.desired else Action.RESIZE
    return replace(
        sizing,
        action=action,
        rule="partly known load",
        reason=f"{sizing.reason}, held at {instances}: {why}",
        spot_desired=desired,
        request=request if action is Action.RESIZE else None,
    )


def limit_growth(sizing: Sizing, fleet: Fleet, spot: Group, spares: int) -> Sizing:
    """Add at most what a turn may; the least that the operator or the group asks for is not bound.

    Whoever can send search logs can claim any load: what it buys is seen before it buys much.
    """
    current = spot.desired - spares
    grown = current + max(ADDED_AT_ONCE, math.ceil(current * fleet.sizing.growth_per_turn))
    most = max(grown, bounds(fleet, spot)[0])
    if sizing.request is None or sizing.request.need <= most:
        return sizing
    spare = min(sizing.request.spare, sizing.spot_desired - most)
    return replace(
        sizing,
        rule="growth per turn",
        reason=f"{sizing.reason}, {most} in this turn: growth_per_turn",
        spot_desired=most + spare,
        request=replace(sizing.request, need=most, spare=spare),
    )


def _asked(
    found: Estimate,
    instances: int,
    fleet: Fleet,
    spot: Group,
    spares: int,
    memory: HealthMemory,
    now: datetime,
) -> Sizing:
    """Ask for so many instances, the spares on top as far as the bounds allow."""
    current = spot.desired - spares
    desired = min(instances + spares, max(instances, bounds(fleet, spot)[1]))
    action = Action.HOLD if desired == spot.desired else Action.RESIZE
    request = CapacityRequest(at=now, need=instances, spare=desired - instances)
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
        memory=replace(memory, needed=found.needed),
        request=request if action is Action.RESIZE and fleet.sizing.enabled else None,
        missing=found.missing,
    )


def by_load_rate(
    load: Load, fleet: Fleet, onprem: int, memory: HealthMemory, now: datetime
) -> Estimate:
    """Find the fewest workers at the target load rate: up at once, down to the recent most."""
    target = fleet.sizing.target_load_rate
    workers = workers_needed(load, target, onprem, fleet.slots)
    workers = max(workers, math.ceil(_with_queue(load, memory) / fleet.slots))
    workers = _as_alive(workers, load, fleet, onprem, memory)
    needed = recent_needs(memory, now, workers, fleet.sizing.scale_in_after_s)
    steady = max(past.workers for past in needed)
    reason = (
        f"load {load.offered:.1f} erlangs at {target:.0%} "
        f"needs {workers} workers (most lately: {steady})"
    )
    return Estimate(rule="load rate", reason=reason, workers=workers, steady=steady, needed=needed)


def workers_needed(load: Load, target_load_rate: float, onprem: int, slots: int = 1) -> int:
    """Give the fewest workers that hold the target load rate; one while there is any load.

    What the live workers are busy with is the least that is offered: behind a backlog longer than
    the window, nothing that arrived lately has finished, and arrivals alone would read as no load.
    Those on premises count as `onprem` workers, restarted under new ids or not.
    """
    here = [worker.load_rate for worker in on_premises(load)]
    busy = sum(worker.load_rate for worker in load.workers) - sum(here)
    busy += sum(here) * min(1.0, onprem / max(1, len(here)))
    least = 1 if load.arrival_rate or busy else 0
    return max(least, math.ceil(round(max(load.offered / slots, busy) / target_load_rate, 6)))


def _with_queue(load: Load, memory: HealthMemory) -> int:
    """Give the workers that serve the load and clear what waits; 0 when nothing is known to."""
    waiting = known_waiting(memory.queue)
    if not waiting:
        return 0
    waiting_s = waiting * (load.service_mean_s or memory.service_mean_s)
    return max(1, math.ceil(load.offered + waiting_s / DRAIN_S))


def _as_alive(workers: int, load: Load, fleet: Fleet, onprem: int, memory: HealthMemory) -> int:
    """Count more where fewer of the instances' workers log than they carry: the others are dead.

    Only where so many requests came that each would certainly have logged.
    """
    alive = [w for w in load.workers if w.instance_id in memory.in_service_since]
    carried = len({w.instance_id for w in alive}) * fleet.workers_per_instance
    if not alive or sum(w.finished for w in alive) < CERTAIN * carried:
        return workers
    return max(workers, onprem + math.ceil((workers - onprem) * carried / len(alive)))
