"""The availability checker: one turn of desired against serving, for every fleet.

Observe, assess, plan, act, apply, record. Groups of all fleets are read together; then each fleet's
turn runs under its lease, and an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.act import Asked, act
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
from spotkeeper.domain.fleet import BusyShares, Fleet, Group, Observation, Phase
from spotkeeper.domain.load.busy_shares import busy_shares
from spotkeeper.observe import permitted
from spotkeeper.ports import AtRiskNote, FleetError, Lease, Ports, SpotRequest
from spotkeeper.turn import TurnReport, all_failed, for_each, group_named, under_lease

# Failures older than this explain nothing any more: Auto Scaling retries every 15 s or so.
FAILURE_MEMORY = timedelta(minutes=5)
# Who is busy is read off this much of the search logs.
ACTIVITY_WINDOW = timedelta(minutes=2)
# Another turn that wrote so recently may have acted after this one read the groups: read again.
STALE_AFTER_ANOTHER = timedelta(seconds=45)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was read for all fleets together."""

    groups: Mapping[str, Group]
    requests: tuple[SpotRequest, ...]
    at: datetime


def check_availability(
    fleets: Sequence[Fleet],
    ports: Ports,
    now: datetime,
    notes: Mapping[str, AtRiskNote] | None = None,
) -> TurnReport:
    """Run one availability turn for each fleet; `notes` are the events that caused it, by fleet."""
    try:
        seen = _read(fleets, ports, now)
    except FleetError as error:
        return all_failed(fleets, error)
    return for_each(fleets, lambda fleet: _turn(fleet, ports, seen, (notes or {}).get(fleet.name)))


def _read(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> _Seen:
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    return _Seen(
        groups=ports.groups.describe(names),
        requests=ports.groups.troubled_spot_requests(now - FAILURE_MEMORY),
        at=now,
    )


def _turn(fleet: Fleet, ports: Ports, seen: _Seen, note: AtRiskNote | None) -> list[DecisionRecord]:
    """Run one fleet's turn under its lease, on what was read unless that may be stale."""
    ports = permitted(ports, fleet, seen.at)

    def go(lease: Lease, number: int) -> tuple[DecisionRecord, bool]:
        again = number > 0 or _may_be_stale(lease, seen)
        return _round(fleet, ports, _read([fleet], ports, seen.at) if again else seen, lease)

    return under_lease(ports.states, fleet.name, Half.AVAILABILITY, seen.at, note, go)


def _may_be_stale(lease: Lease, seen: _Seen) -> bool:
    """Say whether another turn may have acted after the groups were read."""
    return lease.written_at is not None and seen.at - lease.written_at < STALE_AFTER_ANOTHER


def _round(fleet: Fleet, ports: Ports, seen: _Seen, lease: Lease) -> tuple[DecisionRecord, bool]:
    """Observe, assess, plan, act, apply and record once; answers whether no note came in since."""
    before, policy, now = lease.availability, fleet.availability, seen.at
    wanted, early = _planned(_snapshot(fleet, ports, seen, lease), before, ports)
    if any(isinstance(action, ReplaceEarly | AskSpot) for action in wanted.actions):
        # Written first: a crash must lose neither a detached instance, which nobody else ends, nor
        # that the rise of the spot group is only a spare.
        unknown = [Answer.LOST for _ in wanted.actions]
        intended = apply(wanted.memory, wanted.actions, unknown, policy, now)
        ports.states.keep(lease, intended, now, release=False)
    asked = act(wanted.actions, ports, fleet.name, marked=wanted.memory.drained)
    memory = apply(wanted.memory, early.actions, early.answers, policy, now)
    memory = apply(memory, asked.actions, asked.answers, policy, now)
    record = _record(wanted, asked, memory)
    record = replace(
        record, outcomes=(*early.outcomes, *record.outcomes), permission=lease.permission
    )
    done = ports.states.keep(lease, memory, now)
    ports.states.record(record)
    return record, done


def _planned(snapshot: Snapshot, memory: AvailabilityMemory, ports: Ports) -> tuple[Plan, Asked]:
    """Plan, with a wake-up asked for if something is put off, and who is busy if something goes."""
    fleet, asked = snapshot.fleet, Asked()
    wanted = plan(assess(snapshot, memory))
    if wanted.wake_up:
        asked = act([wanted.wake_up], ports, fleet.name)
        if not asked.done():
            # Nobody would look again in time: nothing is put off.
            snapshot = replace(snapshot, can_defer=False)
            wanted = plan(assess(snapshot, memory))
    if wanted.action is Action.RELEASE:
        snapshot = replace(snapshot, activity=_activity(fleet, ports, snapshot.now))
        wanted = plan(assess(snapshot, memory))
    return wanted, asked


def _snapshot(fleet: Fleet, ports: Ports, seen: _Seen, lease: Lease) -> Snapshot:
    """Put together what one fleet's decision needs; failures are read only to explain a gap.

    Raises `Gone` when a group of the fleet does not exist.
    """
    spot, on_demand = (
        group_named(seen.groups, name) for name in (fleet.spot_group, fleet.on_demand_group)
    )
    since = seen.at - FAILURE_MEMORY
    mine = {i.instance_id for i in spot.instances}
    outside = lease.availability.detached
    requests = [r for r in seen.requests if r.instance_id in mine]
    warned = {i: note.at for note in lease.notes for i in note.instance_ids}
    served = {i: note.at for note in lease.notes for i in note.served}
    warned |= {r.instance_id: r.at_risk_since for r in requests if r.at_risk_since}
    spot_failures = ports.groups.failures(spot.name, since) if _has_gap(spot) else ()
    return Snapshot(
        fleet=fleet,
        seen=Observation(seen_at=seen.at, spot=spot, on_demand=on_demand),
        spot_failures=(*spot_failures, *(r.failure for r in requests if r.failure)),
        on_demand_failures=(
            ports.groups.failures(on_demand.name, since) if _has_gap(on_demand) else ()
        ),
        warned=warned,
        served=served,
        taken=frozenset(r.instance_id for r in seen.requests if r.failure).intersection(outside),
        silent=frozenset(lease.health.silent),
        sized=lease.health.spot_ask,
    )


def _has_gap(group: Group) -> bool:
    serving = sum(i.phase is Phase.IN_SERVICE for i in group.instances)
    return serving < group.desired


def _activity(fleet: Fleet, ports: Ports, now: datetime) -> BusyShares:
    return busy_shares(ports.load.since(fleet.name, now - ACTIVITY_WINDOW), now, ACTIVITY_WINDOW)


def _record(wanted: Plan, asked: Asked, memory: AvailabilityMemory) -> DecisionRecord:
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
        outcomes=tuple(asked.outcomes),
        alarms=alarms_of(seen, memory),
        failures=tuple(dict.fromkeys(f"{f.failure_class}: {f.message}" for f in failures)),
        unknown_failures=tuple(dict.fromkeys(f.message for f in failures if not f.known)),
    )


def _figures(wanted: Plan, asked: Asked) -> dict[str, float]:
    seen, done = wanted.assessment, asked.done()
    spot, on_demand, snapshot = seen.spot, seen.on_demand, seen.snapshot
    failures = (*snapshot.spot_failures, *snapshot.on_demand_failures)
    backfilled = sum(a.count for a in done if isinstance(a, Backfill))
    released = sum(a.count for a in done if isinstance(a, CancelBackfill))
    released += sum(isinstance(a, EndBackfill) for a in done)
    return {
        "SpotDesired": spot.target,
        "SpotSpare": snapshot.seen.spot.desired - spot.target,
        "SpotServing": spot.serving,
        "SpotComing": spot.coming,
        "SpotAtRisk": spot.at_risk,
        "Shortfall": seen.shortfall,
        "ShortfallUnfilled": seen.unfilled,
        "OnDemandDesired": on_demand.target + backfilled - released,
        "OnDemandServing": on_demand.serving,
        "Backfilled": backfilled,
        "Released": released,
        "Interruptions": len(seen.newly_risky),
        "EarlyReplacements": sum(isinstance(a, ReplaceEarly) for a in done),
        "LaunchFailures": len(failures),
        "UnknownFailures": sum(not f.known for f in failures),
    }
