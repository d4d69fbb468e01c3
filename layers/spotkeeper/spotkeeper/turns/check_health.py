"""The health checker: search logs become the spot group's size, and dead workers are replaced.

Observe, assess, plan, act, apply, record, for every fleet; an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.capacity_request import required_capacity
from spotkeeper.domain.decision import Action, Answer, DecisionRecord, Half, Outcome
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.diagnosis import Diagnosis
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import Cluster, Load
from spotkeeper.domain.load.request_queue import QueueLength, known_length
from spotkeeper.domain.sizing.actions import (
    EndInstance,
    HealthAction,
    ReplaceWorker,
    ResizeSpot,
    text_of,
)
from spotkeeper.domain.sizing.decide import (
    HealthPlan,
    HealthSnapshot,
    apply,
    assess,
    checked,
    plan,
    read_from,
)
from spotkeeper.domain.sizing.size import Sizing
from spotkeeper.ports import FleetError, Lease, Observed, Ports, Unavailable, Unreadable
from spotkeeper.turns.observe import permitted
from spotkeeper.turns.turn import TurnReport, Turns, all_failed, group_named


def check_health(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> TurnReport:
    """Run one health turn for each fleet."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    try:
        groups = ports.groups.describe(names)
    except FleetError as error:
        return all_failed(fleets, error)
    turns = Turns(half=Half.HEALTH, now=now)
    for fleet in fleets:
        with turns.isolated(fleet):
            _turn(fleet, ports, groups, turns)
    return turns.report()


def _turn(fleet: Fleet, ports: Ports, groups: Mapping[str, Group], turns: Turns) -> None:
    """Run one fleet's turn under its lease, on groups read again if it goes round again."""
    ports = permitted(ports, fleet, turns.now)
    names = (fleet.spot_group, fleet.on_demand_group)
    for this in turns.rounds(ports.states, fleet.name, None):
        with this as lease:
            seen = ports.groups.describe(names) if this.number else groups
            this.finish(*_round(fleet, ports, seen, lease, turns.now))


def _round(
    fleet: Fleet, ports: Ports, groups: Mapping[str, Group], lease: Lease, now: datetime
) -> tuple[HealthMemory, DecisionRecord]:
    """Observe, assess, plan, act and apply once; answers what is remembered and recorded."""
    troubles: list[Outcome] = []
    snapshot = _snapshot(fleet, ports, groups, lease, troubles, now)
    seen = assess(snapshot, lease.health)
    if seen.history is not None and seen.history is not snapshot.history:
        ports.histories.write(fleet.name, seen.history, now)
    wanted = plan(seen)
    if any(isinstance(action, ReplaceWorker) for action in wanted.actions):
        wanted = checked(wanted, ports.load.since(fleet.name, read_from(fleet, now)))
    if wanted.actions:
        # Written first: a turn that dies must not forget what it may have asked for.
        unknown = [Answer.LOST for _ in wanted.actions]
        intended = apply(wanted.memory, wanted.actions, unknown, now)
        ports.states.keep(lease, intended, now, release=False)
    answers = [_ask(action, ports, troubles) for action in wanted.actions]
    memory = apply(wanted.memory, wanted.actions, answers, now)
    return memory, _record(wanted, answers, tuple(troubles))


def _snapshot(
    fleet: Fleet,
    ports: Ports,
    groups: Mapping[str, Group],
    lease: Lease,
    troubles: list[Outcome],
    now: datetime,
) -> HealthSnapshot:
    """Look at what one fleet's turn needs; raises `Gone` for a group that does not exist."""
    spot, on_demand = (
        group_named(groups, name) for name in (fleet.spot_group, fleet.on_demand_group)
    )
    requests = (*lease.availability.spot_asks, lease.health.spot_ask)
    return HealthSnapshot(
        fleet=fleet,
        spot=spot,
        on_demand=on_demand,
        spares=spot.desired - required_capacity(spot.desired, requests),
        digests=ports.load.since(fleet.name, read_from(fleet, now)),
        queue=_queue_length(fleet, ports),
        history=_history(fleet, ports, troubles) if fleet.objective else None,
        now=now,
    )


def _queue_length(fleet: Fleet, ports: Ports) -> QueueLength | str | None:
    """Count the fleet's request queue, if it has one; sizing goes on without it."""
    if fleet.request_queue_url is None:
        return None
    try:
        return ports.queues.length(fleet.request_queue_url)
    except FleetError as error:
        return f"{type(error).__name__}: {error}"


def _history(fleet: Fleet, ports: Ports, troubles: list[Outcome]) -> LoadHistory | None:
    """Read the history; one that cannot be read is lost and begun anew, and the record says so."""
    try:
        return ports.histories.read(fleet.name)
    except Unreadable as error:
        troubles.append(Outcome(asked="read the load history", error=f"Unreadable: {error}"))
        return None


def _ask(action: HealthAction, ports: Ports, outcomes: list[Outcome]) -> Answer:
    """Ask AWS for one thing; a refusal does not stop what else is due."""
    try:
        match action:
            case ResizeSpot(group=group, desired=desired):
                ports.writer.set_desired(group, desired)
            case EndInstance(instance_id=instance_id):
                ports.writer.end(instance_id)
            case ReplaceWorker(instance_id=instance_id):
                ports.instances.replace(instance_id)
    except Observed:
        outcomes.append(Outcome(asked=text_of(action), would=True))
        return Answer.REFUSED
    except FleetError as error:
        outcomes.append(Outcome(asked=text_of(action), error=f"{type(error).__name__}: {error}"))
        return Answer.LOST if isinstance(error, Unavailable) else Answer.REFUSED
    outcomes.append(Outcome(asked=text_of(action)))
    return Answer.DONE


def _record(
    wanted: HealthPlan, answers: Sequence[Answer], outcomes: tuple[Outcome, ...]
) -> DecisionRecord:
    """Record a turn; what was done counts what AWS accepted."""
    sizing, diagnosis, snapshot = wanted.sizing, wanted.diagnosis, wanted.assessment.snapshot
    fleet = snapshot.fleet
    replacements = sum(
        isinstance(action, ReplaceWorker) and answer is Answer.DONE
        for action, answer in zip(wanted.actions, answers, strict=True)
    )
    reasons = [f"{i} {why}" for i, why in sorted(diagnosis.reasons.items())]
    reasons += [f"on-premises {name} {why}" for name, why in sorted(diagnosis.onprem.items())]
    sizing = replace(sizing, stale=sizing.stale and _would_log(fleet, sizing))
    return DecisionRecord(
        fleet=fleet.name,
        half=Half.HEALTH,
        at=snapshot.now,
        action=sizing.action if fleet.sizing.enabled else Action.HOLD,
        rule=sizing.rule if fleet.sizing.enabled else "sizing is off",
        reason="; ".join([sizing.reason, *_queue_trouble(sizing), *reasons]),
        seen=_seen(wanted.assessment.load, sizing, diagnosis, replacements, snapshot.now),
        outcomes=outcomes,
        alarms=_alarms(sizing, diagnosis),
    )


def _would_log(fleet: Fleet, sizing: Sizing) -> bool:
    """Tell whether missing logs are news: the fleet is sized by them, and they would come.

    They came before, or there are requests that somebody serves.
    """
    served = known_length(sizing.memory.queue) is not None
    return fleet.sizing.enabled and (served or sizing.memory.service_mean_s > 0)


def _queue_trouble(sizing: Sizing) -> Sequence[str]:
    """Say that the request queue is not known, unless the sizing has said so."""
    queue = sizing.memory.queue
    if queue is None or not queue.trouble or queue.trouble in sizing.reason:
        return ()
    return (f"the request queue is not known ({queue.trouble})",)


def _seen(
    load: Load, sizing: Sizing, diagnosis: Diagnosis, replacements: int, now: datetime
) -> dict[str, float]:
    onprem = sum(w.cluster is Cluster.ONPREM for w in load.workers)
    seen: dict[str, float] = {
        "OfferedLoad": load.offered,
        "LoadRate": 100 * max(load.load_rate.values(), default=0.0),
        "WorkersNeeded": sizing.workers,
        "WorkersLive": len(load.workers),
        "OnPremWorkersLive": onprem,
        "StaleSearchLogs": int(sizing.stale or diagnosis.logs_missing > 0),
        "WorkersSuspect": len(diagnosis.reasons),
        "WorkersReplaced": replacements,
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
        "search_logs_missing": bool(diagnosis.logs_missing),
        "objective_missed": bool(sizing.missing),
        "request_queue_unread": queue is not None and queue.length is None,
    }
    return tuple(name for name, raised in named.items() if raised)
