"""The ports over the simulated cloud, without boto3's wire; and what a fake does wrong on order.

A fake can refuse, or crash at its n-th call; calls are counted over all fakes that share one
`Faults`, from 1, in the order in which they were made.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from spotkeeper.adapters.dynamodb.fleet_state import LEASE_LIFETIME
from spotkeeper.adapters.ec2.auto_scaling import GROUP_TAG, MARKS, NONCE_TAG
from spotkeeper.adapters.errors import (
    SPOT_MARKED_STATUSES,
    SPOT_TAKEN_STATUSES,
    aws_errors,
    by_a_user,
    classify,
    classify_spot_status,
)
from spotkeeper.adapters.wake_ups import delay_s
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import LoadDigest, slot_begins, slot_of
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import (
    LONGEST_LAUNCH,
    OWNER_TAG,
    AtRiskNote,
    FleetError,
    Gone,
    Lease,
    Mark,
    Ports,
    SpotRequest,
    Unavailable,
)
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CANCELLED,
    IN_SERVICE,
    PENDING,
    PENDING_WAIT,
    Activity,
    CloudError,
    GroupView,
    InstanceView,
    Purchase,
    SpotRequestView,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that the cloud calls 0."""


def instant(seconds: float) -> datetime:
    """The instant of a cloud's time."""
    return EPOCH + timedelta(seconds=seconds)


def seconds(at: datetime) -> float:
    """The cloud's time of an instant."""
    return (at - EPOCH).total_seconds()


class Crash(BaseException):
    """The function died here, as at a time-out; nothing catches it."""


@dataclass(slots=True)
class Faults:
    """What the fakes that share it do wrong, and the calls that were made.

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


@contextmanager
def as_aws(operation: str) -> Iterator[None]:
    """Let the cloud's refusals pass through the translation that AWS's pass through."""
    try:
        yield
    except CloudError as refusal:
        with aws_errors(operation):
            raise ClientError(
                {"Error": {"Code": refusal.code, "Message": refusal.message}}, operation
            ) from refusal


_PHASES = {PENDING: Phase.LAUNCHING, PENDING_WAIT: Phase.LAUNCHING, IN_SERVICE: Phase.IN_SERVICE}


def group_from(view: GroupView) -> Group:
    return Group(
        name=view.name,
        desired=view.desired,
        minimum=view.minimum,
        maximum=view.maximum,
        instances=tuple(_instance(instance) for instance in view.instances),
        suspended=frozenset(view.suspensions),
        owner=view.tags.get(OWNER_TAG, ""),
        suspended_by_aws=frozenset(p for p, why in view.suspensions.items() if not by_a_user(why)),
    )


def _instance(view: InstanceView) -> Instance:
    return Instance(
        instance_id=view.instance_id,
        pool=view.pool,
        phase=_PHASES.get(view.state, Phase.LEAVING),
        healthy=view.healthy,
    )


def ended_s(activity: Activity) -> float:
    return max(activity.start_s, activity.end_s or activity.start_s)


def has_failed(activity: Activity) -> bool:
    """Whether a launch failed; a cancelled one did if its message is known to say so."""
    return activity.status_code != CANCELLED or classify(activity.message)[1]


def failure_from(activity: Activity) -> LaunchFailure:
    failure_class, known = classify(activity.message)
    return LaunchFailure(
        at=instant(ended_s(activity)),
        failure_class=failure_class,
        message=activity.message,
        pool=activity.zone,
        known=known,
    )


def spot_request_from(view: SpotRequestView) -> SpotRequest:
    at, status = instant(view.updated_s), view.status_code
    failure_class = classify_spot_status(status)
    message = f"spot request {view.request_id}: {status}"
    return SpotRequest(
        request_id=view.request_id,
        instance_id=view.instance_id,
        failure=LaunchFailure(at=at, failure_class=failure_class, message=message)
        if failure_class
        else None,
        at_risk_since=at if status in SPOT_MARKED_STATUSES else None,
        taken=status in SPOT_TAKEN_STATUSES,
    )


_KEPT_FAILURES = 10_000


class FakeGroups:
    """The reader and both writers over a cloud."""

    def __init__(self, cloud: Cloud, faults: Faults | None = None) -> None:
        self._cloud = cloud
        self._faults = faults or Faults()
        self._pictures: dict[str, tuple[GroupView, Group]] = {}
        self._failures: dict[str, LaunchFailure] = {}

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        with self._faults.call("describe"):
            existing = self._cloud.groups()
            return {name: self._group(name) for name in names if name in existing}

    def _group(self, name: str) -> Group:
        view = self._cloud.group(name)
        known = self._pictures.get(name)
        if known is None or known[0] is not view:
            known = self._pictures[name] = (view, group_from(view))
        return known[1]

    def failures(
        self, group: str, since: datetime, longest: timedelta = LONGEST_LAUNCH
    ) -> tuple[LaunchFailure, ...]:
        with self._faults.call("failures"), as_aws("reading scaling activities"):
            since_s = seconds(since)
            found = self._cloud.failures(
                group, since_s - max(longest, LONGEST_LAUNCH).total_seconds()
            )
            ended = (activity for activity in found if ended_s(activity) >= since_s)
            failures = (self._failure(a) for a in ended if has_failed(a))
            return tuple(failures)

    def let_go(self, group: str, since: datetime) -> frozenset[str]:
        del group, since
        with self._faults.call("let_go"):
            return frozenset()

    def _failure(self, activity: Activity) -> LaunchFailure:
        key = activity.activity_id
        if key not in self._failures:
            if len(self._failures) > _KEPT_FAILURES:
                self._failures.clear()
            self._failures[key] = failure_from(activity)
        return self._failures[key]

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        with self._faults.call("groups_of"):
            wanted = set(instance_ids)
            views = [self._cloud.group(name) for name in self._cloud.groups()]
            return {
                i.instance_id: view.name
                for view in views
                for i in view.instances
                if i.instance_id in wanted
            }

    def troubled_spot_requests(
        self, instance_ids: Sequence[str], since: datetime
    ) -> tuple[SpotRequest, ...]:
        with self._faults.call("troubled_spot_requests"):
            wanted = set(instance_ids)
            found = self._cloud.spot_requests(seconds(since))
            return tuple(spot_request_from(r) for r in found if r.instance_id in wanted)

    def running(self, instance_ids: Sequence[str]) -> frozenset[str]:
        with self._faults.call("running"):
            running = (i.instance_id for i in self._cloud.instances() if i.ended_s is None)
            return frozenset(running).intersection(instance_ids)

    def marked(self, groups: Sequence[str]) -> tuple[Mark, ...]:
        with self._faults.call("marked"):
            left = {i for group in groups for _, i in self._cloud.detached(group)}
            return tuple(
                Mark(
                    instance_id=one.instance_id,
                    gone_at=instant(one.gone_s),
                    detached=one.instance_id in left and one.purchase is Purchase.SPOT,
                )
                for one in self._cloud.instances()
                if one.ended_s is None and one.gone_s is not None
                if one.tags.get(GROUP_TAG) in groups
            )

    def set_desired(self, group: str, desired: int) -> None:
        with self._faults.call("set_desired"), as_aws("setting the desired capacity"):
            self._cloud.set_desired(group, desired)

    def end(self, instance_id: str) -> None:
        with self._faults.call("end"), as_aws(f"ending {instance_id}"):
            self._cloud.end(instance_id)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        with self._faults.call("detach"), as_aws("detaching"):
            self._cloud.detach(group, instance_ids)

    def suspend_az_rebalance(self, group: str) -> None:
        with self._faults.call("suspend_az_rebalance"), as_aws("suspending AZRebalance"):
            self._cloud.suspend(group, "AZRebalance")

    def claim(self, group: str) -> None:
        with self._faults.call("claim"), as_aws("claiming"):
            self._cloud.tag_group(group, OWNER_TAG, "fake")

    def resume_launch(self, group: str) -> None:
        with self._faults.call("resume_launch"), as_aws("resuming Launch"):
            self._cloud.resume(group, "Launch")

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        with self._faults.call("drain"), as_aws("draining"):
            self._cloud.drain(instance_ids, seconds(gone_at))
            self._cloud.tag(instance_ids, {GROUP_TAG: group, NONCE_TAG: "fake"})

    def unmark(self, instance_ids: Sequence[str]) -> None:
        with self._faults.call("unmark"), as_aws("untagging"):
            self._cloud.undrain(instance_ids)
            self._cloud.untag(instance_ids, MARKS)

    def terminate(self, instance_ids: Sequence[str]) -> None:
        with self._faults.call("terminate"):
            for instance_id in instance_ids:
                try:
                    with as_aws(f"terminating {instance_id}"):
                        self._cloud.terminate([instance_id])
                except Gone:
                    continue

    def replace(self, instance_id: str) -> None:
        with self._faults.call("replace"), as_aws("marking unhealthy"):
            self._cloud.set_unhealthy(instance_id)


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
        with self._faults.call("release"):
            state = self._of(lease.fleet, lease.controller)
            if state.holder == lease.holder:
                state.holder, state.until = "", None

    def record(self, record: DecisionRecord) -> None:
        with self._faults.call("record"):
            self.records.append(record)

    def _of(self, fleet: str, controller: Controller) -> _State:
        fresh = AvailabilityMemory() if controller is Controller.AVAILABILITY else HealthMemory()
        return self._states.setdefault((fleet, controller), _State(fresh))


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
        del now
        self.items[fleet] = history


class FakeRequestQueues:
    """Request queues by URL; a test sets their lengths."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.lengths: dict[str, QueueLength] = {}
        self._faults = faults or Faults()

    def length(self, url: str) -> QueueLength:
        with self._faults.call("length"):
            if url not in self.lengths:
                raise Gone(f"reading the request queue {url}: it does not exist")
            return self.lengths[url]


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
        instances=groups,
        states=states or FakeStates(faults),
        load=FakeLoadTable(),
        histories=FakeLoadHistories(),
        queues=FakeRequestQueues(faults),
        wake_ups=wake_ups or FakeWakeUps(faults),
    )
