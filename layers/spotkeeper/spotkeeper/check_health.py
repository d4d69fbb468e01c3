"""The health checker: search logs become the spot group's size, and dead workers are replaced.

Observe, decide, act, record, for every fleet; an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.domain.capacity_request import required_capacity
from spotkeeper.domain.decision import Action, DecisionRecord, Half, Outcome
from spotkeeper.domain.fleet import Fleet, Group, Objective, Phase
from spotkeeper.domain.health.diagnosis import Diagnosis, confirm, diagnose, replaced
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.arrivals import Arrived, arrived
from spotkeeper.domain.load.busy_shares import busy_shares
from spotkeeper.domain.load.history import LoadHistory, extended, load_summary
from spotkeeper.domain.load.load import Cluster, Load, LoadDigest, summarise
from spotkeeper.domain.load.request_queue import QueueLength, known_waiting, quiet_s, watch_queue
from spotkeeper.domain.release import plan_release
from spotkeeper.domain.sizing.size import OBJECTIVE_WINDOW_S, Outlook, Sizing, size
from spotkeeper.domain.sizing.start_up import watch_starts
from spotkeeper.observe import permitted
from spotkeeper.ports import FleetError, Lease, Ports, Unreadable
from spotkeeper.turn import TurnReport, all_failed, attempt, for_each, group_named, under_lease

# Who is busy is read off this much of the search logs when instances are chosen to go.
ACTIVITY_WINDOW = timedelta(minutes=2)


def check_health(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> TurnReport:
    """Run one health turn for each fleet."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    try:
        groups = ports.groups.describe(names)
    except FleetError as error:
        return all_failed(fleets, error)
    return for_each(fleets, lambda fleet: _turn(fleet, ports, groups, now))


def _turn(
    fleet: Fleet, ports: Ports, groups: Mapping[str, Group], now: datetime
) -> list[DecisionRecord]:
    """Run one fleet's turn under its lease, on groups read again if it goes round again."""
    ports = permitted(ports, fleet, now)

    def go(lease: Lease, number: int) -> tuple[DecisionRecord, bool]:
        names = (fleet.spot_group, fleet.on_demand_group)
        seen = ports.groups.describe(names) if number else groups
        return _round(fleet, ports, seen, lease, now)

    return under_lease(ports.states, fleet.name, Half.HEALTH, now, None, go)


def _round(
    fleet: Fleet, ports: Ports, groups: Mapping[str, Group], lease: Lease, now: datetime
) -> tuple[DecisionRecord, bool]:
    """Observe, decide, act and record once; answers whether no note came in meanwhile."""
    spot, on_demand = (
        group_named(groups, name) for name in (fleet.spot_group, fleet.on_demand_group)
    )
    digests = _read(fleet, ports, now)
    load = summarise(digests, now, fleet.sizing.window_s)
    spares = spot.desired - required_capacity(
        spot.desired, (*lease.availability.spot_asks, lease.health.spot_ask)
    )
    memory = watch_starts(lease.health, spot, on_demand, load, now)
    memory = _look_at_queue(fleet, memory, load, ports, now)
    outcomes: list[Outcome] = []
    outlook = None
    if fleet.objective is not None:
        seen = arrived(digests, now, OBJECTIVE_WINDOW_S)
        history = _history(fleet, fleet.objective, digests, seen, ports, outcomes, now)
        outlook = _outlook(load, (spot, on_demand), memory, seen, history, now)
    sizing = size(load, fleet, spot, spares, memory, now, outlook)
    diagnosis = diagnose(load, (spot, on_demand), fleet, sizing.memory, now)
    ended: tuple[str, ...] = ()
    if fleet.sizing.enabled and sizing.action is Action.RESIZE:
        ended = _resize(spot, sizing, digests, ports, outcomes, now)
    memory, gone = _replace(fleet, diagnosis, ended, ports, outcomes, now)
    record = _record(fleet, load, sizing, diagnosis, gone, tuple(outcomes), now)
    record = replace(record, permission=lease.permission)
    done = ports.states.keep(lease, memory, now)
    ports.states.record(record)
    return record, done


def _read(fleet: Fleet, ports: Ports, now: datetime) -> tuple[LoadDigest, ...]:
    window_s = max(fleet.sizing.window_s, OBJECTIVE_WINDOW_S if fleet.objective else 0)
    return ports.load.since(fleet.name, now - timedelta(seconds=window_s))


def _history(
    fleet: Fleet,
    objective: Objective,
    digests: tuple[LoadDigest, ...],
    seen: Arrived,
    ports: Ports,
    outcomes: list[Outcome],
    now: datetime,
) -> LoadHistory:
    """Read the history and add what has settled to it.

    One that cannot be read is lost and begun anew, and the record says so once: a fleet without
    one is sized, too.
    """
    before: LoadHistory | None = None
    try:
        before = ports.histories.read(fleet.name)
    except Unreadable as error:
        outcomes.append(Outcome(asked="read the load history", error=f"Unreadable: {error}"))
    history = extended(before or LoadHistory(), digests, seen, objective.wait_s)
    if history is not before:
        ports.histories.write(fleet.name, history, now)
    return history


def _outlook(
    load: Load,
    groups: tuple[Group, ...],
    memory: HealthMemory,
    seen: Arrived,
    history: LoadHistory,
    now: datetime,
) -> Outlook:
    """Gather what the objective's rule looks at."""
    serving = sum(
        i.phase is Phase.IN_SERVICE and i.healthy and i.instance_id not in memory.silent
        for group in groups
        for i in group.instances
    )
    summary = replace(
        load_summary(seen, history, load.newest, now),
        queued=known_waiting(memory.queue),
        quiet_s=quiet_s(memory.queue, now),
    )
    return Outlook(summary=summary, serving=serving)


def _look_at_queue(
    fleet: Fleet, memory: HealthMemory, load: Load, ports: Ports, now: datetime
) -> HealthMemory:
    """Remember the length of the fleet's request queue, if it has one, or why it is not known.

    Sizing goes on without it.
    """
    memory = replace(memory, service_mean_s=load.service_mean_s or memory.service_mean_s)
    if fleet.request_queue_url is None:
        return replace(memory, queue=None)
    try:
        answer: QueueLength | str = ports.queues.length(fleet.request_queue_url)
    except FleetError as error:
        answer = f"{type(error).__name__}: {error}"
    queue = watch_queue(memory.queue, answer, load.newest, load.offered, now)
    return replace(memory, queue=queue)


def _resize(
    spot: Group,
    sizing: Sizing,
    digests: tuple[LoadDigest, ...],
    ports: Ports,
    outcomes: list[Outcome],
    now: datetime,
) -> tuple[str, ...]:
    """Raise the desired capacity, or lower it by ending the least busy instances one by one."""
    wanted = sizing.spot_desired
    ends: tuple[str, ...] = ()
    if wanted < spot.desired:
        shares = busy_shares(digests, now, ACTIVITY_WINDOW)
        plan = plan_release(spot, spot.desired - wanted, shares, busy_too=True)
        wanted, ends = plan.desired, plan.ends
    if wanted != spot.desired:
        attempt(
            outcomes,
            f"{spot.name}: desired {wanted}",
            lambda: ports.writer.set_desired(spot.name, wanted),
        )
    for instance_id in ends:
        attempt(outcomes, f"end {instance_id}", partial(ports.writer.end, instance_id))
    return ends


def _replace(
    fleet: Fleet,
    diagnosis: Diagnosis,
    ended: tuple[str, ...],
    ports: Ports,
    outcomes: list[Outcome],
    now: datetime,
) -> tuple[HealthMemory, tuple[str, ...]]:
    """Replace who is due, not ended just now, and still suspect in freshly read logs."""
    if not diagnosis.replace:
        return diagnosis.memory, ()
    load = summarise(_read(fleet, ports, now), now, fleet.sizing.window_s)
    gone: list[str] = []
    for instance_id in confirm(diagnosis, load, fleet.worker_health, now):
        if instance_id in ended:
            continue
        asked = f"replace {instance_id}: {diagnosis.reasons[instance_id]}"
        attempt(outcomes, asked, partial(ports.instances.replace, instance_id))
        if not outcomes[-1].error:
            gone.append(instance_id)
    return replaced(diagnosis.memory, tuple(gone), now), tuple(gone)


def _record(
    fleet: Fleet,
    load: Load,
    sizing: Sizing,
    diagnosis: Diagnosis,
    gone: tuple[str, ...],
    outcomes: tuple[Outcome, ...],
    now: datetime,
) -> DecisionRecord:
    reasons = [f"{i} {why}" for i, why in sorted(diagnosis.reasons.items())]
    reasons += [f"on-premises {name} {why}" for name, why in sorted(diagnosis.onprem.items())]
    return DecisionRecord(
        fleet=fleet.name,
        half=Half.HEALTH,
        at=now,
        action=sizing.action if fleet.sizing.enabled else Action.HOLD,
        rule=sizing.rule if fleet.sizing.enabled else "sizing is off",
        reason="; ".join([sizing.reason, *_queue_trouble(sizing), *reasons]),
        seen=_seen(load, sizing, diagnosis, gone, now),
        outcomes=outcomes,
        alarms=_alarms(sizing, diagnosis),
    )


def _queue_trouble(sizing: Sizing) -> Sequence[str]:
    """Say that the request queue is not known, unless the sizing has said so."""
    queue = sizing.memory.queue
    if queue is None or not queue.trouble or queue.trouble in sizing.reason:
        return ()
    return (f"the request queue is not known ({queue.trouble})",)


def _seen(
    load: Load, sizing: Sizing, diagnosis: Diagnosis, gone: tuple[str, ...], now: datetime
) -> dict[str, float]:
    onprem = sum(w.cluster is Cluster.ONPREM for w in load.workers)
    seen: dict[str, float] = {
        "OfferedLoad": load.offered,
        "LoadRate": 100 * max(load.load_rate.values(), default=0.0),
        "WorkersNeeded": sizing.workers,
        "WorkersLive": len(load.workers),
        "OnPremWorkersLive": onprem,
        "StaleSearchLogs": int(sizing.stale),
        "WorkersSuspect": len(diagnosis.reasons),
        "WorkersReplaced": len(gone),
        "OnPremWorkersSilent": diagnosis.onprem_silent,
        "OnPremWorkersSuspect": diagnosis.onprem_suspect,
        "WorkersMissing": sizing.missing,
        "ArrivalRate": load.arrival_rate,
        "ServiceMean": load.service_mean_s,
        "ServiceP95": load.service.quantile_s(0.95),
        "WaitP50": load.wait_p50_s,
        "WaitP95": load.wait_p95_s,
        # Also told by launches that fail so; the alarm is the same.
        **({"ConfigurationFailure": 1} if diagnosis.bootstrap else {}),
    }
    queue = sizing.memory.queue
    if queue is not None:
        seen["RequestQueueUnread"] = int(queue.length is None)
    if queue is not None and queue.length is not None:
        seen["RequestsQueued"] = queue.length.waiting
        seen["RequestsInFlight"] = queue.length.in_flight
    if load.newest is not None:
        seen["SearchLogAge"] = (now - load.newest).total_seconds()
    return seen | {f"Dispersion{scale}s": index for scale, index in load.dispersion.items()}


def _alarms(sizing: Sizing, diagnosis: Diagnosis) -> tuple[str, ...]:
    queue = sizing.memory.queue
    named = {
        "stale_search_logs": sizing.stale,
        "onprem_workers_suspect": bool(diagnosis.onprem_suspect),
        "replacement_budget_spent": bool(diagnosis.over_budget),
        "bootstrap": bool(diagnosis.bootstrap),
        "objective_missed": bool(sizing.missing),
        "request_queue_unread": queue is not None and queue.length is None,
    }
    return tuple(name for name, raised in named.items() if raised)
