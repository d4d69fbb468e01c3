"""What the turns need of the world, in the domain's words.

Every method may raise a `FleetError` of this module; nothing else is expected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from spotkeeper.domain.availability.announcements import Announcement
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.money.prices import PriceBook
from spotkeeper.domain.permission import Control
from spotkeeper.domain.spread import Report, Share

# A launch that a lifecycle hook gives up, or that never becomes healthy, began this long before.
LONGEST_LAUNCH = timedelta(minutes=20)


# How long a process may use what it knew, while the table does not answer.
KNOWN_FOR = timedelta(hours=6)
# Which stack acts on a group.
OWNER_TAG = "spotkeeper:owner"


class FleetError(Exception):
    """Something that went wrong for one fleet only; says what to do.

    `fleet` names the one whose document is wrong.
    """

    fleet: str | None = None


class Throttled(FleetError):
    """AWS throttled the call; never evidence of missing capacity."""


class Refused(FleetError):
    """AWS refused the call for want of permission; only an operator can mend it."""


class Gone(FleetError):
    """The group, instance or queue that the call names does not exist (any more)."""


class Owned(FleetError):
    """The group belongs to another stack; no request was sent."""


class Observed(FleetError):
    """The turn may only observe: no request was sent."""


class Conflict(FleetError):
    """Somebody else has changed the same thing meanwhile; nothing was changed."""


class Unavailable(FleetError):
    """AWS did not answer, or answered with a fault of its own; the next turn tries again."""


class TimedOut(Unavailable):
    """AWS did not answer in time, at any attempt; another call of the same API may wait as long."""


class Unreadable(FleetError):
    """A fleet's stored item is not in a format of this release; says which item to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRequest:
    """A spot request in trouble: its instance, if it has one, and what its status means.

    `at_risk_since` is when EC2 began to take the instance, which runs on until the notice is
    over. With `final`, it is gone then at the latest.
    """

    instance_id: str
    failure: LaunchFailure | None
    at_risk_since: datetime | None
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A running instance that carries this stack's tags; `ours` is false without its nonce.

    Releases before the nonce marked so, and this one's roles may not end what they detached.
    Anyone with ec2:CreateTags can copy the tags. `detached` cannot be copied: it is a spot
    instance, and the activity history of the group that the tags name lists it as detached.
    """

    instance_id: str
    gone_at: datetime
    detached: bool = False
    ours: bool = True


class GroupReader(Protocol):
    """Looks at groups."""

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        """Describe the groups that exist, by name."""
        ...

    def failures(
        self, group: str, since: datetime, longest: timedelta = LONGEST_LAUNCH
    ) -> tuple[LaunchFailure, ...]:
        """List a group's launches that failed since an instant, newest first.

        They began up to `longest` before.
        """
        ...

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Name the group of each instance that is in one."""
        ...

    def troubled_spot_requests(
        self, instance_ids: Sequence[str], since: datetime
    ) -> tuple[SpotRequest, ...]:
        """List the spot requests of some instances whose status shows trouble since an instant."""
        ...

    def running(self, instance_ids: Sequence[str]) -> Mapping[str, bool]:
        """Name those of some instances that have not ended; false for one that stops."""
        ...

    def oldest_launch(self, instance_ids: Sequence[str]) -> datetime | None:
        """Say when the oldest of some instances was launched; None if all of them have ended."""
        ...

    def marked(self, groups: Sequence[str]) -> tuple[Mark, ...]:
        """List the running instances that carry this stack's mark of one of some groups."""
        ...


class GroupWriter(Protocol):
    """Changes groups and their instances."""

    def set_desired(self, group: str, desired: int) -> None:
        """Set the desired capacity of a group."""
        ...

    def end(self, instance_id: str, *, replaced: bool = False) -> None:
        """End an instance, and lower its group's desired capacity by one, or have it replaced."""
        ...

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out of their group, which replaces them at once."""
        ...

    def set_process(self, group: str, process: str, *, runs: bool) -> None:
        """Suspend a process of a group, or resume it."""
        ...

    def claim(self, group: str) -> None:
        """Tag a group as this stack's."""
        ...

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        """Mark instances of a group with when they will be gone; their workers are done by then."""
        ...

    def unmark(self, instance_ids: Sequence[str]) -> None:
        """Take the mark off instances again."""
        ...

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End drained instances that are in no group any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRiskNote:
    """A note that instances of a fleet are at risk from an instant on, or that they `served`."""

    instance_ids: tuple[str, ...]
    at: datetime
    served: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to be the only writer of one controller of a fleet, and what was remembered.

    `written_at` is when the controller last wrote; `holder` tells this turn from others. A memory
    that cannot be read starts empty; `unreadable` names what was the controller's own. With
    `other_unreadable`, the other controller's memory is damaged. `taken_at`, `note_keys` and
    `noted` are the adapter's own: when the lease was taken, and which notes it has read.
    """

    fleet: str
    controller: Controller
    holder: str
    availability: AvailabilityMemory = field(default_factory=AvailabilityMemory)
    health: HealthMemory = field(default_factory=HealthMemory)
    notes: tuple[AtRiskNote, ...] = ()
    note_keys: tuple[str, ...] = ()
    noted: str = ""
    taken_at: datetime | None = None
    written_at: datetime | None = None
    unreadable: tuple[str, ...] = ()
    other_unreadable: bool = False


class FleetStates(Protocol):
    """Remembers fleets, one writer at a time."""

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        """Take the lease; None when another turn holds it, which then finds the note.

        A lease that ends later than any that is taken now is void. Raises `Unavailable` where the
        lease is held although no turn has ended for long.
        """
        ...

    def commit(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        """Remember, and return the lease; False when a note arrived: run another round."""
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease without a decision; its notes stay for the next turn."""
        ...

    def record(self, record: DecisionRecord) -> None:
        """Leave a decision record."""
        ...


class LoadTable(Protocol):
    """Holds what search logs add up to."""

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests, idempotently by key; returns the keys that could not be stored."""
        ...

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests from the slot of an instant on, which may be added up by slot."""
        ...


class LoadHistories(Protocol):
    """Keeps what a fleet's load was."""

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none.

        Raises `Unreadable` for one that no release of this format wrote.
        """
        ...

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history, instead of what was kept before."""
        ...


class RequestQueues(Protocol):
    """Counts the requests that wait for a worker."""

    def length(self, url: str) -> QueueLength:
        """Count a queue's messages, approximately."""
        ...


class QueueLooks(Protocol):
    """Keeps the looks that agents took at request queues which only they reach."""

    def keep(self, looks: Mapping[str, QueueLength]) -> None:
        """Keep the length of each queue, by its URL."""
        ...


class Prices(Protocol):
    """Knows what instances cost."""

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Read the prices of pools (zone/type) in force; missing ones are left out."""
        ...


class Regions(Protocol):
    """Reads and writes two items of each region's table: its share, and its report."""

    here: str
    """The region of this stack."""

    def of(self, fleet: Fleet, region: str) -> tuple[Share | None, Report | None]:
        """Read both items of a fleet in a region."""
        ...

    def write(self, fleet: Fleet, region: str, said: Share | Report, seen: int = 0) -> bool:
        """Write one of both; raises `Conflict` if the share in its place is not of term `seen`."""
        ...


class WakeUps(Protocol):
    """Makes a turn happen sooner than the next minute."""

    def at(self, fleet: str, at: datetime, now: datetime, woken: int) -> None:
        """Have a turn happen within a second after an instant; sooner where that is far off.

        `woken` counts the wake-ups one after the other, this one included.
        """
        ...


class TurnQueue(Protocol):
    """Has other invocations of the same function turn fleets."""

    def hand_on(self, shares: Sequence[Sequence[str]], now: datetime) -> None:
        """Have an invocation turn each share of a minute's fleets."""
        ...


class Announcements(Protocol):
    """Sends events about changes of fleets' states."""

    def send(self, announcements: Sequence[Announcement]) -> None:
        """Send some, at most ten; raises unless all arrived: then all are sent again."""
        ...


class Controls(Protocol):
    """Reads what operators set for fleets."""

    def of(self, fleet: str) -> Control:
        """Read a fleet's control; raises `Unreadable` rather than guess."""
        ...


class Unsaid:
    """Controls that no operator set: the fleet documents hold."""

    def of(self, fleet: str) -> Control:
        """Return an empty control."""
        return Control()


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What this process knew last of each fleet that may act, for when the table does not answer.

    A lease is as old as the last read of its control; other processes may have written since.
    """

    leases: dict[str, Lease] = field(default_factory=dict)

    def of(self, fleet: str, now: datetime) -> Lease | None:
        """Return the last lease of a fleet; None where it is too old, or the fleet may not act."""
        lease = self.leases.get(fleet)
        return lease if lease and lease.taken_at and now - lease.taken_at < KNOWN_FOR else None

    def permit(self, fleet: str, now: datetime, *, acts: bool) -> None:
        """Note whether operators let a fleet act now."""
        before = self.of(fleet, now)
        lease = before or Lease(fleet=fleet, controller=Controller.AVAILABILITY, holder="")
        self.leases.pop(fleet, None)
        if acts:
            self.leases[fleet] = replace(lease, taken_at=now)

    def keep(self, lease: Lease, memory: AvailabilityMemory) -> None:
        """Keep a lease with what its turn remembers, if its fleet may act."""
        if before := self.leases.get(lease.fleet):
            kept = replace(lease, availability=memory, notes=(), taken_at=before.taken_at)
            self.leases[lease.fleet] = kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All that a turn needs of the world."""

    groups: GroupReader
    writer: GroupWriter
    states: FleetStates
    load: LoadTable
    histories: LoadHistories
    queues: RequestQueues
    wake_ups: WakeUps
    regions: Regions
    controls: Controls = field(default_factory=Unsaid)
    announcements: Announcements | None = None
    """Where changes of state are announced; None where they are not."""
    prices: Prices | None = None
    """What instances cost; only fleets in several regions need it."""
    owner: str = ""
    """The stack whose turns these are; empty for turns that claim no group."""
    clock: Callable[[], datetime] | None = None
    """What a turn's time is measured with; without one a turn takes no time."""
    last: LastKnown = field(default_factory=LastKnown)
