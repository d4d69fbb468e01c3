"""Fake ports over a simulated cloud: what the adapters promise, without AWS and at full speed.

A fake can be told to refuse or to crash at its n-th call; calls are counted over all fakes that
share one `Faults`, from 1, in the order in which they were made.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import (
    SPOT_AT_RISK_STATUSES,
    classify,
    classify_spot_status,
    translated,
)
from spotkeeper.adapters.fleet_state import LEASE_LIFETIME
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import DecisionRecord, Half
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.slots import slot_begins, slot_of
from spotkeeper.ports import AtRiskNote, FleetError, Lease, SpotRequest, Unavailable
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    PENDING,
    Activity,
    CloudError,
    GroupView,
    InstanceView,
    SpotRequestView,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that the cloud calls 0."""
_KEPT_FAILURES = 10_000
_PHASES = {PENDING: Phase.COMING, IN_SERVICE: Phase.IN_SERVICE}


def instant(seconds: float) -> datetime:
    """The instant of a cloud's time."""
    return EPOCH + timedelta(seconds=seconds)


def seconds(at: datetime) -> float:
    """The cloud's time of an instant."""
    return (at - EPOCH).total_seconds()


class Crash(Exception):
    """The function died here, as at a time-out; nobody catches it."""


@dataclass(slots=True)
class Faults:
    """What the fakes that share it do wrong, and the calls that were made.

    `refusals` are the errors of every call of a name. Once call `crash_after` is done, the function
    is dead. `meanwhile` maps a call to what happens elsewhere right after it.
    """

    calls: list[str] = field(default_factory=list)
    refusals: dict[str, FleetError] = field(default_factory=dict)
    crash_after: int | None = None
    meanwhile: dict[int, Callable[[], object]] = field(default_factory=dict)

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Make one call."""
        self.calls.append(name)
        number = len(self.calls)
        if self.refusals and name in self.refusals:
            raise self.refusals[name]
        yield
        if number in self.meanwhile:
            self.meanwhile.pop(number)()
        if number == self.crash_after:
            raise Crash(f"after call {number}, {name}")


@contextmanager
def _as_aws(doing: str) -> Iterator[None]:
    """Let the cloud's refusals pass through the translation that AWS's pass through."""
    try:
        yield
    except CloudError as refusal:
        with translated(doing):
            raise ClientError(
                {"Error": {"Code": refusal.code, "Message": refusal.message}}, doing
            ) from refusal


class FakeGroups:
    """The reader and both writers over a cloud."""

    def __init__(self, cloud: Cloud, faults: Faults | None = None) -> None:
        self._cloud = cloud
        self._faults = faults or Faults()
        self._pictures: dict[str, tuple[GroupView, Group]] = {}
        self._failures: dict[str, LaunchFailure] = {}

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        """Describe the groups that exist."""
        with self._faults.call("describe"):
            existing = self._cloud.groups()
            return {name: self._group(name) for name in names if name in existing}

    def _group(self, name: str) -> Group:
        view = self._cloud.group(name)
        known = self._pictures.get(name)
        if known is None or known[0] is not view:
            known = self._pictures[name] = (view, _group(view))
        return known[1]

    def failures(self, group: str, since: datetime) -> tuple[LaunchFailure, ...]:
        """List failed launches since an instant, newest first."""
        with self._faults.call("failures"), _as_aws("reading scaling activities"):
            found = self._cloud.failures(group, seconds(since))
            return tuple(self._failure(activity) for activity in found)

    def _failure(self, activity: Activity) -> LaunchFailure:
        key = activity.activity_id
        if key not in self._failures:
            if len(self._failures) > _KEPT_FAILURES:
                self._failures.clear()
            self._failures[key] = _failure(activity)
        return self._failures[key]

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Name the group of each instance that is in one."""
        with self._faults.call("groups_of"):
            wanted = set(instance_ids)
            views = [self._cloud.group(name) for name in self._cloud.groups()]
            return {
                i.instance_id: view.name
                for view in views
                for i in view.instances
                if i.instance_id in wanted
            }

    def troubled_spot_requests(self, since: datetime) -> tuple[SpotRequest, ...]:
        """List the spot requests that lose their instance."""
        with self._faults.call("troubled_spot_requests"):
            found = self._cloud.spot_requests(seconds(since))
            return tuple(_spot_request(request) for request in found)

    def set_desired(self, group: str, desired: int) -> None:
        """Ask a group for a capacity."""
        with self._faults.call("set_desired"), _as_aws("setting the desired capacity"):
            self._cloud.set_desired(group, desired)

    def end(self, instance_id: str) -> None:
        """End an instance and lower its group's desired capacity by one."""
        with self._faults.call("end"), _as_aws(f"ending {instance_id}"):
            self._cloud.end(instance_id)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out of their group, which replaces them at once."""
        with self._faults.call("detach"), _as_aws("detaching"):
            self._cloud.detach(group, instance_ids)

    def suspend_az_rebalance(self, group: str) -> None:
        """Stop a group from ending instances only to even out its zones."""
        with self._faults.call("suspend_az_rebalance"), _as_aws("suspending AZRebalance"):
            self._cloud.suspend(group, "AZRebalance")

    def drain(self, instance_ids: Sequence[str], gone_at: datetime) -> None:
        """Tell instances when they will be gone."""
        with self._faults.call("drain"), _as_aws("draining"):
            self._cloud.drain(instance_ids, seconds(gone_at))

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End drained instances that are in no group any more."""
        with self._faults.call("terminate"):
            for instance_id in instance_ids:
                try:
                    self._cloud.terminate([instance_id])
                except CloudError:
                    continue

    def replace(self, instance_id: str) -> None:
        """Have the group of an instance replace it."""
        with self._faults.call("replace"), _as_aws("marking unhealthy"):
            self._cloud.set_unhealthy(instance_id)


def _group(view: GroupView) -> Group:
    return Group(
        name=view.name,
        desired=view.desired,
        minimum=view.minimum,
        maximum=view.maximum,
        instances=tuple(_instance(instance) for instance in view.instances),
        suspended=view.suspended,
    )


def _instance(view: InstanceView) -> Instance:
    return Instance(
        instance_id=view.instance_id,
        pool=view.pool,
        phase=_PHASES.get(view.state, Phase.LEAVING),
        healthy=view.healthy,
    )


def _failure(activity: Activity) -> LaunchFailure:
    failure_class, known = classify(activity.message)
    return LaunchFailure(
        at=instant(activity.start_s),
        failure_class=failure_class,
        message=activity.message,
        pool=activity.zone,
        known=known,
    )


def _spot_request(view: SpotRequestView) -> SpotRequest:
    at, status = instant(view.updated_s), view.status_code
    failure_class = classify_spot_status(status)
    message = f"spot request {view.request_id}: {status}"
    return SpotRequest(
        request_id=view.request_id,
        instance_id=view.instance_id,
        failure=LaunchFailure(at=at, failure_class=failure_class, message=message)
        if failure_class
        else None,
        at_risk_since=at if status in SPOT_AT_RISK_STATUSES else None,
    )


@dataclass(slots=True)
class _State:
    """One half of a fleet as the table holds it."""

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
        self._states: dict[tuple[str, Half], _State] = {}
        self._holders = 0

    def take(self, fleet: str, half: Half, now: datetime, note: AtRiskNote | None) -> Lease | None:
        """Take the lease; a busy one leaves the note and gives None."""
        with self._faults.call("take"):
            state = self._of(fleet, half)
            if state.until is not None and state.until >= now:
                state.notes += (note or AtRiskNote(instance_ids=(), at=now),)
                return None
            self._holders += 1
            state.holder, state.until = f"turn-{self._holders}", now + LEASE_LIFETIME
            state.notes += (note,) if note else ()
            return self._lease(fleet, half, state)

    def _lease(self, fleet: str, half: Half, state: _State) -> Lease:
        availability = self._of(fleet, Half.AVAILABILITY).memory
        health = self._of(fleet, Half.HEALTH).memory
        assert isinstance(availability, AvailabilityMemory)
        assert isinstance(health, HealthMemory)
        return Lease(
            fleet=fleet,
            half=half,
            holder=state.holder,
            availability=availability,
            health=health,
            notes=state.notes,
            notes_seen=len(state.notes),
            written_at=state.written_at,
        )

    def keep(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        """Write the memory, and give the lease back; False when notes came in meanwhile."""
        with self._faults.call("keep"):
            state = self._of(lease.fleet, lease.half)
            if state.holder != lease.holder:
                raise Unavailable("the lease was lost to another turn")
            state.memory, state.written_at = memory, now
            if release:
                state.holder, state.until = "", None
                state.notes = state.notes[lease.notes_seen :]
            return not (release and state.notes)

    def give_back(self, lease: Lease) -> None:
        """Give the lease back; the notes stay."""
        with self._faults.call("give_back"):
            state = self._of(lease.fleet, lease.half)
            if state.holder == lease.holder:
                state.holder, state.until = "", None

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision record."""
        with self._faults.call("record"):
            self.records.append(record)

    def _of(self, fleet: str, half: Half) -> _State:
        fresh = AvailabilityMemory() if half is Half.AVAILABILITY else HealthMemory()
        return self._states.setdefault((fleet, half), _State(fresh))


class FakeLoadTable:
    """Load digests in memory, by fleet and key."""

    def __init__(self) -> None:
        """Begin empty."""
        self.items: dict[tuple[str, str], LoadDigest] = {}

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests; all of them always can be."""
        self.items |= {(digest.fleet, digest.key): digest for digest in digests}
        return ()

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests from the slot of an instant on, oldest first."""
        first = sent_iso(slot_begins(slot_of(since)))
        keys = sorted(key for name, key in self.items if name == fleet and key >= first)
        return tuple(self.items[fleet, key] for key in keys)
