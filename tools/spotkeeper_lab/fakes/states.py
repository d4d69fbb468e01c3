"""The fake of the states port: leases, memories, notes and records in memory."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.adapters.dynamodb.fleet_state import LEASE_LIFETIME
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Lease, Unavailable
from spotkeeper_lab.fakes.faults import Faults


@dataclass(slots=True)
class _State:
    """One controller of a fleet as the table holds it."""

    memory: AvailabilityMemory | HealthMemory
    holder: str = ""
    until: datetime | None = None
    written_at: datetime | None = None
    notes: tuple[AtRiskNote, ...] = ()


class FakeStates:
    """Fleet states in memory; decision records in the order in which they were left."""

    def __init__(self, faults: Faults | None = None, *, remember: int | None = None) -> None:
        """Begin empty; `remember` bounds the number of records kept."""
        self.records: deque[DecisionRecord] = deque(maxlen=remember)
        self._faults = faults or Faults()
        self._states: dict[tuple[str, Controller], _State] = {}
        self._holders = 0

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        """Take the lease; a busy one leaves the note and gives None."""
        with self._faults.call("acquire"):
            state = self._of(fleet, controller)
            if state.until is not None and state.until >= now:
                state.notes += (note or AtRiskNote(instance_ids=(), at=now),)
                return None
            self._holders += 1
            state.holder, state.until = f"turn-{self._holders}", now + LEASE_LIFETIME
            state.notes += (note,) if note else ()
            return self._lease(fleet, controller, state)

    def _lease(self, fleet: str, controller: Controller, state: _State) -> Lease:
        availability = self._of(fleet, Controller.AVAILABILITY).memory
        health = self._of(fleet, Controller.HEALTH).memory
        assert isinstance(availability, AvailabilityMemory)
        assert isinstance(health, HealthMemory)
        return Lease(
            fleet=fleet,
            controller=controller,
            holder=state.holder,
            availability=availability,
            health=health,
            notes=state.notes,
            notes_seen=len(state.notes),
            written_at=state.written_at,
        )

    def commit(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        """Write the memory, and give the lease back; False when notes came in meanwhile."""
        with self._faults.call("commit"):
            state = self._of(lease.fleet, lease.controller)
            if state.holder != lease.holder:
                raise Unavailable("the lease was lost to another turn")
            state.memory, state.written_at = memory, now
            if release:
                state.holder, state.until = "", None
                state.notes = state.notes[lease.notes_seen :]
            return not (release and state.notes)

    def release(self, lease: Lease) -> None:
        """Give the lease back; the notes stay."""
        with self._faults.call("release"):
            state = self._of(lease.fleet, lease.controller)
            if state.holder == lease.holder:
                state.holder, state.until = "", None

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision record."""
        with self._faults.call("record"):
            self.records.append(record)

    def _of(self, fleet: str, controller: Controller) -> _State:
        fresh = AvailabilityMemory() if controller is Controller.AVAILABILITY else HealthMemory()
        return self._states.setdefault((fleet, controller), _State(fresh))
