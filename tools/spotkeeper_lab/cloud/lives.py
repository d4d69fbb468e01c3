"""Time, the life of instances, and the market in the simulated cloud.

What is due when, and the events that tell of it; launches, starts, ends, and what groups retry;
what the market takes back, and which instances it warns. A drop is known to AWS before it happens:
the notice is how long. From then on a pool gives out no more than what it will hold after the drop.
"""

import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotkeeper_lab.cloud.group import GroupState, Refusal, SimulatedMachine
from spotkeeper_lab.cloud.values import (
    ADMINISTRATIVE,
    DIED_STARTING,
    FOUND_GONE,
    HEALTH_CHECK,
    HOOK_ABANDONED,
    IN_SERVICE,
    LAUNCH,
    LAUNCHING,
    ON_DEMAND_DRY,
    PENDING_WAIT,
    REPLACE_UNHEALTHY,
    SHRUNK,
    SPOT_DRY,
    SPOT_FULL,
    TERMINATED,
    TERMINATING,
    USER_HEALTH_CHECK,
    Activity,
    CloudEvent,
    EventKind,
    GroupSpec,
    Physics,
    Purchase,
)
from spotkeeper_lab.traces.market import Market, Steps

LOSS, START, END, RETRY = range(4)

type _Task = tuple[float, int, int, Callable[[], None]]


class CloudEngine:
    """Tasks in the order of their time and rank; `now_s` is as far as the cloud was advanced."""

    def __init__(self, physics: Physics, seed: int) -> None:
        self.now_s = 0.0
        self.physics = physics
        self._seed = seed
        self._delays = random.Random(f"{seed}/delays")
        self._tasks: list[_Task] = []
        self._tasked = 0
        self._events: list[CloudEvent] = []
        self._deliveries: list[float] = []

    def advance(self, to_s: float) -> list[CloudEvent]:
        """Let time pass; answers what happened since the last call, in time order."""
        while (next_s := self._next_happening()) <= to_s:
            self.now_s = next_s
            self._happen()
        self.now_s = max(self.now_s, to_s)
        told, self._events = self._events, []
        return told

    def next_s(self) -> float | None:
        """The next instant at which something happens or is delivered."""
        if self._events:
            return self.now_s
        while self._deliveries and self._deliveries[0] <= self.now_s:
            heapq.heappop(self._deliveries)
        delivery = self._deliveries[0] if self._deliveries else math.inf
        soonest = min(self._next_happening(), delivery)
        return None if soonest == math.inf else soonest

    def _next_happening(self) -> float:
        return self._tasks[0][0] if self._tasks else math.inf

    def _happen(self) -> None:
        """Do all that is due now."""
        self._work(RETRY)

    def _work(self, rank: int) -> None:
        while self._tasks and self._tasks[0][:2] <= (self.now_s, rank):
            heapq.heappop(self._tasks)[3]()

    def _at(self, at_s: float, rank: int, task: Callable[[], None]) -> None:
        self._tasked += 1
        heapq.heappush(self._tasks, (at_s, rank, self._tasked, task))

    def _tell(
        self, kind: EventKind, group: str, instance_id: str = "", activity: Activity | None = None
    ) -> None:
        """Send an event on its way: once, or by the cloud's physics twice, or never."""
        physics = self.physics
        if physics.event_lost and self._delays.random() < physics.event_lost:
            return
        twice = bool(physics.event_twice) and self._delays.random() < physics.event_twice
        for _ in range(1 + twice):
            delay = physics.event_delay_s
            deliver_s = self.now_s + (self._delays.uniform(0.0, delay) if delay else 0.0)
            heapq.heappush(self._deliveries, deliver_s)
            self._events.append(
                CloudEvent(
                    kind=kind,
                    at_s=self.now_s,
                    deliver_s=deliver_s,
                    group=group,
                    instance_id=instance_id,
                    activity=activity,
                )
            )


@dataclass(frozen=True, slots=True, order=True)
class MarketMove:
    """At `at_s` a pool's capacity becomes `capacity`; an `announced` one does so at `due_s`."""

    at_s: float
    announced: bool
    pool: str
    capacity: int
    due_s: float


class Offer:
    """How many instances one pool gives out over time: the least capacity within the notice."""

    __slots__ = ("_least", "_times")

    def __init__(self, steps: Steps, notice_s: float) -> None:
        edges = {*steps.times, *(max(0.0, time - notice_s) for time in steps.times)}
        self._times = sorted(edges)
        self._least = [_least(steps, time, time + notice_s) for time in self._times]

    def at(self, now_s: float) -> int:
        """The most instances that the pool may hold by launching now."""
        return self._least[bisect_right(self._times, now_s) - 1]


def _least(steps: Steps, start_s: float, end_s: float) -> int:
    first, last = steps.index(start_s), steps.index(end_s)
    return min(steps.capacities[first : last + 1])


def moves(market: Market, start_s: float, notice_s: float) -> Iterator[MarketMove]:
    """All announcements of drops and all changes from `start_s` on, in time order."""
    return heapq.merge(
        *(_of_pool(pool, market.of(pool), start_s, notice_s) for pool in market.pools)
    )


def _of_pool(pool: str, steps: Steps, start_s: float, notice_s: float) -> Iterator[MarketMove]:
    found: list[MarketMove] = []
    before = steps.capacities[0]
    for due_s, capacity in zip(steps.times, steps.capacities, strict=True):
        if due_s >= start_s:
            found.append(MarketMove(due_s, False, pool, capacity, due_s))
            if capacity < before and notice_s > 0:
                told_s = max(start_s, due_s - notice_s)
                found.append(MarketMove(told_s, True, pool, capacity, due_s))
        before = capacity
    return iter(sorted(found))


USER_SHUTDOWN = "Client.UserInitiatedShutdown: User initiated shutdown"
SPOT_TAKEN = "Server.SpotInstanceTermination: Spot instance termination"
# From its launch until the launch hook holds it, an instance is only Pending.
BOOT_S = 10.0


class CloudLives(CloudEngine):
    """The groups and all instances; the market is another floor's."""

    def __init__(self, groups: Sequence[GroupSpec], physics: Physics, seed: int) -> None:
        super().__init__(physics, seed)
        self._chances = random.Random(f"{seed}/on-demand")
        self._ghosts = random.Random(f"{seed}/ghosts")
        self._groups = {spec.name: GroupState(spec, physics) for spec in groups}
        self._machines: dict[str, SimulatedMachine] = {}
        self._departed: dict[str, SimulatedMachine] = {}
        self._held: dict[str, dict[str, SimulatedMachine]] = {}
        self._offers: dict[str, Offer] = {}
        self._capacity: dict[str, int] = {}
        self._serving: dict[Purchase, int] = dict.fromkeys(Purchase, 0)
        self._numbered = 0
        self._dirty: set[str] = set(self._groups)
        self._used: dict[Purchase, float] = dict.fromkeys(Purchase, 0.0)
        self._launched: dict[Purchase, int] = dict.fromkeys(Purchase, 0)
        self._warned: dict[str, SimulatedMachine] = {}
        self._taken: deque[SimulatedMachine] = deque()

    # --- retries --------------------------------------------------------------------------------

    def _wake(self, pool: str) -> None:
        """Let groups that can launch in a pool again retry at their next instant of the grid."""
        if self.physics.retry_longest_s is not None:
            return  # AWS does not tell a group that it could launch; its next retry finds out.
        if len(self._held[pool]) >= self._offers[pool].at(self.now_s):
            return
        for group in self._groups.values():
            if group.spec.purchase is Purchase.SPOT and pool in group.spec.pools:
                self._retry_at(group, group.retry_from(self.now_s))

    def _retry_at(self, group: GroupState, retry_s: float) -> None:
        if retry_s < group.retry_s and group.missing() > 0:
            group.retry_s = retry_s
            self._at(retry_s, RETRY, lambda: self._retry(group))

    def _retry(self, group: GroupState) -> None:
        group.retry_s = math.inf
        self._dirty.add(group.spec.name)

    def _plan_retry(self, group: GroupState, refusals: list[Refusal]) -> None:
        """Retry when it can succeed; until then, the retries are a drought."""
        if self.physics.retry_longest_s is not None:
            self._retry_at(group, self.now_s + group.backed_off_s())
        elif group.block_message(self.now_s):
            group.begin_drought(self.now_s, refusals)
            self._retry_at(group, group.retry_from(group.block_end(self.now_s)))
        elif group.spec.purchase is Purchase.SPOT:
            group.begin_drought(self.now_s, refusals)
        else:
            self._retry_at(group, group.retry_after(self.now_s))

    def _note_failing(self, group: GroupState) -> None:
        """Have AWS suspend a group that has launched nothing for long enough."""
        after_s = self.physics.suspend_after_s
        if after_s is None or group.failing_since_s is not None:
            return
        since_s = group.failing_since_s = self.now_s
        self._at(since_s + after_s, RETRY, lambda: self._give_up(group, since_s))

    def _give_up(self, group: GroupState, since_s: float) -> None:
        if group.failing_since_s == since_s and group.missing() > 0:
            group.suspensions.setdefault(LAUNCH, ADMINISTRATIVE)
            group.touch()

    # --- launches -------------------------------------------------------------------------------

    def _fill_dirty(self) -> None:
        while self._dirty:
            name = min(self._dirty)
            self._dirty.discard(name)
            if name in self._groups:
                self._fill(self._groups[name])

    def _fill(self, group: GroupState) -> None:
        """Launch what a group misses, or log why not and see to the retry."""
        group.end_drought(self.now_s)
        if group.missing() <= 0 or LAUNCH in group.suspensions:
            return
        refusals = self._launch_missing(group)
        for refusal in refusals:
            activity = group.failed(self.now_s, refusal)
            self._tell(EventKind.LAUNCH_UNSUCCESSFUL, group.spec.name, "", activity)
        if group.missing() > 0 and refusals:
            self._note_failing(group)
            self._plan_retry(group, refusals)

    def _launch_missing(self, group: GroupState) -> list[Refusal]:
        if message := group.block_message(self.now_s):
            return [Refusal(group.pools_by_use()[0], message)]
        if group.spec.purchase is Purchase.ON_DEMAND:
            tries = [self._try_on_demand(group) for _ in range(group.missing())]
            return [refusal for refusal in tries if refusal]
        refused: dict[str, Refusal] = {}
        while group.missing() > 0:
            pools = [pool for pool in group.pools_by_use() if pool not in refused]
            if not pools:
                break
            self._try_spot(group, pools[0], refused)
        return list(refused.values())

    def _try_spot(self, group: GroupState, pool: str, refused: dict[str, Refusal]) -> None:
        if len(self._held[pool]) < self._offers[pool].at(self.now_s):
            self._launch(group, pool)
            return
        message = SPOT_FULL if self._capacity[pool] else SPOT_DRY
        refused[pool] = Refusal(pool, message)

    def _try_on_demand(self, group: GroupState) -> Refusal | None:
        pool = group.pools_by_use()[0]
        risk = self.physics.on_demand_failure
        if risk and self._chances.random() < risk:
            zone, _, kind = pool.partition("/")
            return Refusal(pool, ON_DEMAND_DRY.format(type=kind or pool, zone=zone))
        self._launch(group, pool)
        return None

    def _launch(self, group: GroupState, pool: str) -> None:
        self._numbered += 1
        spec = group.spec
        machine = SimulatedMachine(self._numbered, pool, spec.purchase, self.now_s, group)
        self._machines[machine.instance_id] = machine
        self._launched[spec.purchase] += 1
        group.launched(machine)
        self._start(machine, group)
        if spec.purchase is Purchase.SPOT:
            self._held[pool][machine.instance_id] = machine
            self._tell(EventKind.FULFILLED, spec.name, machine.instance_id)

    def _start(self, machine: SimulatedMachine, group: GroupState) -> None:
        """Schedule when an instance enters service: once its worker is ready, or by its hook.

        Without a launch hook an instance counts as in service when a good one would serve.
        """
        now_s, hook_s = self.now_s, self.physics.launch_hook_s
        start_s = group.start_s(now_s)
        bad = group.starts_badly(now_s)
        machine.serves_s = None if bad else now_s + start_s
        if hook_s is None:
            self._at(now_s + start_s, START, lambda: self._serve(machine))
            return
        self._at(now_s + min(BOOT_S, start_s), START, lambda: self._wait(machine))
        if not bad and start_s <= BOOT_S + hook_s:
            self._at(now_s + start_s, START, lambda: self._serve(machine))
        elif self.physics.hook_continues:
            self._at(now_s + BOOT_S + hook_s, START, lambda: self._serve(machine))
        else:
            self._at(now_s + BOOT_S + hook_s, END, lambda: self._abandon(machine))

    def _wait(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None and machine.state in LAUNCHING and machine.group:
            machine.state = PENDING_WAIT
            machine.group.touch()

    def _serve(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is not None or machine.state not in LAUNCHING or machine.group is None:
            return
        machine.state, machine.in_service_s = IN_SERVICE, self.now_s
        self._serving[machine.purchase] += 1
        self._touch(machine)
        activity = machine.group.activity_of(machine)
        name = machine.group.spec.name
        self._tell(EventKind.LAUNCH_SUCCESSFUL, name, machine.instance_id, activity)

    def _abandon(self, machine: SimulatedMachine) -> None:
        """Give up an instance that the launch hook has held until its time-out."""
        if machine.ended_s is None and machine.state in LAUNCHING and machine.group:
            self._cancel(machine, HOOK_ABANDONED.format(token=machine.token))
            self._end(machine)

    def _cancel(self, machine: SimulatedMachine, message: str) -> None:
        if machine.group:
            activity = machine.group.cancel(machine, message)
            name = machine.group.spec.name
            self._tell(EventKind.LAUNCH_UNSUCCESSFUL, name, machine.instance_id, activity)

    # --- ends -----------------------------------------------------------------------------------

    def _leave(self, machine: SimulatedMachine) -> None:
        """End an instance politely: it stays for as long as the terminate hook holds it."""
        if machine.ended_s is not None:
            self._found(machine, USER_SHUTDOWN)
            return
        if machine.state in LAUNCHING and self.physics.cancellations_shown:
            self._cancel(machine, "")
        if not self.physics.terminate_hook_s or machine.state in LAUNCHING:
            self._end(machine)
            return
        if machine.state != TERMINATING:
            self._serving[machine.purchase] -= 1
            machine.state = TERMINATING
            self._touch(machine)
            self._dirty.add(machine.group.spec.name if machine.group else "")
            self._at(self.now_s + self.physics.terminate_hook_s, END, lambda: self._end(machine))

    def _die(self, machine: SimulatedMachine, reason: str) -> None:
        """End an instance behind its group's back, which finds out at its next health check."""
        if machine.ended_s is not None:
            return
        group = machine.group
        if not group or machine.state == TERMINATING or machine.warm or self._found_at_once(group):
            self._end(machine, FOUND_GONE)
            return
        shown = machine.state
        self._stop(machine)
        machine.state = shown
        self._tell(EventKind.TERMINATED, "", machine.instance_id)
        if HEALTH_CHECK not in group.suspensions:
            found_s = self.now_s + self._ghosts.uniform(0.0, self.physics.ghost_s)
            self._at(found_s, END, lambda: self._found(machine, reason))

    def _found_at_once(self, group: GroupState) -> bool:
        return not self.physics.ghost_s and HEALTH_CHECK not in group.suspensions

    def _found(self, machine: SimulatedMachine, reason: str) -> None:
        """Let the health check find a dead instance."""
        if machine.group and machine.instance_id in machine.group.members:
            machine.healthy = False
            machine.group.touch()
            if REPLACE_UNHEALTHY in machine.group.suspensions:
                return
            if machine.state in LAUNCHING:
                self._cancel(machine, DIED_STARTING.format(reason=reason))
            machine.state = TERMINATED
            self._part(machine, FOUND_GONE)

    def _end(self, machine: SimulatedMachine, why: str = SHRUNK) -> None:
        if machine.ended_s is None:
            self._stop(machine)
            self._part(machine, why if machine.healthy else USER_HEALTH_CHECK)

    def _stop(self, machine: SimulatedMachine) -> None:
        machine.ended_s = self.now_s
        self._used[machine.purchase] += self.now_s - machine.launched_s
        self._departed[machine.instance_id] = machine
        self._warned.pop(machine.instance_id, None)
        self._serving[machine.purchase] -= machine.state == IN_SERVICE
        machine.state = TERMINATED
        del self._machines[machine.instance_id]
        if machine.purchase is Purchase.SPOT:
            del self._held[machine.pool][machine.instance_id]
            self._wake(machine.pool)

    def _part(self, machine: SimulatedMachine, why: str) -> None:
        group = machine.group
        self._tell(EventKind.TERMINATED, group.spec.name if group else "", machine.instance_id)
        if group:
            group.ended(machine, self.now_s, why)
            group.give_back(self.now_s)
            group.touch()
            self._dirty.add(group.spec.name)

    def _touch(self, machine: SimulatedMachine) -> None:
        if machine.group:
            machine.group.touch()


class CloudMarket(CloudLives):
    """Auto Scaling groups over a market."""

    def __init__(
        self, market: Market, groups: Sequence[GroupSpec], physics: Physics, seed: int = 0
    ) -> None:
        super().__init__(groups, physics, seed)
        self._moves: Iterator[MarketMove] = iter(())
        self._move: MarketMove | None = None
        self._take_market(market)
        self._happen()

    def _next_happening(self) -> float:
        task = super()._next_happening()
        return min(task, self._move.at_s) if self._move else task

    def _happen(self) -> None:
        """Do all that is due now: losses, the market's moves, starts, ends, launches, retries."""
        self._work(LOSS)
        while self._move and self._move.at_s <= self.now_s:
            self._follow(self._move)
            self._move = next(self._moves, None)
        self._work(RETRY)
        self._fill_dirty()

    def set_market(self, market: Market) -> None:
        """Exchange the market; its times are the cloud's, and its capacity holds from now on."""
        self._take_market(market)
        self._happen()

    def _take_market(self, market: Market) -> None:
        notice_s = self.physics.notice_s
        self._offers = {pool: Offer(market.of(pool), notice_s) for pool in market.pools}
        self._held = {pool: self._held.get(pool, {}) for pool in market.pools}
        for group in self._groups.values():
            if group.spec.purchase is Purchase.SPOT:
                for pool in group.spec.pools:
                    market.of(pool)
        self._capacity = {pool: market.capacity(pool, self.now_s) for pool in market.pools}
        self._moves = moves(market, self.now_s, notice_s)
        self._move = next(self._moves, None)
        for pool in market.pools:
            self._doom(pool, self._capacity[pool], self.now_s)

    def _follow(self, move: MarketMove) -> None:
        if not move.announced:
            self._capacity[move.pool] = move.capacity
            self._wake(move.pool)
        self._doom(move.pool, move.capacity, move.due_s)

    def _doom(self, pool: str, capacity: int, due_s: float) -> None:
        """Choose the instances that a drop takes: the newest of those not yet chosen."""
        standing = [m for m in self._held[pool].values() if m.doomed_s is None]
        for machine in reversed(standing[capacity:]):
            self._take_back(machine, due_s)

    def _take_back(self, machine: SimulatedMachine, due_s: float) -> None:
        machine.doomed_s = due_s
        if due_s <= self.now_s:
            self._lose(machine)
            return
        self._at(due_s, LOSS, lambda: self._lose(machine))
        chance = random.Random(f"{self._seed}/notice/{machine.number}").random()
        if self.physics.notice_s > 0 and chance >= self.physics.notice_lost:
            machine.warned_s = self.now_s
            self._warned[machine.instance_id] = machine
            self._touch(machine)
            group = machine.group.spec.name if machine.group else ""
            self._tell(EventKind.WARNING, group, machine.instance_id)

    def _lose(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None:
            machine.lost = True
            self._taken.append(machine)
            self._die(machine, SPOT_TAKEN)
