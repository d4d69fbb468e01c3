"""One simulated Auto Scaling group: its instances, its log of launches, its stopped spares.

Retries that must fail like the one before them cost nothing: a drought is one record, and the
failed activities that it stands for are written when somebody asks.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from itertools import cycle
from operator import attrgetter

from spotkeeper_lab.cloud.values import (
    CANCELLED,
    DIFFERENCE,
    FAILED,
    IN_PROGRESS,
    IN_SERVICE,
    LAUNCHING,
    PENDING,
    SHRUNK,
    STANDBY,
    SUCCESSFUL,
    TERMINATE,
    TERMINATING,
    WARMED,
    Activity,
    GroupSpec,
    GroupView,
    InstanceView,
    LifecycleHook,
    Physics,
    Purchase,
    Transition,
    WarmPool,
)


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    """A running instance; `doomed_s` is when the market takes it, `group` is None once detached.

    One that ended may still be in its group: the health check has not found it yet.
    `cancelled` is why its launch was, in AWS's words; they may be none. `waits` has the hooks that
    hold it, each with when its time is over; they do so since `held_s`. `cause` is why it leaves.
    """

    number: int
    pool: str
    purchase: Purchase
    launched_s: float
    group: "GroupState | None"
    state: str = PENDING
    in_service_s: float | None = None
    serves_s: float | None = None
    healthy: bool = True
    gone_s: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    warned_s: float | None = None
    status_s: float | None = None
    doomed_s: float | None = None
    ended_s: float | None = None
    lost: bool = False
    cancelled: str | None = None
    waits: dict[str, float] = field(default_factory=dict)
    held_s: float = 0.0
    template: str = ""
    cause: str = SHRUNK
    launch: Activity | None = None
    """Its launch, once it does not change any more."""
    instance_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.instance_id = f"i-{self.number:017x}"

    @property
    def token(self) -> str:
        return f"{self.number:08x}-0000-4000-8000-000000000000"

    @property
    def warm(self) -> bool:
        return self.state.startswith(WARMED)

    @property
    def zone(self) -> str:
        return self.pool.partition("/")[0]

    @property
    def age(self) -> int:
        """The version of its launch template: a scale-in ends the oldest first."""
        return int(self.template) if self.template.isdigit() else 0

    def view(self) -> InstanceView:
        return InstanceView(*_SHOWN(self))

    @property
    def group_name(self) -> str:
        return self.group.spec.name if self.group else ""


_SHOWN = attrgetter(
    *("group_name" if each.name == "group" else each.name for each in fields(InstanceView))
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pool refuses to launch, with AWS's words."""

    pool: str
    message: str


# An unanswered drought is written down for its last hour only.
WRITTEN_S = 3600.0
# AWS keeps activities for six weeks; nothing here reads further back than this many.
KEPT_ACTIVITIES = 20_000


@dataclass(slots=True)
class _Drought:
    """From `written_s` on, every retry fails with one of these refusals, in turn."""

    refusals: "cycle[Refusal]"
    written_s: float


@dataclass(slots=True)
class GroupState:
    """A group that changes; `touch` it whenever it does.

    An instance refresh may have it launch `extra` instances beyond its desired capacity. What it
    replaces once a successor serves is `waiting`, with why. A zonal shift keeps launches `away`
    from a zone.
    """

    spec: GroupSpec
    physics: Physics
    desired: int = field(init=False)
    members: dict[str, SimulatedMachine] = field(default_factory=dict)
    suspensions: dict[str, str] = field(default_factory=dict)
    blocked: list[tuple[float, float, str]] = field(default_factory=list)
    bad_images: list[tuple[float, float]] = field(default_factory=list)
    retry_s: float = math.inf
    failing_since_s: float | None = None
    retried: int = 0
    hooks: dict[str, LifecycleHook] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pool: WarmPool | None = None
    warm: dict[str, SimulatedMachine] = field(default_factory=dict)
    template: str = field(init=False)
    bad_templates: set[str] = field(default_factory=set)
    extra: int = 0
    waiting: dict[str, str] = field(default_factory=dict)
    away: str = ""
    _chances: random.Random = field(init=False)
    _spares: list[float] = field(default_factory=list)
    _drought: _Drought | None = None
    _failures: list[Activity] = field(default_factory=list)
    _launches: list[SimulatedMachine] = field(default_factory=list)
    _ends: list[Activity] = field(default_factory=list)
    _view: GroupView | None = None
    _numbered: int = 0

    def __post_init__(self) -> None:
        self.desired, self.template = self.spec.desired, self.spec.template
        self.hooks = {hook.name: hook for hook in self.spec.hooks}
        self._chances = random.Random(f"{self.spec.name}/scale-in")
        if self.spec.purchase is Purchase.ON_DEMAND and self.physics.warm_start_s is not None:
            self._spares = [0.0] * self.physics.warm_pool

    def touch(self) -> None:
        """Forget the picture of before."""
        self._view = None

    def view(self) -> GroupView:
        if self._view is None:
            self._view = GroupView(
                name=self.spec.name,
                purchase=self.spec.purchase,
                desired=self.desired,
                minimum=self.spec.minimum,
                maximum=self.spec.maximum,
                suspensions=dict(self.suspensions),
                instances=tuple(machine.view() for machine in self.members.values()),
                grace_s=self.spec.grace_s,
                tags=dict(self.tags),
                pools=self.spec.pools,
                template=self.template,
                own_templates=self.spec.own_templates,
            )
        return self._view

    def present(self) -> list[SimulatedMachine]:
        """The instances that count towards desired, with those that wait for a successor."""
        return [m for m in self.members.values() if m.state not in (TERMINATING, STANDBY)]

    def holding(self, transition: Transition) -> list[LifecycleHook]:
        return [hook for hook in self.hooks.values() if hook.transition is transition]

    def missing(self) -> int:
        """How many instances are to be launched; below 0 there are too many."""
        return self.desired + self.extra + len(self.waiting) - len(self.present())

    def replaced(self) -> list[tuple[SimulatedMachine, str]]:
        """Take those off the list of waiting that the group does without now, with why."""
        serving = [
            machine
            for machine in self.present()
            if machine.state == IN_SERVICE and machine.instance_id not in self.waiting
        ]
        spare = max(0, len(serving) - self.desired + len(self.waiting))
        return [
            (self.members[instance_id], self.waiting.pop(instance_id))
            for instance_id in [*self.waiting][: min(spare, len(self.waiting))]
        ]

    @property
    def pool_size(self) -> int:
        """How many instances its warm pool should have."""
        return self.pool.size(self.desired, self.spec.maximum) if self.pool else 0

    def surplus(self) -> list[SimulatedMachine]:
        """The instances that a scale-in ends: those that are launching first, then the newest.

        None while Terminate is suspended. Those of the oldest template version go before others.

        AWS's own choice (`aws_scale_in`): one after the other, in the zone that has the most, any.
        """
        excess = max(0, -self.missing())
        if not excess or TERMINATE in self.suspensions:
            return []
        left = [one for one in self.present() if one.instance_id not in self.waiting]
        if not self.physics.aws_scale_in:
            left.sort(key=lambda m: (m.age, m.state not in LAUNCHING, -m.number))
            return left[:excess]
        chosen: list[SimulatedMachine] = []
        for _ in range(excess):
            held = Counter(machine.zone for machine in left)
            most = max(held.values())
            fullest = [m for m in left if held[m.zone] == most]
            oldest = min(m.age for m in fullest)
            chosen.append(self._chances.choice([m for m in fullest if m.age == oldest]))
            left.remove(chosen[-1])
        return chosen

    def pools_by_use(self) -> list[str]:
        """The pools in the order of balance: the fewest of ours first."""
        pools = [pool for pool in self.spec.pools if pool.partition("/")[0] != self.away]
        used = dict.fromkeys(pools or self.spec.pools, 0)
        for machine in self.members.values():
            if machine.pool in used:
                used[machine.pool] += 1
        return sorted(used, key=used.__getitem__)

    def retry_from(self, from_s: float) -> float:
        """The first instant from `from_s` on at which the group tries again."""
        return math.ceil(from_s / self.physics.retry_s) * self.physics.retry_s

    def backed_off_s(self) -> float:
        """How long the next retry of a failed launch waits: twice as long as the one before."""
        longest_s = self.physics.retry_longest_s or self.physics.retry_s
        self.retried += 1
        return min(longest_s, self.physics.retry_s * 2.0 ** min(self.retried - 1, 10))

    def starts_badly(self, now_s: float, template: str = "") -> bool:
        """Whether an instance launched now never serves."""
        bad = any(start <= now_s < end for start, end in self.bad_images)
        return bad or template in self.bad_templates

    def start_s(self, now_s: float) -> float:
        """How long an instance launched now needs; takes a stopped spare where one is ready."""
        warm, cold = self.physics.warm_start_s, self.physics.cold_start_s
        if self.physics.begins_warm and now_s <= 0.0:
            return 0.0
        if warm is not None and self._spares and self._spares[0] <= now_s:
            heapq.heappop(self._spares)
            return warm
        return cold

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

    def launched(self, machine: SimulatedMachine) -> None:
        """Take a new instance in."""
        self.retried, self.failing_since_s = 0, None
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
        """The failed and the cancelled launches since an instant, newest first."""
        self._write_retries(now_s, inclusive=True)
        first = bisect_left(self._failures, since_s, key=lambda activity: activity.start_s)
        cancelled = [one for one in self.launches(since_s) if one.status_code == CANCELLED]
        failures = [*self._failures[first:], *cancelled]
        return sorted(failures, key=lambda activity: activity.start_s)[::-1]

    def left(self, machine: SimulatedMachine, now_s: float, why: str, verb: str) -> None:
        """Let an instance go, and write down why; the activity of a given up launch tells that."""
        if machine.cancelled is None:
            self._ends.append(self.end_of(machine, now_s, why, verb))
        del self.members[machine.instance_id]
        self.waiting.pop(machine.instance_id, None)

    def end_of(self, machine: SimulatedMachine, now_s: float, why: str, verb: str) -> Activity:
        """The activity that takes an instance out of the group as it is."""
        have = len(self.members)
        return Activity(
            activity_id=f"{verb}-{machine.instance_id}",
            group=self.spec.name,
            start_s=now_s,
            end_s=now_s,
            status_code=SUCCESSFUL,
            cause=why.format(have=have, left=have - 1, instance=machine.instance_id),
            description=f"{verb} EC2 instance: {machine.instance_id}",
            instance_id=machine.instance_id,
            pool=machine.pool,
        )

    def ends(self, since_s: float) -> list[Activity]:
        """The instances that left since an instant."""
        return self._ends[bisect_left(self._ends, since_s, key=lambda one: one.start_s) :]

    def launches(self, since_s: float) -> list[Activity]:
        """The launches since an instant, done or given up."""
        first = bisect_left(self._launches, since_s, key=lambda machine: machine.launched_s)
        return [self.activity_of(machine) for machine in self._launches[first:]]

    def activity_of(self, machine: SimulatedMachine) -> Activity:
        gone = machine.cancelled is not None
        if machine.launch and (machine.launch.status_code == CANCELLED) is gone:
            return machine.launch
        done = machine.in_service_s is not None
        status = SUCCESSFUL if done else CANCELLED if gone else IN_PROGRESS
        reason = f".  Status Reason: {machine.cancelled}" if machine.cancelled else ""
        shown = Activity(
            activity_id=f"{self.spec.name}-launch-{machine.number:08d}",
            group=self.spec.name,
            start_s=machine.launched_s,
            end_s=machine.ended_s if gone else machine.in_service_s,
            status_code=status,
            message=machine.cancelled or "",
            cause="an instance was started in response to a difference between desired and "
            "actual capacity.",
            description=f"Launching a new EC2 instance: {machine.instance_id}{reason}",
            instance_id=machine.instance_id,
            pool=machine.pool,
        )
        if done or (gone and machine.ended_s is not None):
            machine.launch = shown
        return shown
