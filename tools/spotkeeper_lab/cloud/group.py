"""One simulated Auto Scaling group: its instances, its log of launches, its stopped spares.

Retries that must fail like the one before them cost nothing: a drought is one record, and the
failed activities that it stands for are written when somebody asks.
"""

import heapq
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import cycle

from spotkeeper_lab.cloud.values import (
    DIFFERENCE,
    FAILED,
    IN_PROGRESS,
    PENDING,
    SUCCESSFUL,
    TERMINATING,
    Activity,
    GroupSpec,
    GroupView,
    InstanceView,
    Physics,
    Purchase,
)

# An unanswered drought is written down for its last hour only.
WRITTEN_S = 3600.0
# AWS keeps activities for six weeks; nobody here reads further back than this many.
KEPT_ACTIVITIES = 20_000


@dataclass(slots=True, eq=False)
class Machine:
    """A running instance; `doomed_s` is when the market takes it, `group` is None once detached."""

    number: int
    pool: str
    purchase: Purchase
    launched_s: float
    group: "GroupState | None"
    state: str = PENDING
    in_service_s: float | None = None
    healthy: bool = True
    gone_s: float | None = None
    warned_s: float | None = None
    doomed_s: float | None = None
    ended_s: float | None = None
    lost: bool = False
    instance_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.instance_id = f"i-{self.number:017x}"

    def view(self) -> InstanceView:
        """What AWS shows of it."""
        return InstanceView(
            instance_id=self.instance_id,
            pool=self.pool,
            purchase=self.purchase,
            group=self.group.spec.name if self.group else "",
            state=self.state,
            healthy=self.healthy,
            launched_s=self.launched_s,
            in_service_s=self.in_service_s,
            warned_s=self.warned_s,
            gone_s=self.gone_s,
            ended_s=self.ended_s,
            lost=self.lost,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pool refuses to launch, with AWS's words."""

    pool: str
    message: str


@dataclass(slots=True)
class _Drought:
    """From `written_s` on, every retry fails with one of these refusals, in turn."""

    refusals: "cycle[Refusal]"
    written_s: float


@dataclass(slots=True)
class GroupState:
    """A group that changes; `touch` it whenever it does."""

    spec: GroupSpec
    physics: Physics
    desired: int = field(init=False)
    members: dict[str, Machine] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)
    blocked: list[tuple[float, float, str]] = field(default_factory=list)
    retry_s: float = math.inf
    _spares: list[float] = field(default_factory=list)
    _drought: _Drought | None = None
    _failures: list[Activity] = field(default_factory=list)
    _launches: list[Machine] = field(default_factory=list)
    _view: GroupView | None = None
    _numbered: int = 0

    def __post_init__(self) -> None:
        self.desired = self.spec.desired
        if self.spec.purchase is Purchase.ON_DEMAND and self.physics.warm_start_s is not None:
            self._spares = [0.0] * self.physics.warm_pool

    def touch(self) -> None:
        """Forget the picture of before."""
        self._view = None

    def view(self) -> GroupView:
        """The group as AWS shows it."""
        if self._view is None:
            self._view = GroupView(
                name=self.spec.name,
                purchase=self.spec.purchase,
                desired=self.desired,
                minimum=self.spec.minimum,
                maximum=self.spec.maximum,
                suspended=frozenset(self.suspended),
                instances=tuple(machine.view() for machine in self.members.values()),
            )
        return self._view

    def present(self) -> list[Machine]:
        """The instances that count towards desired."""
        return [m for m in self.members.values() if m.state != TERMINATING]

    def missing(self) -> int:
        """How many instances are to be launched; below 0 there are too many."""
        return self.desired - len(self.present())

    def surplus(self) -> list[Machine]:
        """The instances that a scale-in ends: those that are coming first, then the newest."""
        excess = max(0, -self.missing())
        ranked = sorted(self.present(), key=lambda m: (m.state != PENDING, -m.number))
        return ranked[:excess]

    def pools_by_use(self) -> list[str]:
        """The pools in the order of balance: the fewest of ours first."""
        used = dict.fromkeys(self.spec.pools, 0)
        for machine in self.members.values():
            used[machine.pool] += 1
        return sorted(used, key=used.__getitem__)

    def retry_from(self, from_s: float) -> float:
        """The first instant from `from_s` on at which the group tries again."""
        return math.ceil(from_s / self.physics.retry_s) * self.physics.retry_s

    def retry_after(self, after_s: float) -> float:
        """The first instant after `after_s` at which the group tries again."""
        return (math.floor(after_s / self.physics.retry_s) + 1) * self.physics.retry_s

    def start_s(self, now_s: float) -> float:
        """How long an instance launched now needs; takes a stopped spare where one is ready."""
        warm = self.physics.warm_start_s
        if warm is not None and self._spares and self._spares[0] <= now_s:
            heapq.heappop(self._spares)
            return warm
        return self.physics.cold_start_s

    def give_back(self, now_s: float) -> None:
        """Stop an ended on-demand instance and keep it as a spare (reuse on scale-in)."""
        warm = self.physics.warm_start_s
        if self.spec.purchase is Purchase.SPOT or warm is None:
            return
        if len(self._spares) < self.physics.warm_pool:
            heapq.heappush(self._spares, now_s + warm)

    def block_message(self, now_s: float) -> str:
        """The reason why every launch fails now, or nothing."""
        return next((text for start, end, text in self.blocked if start <= now_s < end), "")

    def block_end(self, now_s: float) -> float:
        """When the present block ends."""
        return max(end for start, end, _ in self.blocked if start <= now_s < end)

    def launched(self, machine: Machine) -> None:
        """Take a new instance in."""
        self.members[machine.instance_id] = machine
        self._launches.append(machine)
        self.touch()

    def failed(self, now_s: float, refusal: Refusal) -> Activity:
        """Write a failed launch down."""
        self._numbered += 1
        want = self.desired
        activity = Activity(
            activity_id=f"{self.spec.name}-failed-{self._numbered:08d}",
            group=self.spec.name,
            start_s=now_s,
            end_s=now_s,
            status_code=FAILED,
            message=refusal.message,
            cause=DIFFERENCE.format(have=len(self.members), want=want),
            description=f"Launching a new EC2 instance.  Status Reason: {refusal.message}",
            instance_id="",
            pool=refusal.pool,
        )
        self._failures.append(activity)
        if len(self._failures) > KEPT_ACTIVITIES:
            del self._failures[: KEPT_ACTIVITIES // 2]
        return activity

    def begin_drought(self, now_s: float, refusals: list[Refusal]) -> None:
        """From now on every retry fails."""
        self._drought = _Drought(cycle(refusals), now_s)

    def end_drought(self, now_s: float) -> None:
        """Write the retries before now down; what follows is tried anew."""
        self._write_retries(now_s, inclusive=False)
        self._drought = None

    def _write_retries(self, until_s: float, *, inclusive: bool) -> None:
        drought = self._drought
        if drought is None:
            return
        start_s = max(drought.written_s, until_s - WRITTEN_S)
        at_s = self.retry_from(start_s)
        while at_s < until_s or (inclusive and at_s == until_s):
            if at_s > drought.written_s:
                self.failed(at_s, next(drought.refusals))
            at_s += self.physics.retry_s
        drought.written_s = until_s

    def failures(self, since_s: float, now_s: float) -> list[Activity]:
        """The failed launches since an instant, newest first."""
        self._write_retries(now_s, inclusive=True)
        first = bisect_left(self._failures, since_s, key=lambda activity: activity.start_s)
        return self._failures[first:][::-1]

    def successes(self, since_s: float) -> list[Activity]:
        """The launches since an instant that did not fail, newest first."""
        first = bisect_left(self._launches, since_s, key=lambda machine: machine.launched_s)
        return [self.activity_of(machine) for machine in reversed(self._launches[first:])]

    def activity_of(self, machine: Machine) -> Activity:
        """The launch of one instance."""
        done = machine.in_service_s is not None
        return Activity(
            activity_id=f"{self.spec.name}-launch-{machine.number:08d}",
            group=self.spec.name,
            start_s=machine.launched_s,
            end_s=machine.in_service_s,
            status_code=SUCCESSFUL if done else IN_PROGRESS,
            message="",
            cause="an instance was started in response to a difference between desired and "
            "actual capacity.",
            description=f"Launching a new EC2 instance: {machine.instance_id}",
            instance_id=machine.instance_id,
            pool=machine.pool,
        )
