"""Workers for a target load rate: busy time over capacity time of the workers."""

import math
from datetime import datetime

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import known_waiting
from spotkeeper.domain.load.workers import on_premises
from spotkeeper.domain.sizing.estimate import Estimate, recent_needs
from spotkeeper.domain.sizing.values import DRAIN_S


def by_load_rate(
    load: Load, fleet: Fleet, onprem: int, memory: HealthMemory, now: datetime
) -> Estimate:
    """Find the fewest workers at the target load rate: up at once, down to the recent most."""
    target = fleet.sizing.target_load_rate
    workers = max(workers_needed(load, target, onprem), _with_queue(load, memory))
    workers = _as_alive(workers, load, fleet, onprem, memory)
    needed = recent_needs(memory, now, workers, fleet.sizing.scale_in_after_s)
    steady = max(past.workers for past in needed)
    reason = (
        f"load {load.offered:.1f} erlangs at {target:.0%} "
        f"needs {workers} workers (most lately: {steady})"
    )
    return Estimate(rule="load rate", reason=reason, workers=workers, steady=steady, needed=needed)


def workers_needed(load: Load, target_load_rate: float, onprem: int) -> int:
    """Give the fewest workers that hold the target load rate; one while there is any load.

    What the live workers are busy with is the least that is offered: behind a backlog longer than
    the window, nothing that arrived lately has finished, and arrivals alone would read as no load.
    Those on premises count as `onprem` workers, restarted under new ids or not.
    """
    here = [worker.load_rate for worker in on_premises(load)]
    busy = sum(worker.load_rate for worker in load.workers) - sum(here)
    busy += sum(here) * min(1.0, onprem / max(1, len(here)))
    least = 1 if load.arrival_rate or busy else 0
    return max(least, math.ceil(round(max(load.offered, busy) / target_load_rate, 6)))


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
