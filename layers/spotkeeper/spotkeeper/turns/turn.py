"""What every turn shares: one writer per controller, and errors that stop only their fleet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Action, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.ports import AtRiskNote, FleetError, FleetStates, Gone, Lease

# Notes that keep arriving end here; what is left is taken up by the next turn.
MOST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """What the turns of an invocation did; `busy` names fleets that another turn held.

    `failed` names the fleets that `errors` are about. `defects` are what nobody foresaw.
    """

    records: tuple[DecisionRecord, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    errors: tuple[FleetError, ...] = ()
    defects: tuple[Exception, ...] = ()


@dataclass(slots=True, kw_only=True)
class Round:
    """One round as the only writer: what is done in it is done under `lease`.

    An error gives the lease back, and the notes in it stay for the next turn.
    """

    states: FleetStates
    lease: Lease
    number: int
    now: datetime
    record: DecisionRecord | None = None
    is_last: bool = False

    def __enter__(self) -> Lease:
        return self.lease

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.states.release(self.lease)

    def finish(self, memory: AvailabilityMemory | HealthMemory, record: DecisionRecord) -> None:
        """Remember, give the lease back and leave the record; the last round unless a note came."""
        self.record = replace(record, permission=self.lease.permission)
        self.is_last = self.states.commit(self.lease, memory, self.now)
        self.states.record(self.record)


@dataclass(slots=True, kw_only=True)
class Turns:
    """The turns of one controller in an invocation, each fleet on its own."""

    controller: Controller
    now: datetime
    _records: list[DecisionRecord] = field(default_factory=list)
    _busy: list[str] = field(default_factory=list)
    _errors: list[tuple[str, FleetError]] = field(default_factory=list)
    _defects: list[Exception] = field(default_factory=list)

    @contextmanager
    def isolated(self, fleet: Fleet) -> Iterator[None]:
        """Let an error stop its own fleet only; it is reported at the end."""
        try:
            yield
        except FleetError as error:
            self._errors.append((fleet.name, type(error)(f"fleet {fleet.name}: {error}")))
        except Exception as error:  # noqa: BLE001 - a defect met by one fleet must not stop the others
            error.add_note(f"in the turn of fleet {fleet.name}")
            self._defects.append(error)

    def rounds(self, states: FleetStates, fleet: str, note: AtRiskNote | None) -> Iterator[Round]:
        """Go round as the only writer, again for as long as notes come in; never when busy."""
        for number in range(MOST_ROUNDS):
            lease = states.acquire(fleet, self.controller, self.now, None if number else note)
            if lease is None:
                if not number:
                    self._busy.append(fleet)
                return
            if lease.unreadable:
                self._records.append(_begun_afresh(lease, self.now))
                states.record(self._records[-1])
            this = Round(states=states, lease=lease, number=number, now=self.now)
            yield this
            if this.record:
                self._records.append(this.record)
            if this.is_last:
                return

    def report(self) -> TurnReport:
        """Say what was done; what AWS refused to do counts as an error too."""
        refused = [
            (record.fleet, FleetError(f"fleet {record.fleet}: {outcome.asked}: {outcome.error}"))
            for record in self._records
            for outcome in record.outcomes
            if outcome.error
        ]
        errors = [*self._errors, *refused]
        return TurnReport(
            records=tuple(self._records),
            busy=tuple(self._busy),
            failed=tuple(dict.fromkeys(name for name, _ in errors)),
            errors=tuple(error for _, error in errors),
            defects=tuple(self._defects),
        )


def all_failed(fleets: Sequence[Fleet], error: FleetError) -> TurnReport:
    """Report that what all fleets need together could not be read: none of them was turned."""
    names = tuple(fleet.name for fleet in fleets)
    told = type(error)(f"fleets {', '.join(names)}: {error}")
    return TurnReport(failed=names, errors=(told,))


def _begun_afresh(lease: Lease, now: datetime) -> DecisionRecord:
    """Record that something of what was kept of a fleet could not be read and is forgotten."""
    wrong = "; ".join(lease.unreadable)
    return DecisionRecord(
        fleet=lease.fleet,
        controller=lease.controller,
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
