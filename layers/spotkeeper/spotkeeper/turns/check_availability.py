"""The availability turn, of desired against serving: every minute, or now for what an event says.

Read, assess, plan, act, apply, record: each fleet under its lease, and an error stops that fleet
only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.domain.availability.announcements import announce
from spotkeeper.domain.availability.count import of_gap
from spotkeeper.domain.availability.decide import (
    Plan,
    alarms_of,
    apply,
    assess,
    awaited_of,
    plan,
    reason_of,
)
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import (
    Action,
    Answer,
    AvailabilityFigures,
    Controller,
    DecisionRecord,
    Request,
    RequestKind,
)
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.interruption import (
    SCHEDULED_LEAD,
    Interruption,
    InterruptionAction,
    InterruptionKind,
    action_for,
)
from spotkeeper.ports import AtRiskNote, FleetError, Ports
from spotkeeper.turns.act import Answered, act
from spotkeeper.turns.reading import GROUPS, Together, read_together, snapshot_of, with_busy_shares
from spotkeeper.turns.spread import reported
from spotkeeper.turns.turn import Budget, FleetTurns, NoState, Once, Round, TurnReport

# Another turn that wrote so recently may have acted after this one read the groups: read again.
STALE_AFTER_ANOTHER = timedelta(seconds=45)
# Lambda stops a function that invokes itself after 16 times or so: the chain ends before that.
MOST_WAKE_UPS = 12
# The rule of a turn that could not read its state.
NO_STATE = "no state"


def check_availability(
    fleets: Sequence[Fleet],
    ports: Ports,
    now: datetime,
    notes: Mapping[str, AtRiskNote] | None = None,
    woken: int = 0,
    taken: frozenset[str] = frozenset(),
) -> TurnReport:
    """Run one availability turn for each fleet; `notes` are the events that caused it, by fleet.

    `woken` counts the wake-ups one after the other that led here. `taken` are the groups of all of
    the stack's fleets.
    """
    budget, notes_of = Budget(began=now, clock=ports.clock), notes or {}
    turns = FleetTurns(
        controller=Controller.AVAILABILITY, ports=ports, now=now, budget=budget, taken=taken,
        woken=woken,
    )  # fmt: skip
    together = Once(partial(read_together, fleets, ports, now, budget))

    def turn(fleet: Fleet) -> None:
        note = notes_of.get(fleet.name)
        try:
            turns.rounds(fleet, note, partial(_round, together=together))
        except NoState as error:
            record = _only_backfill(fleet, turns, together, note)
            if record is None:
                raise
            turns.fail(fleet.name, error, record)

    return turns.run(fleets, turn)


def handle_interruption(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports, now: datetime
) -> TurnReport:
    """Run a turn for the fleets that the event names; a foreign or ignored event does nothing."""
    notes: dict[str, AtRiskNote] = {}
    concerned: list[Fleet] = []
    groups = _groups_of(interruption, fleets, ports)
    for fleet in fleets:
        ids = tuple([i for i, group in groups.items() if group in fleet.groups])
        action = action_for(interruption.kind, fleet.availability.rebalance)
        if not ids or action is InterruptionAction.IGNORE:
            continue
        concerned.append(fleet)
        if action is InterruptionAction.MARK_AT_RISK:
            due = interruption.due
            # A warning from a clock that is ahead counts from now.
            at = due - SCHEDULED_LEAD if due else min(interruption.at, now)
            notes[fleet.name] = AtRiskNote(instance_ids=ids, at=at)
        elif interruption.kind is InterruptionKind.LAUNCH_SUCCESSFUL:
            at = min(interruption.at, now)
            notes[fleet.name] = AtRiskNote(instance_ids=(), at=at, served=ids)
    if not concerned:
        return TurnReport()
    taken = frozenset([group for fleet in fleets for group in fleet.groups])
    return check_availability(concerned, ports, now, notes, taken=taken)


def _groups_of(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports
) -> Mapping[str, str]:
    """Return the group of each instance that the event names, or of none.

    Most events of a region concern no fleet: what they cost must not grow with the fleets' number.
    Raises what the lookup raises, and Lambda delivers the event again.
    """
    ids = interruption.instance_ids
    if interruption.group:
        return dict.fromkeys(ids or ("",), interruption.group)
    if not ids:
        return {}
    try:
        return ports.groups.groups_of(ids)
    except FleetError:
        names = [name for fleet in fleets for name in fleet.groups]
        described = ports.groups.describe(names).values()
        groups = {i.instance_id: group.name for group in described for i in group.instances}
        return {i: groups[i] for i in ids if i in groups}


def _round(this: Round, together: Once[Together]) -> tuple[AvailabilityMemory, DecisionRecord]:
    """Observe, assess, plan, act and apply once; returns the memory and the record."""
    lease, ports, now = this.lease, this.ports, this.now
    ports.last.keep(lease, lease.availability)
    # Another turn may have acted after the groups were read.
    recent = lease.written_at is not None and now - lease.written_at < STALE_AFTER_ANOTHER
    stale = not together.is_fresh and (this.number > 0 or recent)
    read = read_together([this.fleet], ports, now, this.budget) if stale else together()
    snapshot = replace(snapshot_of(this, read), can_defer=this.woken < MOST_WAKE_UPS)
    wanted, answers = _planned(snapshot, this)
    # The intention to detach is written first: a crash must not lose a detached instance, which
    # nothing else ends. Backfill and marks precede it, so that the marks are written with it.
    kinds, seen = [request.kind for request in wanted.requests], wanted.assessment
    replaces = RequestKind.REPLACE_EARLY in kinds
    first = kinds.index(RequestKind.REPLACE_EARLY) if replaces else len(kinds)
    then = wanted.requests[first:]
    answers += act(wanted.requests[:first], this)
    memory = apply(wanted.memory, seen, answers)
    if then:
        intended = apply(memory, seen, [(request, Answer.LOST) for request in then])
        ports.states.commit(lease, intended, now, release=False)
        after = act(then, this, marked=snapshot.taken.union(memory.drained))
        memory, answers = apply(memory, seen, after), answers + after
    figures = _figures(wanted, answers)
    record = _record_of(wanted, figures, memory, this)
    memory, record = _announced(memory, record, figures, this)
    if this.fleet.is_shared:
        memory = reported(wanted.assessment, memory, this)
    ports.last.keep(lease, memory)
    return memory, record


def _only_backfill(
    fleet: Fleet, turns: FleetTurns, together: Once[Together], note: AtRiskNote | None
) -> DecisionRecord | None:
    """Backfill what is missing, on what this process knew last; None where it may not act.

    Nothing is ended, marked or replaced, and no spot is requested: without the lease another turn
    may do the same at the same time, and know of other warnings. The on-demand group is read again
    if possible: a higher capacity that another turn has requested meanwhile is not lowered.
    """
    ports, now = turns.ports, turns.now
    known = ports.last.of(fleet.name, now)
    if known is None:
        return None
    lease = replace(known, notes=(note,) if note else ())
    this = Round(fleet=fleet, ports=ports, budget=turns.budget, now=now, lease=lease)
    snapshot = replace(snapshot_of(this, together()), can_defer=False)
    wanted = plan(assess(snapshot, lease.availability))
    fill = [each for each in wanted.requests if each.kind is RequestKind.BACKFILL]
    if fill:
        name = this.fleet.on_demand_group
        there: Mapping[str, Group] = {}
        there = this.optional(
            f"the size of {name} now", there, lambda: ports.groups.describe([name]), api=GROUPS
        )
        least = there[name].desired if name in there else 0
        fill = [each for each in fill if (each.desired or 0) > least]
    answers = act(fill, this)
    memory = apply(wanted.memory, wanted.assessment, answers)
    ports.last.keep(known, memory)
    record = _record_of(wanted, _figures(wanted, answers), memory, this)
    return replace(
        record,
        action=Action.BACKFILL if fill else Action.HOLD,
        rule=NO_STATE,
        reason=f"this turn cannot take the fleet's state, so it only backfills: {record.reason}",
    )


def _announced(
    memory: AvailabilityMemory, record: DecisionRecord, figures: AvailabilityFigures, this: Round
) -> tuple[AvailabilityMemory, DecisionRecord]:
    """Send events of what changed, and of what an earlier turn could not send.

    A change is written before its event is sent: a turn that dies in between is followed by one
    that sends the same event, with the same id. Whatever fails here is tried again.
    """
    bus = this.ports.announcements
    if bus is None:
        return memory, record
    before = memory.announced
    permitted = replace(record, permission=this.permission)
    places = this.lease.health.places
    announced = announce(before, permitted, figures, this.control, places)
    noted, unsent = replace(memory, announced=announced), announced.unsent

    def send() -> AvailabilityMemory:
        if unsent != before.unsent:
            this.ports.states.commit(this.lease, noted, record.at, release=False)
        bus.send(unsent)
        return replace(noted, announced=replace(announced, unsent=()))

    if unsent:
        noted = this.optional("events", noted, send, api="the event bus")
    figures = replace(figures, events_unsent=len(noted.announced.unsent))
    return noted, replace(record, availability=figures, unread=tuple(this.unread))


def _planned(snapshot: Snapshot, this: Round) -> tuple[Plan, Answered]:
    """Plan, with a wake-up if backfill is deferred, and busy shares if backfill is released."""
    memory, answers = this.lease.availability, list[tuple[Request, Answer]]()
    wanted = plan(assess(snapshot, memory))
    if wanted.wake_up:
        answers = act([wanted.wake_up], this)
        if answers[0][1] is not Answer.DONE:
            # No turn would run in time: nothing is deferred.
            snapshot = replace(snapshot, can_defer=False)
            wanted = plan(assess(snapshot, memory))
    if wanted.size.action is Action.RELEASE:
        wanted = plan(assess(with_busy_shares(snapshot, this), memory))
    return wanted, answers


def _record_of(
    wanted: Plan, figures: AvailabilityFigures, memory: AvailabilityMemory, this: Round
) -> DecisionRecord:
    """Record a turn; only what AWS accepted counts as done."""
    assessment, read = wanted.assessment, wanted.assessment.snapshot
    # The newest of each text: those of an hour may be hundreds. A gap keeps its cause while AWS
    # attempts nothing.
    newest = dict[tuple[FailureClass, str], LaunchFailure]()
    kept = (*memory.spot_failures, *memory.on_demand_failures)
    spot = of_gap(read.spot_failures, memory.explained_from)
    for each in (*spot, *read.on_demand_failures, *kept):
        newest.setdefault((each.failure_class, each.message), each)
    return DecisionRecord(
        fleet=assessment.snapshot.fleet.name,
        controller=Controller.AVAILABILITY,
        at=assessment.now,
        action=wanted.size.action,
        rule=wanted.size.rule,
        reason=reason_of(wanted),
        availability=figures,
        outcomes=tuple(this.outcomes),
        awaited=awaited_of(wanted),
        alarms=alarms_of(assessment, memory),
        failures=tuple(newest.values()),
        unread=tuple(this.unread),
    )


def _figures(wanted: Plan, answers: Answered) -> AvailabilityFigures:
    """Count what was seen, and what AWS accepted; a lost answer is counted once it is known."""
    assessment = wanted.assessment
    done = Counter[RequestKind]()
    for request, answer in answers:
        if answer is Answer.DONE:
            done[request.kind] += request.count or len(request.instances)
    spot, on_demand, snapshot = assessment.spot, assessment.on_demand, assessment.snapshot
    failures = (*snapshot.spot_failures, *snapshot.on_demand_failures)
    raised = done[RequestKind.BACKFILL]
    lowered = done[RequestKind.CANCEL_BACKFILL] + done[RequestKind.END]
    used_h = (assessment.now - (assessment.memory.on_demand_since or assessment.now)) / timedelta(
        hours=1
    )
    return AvailabilityFigures(
        spot_desired=spot.target,
        spot_serving=spot.serving,
        spot_launching=spot.launching,
        spot_at_risk=spot.at_risk,
        shortfall=assessment.shortfall,
        shortfall_unfilled=assessment.unfilled,
        on_demand_desired=on_demand.target + raised - lowered,
        on_demand_serving=on_demand.serving,
        # Each metric is paid for while it is sent.
        on_demand_h=used_h if used_h >= 1 else None,
        backfilled=raised + max(0, assessment.moved),
        released=lowered + max(0, -assessment.moved),
        interruptions=len(assessment.newly_risky),
        early_replacements=done[RequestKind.REPLACE_EARLY],
        launch_failures=len(failures),
        unknown_failures=sum(not f.known for f in failures),
    )
