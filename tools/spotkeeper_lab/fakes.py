"""The ports over the simulated cloud, without boto3's wire, and the faults that tests order.

A fake can refuse, or crash at its n-th call; calls are counted over all fakes that share one
`Faults`, from 1, in the order in which they were made.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from spotkeeper.adapters.dynamodb.fleet_state import STALLED
from spotkeeper.adapters.dynamodb.leases import LEASE_LIFETIME, SKEW
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.wake_ups import delay_s
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.digest import SearchLog, build_digest, fleet_batches, sent_iso
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import LoadDigest, slot_begins, slot_of
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.spread import Report, Share
from spotkeeper.ports import AtRiskNote, Conflict, FleetError, Gone, Lease, Ports, Unavailable
from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import Client
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that the cloud calls 0."""


TIME = VirtualTime(EPOCH)
instant, seconds = TIME.at, TIME.seconds
"""The instant of a cloud's time, and the cloud's time of an instant."""


class Crash(BaseException):
    """The function ended here, as at a time-out; no handler catches it."""


@dataclass(slots=True)
class Faults:
    """The faults of the fakes that share it, and the calls that were made.

    `refusals` are the errors of every call of a name. Once call `crash_after` is done, the function
    is dead. `meanwhile` maps a name to what happens elsewhere right after its next call.
    """

    calls: list[str] = field(default_factory=list)
    refusals: dict[str, FleetError] = field(default_factory=dict)
    crash_after: int | None = None
    meanwhile: dict[str, Callable[[], object]] = field(default_factory=dict)

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        self.calls.append(name)
        number = len(self.calls)
        if self.refusals and name in self.refusals:
            raise self.refusals[name]
        yield
        if name in self.meanwhile:
            self.meanwhile.pop(name)()
        if number == self.crash_after:
            raise Crash(f"after call {number}, {name}")


# The stack whose marks and claims these are.
NONCE = "fake"


class FakeGroups(AutoScalingReader, AutoScalingWriter):
    """The reader and both writers over a cloud: the adapters on clients without the wire.

    Each of their methods is a call that can be refused, whatever it asks of the clients.
    """

    _nonce: str

    def __init__(self, cloud: Cloud, faults: Faults | None = None) -> None:
        answers = Answers(cloud, TIME)
        autoscaling: Any = Client("autoscaling", answers.auto_scaling())
        ec2: Any = Client("ec2", answers.ec2())
        AutoScalingReader.__init__(self, autoscaling, ec2, NONCE)
        AutoScalingWriter.__init__(self, autoscaling, ec2, NONCE)
        self._faults = faults or Faults()

    def __getattribute__(self, name: str) -> Any:
        """Make each public method a call of its name."""
        value = super().__getattribute__(name)
        calls = callable(value) and not name.startswith("_")
        return partial(self._call, name, value) if calls else value

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with self._faults.call(name):
            return method(*args, **named)


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
        self.records: deque[DecisionRecord] = deque(maxlen=remember)
        self._faults = faults or Faults()
        self._states: dict[tuple[str, Controller], _State] = {}
        self._holders = 0

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        with self._faults.call("acquire"):
            state = self._of(fleet, controller)
            if state.until is not None and now <= state.until <= now + LEASE_LIFETIME + SKEW:
                state.notes += (note or AtRiskNote(instance_ids=(), at=now),)
                if state.written_at and now - state.written_at > STALLED:
                    raise Unavailable(f"no turn of {fleet} has ended since {state.written_at}")
                return None
            self._holders += 1
            state.holder, state.until = f"turn-{self._holders}", now + LEASE_LIFETIME
            state.notes += (note,) if note else ()
            memories: dict[Controller, Any] = {of: self._of(fleet, of).memory for of in Controller}
            return Lease(
                fleet=fleet,
                controller=controller,
                holder=state.holder,
                availability=memories[Controller.AVAILABILITY],
                health=memories[Controller.HEALTH],
                notes=state.notes,
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
        with self._faults.call("commit"):
            state = self._of(lease.fleet, lease.controller)
            if state.holder != lease.holder:
                raise Unavailable("the lease was lost to another turn")
            state.memory, state.written_at = memory, now
            if release:
                state.holder, state.until = "", None
                state.notes = state.notes[len(lease.notes) :]
            return not (release and state.notes)

    def release(self, lease: Lease) -> None:
        with self._faults.call("release"):
            state = self._of(lease.fleet, lease.controller)
            if state.holder == lease.holder:
                state.holder, state.until = "", None

    def begin(self, fleet: str, memory: AvailabilityMemory) -> None:
        """Let a fleet's availability controller begin with a memory."""
        self._of(fleet, Controller.AVAILABILITY).memory = memory

    def record(self, record: DecisionRecord) -> None:
        with self._faults.call("record"):
            self.records.append(record)

    def _of(self, fleet: str, controller: Controller) -> _State:
        fresh = AvailabilityMemory() if controller is Controller.AVAILABILITY else HealthMemory()
        return self._states.setdefault((fleet, controller), _State(fresh))


def digest(logs: Sequence[SearchLog], sent_at: datetime, default_fleet: str) -> list[LoadDigest]:
    """Sum up a message's logs, one digest for each fleet that they name; raises NotDigestible."""
    return [build_digest(batch) for batch in fleet_batches(logs, sent_at, default_fleet)]


class FakeLoadTable:
    """Load digests in memory, by fleet and key."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], LoadDigest] = {}

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        self.items |= {(digest.fleet, digest.key): digest for digest in digests}
        return ()

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        first = sent_iso(slot_begins(slot_of(since)))
        keys = sorted(key for name, key in self.items if name == fleet and key >= first)
        return tuple(self.items[fleet, key] for key in keys)


class FakeLoadHistories:
    def __init__(self) -> None:
        self.items: dict[str, LoadHistory] = {}

    def read(self, fleet: str) -> LoadHistory:
        return self.items.get(fleet, LoadHistory())

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        self.items[fleet] = history


class FakeRequestQueues:
    """Request queues by URL; a test sets their lengths."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.lengths: dict[str, QueueLength] = {}
        self._faults = faults or Faults()

    def length(self, url: str) -> QueueLength:
        with self._faults.call("length"):
            if url not in self.lengths:
                raise Gone(f"reading the queue {url}: it does not exist")
            return self.lengths[url]


class FakeRegions:
    """The port of regions in memory; regions that share `tables` are those of one fleet.

    `cut` are the regions whose table nobody reaches from another one.
    """

    def __init__(self, here: str, tables: dict[tuple[str, str], Any], cut: set[str]) -> None:
        self.here, self.tables, self.cut = here, tables, cut

    def of(self, fleet: Fleet, region: str) -> tuple[Share | None, Report | None]:
        self._reach(region)
        return self.tables.get((region, "share")), self.tables.get((region, "report"))

    def write(self, fleet: Fleet, region: str, said: Share | Report, seen: int = 0) -> bool:
        self._reach(region)
        sk = "share" if isinstance(said, Share) else "report"
        before = self.tables.get((region, sk))
        if isinstance(before, Share) and before.term != seen:
            raise Conflict(f"another home has just written the share of {fleet.name} in {region}")
        self.tables[region, sk] = said
        return True

    def _reach(self, region: str) -> None:
        if region != self.here and not self.cut.isdisjoint({region, self.here}):
            raise Unavailable(f"the table of {region} does not answer")


class FakeWakeUps:
    """The wake-up port; `due_s` are the requested instants, in the cloud's time, as a heap."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.due_s: list[float] = []
        self._faults = faults or Faults()

    def at(self, fleet: str, at: datetime, now: datetime, woken: int) -> None:
        with self._faults.call("wake_up"):
            delay = timedelta(seconds=delay_s(at, now))
            heapq.heappush(self.due_s, seconds(now + delay))

    def take(self, at_s: float) -> int:
        taken = 0
        while self.due_s and self.due_s[0] <= at_s:
            heapq.heappop(self.due_s)
            taken += 1
        return taken


def fake_ports(
    cloud: Cloud,
    faults: Faults | None = None,
    *,
    states: FakeStates | None = None,
    wake_ups: FakeWakeUps | None = None,
) -> Ports:
    """Return every port of a turn, in memory, over a cloud."""
    groups = FakeGroups(cloud, faults)
    return Ports(
        groups=groups,
        writer=groups,
        states=states or FakeStates(faults),
        load=FakeLoadTable(),
        histories=FakeLoadHistories(),
        queues=FakeRequestQueues(faults),
        wake_ups=wake_ups or FakeWakeUps(faults),
        regions=FakeRegions("", {}, set()),
    )
