"""What happens in the simulated cloud as time passes: losses, warnings, starts, retries."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from spotkeeper_lab.cloud.capacity import MarketMove, Offer, moves
from spotkeeper_lab.cloud.group import GroupState, Machine, Refusal
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    ON_DEMAND_DRY,
    PENDING,
    SPOT_DRY,
    SPOT_FULL,
    TERMINATED,
    TERMINATING,
    Activity,
    CloudEvent,
    EventKind,
    GroupSpec,
    Physics,
    Purchase,
)
from spotkeeper_lab.traces.market import Market

LOSS, START, END, RETRY = range(4)

type _Task = tuple[float, int, int, Callable[[], None]]


class CloudEngine:
    """Auto Scaling groups over a market; `now_s` is as far as it was advanced."""

    def __init__(
        self, market: Market, groups: Sequence[GroupSpec], physics: Physics, seed: int = 0
    ) -> None:
        self.now_s = 0.0
        self.physics = physics
        self._seed = seed
        self._delays = random.Random(f"{seed}/delays")
        self._chances = random.Random(f"{seed}/on-demand")
        self._groups = {spec.name: GroupState(spec, physics) for spec in groups}
        self._machines: dict[str, Machine] = {}
        self._held: dict[str, dict[str, Machine]] = {}
        self._serving: dict[Purchase, int] = dict.fromkeys(Purchase, 0)
        self._tasks: list[_Task] = []
        self._numbered = 0
        self._tasked = 0
        self._dirty: set[str] = set(self._groups)
        self._events: list[CloudEvent] = []
        self._deliveries: list[float] = []
        self._used: dict[Purchase, float] = dict.fromkeys(Purchase, 0.0)
        self._launched: dict[Purchase, int] = dict.fromkeys(Purchase, 0)
        self._ended: list[Machine] = []
        self._warned: dict[str, Machine] = {}
        self._taken: deque[Machine] = deque()
        self._moves: Iterator[MarketMove] = iter(())
        self._move: MarketMove | None = None
        self._take_market(market)
        self._happen()

    # --- time -----------------------------------------------------------------------------------

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
        task = self._tasks[0][0] if self._tasks else math.inf
        return min(task, self._move.at_s) if self._move else task

    def _happen(self) -> None:
        """Do all that is due now: losses, the market's moves, starts, ends, launches, retries."""
        self._work(LOSS)
        while self._move and self._move.at_s <= self.now_s:
            self._follow(self._move)
            self._move = next(self._moves, None)
        self._work(RETRY)
        self._fill_dirty()

    def _work(self, rank: int) -> None:
        while self._tasks and self._tasks[0][:2] <= (self.now_s, rank):
            heapq.heappop(self._tasks)[3]()

    def _at(self, at_s: float, rank: int, task: Callable[[], None]) -> None:
        self._tasked += 1
        heapq.heappush(self._tasks, (at_s, rank, self._tasked, task))

    def _tell(
        self, kind: EventKind, group: str, instance_id: str = "", activity: Activity | None = None
    ) -> None:
        delay = self.physics.event_delay_s
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

    # --- the market -----------------------------------------------------------------------------

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

    def _take_back(self, machine: Machine, due_s: float) -> None:
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

    def _lose(self, machine: Machine) -> None:
        if machine.ended_s is None:
            machine.lost = True
            self._taken.append(machine)
            self._end(machine)

    def _wake(self, pool: str) -> None:
        """Let groups that can launch in a pool again retry at their next instant of the grid."""
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

    # --- launches and ends ----------------------------------------------------------------------

    def _fill_dirty(self) -> None:
        while self._dirty:
            name = min(self._dirty)
            self._dirty.discard(name)
            if name in self._groups:
                self._fill(self._groups[name])

    def _fill(self, group: GroupState) -> None:
        """Launch what a group misses, or log why not and see to the retry."""
        group.end_drought(self.now_s)
        if group.missing() <= 0 or "Launch" in group.suspended:
            return
        refusals = self._launch_missing(group)
        for refusal in refusals:
            activity = group.failed(self.now_s, refusal)
            self._tell(EventKind.LAUNCH_UNSUCCESSFUL, group.spec.name, "", activity)
        if group.missing() > 0 and refusals:
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

    def _plan_retry(self, group: GroupState, refusals: list[Refusal]) -> None:
        """Retry when it can succeed; until then, the retries are a drought."""
        if group.block_message(self.now_s):
            group.begin_drought(self.now_s, refusals)
            self._retry_at(group, group.retry_from(group.block_end(self.now_s)))
        elif group.spec.purchase is Purchase.SPOT:
            group.begin_drought(self.now_s, refusals)
        else:
            self._retry_at(group, group.retry_after(self.now_s))

    def _launch(self, group: GroupState, pool: str) -> None:
        self._numbered += 1
        spec = group.spec
        machine = Machine(self._numbered, pool, spec.purchase, self.now_s, group)
        self._machines[machine.instance_id] = machine
        self._launched[spec.purchase] += 1
        group.launched(machine)
        self._at(self.now_s + group.start_s(self.now_s), START, lambda: self._serve(machine))
        if spec.purchase is Purchase.SPOT:
            self._held[pool][machine.instance_id] = machine
            self._tell(EventKind.FULFILLED, spec.name, machine.instance_id)

    def _serve(self, machine: Machine) -> None:
        if machine.ended_s is not None or machine.state != PENDING or machine.group is None:
            return
        machine.state, machine.in_service_s = IN_SERVICE, self.now_s
        self._serving[machine.purchase] += 1
        self._touch(machine)
        activity = machine.group.activity_of(machine)
        name = machine.group.spec.name
        self._tell(EventKind.LAUNCH_SUCCESSFUL, name, machine.instance_id, activity)

    def _leave(self, machine: Machine) -> None:
        """End an instance politely: it stays for as long as the terminate hook holds it."""
        if not self.physics.terminate_hook_s or machine.state == PENDING:
            self._end(machine)
            return
        if machine.state != TERMINATING:
            self._serving[machine.purchase] -= 1
            machine.state = TERMINATING
            self._touch(machine)
            self._dirty.add(machine.group.spec.name if machine.group else "")
            self._at(self.now_s + self.physics.terminate_hook_s, END, lambda: self._end(machine))

    def _end(self, machine: Machine) -> None:
        if machine.ended_s is not None:
            return
        machine.ended_s = self.now_s
        self._used[machine.purchase] += self.now_s - machine.launched_s
        self._ended.append(machine)
        self._warned.pop(machine.instance_id, None)
        self._serving[machine.purchase] -= machine.state == IN_SERVICE
        machine.state = TERMINATED
        del self._machines[machine.instance_id]
        if machine.purchase is Purchase.SPOT:
            del self._held[machine.pool][machine.instance_id]
            self._wake(machine.pool)
        self._part(machine)

    def _part(self, machine: Machine) -> None:
        group = machine.group
        self._tell(EventKind.TERMINATED, group.spec.name if group else "", machine.instance_id)
        if group:
            del group.members[machine.instance_id]
            group.give_back(self.now_s)
            group.touch()
            self._dirty.add(group.spec.name)

    def _touch(self, machine: Machine) -> None:
        if machine.group:
            machine.group.touch()
