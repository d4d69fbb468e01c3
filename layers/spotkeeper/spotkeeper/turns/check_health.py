"""The health checker: search logs become the spot group's size, and dead workers are replaced.

Observe, assess, plan, act, apply, record, for every fleet; an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.decision import Action, Answer, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.decide import (
    EndInstance,
    HealthAction,
    HealthPlan,
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
from spotkeeper.domain.load.digest import LATE_AFTER_S
from spotkeeper.domain.load.request_queue import known_length
from spotkeeper.domain.load.summarise import onprem_at_once
from spotkeeper.ports import FleetError, Ports, Unreadable
from spotkeeper.turns.turn import (
    Budget,
    FleetTurns,
    Once,
    Round,
    TurnReport,
    fleet_in_force,
    groups_of,
)


def check_health(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> TurnReport:
    """Run one health turn for each fleet; each further round reads the groups again."""

    def described(some: Sequence[Fleet]) -> Mapping[str, Group]:
        return ports.groups.describe([name for fleet in some for name in fleet.groups])

    budget, together = Budget(began=now, clock=ports.clock), Once(lambda: described(fleets))
    turns = FleetTurns(controller=Controller.HEALTH, ports=ports, now=now, budget=budget)

    def turn(fleet: Fleet) -> None:
        groups = together()
        turns.rounds(
            fleet, None, lambda this: _round(this, described([fleet]) if this.number else groups)
        )

    return turns.run(fleets, turn)


def _round(this: Round, groups: Mapping[str, Group]) -> tuple[HealthMemory, DecisionRecord]:
    """Observe, assess, plan, act and apply once; returns the memory and the record."""
    ports, lease, now = this.ports, this.lease, this.now
    snapshot = _snapshot(this, groups)
    fleet = this.fleet
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
    answers = [_ask(action, this) for action in wanted.actions]
    memory = apply(wanted.memory, wanted.actions, answers, now)
    return memory, _record_of(wanted, answers, tuple(this.asked))


def _snapshot(this: Round, groups: Mapping[str, Group]) -> HealthSnapshot:
    """Look at what one fleet's turn needs; raises `Gone` for a spot group that does not exist."""
    ports, lease, now = this.ports, this.lease, this.now
    fleet = fleet_in_force(this, groups)
    if fleet is not this.fleet:
        this.fleet, groups = fleet, ports.groups.describe(fleet.groups)
    spot, on_demand = groups_of(fleet, groups, ports.owner)
    digests = ports.load.since(fleet.name, read_from(fleet, now))
    if not digests and lease.health.flow.newest is None:
        digests = ports.load.since(fleet.name, read_from(fleet, now, lost=True))
    queue = history = None
    if url := fleet.request_queue_url:
        # Sizing continues without it.
        length = this.optional("", None, lambda: ports.queues.length(url), api=url)
        queue = length or this.unread[0].removeprefix(": ")
    if fleet.objective:
        try:
            history = ports.histories.read(fleet.name)
        except Unreadable as error:
            # It is lost; a new one begins.
            text = f"Unreadable: {error}"
            this.asked.append(Outcome(asked="read the load history", error=text))
    return HealthSnapshot(
        fleet=fleet,
        spot=spot,
        on_demand=on_demand,
        digests=digests,
        queue=queue,
        history=history,
        now=now,
    )


def _ask(action: HealthAction, this: Round) -> Answer:
    """Send one action to AWS; a refusal does not stop the others.

    A large scale-in takes several turns: it must not take other fleets' time.
    """
    if isinstance(action, EndInstance) and this.budget.is_shared_out():
        return Answer.SKIPPED
    writer = this.ports.writer
    try:
        match action:
            case ResizeSpot(group=group, desired=desired):
                writer.set_desired(group, desired)
            case EndInstance(instance_id=instance_id):
                writer.end(instance_id)
            case ReplaceWorker(instance_id=instance_id):
                writer.replace(instance_id)
    except FleetError as error:
        return this.answered(text_of(action), error)
    return this.answered(text_of(action))


def _record_of(
    wanted: HealthPlan, answers: Sequence[Answer], outcomes: tuple[Outcome, ...]
) -> DecisionRecord:
    """Record a turn; only replacements that AWS accepted count."""
    sizing, diagnosis, snapshot = wanted.sizing, wanted.diagnosis, wanted.assessment.snapshot
    fleet, queue = snapshot.fleet, sizing.memory.queue
    late = wanted.assessment.load.late if sizing.stale else 0
    # Missing logs matter if they size the fleet and are expected: logs have arrived before, even
    # too late, or the request queue is known.
    logged = late > 0 or sizing.memory.service_mean_s > 0
    stale = sizing.stale and fleet.sizing.enabled and (known_length(queue) is not None or logged)
    reasons = [sizing.reason]
    if late:
        # A clock may be hours behind.
        minutes = LATE_AFTER_S // 60
        reasons.append(f"{late} arrived over {minutes} min late: are the workers' clocks right?")
    if queue is not None and queue.trouble and queue.trouble not in sizing.reason:
        reasons.append(f"the request queue is not known ({queue.trouble})")
    reasons += [diagnosis.nobody_serves] if diagnosis.nobody_serves else []
    reasons += [f"{i} {why}" for i, why in sorted(diagnosis.reasons.items())]
    reasons += [f"on-premises {name} {why}" for name, why in sorted(diagnosis.onprem.items())]
    alarms = {
        "stale-search-logs": stale,
        "onprem-workers": diagnosis.onprem_suspect,
        "replacement-budget-spent": diagnosis.over_budget,
        "bootstrap": diagnosis.bootstrap,
        "nobody-serves": diagnosis.nobody_serves,
        "search-logs-missing": diagnosis.logs_missing,
        "objective-missed": sizing.missing,
        "request-queue-unread": queue is not None and queue.length is None,
    }
    return DecisionRecord(
        fleet=fleet.name,
        controller=Controller.HEALTH,
        at=snapshot.now,
        action=sizing.action if fleet.sizing.enabled else Action.HOLD,
        rule=sizing.rule if fleet.sizing.enabled else "sizing is off",
        reason="; ".join(reasons),
        seen=_figures(replace(wanted, sizing=replace(sizing, stale=stale)), answers),
        outcomes=outcomes,
        alarms=tuple(name for name, raised in alarms.items() if raised),
    )


def _figures(wanted: HealthPlan, answers: Sequence[Answer]) -> dict[str, float]:
    sizing, diagnosis, load = wanted.sizing, wanted.diagnosis, wanted.assessment.load
    fleet, now = wanted.assessment.snapshot.fleet, wanted.assessment.snapshot.now
    a_minute = 60 / load.window_s
    seen: dict[str, float] = {
        "OfferedLoad": load.offered,
        "LoadRate": 100 * max(load.load_rate.values(), default=0.0),
        "WorkersNeeded": sizing.workers,
        "WorkersLive": len(load.workers),
        "OnPremWorkersLive": onprem_at_once(load),
        "StaleSearchLogs": int(sizing.stale or diagnosis.logs_missing > 0),
        "WorkersSuspect": len(diagnosis.reasons),
        "WorkersReplaced": sum(
            isinstance(action, ReplaceWorker) and answer is Answer.DONE
            for action, answer in zip(wanted.actions, answers, strict=True)
        ),
        "OnPremWorkersSilent": diagnosis.onprem_silent,
        "OnPremWorkersSuspect": diagnosis.onprem_suspect,
        "WorkersMissing": sizing.missing,
        "ArrivalRate": load.arrival_rate,
        "ServiceMean": load.service_mean_s,
        "ServiceP95": load.service.quantile_s(0.95),
        "WaitP50": load.waits.quantile_s(0.5),
        "WaitP95": load.waits.quantile_s(0.95),
        # Launches that fail by configuration report it too; the alarm is the same.
        **({"ConfigurationFailure": 1} if diagnosis.bootstrap else {}),
        **({"NobodyServes": 1} if diagnosis.nobody_serves else {}),
    }
    if (queue := sizing.memory.queue) is not None:
        seen["RequestQueueUnread"] = int(queue.length is None)
        if queue.length is not None:
            seen["RequestsQueued"] = queue.length.waiting + queue.length.delayed
            seen["RequestsInFlight"] = queue.length.in_flight
    if newest := load.newest or sizing.memory.flow.newest:
        seen["SearchLogAge"] = (now - newest).total_seconds()
    seen |= {f"Dispersion{scale}s": index for scale, index in load.dispersion.items()}
    seen["RequestsFailed"] = a_minute * sum(worker.failed for worker in load.workers)
    if fleet.objective is not None:
        # How many waited longer than promised.
        late = load.waits.count - load.waits.within(fleet.objective.wait_s)
        seen["RequestsLate"] = a_minute * late
    # Worker-hours a day of the followed rule, and of the cheapest that kept its promise.
    if (promised := wanted.assessment.promised) and promised.choice.index >= 0:
        seen["HoursFollowed"] = promised.choice.hours_a_day
        seen["HoursLeast"] = promised.choice.least_hours_a_day
    return seen
