"""The health checker: search logs become the spot group's size, and dead workers are replaced.

Observe, assess, plan, act, apply, record, for every fleet; an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.decision import (
    Action,
    Alarm,
    Answer,
    Awaited,
    Awaiting,
    Controller,
    DecisionRecord,
    HealthFigures,
    Request,
    RequestKind,
    Verdict,
)
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.decide import (
    HealthPlan,
    HealthSnapshot,
    apply,
    assess,
    checked,
    plan,
    read_from,
)
from spotkeeper.domain.health.trial import judged
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.digest import LATE_AFTER_S
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import known_length
from spotkeeper.domain.load.summarise import onprem_at_once
from spotkeeper.ports import FleetError, Ports, Unreadable
from spotkeeper.turns.act import Answered, act
from spotkeeper.turns.spread import shared
from spotkeeper.turns.turn import (
    Budget,
    FleetTurns,
    Once,
    Round,
    TurnReport,
    Unread,
    fleet_in_force,
    groups_of,
)

# A record names this many suspects, as an item of the table has 400 KB at most.
SUSPECTS = 200


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
    assessment = assess(snapshot, lease.health)
    wanted = plan(assessment)
    if fleet.is_shared:
        wanted = shared(wanted, this)
    if any(request.kind is RequestKind.REPLACE_WORKER for request in wanted.requests):
        wanted = checked(wanted, _digests(this))
    if wanted.requests:
        # Written first: a turn that dies must not forget what it may have requested.
        unknown = [(request, Answer.LOST) for request in wanted.requests]
        intended = apply(wanted.memory, wanted, unknown)
        ports.states.commit(lease, intended, now, release=False)
    answers = act(wanted.requests, this)
    memory = apply(wanted.memory, wanted, answers)
    if (history := assessment.history) is not None and history != snapshot.history:
        try:
            ports.histories.write(fleet.name, history, now)
        except FleetError as error:
            # The next turn adds the same minutes.
            this.answered(Request(kind=RequestKind.KEEP_HISTORY), error)
    return memory, _record_of(wanted, answers, this)


def _digests(this: Round) -> tuple[LoadDigest, ...]:
    """Read the logs of the window, of a fleet's other regions, too."""
    fleet, mean_s = this.fleet, this.lease.health.service_mean_s
    since = read_from(fleet, mean_s, this.now)
    names = (fleet.name, *(f"{fleet.name}@{region}" for region in fleet.elsewhere))
    return tuple(each for name in names for each in this.ports.load.since(name, since))


def _snapshot(this: Round, groups: Mapping[str, Group]) -> HealthSnapshot:
    """Look at what one fleet's turn needs; raises `Gone` for a spot group that does not exist."""
    ports, lease, now = this.ports, this.lease, this.now
    fleet = fleet_in_force(this, groups)
    if fleet is not this.fleet:
        this.fleet, groups = fleet, ports.groups.describe(fleet.groups)
    spot, on_demand = groups_of(fleet, groups, ports.owner)
    digests = _digests(this)
    if not digests and lease.health.flow.newest is None:
        digests = ports.load.since(fleet.name, read_from(fleet, 0.0, now, lost=True))
    sized, queue, history = spot, None, None
    if fleet.regions:
        need, most = lease.health.divided or spot.desired, fleet.bounds.spot_max
        sized = replace(spot, desired=need, maximum=most)
    if url := fleet.request_queue_url:
        # Sizing continues without it.
        queue = this.budget.attempt(lambda: ports.queues.length(url), api=url)
        if isinstance(queue, Unread):
            this.unread.append(f"request queue: {queue}")
    if fleet.objective:
        try:
            history = ports.histories.read(fleet.name)
        except Unreadable as error:
            # It is lost; a new one begins.
            this.answered(Request(kind=RequestKind.READ_HISTORY), error)
    return HealthSnapshot(
        fleet=fleet,
        spot=spot,
        sized=sized,
        on_demand=on_demand,
        digests=digests,
        queue=queue,
        history=history,
        now=now,
    )


def _record_of(wanted: HealthPlan, answers: Answered, this: Round) -> DecisionRecord:
    """Record a turn; only replacements that AWS accepted count."""
    sizing, diagnosis, snapshot = wanted.sizing, wanted.diagnosis, wanted.assessment.snapshot
    fleet, queue = snapshot.fleet, sizing.memory.queue
    late = wanted.assessment.load.late if sizing.stale else 0
    # Missing logs matter if they size the fleet and are expected: something could send some, and
    # logs have arrived before, even too late, or the request queue is known.
    elsewhere = any(one.workers for one in sizing.memory.onprem)
    senders = bool(sizing.memory.in_service_since or fleet.regions) or elsewhere
    logged = late > 0 or sizing.memory.service_mean_s > 0 or known_length(queue) is not None
    stale = sizing.stale and fleet.sizing.enabled and senders and logged
    reasons = [sizing.reason]
    if late:
        # A clock may be hours behind.
        minutes = LATE_AFTER_S // 60
        reasons.append(f"{late} arrived over {minutes} min late: are the workers' clocks right?")
    if queue is not None and queue.trouble and queue.trouble not in sizing.reason:
        reasons.append(f"the request queue is not known ({queue.trouble})")
    reasons += [diagnosis.nobody_serves] if diagnosis.nobody_serves else []
    suspects = sorted(diagnosis.suspects, key=lambda one: one.instance_id not in diagnosis.replace)
    reasons += [suspect.text for suspect in suspects[:SUSPECTS]]
    reasons += [f"{more} more suspects"] if (more := len(suspects) - SUSPECTS) > 0 else []
    if suspects and (until := fleet.maintenance_until(snapshot.now)):
        reasons.append(f"nothing is replaced until {until:%H:%M} UTC, for maintenance")
    variation = wanted.assessment.load.service.squared_variation
    deadline_s = fleet.availability.launch_deadline_s
    new_version = judged(wanted.memory.trial, variation, deadline_s)
    reasons += [new_version.text] if new_version else []
    if regions := wanted.memory.places:
        covers = ", ".join(f"{r} {p.share.cover} of {p.share.ask}" for r, p in regions.items())
        reasons.append(f"cover of ask in each region: {covers}")
    again = diagnosis.replaces_at
    alarms = {
        Alarm.STALE_SEARCH_LOGS: stale,
        Alarm.ONPREM_WORKERS: diagnosis.onprem_suspect,
        Alarm.REPLACEMENT_BUDGET_SPENT: diagnosis.over_budget,
        Alarm.BOOTSTRAP: diagnosis.bootstrap,
        Alarm.NOBODY_SERVES: diagnosis.nobody_serves,
        Alarm.SEARCH_LOGS_MISSING: diagnosis.logs_missing,
        Alarm.NEW_VERSION_WORSE: new_version is not None and new_version.verdict is Verdict.WORSE,
        Alarm.OBJECTIVE_MISSED: sizing.missing,
        Alarm.REQUEST_QUEUE_UNREAD: queue is not None and queue.length is None,
    }
    replaced = {
        request.instances[0]
        for request, answer in answers
        if request.kind is RequestKind.REPLACE_WORKER and answer is Answer.DONE
    }
    return DecisionRecord(
        fleet=fleet.name,
        controller=Controller.HEALTH,
        at=snapshot.now,
        action=sizing.action if fleet.sizing.enabled else Action.HOLD,
        rule=sizing.rule if fleet.sizing.enabled else "sizing is off",
        reason=" ".join(why if why[-1] in ".?" else f"{why}." for why in reasons),
        health=_figures(wanted, len(replaced)),
        suspects=tuple(
            [
                replace(s, replaced_at=snapshot.now) if s.instance_id in replaced else s
                for s in suspects[:SUSPECTS]
            ]
        ),
        nobody_serves=diagnosis.nobody_serves,
        outcomes=tuple(this.outcomes),
        unread=tuple(this.unread),
        awaited=(
            *([Awaited(what=Awaiting.SEARCH_LOGS)] if stale else []),
            *([Awaited(what=Awaiting.REPLACEMENT, until=again)] if again else []),
        ),
        alarms=(*[name for name, raised in alarms.items() if raised], *sorted(this.alarms)),
        regions=regions,
        new_version=new_version,
    )


def _figures(wanted: HealthPlan, replaced: int) -> HealthFigures:
    sizing, diagnosis, load = wanted.sizing, wanted.diagnosis, wanted.assessment.load
    fleet, now = wanted.assessment.snapshot.fleet, wanted.assessment.snapshot.now
    length = sizing.memory.queue.length if sizing.memory.queue else None
    newest = load.newest or sizing.memory.flow.newest
    promised = wanted.assessment.promised
    choice = promised.choice if promised and promised.choice.index >= 0 else None
    late = None
    if fleet.objective is not None:
        late = load.waits.count - load.waits.within(fleet.objective.wait_s)
    a_minute = 60 / load.window_s
    return HealthFigures(
        # After a long wait, all that finished lately had arrived before the window.
        offered_load=load.offered if load.offered or not load.finished else None,
        load_rate=100 * load.load_rate,
        workers_needed=sizing.workers,
        workers_live=len(load.workers),
        on_prem_workers_live=onprem_at_once(load),
        workers_suspect=len(diagnosis.reasons),
        workers_replaced=replaced,
        on_prem_workers_silent=diagnosis.onprem_silent,
        on_prem_workers_suspect=diagnosis.onprem_suspect,
        workers_missing=sizing.missing,
        arrival_rate=load.arrival_rate,
        service_mean_s=load.service.mean_s,
        service_p95_s=load.service.quantile_s(0.95),
        wait_p50_s=load.waits.quantile_s(0.5),
        wait_p95_s=load.waits.quantile_s(0.95),
        requests_queued=length.waiting + length.delayed if length else None,
        requests_in_flight=length.in_flight if length else None,
        search_log_age_s=(now - newest).total_seconds() if newest else None,
        dispersion_10s=load.dispersion.get(10),
        dispersion_60s=load.dispersion.get(60),
        dispersion_300s=load.dispersion.get(300),
        requests_failed=a_minute * sum(worker.failed for worker in load.workers),
        requests_late=None if late is None else a_minute * late,
        hours_followed=choice.kept(choice.index)[1] if choice else None,
        hours_least=choice.least_hours_a_day if choice else None,
    )
