"""The availability turn, of desired against serving: every minute, or now for what an event says.

Read, assess, plan, act, apply, record: each fleet under its lease, and an error stops that fleet
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    ReplaceEarly,
    RequestSpot,
)
from spotkeeper.domain.availability.announcements import announce
from spotkeeper.domain.availability.decide import Plan, apply, assess, plan
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Action, Answer, Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.interruption import (
    Interruption,
    InterruptionAction,
    InterruptionKind,
    action_for,
    risk_begins,
)
from spotkeeper.domain.permission import Control
from spotkeeper.ports import AtRiskNote, FleetError, Lease, Ports
from spotkeeper.turns.act import Asked, act
from spotkeeper.turns.availability_record import record_of
from spotkeeper.turns.observe import permitted
from spotkeeper.turns.reading import Reading, read_together, snapshot_of, with_busy_shares
from spotkeeper.turns.turn import Budget, NoState, Round, TurnReport, Turns, group_named

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
) -> TurnReport:
    """Run one availability turn for each fleet; `notes` are the events that caused it, by fleet.

    `woken` counts the wake-ups one after the other that led here.
    """
    turns, told = Turns.of(Controller.AVAILABILITY, ports, now), notes or {}
    reading = Reading(fleets=fleets, ports=ports, now=now, budget=turns.budget)
    return turns.run(
        fleets, lambda fleet: _turn(fleet, reading, turns, told.get(fleet.name), woken)
    )


def handle_interruption(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports, now: datetime
) -> TurnReport:
    """Run a turn for the fleets that the event names; a foreign or ignored event does nothing."""
    notes: dict[str, AtRiskNote] = {}
    concerned: list[Fleet] = []
    for fleet, instance_ids in _concerned(interruption, fleets, ports):
        action = action_for(interruption.kind, fleet.availability.rebalance)
        if action is InterruptionAction.IGNORE:
            continue
        concerned.append(fleet)
        if action is InterruptionAction.MARK_AT_RISK:
            notes[fleet.name] = AtRiskNote(
                instance_ids=instance_ids, at=risk_begins(interruption, now)
            )
        elif interruption.kind is InterruptionKind.LAUNCH_SUCCESSFUL:
            at = min(interruption.at, now)
            notes[fleet.name] = AtRiskNote(instance_ids=(), at=at, served=instance_ids)
    if not concerned:
        return TurnReport()
    return check_availability(concerned, ports, now, notes)


def _turn(
    fleet: Fleet, reading: Reading, turns: Turns, note: AtRiskNote | None, woken: int
) -> None:
    """Run one fleet's turn; where the table is away, only what needs no memory is done."""
    try:
        _turn_under_lease(fleet, reading, turns, note, woken)
    except NoState as error:
        record = _only_backfill(fleet, reading, note)
        if record is None:
            raise
        turns.fail(fleet, error.cause, record)


def _turn_under_lease(
    fleet: Fleet, reading: Reading, turns: Turns, note: AtRiskNote | None, woken: int
) -> None:
    """Run one fleet's turn under its lease: its note is left before anything is read."""
    now, budget, last = reading.now, reading.budget, reading.ports.last
    with budget.state():
        ports, control = permitted(reading.ports, fleet, now)
    last.permit(fleet.name, now, acts=ports is reading.ports)
    for this in turns.rounds(ports, fleet.name, note):
        with this as lease:
            last.keep(lease, lease.availability)
            stale = not reading.is_fresh and (this.number > 0 or _may_be_stale(lease, now))
            read = read_together([fleet], ports, now, budget) if stale else reading.together()
            snapshot = snapshot_of(fleet, ports, read, lease, now, budget)
            memory, record = _round(snapshot, this, ports, woken, budget)
            memory, record = _announced(memory, record, lease, control, ports, budget)
            last.keep(lease, memory)
            this.finish(memory, record)


def _only_backfill(
    fleet: Fleet, reading: Reading, note: AtRiskNote | None
) -> DecisionRecord | None:
    """Backfill what is missing, on what this process knew last; None where it may not act.

    Nothing is ended, marked or replaced, and no spot is requested: without the lease another turn
    may do the same at the same time, and know of other warnings. The on-demand group is read again
    if possible: a higher capacity that another turn has requested meanwhile is not lowered.
    """
    now, budget, ports = reading.now, reading.budget, reading.ports
    lease = ports.last.of(fleet.name, now)
    if lease is None:
        return None
    known = replace(lease, notes=(note,) if note else ())
    snapshot = snapshot_of(fleet, ports, reading.together(), known, now, budget)
    wanted = plan(assess(replace(snapshot, can_defer=False), lease.availability))
    fill = [action for action in wanted.actions if isinstance(action, Backfill)]
    name, unread = fleet.on_demand_group, list[str]()
    if fill:
        desired = budget.optional(
            unread,
            f"the size of {name} now",
            0,
            lambda: group_named(ports.groups.describe([name]), name).desired,
            api="EC2 Auto Scaling",
        )
        fill = [action for action in fill if action.desired > desired]
    asked = act(fill, ports, fleet.name, budget)
    memory = apply(wanted.memory, asked.actions, asked.answers, now)
    ports.last.keep(lease, memory)
    record = record_of(wanted, Asked(), asked, memory)
    return replace(
        record,
        action=Action.BACKFILL if fill else Action.HOLD,
        rule=NO_STATE,
        reason=f"the table does not answer, so nothing but backfill is done: {record.reason}",
        unread=(*record.unread, *unread),
    )


def _may_be_stale(lease: Lease, now: datetime) -> bool:
    """Say whether another turn may have acted after the groups were read."""
    return lease.written_at is not None and now - lease.written_at < STALE_AFTER_ANOTHER


def _round(
    snapshot: Snapshot, this: Round, ports: Ports, woken: int, budget: Budget
) -> tuple[AvailabilityMemory, DecisionRecord]:
    """Assess, plan, act and apply once; returns the memory and the record."""
    fleet, now, lease = snapshot.fleet, snapshot.now, this.lease
    wanted, woke = _planned(snapshot, lease.availability, ports, woken, budget)
    first, then = _apart(wanted.actions)
    asked = act(first, ports, fleet.name, budget)
    this.asked += asked.outcomes
    memory = apply(wanted.memory, woke.actions, woke.answers, now)
    memory = apply(memory, asked.actions, asked.answers, now)
    if then:
        intended = apply(memory, then, [Answer.LOST] * len(then), now)
        ports.states.commit(lease, intended, now, release=False)
        after = act(then, ports, fleet.name, budget, marked=memory.drained)
        this.asked += after.outcomes
        memory = apply(memory, after.actions, after.answers, now)
        asked = asked + after
    return memory, record_of(wanted, woke, asked, memory)


def _announced(
    memory: AvailabilityMemory,
    record: DecisionRecord,
    lease: Lease,
    control: Control,
    ports: Ports,
    budget: Budget,
) -> tuple[AvailabilityMemory, DecisionRecord]:
    """Send events of what changed, and of what an earlier turn could not send.

    A change is written before its event is sent: a turn that dies in between is followed by one
    that sends the same event, with the same id. Whatever fails here is tried again.
    """
    bus = ports.announcements
    if bus is None:
        return memory, record
    before = memory.announced
    announced = announce(before, replace(record, permission=lease.permission), control)
    noted, unsent, unread = replace(memory, announced=announced), announced.unsent, list[str]()

    def send() -> AvailabilityMemory:
        if unsent != before.unsent:
            ports.states.commit(lease, noted, record.at, release=False)
        bus.send(unsent)
        return replace(noted, announced=replace(announced, unsent=()))

    if unsent:
        noted = budget.optional(unread, "events", noted, send, api="the event bus")
    waiting = len(noted.announced.unsent)
    seen = {**record.seen, "EventsUnsent": waiting} if waiting else record.seen
    return noted, replace(record, seen=seen, unread=(*record.unread, *unread))


def _apart(
    actions: Sequence[AvailabilityAction],
) -> tuple[Sequence[AvailabilityAction], Sequence[AvailabilityAction]]:
    """Divide actions into those requested at once, and those whose intention is written first.

    A crash must lose neither a detached instance, which nothing else ends, nor the fact that a rise
    of the spot group is only a spare. Backfill and marks precede both, so that the marks are
    written with the intention.
    """
    for number, action in enumerate(actions):
        if isinstance(action, ReplaceEarly | RequestSpot):
            return actions[:number], actions[number:]
    return actions, ()


def _planned(
    snapshot: Snapshot, memory: AvailabilityMemory, ports: Ports, woken: int, budget: Budget
) -> tuple[Plan, Asked]:
    """Plan, with a wake-up if backfill is deferred, and busy shares if backfill is released."""
    fleet, asked = snapshot.fleet, Asked()
    snapshot = replace(snapshot, can_defer=woken < MOST_WAKE_UPS)
    wanted = plan(assess(snapshot, memory))
    if wanted.wake_up:
        asked = act([replace(wanted.wake_up, woken=woken + 1)], ports, fleet.name, budget)
        if not asked.done():
            # No turn would run in time: nothing is deferred.
            snapshot = replace(snapshot, can_defer=False)
            wanted = plan(assess(snapshot, memory))
    if wanted.action is Action.RELEASE:
        wanted = plan(assess(with_busy_shares(snapshot, ports, budget), memory))
    return wanted, asked


def _concerned(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports
) -> list[tuple[Fleet, tuple[str, ...]]]:
    """Pair each fleet that the event names with its own instances among those named.

    Raises what the lookup raises, and Lambda delivers the event again.
    """
    if interruption.group:
        groups = dict.fromkeys(interruption.instance_ids or ("",), interruption.group)
    elif interruption.instance_ids:
        groups = _groups_of(interruption.instance_ids, fleets, ports)
    else:
        return []
    pairs: list[tuple[Fleet, tuple[str, ...]]] = []
    for fleet in fleets:
        mine = (fleet.spot_group, fleet.on_demand_group)
        if ids := [i for i, group in groups.items() if group in mine]:
            pairs.append((fleet, tuple(ids)))
    return pairs


def _groups_of(
    instance_ids: Sequence[str], fleets: Sequence[Fleet], ports: Ports
) -> dict[str, str]:
    """Look up the groups of instances; where that fails, look for them in the fleets' groups.

    Most events of a region concern no fleet: what they cost must not grow with their number.
    """
    try:
        return dict(ports.groups.groups_of(instance_ids))
    except FleetError:
        names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
        return {
            instance.instance_id: group.name
            for group in ports.groups.describe(names).values()
            for instance in group.instances
            if instance.instance_id in instance_ids
        }
