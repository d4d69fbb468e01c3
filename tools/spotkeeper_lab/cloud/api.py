"""A simulated cloud: Auto Scaling groups and spot capacity as AWS behaves, on virtual seconds.

Deterministic and event-driven; the backtest (through fake ports) and the demo (through boto3) run
on the same one. What it promises:

* The spot instances held in a pool never exceed the market's capacity. When capacity drops, the
  excess is lost at that instant, newest first; each was warned the notice before, unless its
  notice is lost. A lost notice leaves no trace at all, in no event and in no spot request.
* While a drop is announced, the pool gives out no more than it will hold after it.
* A group launches what it misses at once, in the pool where it has the fewest (zone balance, best
  effort); each dry pool that is tried logs a failed activity. It retries every `retry_s`, on
  multiples of it. Every failed retry is an activity; only a try that was not the mere
  repetition of the one before sends an event.
* Lowering desired ends instances: those that are launching first, then the newest.
* What `Physics` can make stricter is off by default.
* On-demand launches fail by chance alone, each on its own.
"""

import heapq
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spotkeeper_lab.cloud.group import GroupState, Refusal, SimulatedMachine
from spotkeeper_lab.cloud.refresh import STEP_S, Preferences, Refresh
from spotkeeper_lab.cloud.values import (
    ABANDONED,
    ADMINISTRATIVE,
    CANCELLED,
    DETACHED,
    DIED_STARTING,
    ENDED,
    FAILED,
    FOUND_GONE,
    HEALTH_CHECK,
    HOOK_ABANDONED,
    IN_PROGRESS,
    IN_SERVICE,
    LAUNCH,
    LAUNCHING,
    ON_DEMAND_DRY,
    PENDING,
    PENDING_WAIT,
    PROCESSES,
    REFRESHED,
    REPLACE_UNHEALTHY,
    SHRUNK,
    SPOT_DRY,
    SPOT_FULL,
    STANDBY,
    TAKEN_OUT,
    TERMINATED,
    TERMINATING,
    USER_HEALTH_CHECK,
    USER_SUSPENDED,
    WARMED,
    Activity,
    CloudError,
    CloudEvent,
    EventKind,
    GroupSpec,
    GroupView,
    InstanceView,
    Invalid,
    LifecycleHook,
    Physics,
    Purchase,
    Result,
    Transition,
    WarmPool,
)
from spotkeeper_lab.traces.market import Market

LOSS, MARKET, START, END, RETRY = range(5)

type _Task = tuple[float, int, int, Callable[[], None]]


USER_SHUTDOWN = "Client.UserInitiatedShutdown: User initiated shutdown"
SPOT_TAKEN = "Server.SpotInstanceTermination: Spot instance termination"
# From its launch until the launch hook holds it, an instance is only Pending.
BOOT_S = 10.0


# A stopped instance is in service so soon where the physics do not say.
START_S = 10.0
_PREPARING = f"{WARMED}Pending"


SHOWN_S = 3600.0
"""How long AWS still lists spot requests and instances that have ended."""


DETACHED_AT_MOST = 20
MARKS_NEEDED = frozenset({"spotkeeper:group", "spotkeeper:nonce"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An instance of a group, or of its warm pool, and a hook that holds it."""

    group: str
    hook: str
    instance: InstanceView


class Cloud:
    """The cloud with AWS's verbs; each may raise CloudError with AWS's code and message.

    `now_s` is as far as it was advanced. Tasks are done in the order of their time and rank.
    """

    def __init__(
        self, market: Market, groups: Sequence[GroupSpec], physics: Physics, seed: int = 0
    ) -> None:
        self.now_s = 0.0
        self.physics = physics
        self._seed = seed
        self._delays = random.Random(f"{seed}/delays")
        self._tasks: list[_Task] = []
        self._tasked = 0
        self._events: list[CloudEvent] = []
        self._deliveries: list[float] = []
        self._chances = random.Random(f"{seed}/on-demand")
        self._ghosts = random.Random(f"{seed}/ghosts")
        self._groups = {spec.name: GroupState(spec, physics) for spec in groups}
        self._machines: dict[str, SimulatedMachine] = {}
        self._departed: dict[str, SimulatedMachine] = {}
        self._held: dict[str, dict[str, SimulatedMachine]] = {}
        self._capacity: dict[str, int] = {}
        self._numbered = 0
        self._dirty: set[str] = set(self._groups)
        self._warned: dict[str, SimulatedMachine] = {}
        self._taken: deque[SimulatedMachine] = deque()
        self._refreshes: dict[str, list[Refresh]] = {}
        self.ringing: set[str] = set()
        """The alarms in ALARM state that an instance refresh may watch."""
        self.lacks: Callable[[str, str], str] | None = None
        """Says what a version of the launch template lacks in the region of a pool."""
        self.set_market(market)

    # --- AWS's verbs ----------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Ask for a capacity; refused outside the group's bounds."""
        state = self._group(group)
        spec = state.spec
        if not spec.minimum <= desired <= spec.maximum:
            low = desired < spec.minimum
            bound = f"below min value {spec.minimum}" if low else f"above max value {spec.maximum}"
            raise Invalid(
                f"New SetDesiredCapacity value {desired} is {bound} for the AutoScalingGroup."
            )
        if desired == state.desired:
            return
        state.desired = desired
        state.touch()
        for machine in state.surplus():
            self._leave(machine)
        self._part_with_replaced(state)
        self._act(state)

    def end(self, instance_id: str, *, replaced: bool = False) -> Activity:
        """End an instance of a group and lower its desired capacity, unless it is `replaced`.

        TerminateInstanceInAutoScalingGroup.
        """
        machine, state = self._member(instance_id)
        why = TAKEN_OUT if replaced else ENDED
        ended = state.end_of(machine, self.now_s, why, "Terminating")
        ending = replace(ended, end_s=None, status_code=IN_PROGRESS)
        if machine.state == TERMINATING:
            return ending
        if machine.state in LAUNCHING:
            message = f"Scaling Activity is In Progress for instance {instance_id}."
            raise CloudError("ScalingActivityInProgress", message)
        if not replaced and state.desired <= state.spec.minimum:
            raise Invalid(
                f"Currently, desiredSize equals minSize ({state.spec.minimum}). Terminating "
                "instance without replacement will violate group's min size constraint. Either set "
                "shouldDecrementDesiredCapacity flag to false or lower group's min size."
            )
        state.desired -= not replaced
        state.touch()
        self._leave(machine, why)
        self._act(state)
        return ending

    def replace(self, instance_id: str, why: str) -> None:
        """Have its group end an instance for a reason of its own, in AWS's words, and replace it.

        As an instance refresh, its maximum lifetime or another health check do.
        """
        machine, state = self._member(instance_id)
        self._replace(machine, why)
        self._act(state)

    def enter_standby(self, group: str, instance_ids: Iterable[str], *, smaller: bool) -> None:
        """Move instances to standby, where they run on; a `smaller` group launches no others."""
        state = self._group(group)
        for instance_id in instance_ids:
            machine = state.members.get(instance_id)
            if machine is None or machine.state != IN_SERVICE:
                raise Invalid(f"The instance {instance_id} is not in InService.")
            machine.state = STANDBY
            state.desired -= smaller
        state.touch()
        self._act(state)

    def exit_standby(self, group: str, instance_ids: Iterable[str]) -> None:
        """Move instances back; the desired capacity grows by each, up to the maximum."""
        state = self._group(group)
        for instance_id in instance_ids:
            machine = state.members.get(instance_id)
            if machine is None or machine.state != STANDBY:
                raise Invalid(f"The instance {instance_id} is not in Standby")
            if state.desired >= (most := state.spec.maximum):
                raise Invalid(f"{instance_id}: exiting standby would exceed the max size {most}.")
            machine.state = IN_SERVICE
            state.desired += 1
        state.touch()
        self._act(state)

    def shift(self, group: str, zone: str) -> None:
        """Launch in other zones than this from now on, or in all again."""
        state = self._group(group)
        state.away = zone
        self._act(state)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out without lowering desired; they run on, and replacements launch."""
        state = self._group(group)
        if len(instance_ids) > DETACHED_AT_MOST:
            raise Invalid(
                f"Value '{list(instance_ids)}' at 'instanceIds' failed to satisfy constraint: "
                f"Member must have length less than or equal to {DETACHED_AT_MOST}"
            )
        for instance_id in instance_ids:
            machine = state.members.get(instance_id)
            if machine is None or machine.state != IN_SERVICE:
                other = (
                    "in InService or Standby" if machine else f"part of Auto Scaling group {group}"
                )
                raise Invalid(f"The instance {instance_id} is not {other}.")
        for machine in [state.members[instance_id] for instance_id in instance_ids]:
            state.left(machine, self.now_s, DETACHED, "Detaching")
            machine.group = None
        state.touch()
        self._act(state)

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End instances, in a group or not; those that ended already are ignored.

        Where marks are needed, this role may end running spot instances with all of them only.
        """
        machines = self._running(instance_ids)
        if self.physics.marks_needed and (
            len(machines) < len(instance_ids)
            or any(
                m.gone_s is None
                or m.purchase is not Purchase.SPOT
                or not m.tags.keys() >= MARKS_NEEDED
                for m in machines
            )
        ):
            message = "You are not authorized to perform this operation."
            raise CloudError("UnauthorizedOperation", message)
        for machine in machines:
            self._die(machine, USER_SHUTDOWN)
        self._fill_dirty()

    def run(
        self, pools: Sequence[str], purchase: Purchase, tags: Mapping[str, str]
    ) -> InstanceView:
        """Launch an instance outside of groups, in the emptiest of the pools that give one out."""
        is_spot = purchase is Purchase.SPOT
        giving = [pool for pool in pools if not is_spot or self._offers(pool)]
        if not giving:
            raise CloudError("InsufficientInstanceCapacity", SPOT_DRY)
        pool = min(giving, key=lambda each: len(self._held.get(each, ())))
        self._numbered += 1
        machine = SimulatedMachine(self._numbered, pool, purchase, self.now_s, None)
        machine.tags = dict(tags)
        self._machines[machine.instance_id] = machine
        if is_spot:
            self._held[pool][machine.instance_id] = machine
        self._at(self.now_s + BOOT_S, START, lambda: self._runs(machine))
        return machine.view()

    def _runs(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None:
            machine.state = IN_SERVICE

    def tag(
        self, instance_ids: Sequence[str], tags: Mapping[str, str], gone_s: float | None = None
    ) -> None:
        """Give instances tags, and the mark of when they will be gone; the first mark stays."""
        for machine in self._running(instance_ids):
            machine.tags = {**machine.tags, **tags}
            machine.gone_s = gone_s if machine.gone_s is None else machine.gone_s
            self._touch(machine)

    def untag(
        self, instance_ids: Sequence[str], keys: Iterable[str], *, unmark: bool = False
    ) -> None:
        """Take tags off instances, or the mark; those that have ended have none any more."""
        for machine in self._running(instance_ids):
            machine.tags = {k: v for k, v in machine.tags.items() if k not in set(keys)}
            machine.gone_s = None if unmark else machine.gone_s
            self._touch(machine)

    def tag_group(self, group: str, key: str, value: str | None) -> None:
        state = self._group(group)
        others = {k: v for k, v in state.tags.items() if k != key}
        state.tags = others if value is None else {**others, key: value}
        state.touch()

    def set_bounds(self, group: str, minimum: int, maximum: int) -> None:
        """Change a group's bounds, and its desired capacity where it lies outside them."""
        state = self._group(group)
        state.spec = replace(state.spec, minimum=minimum, maximum=maximum)
        state.touch()
        self.set_desired(group, max(minimum, min(maximum, state.desired)))

    def create_group(self, spec: GroupSpec) -> None:
        """Make a group, which launches at once; the market knows the pools where it buys spot."""
        if spec.name in self._groups:
            message = (
                "AutoScalingGroup by this name already exists - A group with the name "
                f"{spec.name} already exists"
            )
            raise CloudError("AlreadyExists", message)
        self._groups[spec.name] = GroupState(spec, self.physics)
        self._act(self._groups[spec.name])

    def delete_group(self, group: str) -> None:
        state = self._groups.pop(self._group(group).spec.name)
        self._refreshes.pop(group, None)
        for machine in (*state.members.values(), *state.warm.values()):
            self._end(machine)

    # --- what AWS shows -------------------------------------------------------------------------

    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def group(self, name: str) -> GroupView:
        """A group; the same object until it changes."""
        return self._group(name).view()

    def instances(self) -> tuple[InstanceView, ...]:
        """All that run, those outside of groups too."""
        return tuple(machine.view() for machine in self._machines.values())

    def history(self) -> tuple[InstanceView, ...]:
        """All that ever ran; those that ended first."""
        return (*(machine.view() for machine in self._departed.values()), *self.instances())

    def instance(self, instance_id: str) -> InstanceView:
        """One that runs, or that ended within the last hour."""
        return (self._known(instance_id) or self._departed[instance_id]).view()

    def failures(self, group: str, since_s: float) -> list[Activity]:
        """The failed launches of a group since an instant, newest first."""
        return self._group(group).failures(since_s, self.now_s)

    def activities(self, group: str, since_s: float) -> list[Activity]:
        """All launches and ends of a group since an instant, newest first."""
        state = self._group(group)
        launched = [one for one in state.launches(since_s) if one.status_code != CANCELLED]
        activities = self.failures(group, since_s) + launched[::-1] + state.ends(since_s)
        return sorted(activities, key=lambda a: (a.start_s, a.status_code == FAILED), reverse=True)

    def spot_requests(self, instance_ids: Container[str] | None = None) -> tuple[InstanceView, ...]:
        """The spot instances whose requests say that they are, or were, taken: for an hour."""
        forgotten_s = self.now_s - SHOWN_S
        while self._taken and (self._taken[0].ended_s or 0.0) < forgotten_s:
            self._taken.popleft()
        return tuple(
            machine.view()
            for machine in (*self._warned.values(), *self._taken)
            if instance_ids is None or machine.instance_id in instance_ids
            if machine.status_s is not None and machine.status_s <= self.now_s
        )

    # --- what a test does to it -----------------------------------------------------------------

    def fail_launches(self, group: str, start_s: float, end_s: float, message: str) -> None:
        """Refuse every launch of a group for a while, in AWS's words."""
        state = self._group(group)
        state.blocked.append((start_s, end_s, message))
        self._at(max(start_s, self.now_s), RETRY, lambda: self._dirty.add(group))

    def break_image(self, group: str, start_s: float, end_s: float) -> None:
        """Let all that a group launches for a while enter service and never serve."""
        self._group(group).bad_images.append((start_s, end_s))

    def kill(self, instance_id: str) -> None:
        """End an instance as a user without limits does, unknown to its group."""
        for machine in self._running([instance_id]):
            self._die(machine, USER_SHUTDOWN)
        self._fill_dirty()

    def reclaim(self, instance_ids: Iterable[str], at_s: float) -> None:
        """Take spot instances back at an instant, whatever the market says."""
        for machine in self._running(instance_ids):
            if machine.doomed_s is None:
                self._take_back(machine, at_s)
        self._fill_dirty()

    # --- hooks ----------------------------------------------------------------------------------

    def put_hook(self, group: str, hook: LifecycleHook) -> None:
        """Give a group a hook, or change it; instances that are held already are not concerned."""
        self._group(group).hooks[hook.name] = hook

    def delete_hook(self, group: str, name: str) -> None:
        """Take a hook from a group; what it holds goes on."""
        state = self._group(group)
        state.hooks.pop(name, None)
        for machine in (*state.members.values(), *state.warm.values()):
            if name in machine.waits:
                self._complete(machine, name, Result.CONTINUE, "")
        self._fill_dirty()

    def hooks(self, group: str) -> Sequence[LifecycleHook]:
        return tuple(self._group(group).hooks.values())

    def held(self) -> list[Held]:
        """What is held now, in every group."""
        return [
            Held(group=name, hook=hook, instance=machine.view())
            for name, state in self._groups.items()
            for machine in (*state.members.values(), *state.warm.values())
            for hook in machine.waits
        ]

    def complete(self, group: str, name: str, instance_id: str, result: Result) -> None:
        """End the action that holds an instance; refused where none does."""
        machine = self._held_by(group, name, instance_id)
        self._complete(machine, name, result, ABANDONED)
        self._fill_dirty()

    def beat(self, group: str, name: str, instance_id: str) -> None:
        """Let a hook hold an instance for another time-out from now on."""
        machine = self._held_by(group, name, instance_id)
        hook = self._group(group).hooks[name]
        due_s = min(self.now_s + hook.heartbeat_s, machine.held_s + hook.longest_s)
        self._wait_until(machine, hook, due_s)

    def _held_by(self, group: str, name: str, instance_id: str) -> SimulatedMachine:
        state = self._group(group)
        machine = state.members.get(instance_id) or state.warm.get(instance_id)
        if machine is None or name not in machine.waits:
            raise Invalid(f"No active Lifecycle Action found with instance ID {instance_id}")
        return machine

    def _begin(self, machine: SimulatedMachine, group: GroupState, start_s: float) -> None:
        """Schedule when an instance enters service: once a good one would serve, or by hooks."""
        now_s, hooks = self.now_s, group.holding(Transition.LAUNCHING)
        bad = group.starts_badly(now_s, machine.template)
        machine.serves_s = None if bad else now_s + start_s
        if not hooks:
            self._at(now_s + start_s, START, lambda: self._serve(machine))
            return
        self._at(now_s + min(BOOT_S, start_s), START, lambda: self._hold_launch(machine))
        if not bad and all(hook.by_worker for hook in hooks):
            self._at(now_s + start_s, START, lambda: self._serve(machine))

    def _hold_launch(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None and machine.state == PENDING and machine.group:
            self._hold(machine, PENDING_WAIT, Transition.LAUNCHING)

    def _hold(self, machine: SimulatedMachine, state: str, transition: Transition) -> None:
        """Hold an instance by every hook of a transition; without one it goes on at once."""
        group = machine.group
        assert group
        hooks = group.holding(transition)
        machine.state, machine.held_s = state, self.now_s
        self._touch(machine)
        for hook in hooks:
            self._wait_until(machine, hook, self.now_s + hook.heartbeat_s)
        if not hooks:
            self._proceed(machine)

    def _wait_until(self, machine: SimulatedMachine, hook: LifecycleHook, due_s: float) -> None:
        machine.waits[hook.name] = due_s
        self._at(due_s, END, lambda: self._expire(machine, hook))

    def _expire(self, machine: SimulatedMachine, hook: LifecycleHook) -> None:
        if machine.ended_s is None and machine.waits.get(hook.name, self.now_s + 1) <= self.now_s:
            self._complete(machine, hook.name, hook.default, HOOK_ABANDONED)

    def _complete(self, machine: SimulatedMachine, name: str, result: Result, why: str) -> None:
        del machine.waits[name]
        if result is Result.ABANDON:
            machine.waits.clear()
        if machine.waits:
            return
        if result is Result.ABANDON and machine.state != TERMINATING:
            if not machine.warm:
                self._cancel(machine, why.format(token=machine.token))
            self._end(machine)
            return
        self._proceed(machine)

    # --- instance refresh -----------------------------------------------------------------------

    def start_refresh(
        self, group: str, preferences: Preferences, template: str | None = None
    ) -> Refresh:
        """Replace a group's instances, by a version of its launch template if one is given."""
        state = self._group(group)
        if self.refresh(group):
            message = "An Instance Refresh is already in progress and blocks the execution of this"
            raise CloudError("InstanceRefreshInProgress", f"{message} Instance Refresh.")
        if preferences.auto_rollback and (template is None or state.template.startswith("$")):
            message = "AutoRollback needs a desired configuration, and a numbered launch template"
            raise Invalid(f"{message} version of the group")
        if template and self.lacks and (text := self.lacks(state.spec.pools[0], template)):
            raise Invalid(text)
        launched = state.template if template is None else template
        refreshes = self._refreshes.setdefault(group, [])
        refresh = Refresh(
            refresh_id=f"{len(refreshes):08x}-0000-4000-8000-{zlib.crc32(group.encode()):012x}",
            preferences=preferences,
            start_s=self.now_s,
            template=template,
            before=state.template,
            old={
                machine.instance_id
                for machine in state.members.values()
                if not (preferences.skip_matching and machine.template == launched)
            },
        )
        refreshes.append(refresh)
        self._tell(EventKind.REFRESH_STARTED, group)
        self._step(state, refresh)
        return refresh

    def cancel_refresh(self, group: str) -> Refresh:
        """Stop replacing; what was replaced stays, and the group keeps its own configuration."""
        refresh = self._active(group)
        refresh.cancel()
        self._step(self._group(group), refresh)
        return refresh

    def roll_refresh_back(self, group: str) -> Refresh:
        """Replace what a refresh has replaced, by the configuration of before."""
        refresh = self._active(group)
        refresh.roll_back(self._group(group), self.now_s, "Rollback was started by a user.")
        self._step(self._group(group), refresh)
        return refresh

    def refresh(self, group: str) -> Refresh | None:
        """A group's active refresh."""
        return next((one for one in self._refreshes.get(group, ()) if one.active), None)

    def refreshes(self, group: str) -> list[Refresh]:
        """All refreshes of a group, newest first."""
        return self._refreshes.get(self._group(group).spec.name, [])[::-1]

    def break_template(self, group: str, template: str) -> None:
        """Let all that a group launches from a version of its launch template never serve."""
        self._group(group).bad_templates.add(template)

    def _active(self, group: str) -> Refresh:
        refresh = self.refresh(self._group(group).spec.name)
        if refresh is None:
            message = "No in progress or pending Instance Refresh found for Auto Scaling group"
            raise CloudError("ActiveInstanceRefreshNotFound", f"{message} {group}")
        return refresh

    def _step(self, state: GroupState, refresh: Refresh) -> None:
        if self._groups.get(state.spec.name) is not state or not refresh.active:
            return
        extra = state.extra
        ending = refresh.step(state, self.now_s, frozenset(self.ringing))
        for machine in ending:
            self._leave(machine, REFRESHED)
        if state.extra < extra:
            for machine in state.surplus():
                self._leave(machine)
        state.touch()
        if refresh.active:
            self._at(self.now_s + STEP_S, RETRY, lambda: self._step(state, refresh))
        self._act(state)

    # --- warm pools -----------------------------------------------------------------------------

    def put_warm_pool(self, group: str, pool: WarmPool) -> None:
        """Give a group a warm pool, or change it; refused where the group buys spot."""
        state = self._group(group)
        if state.spec.purchase is Purchase.SPOT:
            raise Invalid(
                "You can't add a warm pool to an Auto Scaling group that has Spot Instances."
            )
        state.pool = pool
        self._act(state)

    def delete_warm_pool(self, group: str) -> None:
        state = self._group(group)
        if state.pool is None:
            raise Invalid(f"No warm pool found for {group}")
        state.pool = None
        for machine in list(state.warm.values()):
            self._end(machine)

    def warm_pool(self, group: str) -> tuple[WarmPool | None, tuple[InstanceView, ...]]:
        """A group's warm pool, if it has one, and the instances in it."""
        state = self._group(group)
        return state.pool, tuple(machine.view() for machine in state.warm.values())

    def _fill_pool(self, group: GroupState) -> None:
        if group.pool is None or LAUNCH in group.suspensions or group.block_message(self.now_s):
            return
        there = list(group.warm.values())
        for _ in range(group.pool_size - len(there)):
            machine = self._made(group, group.pools_by_use()[0])
            self._enter(machine, group, self.physics.cold_start_s)
        for machine in there[group.pool_size :]:
            self._end(machine)

    def _launches(self, group: GroupState) -> str:
        refresh = self.refresh(group.spec.name)
        launches = refresh.launches if refresh else None
        return group.template if launches is None else launches

    def _lacking(self, group: GroupState) -> str:
        """What no launch of a group can do without, and does not exist; nothing where all does."""
        if self.lacks is None or not (version := self._launches(group)):
            return ""
        text = self.lacks(group.spec.pools[0], version)
        return f"{text} Launching EC2 instance failed." if text else ""

    def _made(self, group: GroupState, pool: str) -> SimulatedMachine:
        self._numbered += 1
        machine = SimulatedMachine(self._numbered, pool, group.spec.purchase, self.now_s, group)
        own = group.spec.own_templates.get(pool.partition("/")[2])
        machine.template = own or self._launches(group)
        self._machines[machine.instance_id] = machine
        return machine

    def _enter(self, machine: SimulatedMachine, group: GroupState, in_s: float) -> None:
        machine.state, machine.serves_s = _PREPARING, None
        group.warm[machine.instance_id] = machine
        self._at(self.now_s + in_s, START, lambda: self._prepared(machine))

    def _prepared(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None and machine.state == _PREPARING:
            self._hold(machine, f"{_PREPARING}:Wait", Transition.LAUNCHING)

    def _proceed(self, machine: SimulatedMachine) -> None:
        """Go on to where the hooks held an instance back from."""
        group = machine.group
        pool = group.pool if group else None
        leaves, reuse = machine.state == TERMINATING, pool and pool.reuse and machine.healthy
        if machine.warm and pool:
            machine.state = WARMED + pool.state
        elif group and pool and leaves and reuse and len(group.warm) < group.pool_size:
            del group.members[machine.instance_id]
            group.touch()
            self._dirty.add(group.spec.name)
            self._enter(machine, group, START_S)
        elif leaves or machine.state.startswith(f"{WARMED}Terminating"):
            self._end(machine)
        else:
            self._serve(machine)

    # --- health ---------------------------------------------------------------------------------

    def set_unhealthy(self, instance_id: str, *, after_grace: bool = False) -> None:
        """Have its group replace an instance; with `after_grace` not within its grace period."""
        machine, state = self._member(instance_id)
        young = self.now_s < (machine.in_service_s or self.now_s) + state.spec.grace_s
        if after_grace and young:
            return
        machine.healthy = False
        state.touch()
        if REPLACE_UNHEALTHY not in state.suspensions:
            self._replace(machine, USER_HEALTH_CHECK)
            self._act(state)

    def set_grace(self, group: str, grace_s: float) -> None:
        """Change for how long the health of new instances is not checked."""
        state = self._group(group)
        state.spec = replace(state.spec, grace_s=grace_s)
        state.touch()

    def suspend(self, group: str, process: str) -> None:
        """Suspend a process of a group; refused where AWS knows none of that name."""
        state = self._group(group)
        _known_process(process)
        state.suspensions.setdefault(process, USER_SUSPENDED)
        state.touch()

    def resume(self, group: str, process: str) -> None:
        state = self._group(group)
        _known_process(process)
        state.suspensions.pop(process, None)
        state.failing_since_s = None
        state.touch()
        for machine in list(state.members.values()):
            if machine.ended_s is not None:
                self._found(machine, USER_SHUTDOWN)
            elif not machine.healthy and REPLACE_UNHEALTHY not in state.suspensions:
                self._replace(machine, USER_HEALTH_CHECK)
        for machine in state.surplus():
            self._leave(machine)
        self._act(state)

    def recommend(self, instance_ids: Iterable[str]) -> None:
        """Recommend that instances be rebalanced: their risk is elevated, nothing more."""
        for machine in self._running(instance_ids):
            if machine.purchase is Purchase.SPOT:
                self._tell(EventKind.REBALANCE, "", machine.instance_id)

    # --- helpers --------------------------------------------------------------------------------

    def _known(self, instance_id: str) -> SimulatedMachine | None:
        """A running instance, None for one that has ended; AWS forgets those after an hour."""
        machine = self._machines.get(instance_id)
        if machine is None:
            departed = self._departed.get(instance_id)
            if departed is None or self.now_s - (departed.ended_s or 0.0) > SHOWN_S:
                raise not_found(instance_id)
        return machine

    def _running(self, instance_ids: Iterable[str]) -> list[SimulatedMachine]:
        return [one for one in map(self._known, instance_ids) if one]

    def _member(self, instance_id: str) -> tuple[SimulatedMachine, GroupState]:
        machine = self._machines.get(instance_id) or self._departed.get(instance_id)
        if machine is None or machine.group is None or machine.state == TERMINATED:
            raise Invalid(
                f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
            )
        return machine, self._group(machine.group.spec.name)

    def _act(self, state: GroupState) -> None:
        self._dirty.add(state.spec.name)
        self._fill_dirty()

    def _group(self, name: str) -> GroupState:
        try:
            return self._groups[name]
        except KeyError:
            raise Invalid(
                f"AutoScalingGroup name not found - AutoScalingGroup {name} not found"
            ) from None

    # --- how time passes ------------------------------------------------------------------------

    def advance(self, to_s: float) -> list[CloudEvent]:
        """Let time pass; returns what happened since the last call, in time order."""
        while self._tasks and self._tasks[0][0] <= to_s:
            self.now_s = max(self.now_s, self._tasks[0][0])
            self._happen()
        self.now_s = max(self.now_s, to_s)
        events, self._events = self._events, []
        return events

    def next_s(self) -> float | None:
        """The next instant at which something happens or is delivered."""
        if self._events:
            return self.now_s
        while self._deliveries and self._deliveries[0] <= self.now_s:
            heapq.heappop(self._deliveries)
        tasks = self._tasks[0][:1] if self._tasks else ()
        return min((*tasks, *self._deliveries[:1]), default=None)

    def _happen(self) -> None:
        """Do all that is due now: losses, the market's moves, starts, ends, launches, retries."""
        while self._tasks and self._tasks[0][0] <= self.now_s:
            heapq.heappop(self._tasks)[3]()
        self._fill_dirty()

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

    # --- retries --------------------------------------------------------------------------------

    def _wake(self, pool: str) -> None:
        """Let groups that can launch in a pool again retry at their next instant of the grid."""
        if self.physics.retry_longest_s is not None:
            return  # AWS does not tell a group that it could launch; its next retry finds out.
        if not self._offers(pool):
            return
        for group in self._groups.values():
            if group.spec.purchase is Purchase.SPOT and pool in group.spec.pools:
                self._retry_at(group, group.retry_from(self.now_s))

    def _retry_at(self, group: GroupState, retry_s: float) -> None:
        def retry() -> None:
            group.retry_s = math.inf
            self._dirty.add(group.spec.name)

        if retry_s < group.retry_s and group.missing() > 0:
            group.retry_s = retry_s
            self._at(retry_s, RETRY, retry)

    def _plan_retry(self, group: GroupState, refusals: list[Refusal]) -> None:
        """Retry when it can succeed; until then, the retries are a drought."""
        if self.physics.retry_longest_s is not None:
            self._retry_at(group, self.now_s + group.backed_off_s())
        elif group.block_message(self.now_s):
            group.begin_drought(self.now_s, refusals)
            ends = [end for start, end, _ in group.blocked if start <= self.now_s < end]
            self._retry_at(group, group.retry_from(max(ends)))
        elif group.spec.purchase is Purchase.SPOT and not self._lacking(group):
            group.begin_drought(self.now_s, refusals)
        else:
            every_s = self.physics.retry_s
            self._retry_at(group, (self.now_s // every_s + 1) * every_s)

    def _note_failing(self, group: GroupState) -> None:
        """Have AWS suspend a group that has launched nothing for long enough."""
        after_s, since_s = self.physics.suspend_after_s, self.now_s

        def give_up() -> None:
            if group.failing_since_s == since_s and group.missing() > 0:
                group.suspensions.setdefault(LAUNCH, ADMINISTRATIVE)
                group.touch()

        if after_s is not None and group.failing_since_s is None:
            group.failing_since_s = since_s
            self._at(since_s + after_s, RETRY, give_up)

    # --- launches -------------------------------------------------------------------------------

    def _fill_dirty(self) -> None:
        while self._dirty:
            name = min(self._dirty)
            self._dirty.discard(name)
            if name in self._groups:
                self._fill(self._groups[name])
                self._fill_pool(self._groups[name])

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
        if message := group.block_message(self.now_s) or self._lacking(group):
            return [Refusal(group.pools_by_use()[0], message)]
        refused: list[Refusal] = []
        if group.spec.purchase is Purchase.ON_DEMAND:
            risk = self.physics.on_demand_failure
            if self.physics.on_demand_short and not any(self._capacity.values()):
                risk = 1.0
            for _ in range(group.missing()):
                pool = group.pools_by_use()[0]
                if risk and self._chances.random() < risk:
                    zone, _, kind = pool.partition("/")
                    message = ON_DEMAND_DRY.format(type=kind or pool, zone=zone)
                    refused.append(Refusal(pool, message))
                else:
                    self._launch(group, pool)
            return refused
        dry: set[str] = set()
        while group.missing() > 0:
            pool = next((pool for pool in group.pools_by_use() if pool not in dry), "")
            if not pool:
                break
            if self._offers(pool):
                self._launch(group, pool)
            else:
                dry.add(pool)
                refused.append(Refusal(pool, SPOT_FULL if self._capacity[pool] else SPOT_DRY))
        return refused

    def _offers(self, pool: str) -> bool:
        """Whether a pool gives out one more: it will hold it for as long as a notice takes."""
        steps = self._market.of(pool)
        last = steps.index(self.now_s + self.physics.notice_s)
        return len(self._held[pool]) < min(steps.capacities[steps.index(self.now_s) : last + 1])

    def _launch(self, group: GroupState, pool: str) -> None:
        """Launch an instance of a pool, or one that stands in the warm pool."""
        state = WARMED + group.pool.state if group.pool else ""
        warm = next((one for one in group.warm.values() if one.state == state), None)
        if warm is not None:
            del group.warm[warm.instance_id]
            warm.state, warm.launched_s = PENDING, self.now_s
            group.launched(warm)
            warm_s = self.physics.warm_start_s
            self._begin(warm, group, START_S if warm_s is None else warm_s)
            return
        machine = self._made(group, pool)
        group.launched(machine)
        self._begin(machine, group, group.start_s(self.now_s))
        if machine.purchase is Purchase.SPOT:
            self._held[pool][machine.instance_id] = machine
            self._tell(EventKind.FULFILLED, group.spec.name, machine.instance_id)

    def _serve(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is not None or machine.state not in LAUNCHING or machine.group is None:
            return
        machine.state, machine.in_service_s = IN_SERVICE, self.now_s
        machine.waits.clear()
        self._touch(machine)
        activity = machine.group.activity_of(machine)
        name = machine.group.spec.name
        self._tell(EventKind.LAUNCH_SUCCESSFUL, name, machine.instance_id, activity)
        self._part_with_replaced(machine.group)

    def _cancel(self, machine: SimulatedMachine, message: str) -> None:
        assert machine.group
        machine.cancelled = message
        activity = machine.group.activity_of(machine)
        self._tell(EventKind.LAUNCH_UNSUCCESSFUL, machine.group_name, machine.instance_id, activity)

    # --- ends -----------------------------------------------------------------------------------

    def _replace(self, machine: SimulatedMachine, why: str) -> None:
        """End an instance; by a maintenance policy once its successor serves."""
        group = machine.group
        if group and group.spec.launch_first and machine.state == IN_SERVICE:
            group.waiting.setdefault(machine.instance_id, why)
            self._dirty.add(group.spec.name)
            return
        self._leave(machine, why)

    def _part_with_replaced(self, group: GroupState) -> None:
        for machine, why in group.replaced():
            if machine.ended_s is None:
                self._leave(machine, why)
            else:
                machine.state = TERMINATED
                self._part(machine, why)

    def _leave(self, machine: SimulatedMachine, why: str = SHRUNK) -> None:
        """End an instance politely: it stays for as long as a terminate hook holds it."""
        if machine.state != TERMINATING:
            machine.cause = why
        if machine.ended_s is not None:
            self._found(machine, USER_SHUTDOWN)
            return
        group = machine.group
        assert group
        held = (group.pool and group.pool.reuse) or group.holding(Transition.TERMINATING)
        if held and machine.state == IN_SERVICE:
            self._dirty.add(group.spec.name)
            self._hold(machine, TERMINATING, Transition.TERMINATING)
            return
        if machine.state == TERMINATING and machine.waits:
            return
        if machine.state in LAUNCHING:
            self._cancel(machine, "")
        self._end(machine)

    def _die(self, machine: SimulatedMachine, reason: str) -> None:
        """End an instance behind its group's back, which finds out at its next health check."""
        if machine.ended_s is not None:
            return
        group = machine.group
        checked = group is not None and HEALTH_CHECK not in group.suspensions
        at_once = checked and not self.physics.ghost_s
        if group is None or machine.state == TERMINATING or machine.warm or at_once:
            self._end(machine, FOUND_GONE)
            return
        shown = machine.state
        self._stop(machine)
        machine.state = shown
        self._tell(EventKind.TERMINATED, "", machine.instance_id)
        if checked:
            found_s = self.now_s + self._ghosts.uniform(0.0, self.physics.ghost_s)
            self._at(found_s, END, lambda: self._found(machine, reason))

    def _found(self, machine: SimulatedMachine, reason: str) -> None:
        """Let the health check find a dead instance."""
        group = machine.group
        if group is None or machine.instance_id not in group.members:
            return
        machine.healthy = False
        group.touch()
        if REPLACE_UNHEALTHY not in group.suspensions:
            if machine.state in LAUNCHING:
                self._cancel(machine, DIED_STARTING.format(reason=reason))
            elif group.spec.launch_first and machine.instance_id not in group.waiting:
                # It stays on the list, unhealthy, until its successor serves.
                group.waiting[machine.instance_id] = FOUND_GONE
                self._dirty.add(group.spec.name)
                return
            machine.state = TERMINATED
            self._part(machine, FOUND_GONE)

    def _end(self, machine: SimulatedMachine, why: str = "") -> None:
        if machine.ended_s is None:
            self._stop(machine)
            self._part(machine, why or machine.cause)

    def _stop(self, machine: SimulatedMachine) -> None:
        machine.ended_s = self.now_s
        self._departed[machine.instance_id] = machine
        self._warned.pop(machine.instance_id, None)
        machine.state = TERMINATED
        del self._machines[machine.instance_id]
        if machine.purchase is Purchase.SPOT:
            del self._held[machine.pool][machine.instance_id]
            self._wake(machine.pool)

    def _part(self, machine: SimulatedMachine, why: str) -> None:
        group = machine.group
        if group and group.warm.pop(machine.instance_id, None):
            self._dirty.add(group.spec.name)
            return
        self._tell(EventKind.TERMINATED, group.spec.name if group else "", machine.instance_id)
        if group:
            group.left(machine, self.now_s, why, "Terminating")
            group.give_back(self.now_s)
            group.touch()
            self._dirty.add(group.spec.name)

    def _touch(self, machine: SimulatedMachine) -> None:
        if machine.group:
            machine.group.touch()

    # --- the market -----------------------------------------------------------------------------

    def set_market(self, market: Market) -> None:
        """Take a market; its times are the cloud's, and its capacity holds from now on."""
        self._market, now_s, notice_s = market, self.now_s, self.physics.notice_s
        self._held = {pool: self._held.get(pool, {}) for pool in market.pools}
        for group in self._groups.values():
            if group.spec.purchase is Purchase.SPOT:
                for pool in group.spec.pools:
                    market.of(pool)
        self._capacity = {pool: market.capacity(pool, now_s) for pool in market.pools}
        moves: list[tuple[float, bool, str, int, float]] = []
        for pool in market.pools:
            steps = market.of(pool)
            before = steps.capacities[0]
            for due_s, capacity in zip(steps.times, steps.capacities, strict=True):
                if due_s >= now_s:
                    moves.append((due_s, False, pool, capacity, due_s))
                    if capacity < before and notice_s > 0:
                        moves.append((max(now_s, due_s - notice_s), True, pool, capacity, due_s))
                before = capacity
        self._tasks = [task for task in self._tasks if task[1] != MARKET]
        heapq.heapify(self._tasks)
        for at_s, announced, pool, capacity, due_s in sorted(moves):
            self._at(at_s, MARKET, partial(self._follow, announced, pool, capacity, due_s))
        for pool in market.pools:
            self._doom(pool, self._capacity[pool], now_s)
        self._happen()

    def _follow(self, announced: bool, pool: str, capacity: int, due_s: float) -> None:
        """Let a pool's capacity change now, or announce that it drops at `due_s`."""
        if not announced:
            self._capacity[pool] = capacity
            self._wake(pool)
        self._doom(pool, capacity, due_s)

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
            late = random.Random(f"{self._seed}/status/{machine.number}").random()
            machine.status_s = self.now_s + late * self.physics.status_delay_s
            self._warned[machine.instance_id] = machine
            self._touch(machine)
            self._tell(EventKind.WARNING, machine.group_name, machine.instance_id)

    def _lose(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None:
            machine.lost = True
            machine.status_s = min(machine.status_s or self.now_s, self.now_s)
            self._taken.append(machine)
            self._die(machine, SPOT_TAKEN)


def not_found(instance_id: str) -> CloudError:
    """EC2's refusal of an instance that it does not know, or no longer."""
    message = f"The instance ID '{instance_id}' does not exist"
    return CloudError("InvalidInstanceID.NotFound", message)


def _known_process(process: str) -> None:
    if process not in PROCESSES:
        raise Invalid(f"{process} is not a valid scaling process; there are {', '.join(PROCESSES)}")
