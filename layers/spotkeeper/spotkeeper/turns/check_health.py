"""The health checker: search logs become the spot group's size, and dead workers are replaced.

Observe, assess, plan, act, apply, record, for every fleet; an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotkeeper.domain.capacity_request import required_capacity
from spotkeeper.domain.decision import Answer, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.decide import (
    EndInstance,
    HealthAction,
    HealthSnapshot,
    ReplaceWorker,
    ResizeSpot,
    apply,
    assess,
    checked,
    plan,
    read_from,
    text_of,
)
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import FleetError, Lease, Observed, Ports, Unavailable, Unreadable
from spotkeeper.turns.health_record import record_of
from spotkeeper.turns.observe import permitted
from spotkeeper.turns.turn import Budget, TurnReport, Turns, group_named, once


def check_health(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> TurnReport:
    """Run one health turn for each fleet."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    groups = once(lambda: ports.groups.describe(names))
    turns = Turns.of(Controller.HEALTH, ports, now)
    return turns.run(fleets, lambda fleet: _turn(fleet, ports, groups(), turns))


def _turn(fleet: Fleet, ports: Ports, groups: Mapping[str, Group], turns: Turns) -> None:
    """Run one fleet's turn under its lease; each further round reads the groups again."""
    ports, _ = permitted(ports, fleet, turns.now)
    names = (fleet.spot_group, fleet.on_demand_group)
    for this in turns.rounds(ports, fleet.name, None):
        with this as lease:
            seen = ports.groups.describe(names) if this.number else groups
            this.finish(*_round(fleet, ports, seen, lease, turns, this.asked))


def _round(
    fleet: Fleet,
    ports: Ports,
    groups: Mapping[str, Group],
    lease: Lease,
    turns: Turns,
    asked: list[Outcome],
) -> tuple[HealthMemory, DecisionRecord]:
    """Observe, assess, plan, act and apply once; returns the memory and the record.

    `asked` grows by what is requested.
    """
    now = turns.now
    snapshot = _snapshot(fleet, ports, groups, lease, asked, turns)
    seen = assess(snapshot, lease.health)
    if seen.history is not None and seen.history != snapshot.history:
        ports.histories.write(fleet.name, seen.history, now)
    wanted = plan(seen)
    if any(isinstance(action, ReplaceWorker) for action in wanted.actions):
        wanted = checked(wanted, ports.load.since(fleet.name, read_from(fleet, now)))
    if wanted.actions:
        # Written first: a turn that dies must not forget what it may have requested.
        unknown = [Answer.LOST for _ in wanted.actions]
        intended = apply(wanted.memory, wanted.actions, unknown, now)
        ports.states.commit(lease, intended, now, release=False)
    answers = [_ask(action, ports, asked, turns.budget) for action in wanted.actions]
    memory = apply(wanted.memory, wanted.actions, answers, now)
    return memory, record_of(wanted, answers, tuple(asked))


def _snapshot(
    fleet: Fleet,
    ports: Ports,
    groups: Mapping[str, Group],
    lease: Lease,
    troubles: list[Outcome],
    turns: Turns,
) -> HealthSnapshot:
    """Look at what one fleet's turn needs; raises `Gone` for a group that does not exist."""
    now = turns.now
    spot, on_demand = (
        group_named(groups, name, ports.owner) for name in (fleet.spot_group, fleet.on_demand_group)
    )
    requests = (*lease.availability.capacity_requests, lease.health.capacity_request)
    digests = ports.load.since(fleet.name, read_from(fleet, now))
    if not digests and lease.health.flow.newest is None:
        digests = ports.load.since(fleet.name, read_from(fleet, now, lost=True))
    return HealthSnapshot(
        fleet=fleet,
        spot=spot,
        on_demand=on_demand,
        spares=spot.desired - required_capacity(spot.desired, requests),
        digests=digests,
        queue=_queue_length(fleet, ports, turns.budget),
        history=_history(fleet, ports, troubles) if fleet.objective else None,
        now=now,
    )


def _queue_length(fleet: Fleet, ports: Ports, budget: Budget) -> QueueLength | str | None:
    """Count the fleet's request queue, if it has one; sizing goes on without it."""
    url, unread = fleet.request_queue_url, list[str]()
    if url is None:
        return None
    length = budget.optional(unread, "", None, lambda: ports.queues.length(url), api=url)
    return length or unread[0].removeprefix(": ")


def _history(fleet: Fleet, ports: Ports, troubles: list[Outcome]) -> LoadHistory | None:
    """Read the history; one that cannot be read is lost and begun anew, and the record says so."""
    try:
        return ports.histories.read(fleet.name)
    except Unreadable as error:
        troubles.append(Outcome(asked="read the load history", error=f"Unreadable: {error}"))
        return None


def _ask(action: HealthAction, ports: Ports, outcomes: list[Outcome], budget: Budget) -> Answer:
    """Send one action to AWS; a refusal does not stop the others.

    A large scale-in takes several turns: it must not take other fleets' time.
    """
    if isinstance(action, EndInstance) and budget.is_shared_out():
        return Answer.SKIPPED
    try:
        match action:
            case ResizeSpot(group=group, desired=desired):
                ports.writer.set_desired(group, desired)
            case EndInstance(instance_id=instance_id):
                ports.writer.end(instance_id)
            case ReplaceWorker(instance_id=instance_id):
                ports.writer.replace(instance_id)
    except Observed:
        outcomes.append(Outcome(asked=text_of(action), would=True))
        return Answer.REFUSED
    except FleetError as error:
        outcomes.append(Outcome(asked=text_of(action), error=f"{type(error).__name__}: {error}"))
        return Answer.LOST if isinstance(error, Unavailable) else Answer.REFUSED
    outcomes.append(Outcome(asked=text_of(action)))
    return Answer.DONE
