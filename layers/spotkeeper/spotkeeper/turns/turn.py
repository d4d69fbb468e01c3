"""What every turn shares: one writer per half of a fleet, and errors that stop only their fleet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.decision import Action, DecisionRecord, Half, Outcome
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.ports import AtRiskNote, FleetError, FleetStates, Gone, Lease

# Notes that keep arriving end here; what is left is taken up by the next turn.
MOST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """What the turns of an invocation did; `busy` names fleets that another turn held.

    `failed` names the fleets that `errors` are about.
    """

    records: tuple[DecisionRecord, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    errors: tuple[FleetError, ...] = ()


def for_each(
    fleets: Sequence[Fleet], turn: Callable[[Fleet], Sequence[DecisionRecord]]
) -> TurnReport:
    """Run every fleet's turn; an error stops its own fleet only, and is reported at the end.

    A turn without a record found its fleet busy. What AWS refused to do counts as an error too.
    """
    records: list[DecisionRecord] = []
    busy: list[str] = []
    errors: list[tuple[str, FleetError]] = []
    for fleet in fleets:
        try:
            mine = turn(fleet)
        except FleetError as error:
            errors.append((fleet.name, type(error)(f"fleet {fleet.name}: {error}")))
            continue
        records += mine
        if not mine:
            busy.append(fleet.name)
    errors += [
        (record.fleet, FleetError(f"fleet {record.fleet}: {outcome.asked}: {outcome.error}"))
        for record in records
        for outcome in record.outcomes
        if outcome.error
    ]
    return TurnReport(
        records=tuple(records),
        busy=tuple(busy),
        failed=tuple(dict.fromkeys(name for name, _ in errors)),
        errors=tuple(error for _, error in errors),
    )


def all_failed(fleets: Sequence[Fleet], error: FleetError) -> TurnReport:
    """Report that what all fleets need together could not be read: none of them was turned."""
    names = tuple(fleet.name for fleet in fleets)
    told = type(error)(f"fleets {', '.join(names)}: {error}")
    return TurnReport(failed=names, errors=(told,))


def under_lease(
    states: FleetStates,
    fleet: str,
    half: Half,
    now: datetime,
    note: AtRiskNote | None,
    go: Callable[[Lease, int], tuple[DecisionRecord, bool]],
) -> list[DecisionRecord]:
    """Go round as the only writer, again for as long as notes come in; empty when busy.

    `go` takes the lease and the round's number, keeps the state itself, and answers its record
    and whether no note came in meanwhile.
    """
    records: list[DecisionRecord] = []
    for number in range(MOST_ROUNDS):
        lease = states.take(fleet, half, now, note)
        if lease is None:
            break
        if lease.unreadable:
            records.append(_begun_afresh(lease, now))
            states.record(records[-1])
        try:
            record, done = go(lease, number)
        except FleetError:
            states.give_back(lease)
            raise
        records.append(record)
        if done:
            break
        note = None
    return records


def _begun_afresh(lease: Lease, now: datetime) -> DecisionRecord:
    """Record that something of what was kept of a fleet could not be read and is forgotten."""
    wrong = "; ".join(lease.unreadable)
    return DecisionRecord(
        fleet=lease.fleet,
        half=lease.half,
        at=now,
        action=Action.HOLD,
        rule="afresh",
        reason=f"begun afresh, as what was kept cannot be read: {wrong}",
        seen={},
        outcomes=(Outcome(asked="read what was kept", error=wrong),),
    )


def group_named(groups: Mapping[str, Group], name: str) -> Group:
    """Look a group up; raises `Gone` when it does not exist."""
    try:
        return groups[name]
    except KeyError:
        message = f"group {name} does not exist: correct the fleet document or create the group"
        raise Gone(message) from None
