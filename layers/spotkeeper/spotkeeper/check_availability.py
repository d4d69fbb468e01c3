"""The availability checker: one turn of desired against serving, for every fleet.

Observe, decide, act, record. Groups of all fleets are read together; then each fleet's turn runs
under its lease, and an error stops that fleet only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.domain.availability.decide import AvailabilityDecision, decide
from spotkeeper.domain.availability.situation import Situation
from spotkeeper.domain.decision import Action, DecisionRecord, Half, Outcome
from spotkeeper.domain.fleet import Activity, Fleet, Group, Observation, Phase
from spotkeeper.domain.load.busy_shares import busy_shares
from spotkeeper.ports import AtRiskNote, FleetError, Lease, Ports, SpotRequest
from spotkeeper.turn import TurnReport, all_failed, attempt, for_each, group_named, under_lease

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
        seen = _look(fleets, ports, now)
    except FleetError as error:
        return all_failed(fleets, error)
    return for_each(fleets, lambda fleet: _turn(fleet, ports, seen, (notes or {}).get(fleet.name)))


def _look(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> _Seen:
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    return _Seen(
        groups=ports.groups.describe(names),
        requests=ports.groups.troubled_spot_requests(now - FAILURE_MEMORY),
        at=now,
    )


def _turn(fleet: Fleet, ports: Ports, seen: _Seen, note: AtRiskNote | None) -> list[DecisionRecord]:
    """Run one fleet's turn under its lease, on what was read unless that may be stale."""

    def go(lease: Lease, number: int) -> tuple[DecisionRecord, bool]:
        again = number > 0 or _may_be_stale(lease, seen)
        return _round(fleet, ports, _look([fleet], ports, seen.at) if again else seen, lease)

    return under_lease(ports.states, fleet.name, Half.AVAILABILITY, seen.at, note, go)


def _may_be_stale(lease: Lease, seen: _Seen) -> bool:
    """Say whether another turn may have acted after the groups were read."""
    return lease.written_at is not None and seen.at - lease.written_at < STALE_AFTER_ANOTHER


def _round(fleet: Fleet, ports: Ports, seen: _Seen, lease: Lease) -> tuple[DecisionRecord, bool]:
    """Observe, decide, act and record once; answers whether no note came in meanwhile."""
    outcomes: list[Outcome] = []
    situation = _situation(fleet, ports, seen, lease)
    decision = decide(situation)
    if decision.look_again_at and not _look_again(
        ports, decision.look_again_at, situation, outcomes
    ):
        # Nobody would look again in time: nothing is put off.
        situation = replace(situation, may_wait=False)
        decision = decide(situation)
    if decision.action is Action.RELEASE:
        decision = decide(_with_activity(situation, _activity(fleet, ports, seen.at)))
    if decision.detach or decision.spot_desired > situation.seen.spot.desired:
        # Written first: a crash must lose neither a detached instance, which nobody else ends, nor
        # that the rise of the spot group is only a spare.
        ports.states.keep(lease, decision.memory, seen.at, release=False)
    outcomes += _act(fleet, ports, decision, situation.seen.spot.desired)
    record = _record(situation, decision, tuple(outcomes))
    done = ports.states.keep(lease, decision.memory, seen.at)
    ports.states.record(record)
    return record, done


def _situation(fleet: Fleet, ports: Ports, seen: _Seen, lease: Lease) -> Situation:
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
    return Situation(
        fleet=fleet,
        seen=Observation(seen_at=seen.at, spot=spot, on_demand=on_demand),
        memory=lease.availability,
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


def _look_again(ports: Ports, at: datetime, situation: Situation, outcomes: list[Outcome]) -> bool:
    """Have a turn happen at an instant; answers whether it will."""
    fleet, now = situation.fleet.name, situation.seen.seen_at
    asked = f"look again at {at:%H:%M:%S}"
    return attempt(outcomes, asked, lambda: ports.wake_ups.at(fleet, at, now))


def _has_gap(group: Group) -> bool:
    serving = sum(i.phase is Phase.IN_SERVICE for i in group.instances)
    return serving < group.desired


def _activity(fleet: Fleet, ports: Ports, now: datetime) -> Activity:
    return busy_shares(ports.load.since(fleet.name, now - ACTIVITY_WINDOW), now, ACTIVITY_WINDOW)


def _with_activity(situation: Situation, activity: Activity) -> Situation:
    return replace(situation, activity=activity)


def _act(
    fleet: Fleet, ports: Ports, decision: AvailabilityDecision, spot_desired: int
) -> tuple[Outcome, ...]:
    """Ask AWS for what was decided, what serves first: backfill, replacement, then the rest."""
    done: list[Outcome] = []
    spot, group, wanted = fleet.spot_group, fleet.on_demand_group, decision.on_demand_desired
    if wanted != decision.on_demand.target:
        attempt(done, f"{group}: desired {wanted}", lambda: ports.writer.set_desired(group, wanted))
    marked = sorted({*decision.drain, *decision.detach})
    drained = not marked or attempt(
        done, f"drain {', '.join(marked)}", lambda: ports.instances.drain(marked, decision.gone_at)
    )
    # Without the mark nobody may end a detached instance that AWS leaves running.
    if decision.detach and drained:
        gone = decision.detach
        attempt(done, f"replace {', '.join(gone)}", lambda: ports.writer.detach(spot, gone))
    if decision.spot_desired != spot_desired:
        spares = decision.spot_desired
        attempt(done, f"{spot}: desired {spares}", lambda: ports.writer.set_desired(spot, spares))
    for instance_id in (*decision.ends, *decision.spot_ends):
        attempt(done, f"end {instance_id}", partial(ports.writer.end, instance_id))
    if decision.terminate:
        left = decision.terminate
        attempt(done, f"terminate {', '.join(left)}", lambda: ports.instances.terminate(left))
    for name in decision.suspend:
        attempt(
            done, f"{name}: suspend AZRebalance", partial(ports.writer.suspend_az_rebalance, name)
        )
    return tuple(done)


def _record(
    situation: Situation, decision: AvailabilityDecision, outcomes: tuple[Outcome, ...]
) -> DecisionRecord:
    spot, on_demand = decision.spot, decision.on_demand
    failures = (*situation.spot_failures, *situation.on_demand_failures)
    return DecisionRecord(
        fleet=situation.fleet.name,
        half=Half.AVAILABILITY,
        at=situation.seen.seen_at,
        action=decision.action,
        rule=decision.rule,
        reason=decision.reason,
        seen={
            "SpotDesired": spot.target,
            "SpotSpare": situation.seen.spot.desired - spot.target,
            "SpotServing": spot.serving,
            "SpotComing": spot.coming,
            "SpotAtRisk": spot.at_risk,
            "Shortfall": decision.shortfall,
            "ShortfallUnfilled": decision.unfilled,
            "OnDemandDesired": decision.on_demand_desired - len(decision.ends),
            "OnDemandServing": on_demand.serving,
            "Backfilled": max(0, decision.on_demand_desired - on_demand.target),
            "Released": on_demand.target - decision.on_demand_desired + len(decision.ends)
            if decision.action is Action.RELEASE
            else 0,
            "Interruptions": len(decision.drain),
            "EarlyReplacements": len(decision.detach),
            "LaunchFailures": len(failures),
            "UnknownFailures": sum(not f.known for f in failures),
        },
        outcomes=outcomes,
        alarms=decision.alarms,
        failures=tuple(dict.fromkeys(f"{f.failure_class}: {f.message}" for f in failures)),
        unknown_failures=tuple(dict.fromkeys(f.message for f in failures if not f.known)),
    )
