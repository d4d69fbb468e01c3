"""The availability checker: one turn of desired against serving, for every fleet.

Read, assess, plan, act, apply, record: each fleet under its lease, and an error stops that fleet
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.actions import (
    AskSpot,
    Backfill,
    CancelBackfill,
    EndBackfill,
    Plan,
    ReplaceEarly,
)
from spotkeeper.domain.availability.decide import apply, assess, plan
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.availability.telling import alarms_of
from spotkeeper.domain.decision import Action, Answer, DecisionRecord, Half
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import AtRiskNote, Lease, Ports
from spotkeeper.turns.act import Asked, act
from spotkeeper.turns.observe import permitted
from spotkeeper.turns.reading import Reading, Together, activity_of, read_together, snapshot_of
from spotkeeper.turns.turn import TurnReport, for_each, under_lease

# Another turn that wrote so recently may have acted after this one read the groups: read again.
STALE_AFTER_ANOTHER = timedelta(seconds=45)
# Lambda stops a function that invokes itself after 16 times or so: the chain ends before that.
MOST_WAKE_UPS = 12


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
    reading = Reading(fleets=fleets, ports=ports, now=now)
    told = notes or {}
    return for_each(fleets, lambda fleet: _turn(fleet, reading, told.get(fleet.name), woken))


def _turn(
    fleet: Fleet, reading: Reading, note: AtRiskNote | None, woken: int
) -> list[DecisionRecord]:
    """Run one fleet's turn under its lease: its note is left before anything is read."""
    now = reading.now
    ports = permitted(reading.ports, fleet, now)

    def go(lease: Lease, number: int) -> tuple[DecisionRecord, bool]:
        stale = not reading.is_fresh and (number > 0 or _may_be_stale(lease, now))
        read = read_together([fleet], ports, now) if stale else reading.together()
        return _round(fleet, ports, read, lease, now, woken)

    return under_lease(ports.states, fleet.name, Half.AVAILABILITY, now, note, go)


def _may_be_stale(lease: Lease, now: datetime) -> bool:
    """Say whether another turn may have acted after the groups were read."""
    return lease.written_at is not None and now - lease.written_at < STALE_AFTER_ANOTHER


def _round(
    fleet: Fleet, ports: Ports, read: Together, lease: Lease, now: datetime, woken: int
) -> tuple[DecisionRecord, bool]:
    """Assess, plan, act, apply and record once; answers whether no note came in meanwhile."""
    snapshot, policy = snapshot_of(fleet, ports, read, lease, now), fleet.availability
    wanted, woke = _planned(snapshot, lease.availability, ports, woken)
    if any(isinstance(action, ReplaceEarly | AskSpot) for action in wanted.actions):
        # Written first: a crash must lose neither a detached instance, which nobody else ends, nor
        # that the rise of the spot group is only a spare.
        unknown = [Answer.LOST for _ in wanted.actions]
        intended = apply(wanted.memory, wanted.actions, unknown, policy, now)
        ports.states.keep(lease, intended, now, release=False)
    asked = act(wanted.actions, ports, fleet.name, marked=wanted.memory.drained)
    memory = apply(wanted.memory, woke.actions, woke.answers, policy, now)
    memory = apply(memory, asked.actions, asked.answers, policy, now)
    record = _record(wanted, woke, asked, memory)
    record = replace(record, permission=lease.permission)
    done = ports.states.keep(lease, memory, now)
    ports.states.record(record)
    return record, done


def _planned(
    snapshot: Snapshot, memory: AvailabilityMemory, ports: Ports, woken: int
) -> tuple[Plan, Asked]:
    """Plan, with a wake-up asked for if something is put off, and who is busy if something goes."""
    fleet, asked = snapshot.fleet, Asked()
    snapshot = replace(snapshot, can_defer=woken < MOST_WAKE_UPS)
    wanted = plan(assess(snapshot, memory))
    if wanted.wake_up:
        asked = act([replace(wanted.wake_up, woken=woken + 1)], ports, fleet.name)
        if not asked.done():
            # Nobody would look again in time: nothing is put off.
            snapshot = replace(snapshot, can_defer=False)
            wanted = plan(assess(snapshot, memory))
    if wanted.action is Action.RELEASE:
        snapshot = replace(snapshot, activity=activity_of(fleet, ports, snapshot.now))
        wanted = plan(assess(snapshot, memory))
    return wanted, asked


def _record(wanted: Plan, woke: Asked, asked: Asked, memory: AvailabilityMemory) -> DecisionRecord:
    """Record a turn; what was done counts what AWS accepted."""
    seen = wanted.assessment
    failures = (*seen.snapshot.spot_failures, *seen.snapshot.on_demand_failures)
    return DecisionRecord(
        fleet=seen.snapshot.fleet.name,
        half=Half.AVAILABILITY,
        at=seen.now,
        action=wanted.action,
        rule=wanted.rule,
        reason=wanted.reason,
        seen=_figures(wanted, asked),
        outcomes=(*woke.outcomes, *asked.outcomes),
        alarms=alarms_of(seen, memory),
        failures=tuple(dict.fromkeys(f"{f.failure_class}: {f.message}" for f in failures)),
        unknown_failures=tuple(dict.fromkeys(f.message for f in failures if not f.known)),
        unread=seen.snapshot.unread,
    )


def _figures(wanted: Plan, asked: Asked) -> dict[str, float]:
    """Count what was seen, and what AWS accepted; a lost answer is counted once it is known."""
    seen, done = wanted.assessment, asked.done()
    spot, on_demand, snapshot = seen.spot, seen.on_demand, seen.snapshot
    failures = (*snapshot.spot_failures, *snapshot.on_demand_failures)
    raised = sum(a.count for a in done if isinstance(a, Backfill))
    lowered = sum(a.count for a in done if isinstance(a, CancelBackfill))
    lowered += sum(isinstance(a, EndBackfill) for a in done)
    return {
        "SpotDesired": spot.target,
        "SpotSpare": snapshot.seen.spot.desired - spot.target,
        "SpotServing": spot.serving,
        "SpotComing": spot.coming,
        "SpotAtRisk": spot.at_risk,
        "Shortfall": seen.shortfall,
        "ShortfallUnfilled": seen.unfilled,
        "OnDemandDesired": on_demand.target + raised - lowered,
        "OnDemandServing": on_demand.serving,
        "Backfilled": raised + max(0, seen.found),
        "Released": lowered + max(0, -seen.found),
        "Interruptions": len(seen.newly_risky),
        "EarlyReplacements": sum(isinstance(a, ReplaceEarly) for a in done),
        "LaunchFailures": len(failures),
        "UnknownFailures": sum(not f.known for f in failures),
    }
