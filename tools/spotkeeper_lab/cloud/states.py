"""What holds instances and what operators make of them: hooks, warm pools, health."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotkeeper_lab.cloud.group import GroupState, SimulatedMachine
from spotkeeper_lab.cloud.lives import BOOT_S, END, START, USER_SHUTDOWN, CloudMarket
from spotkeeper_lab.cloud.values import (
    ABANDONED,
    HOOK_ABANDONED,
    IN_SERVICE,
    LAUNCH,
    PENDING,
    PENDING_WAIT,
    PROCESSES,
    REPLACE_UNHEALTHY,
    TERMINATED,
    TERMINATING,
    USER_SUSPENDED,
    WARMED,
    CloudError,
    EventKind,
    InstanceView,
    LifecycleHook,
    Purchase,
    Result,
    Transition,
    WarmPool,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An instance of a group, or of its warm pool, and a hook that holds it."""

    group: str
    hook: str
    instance: InstanceView


class CloudHooks(CloudMarket):
    """Groups whose hooks somebody has to complete; a group without hooks is as it was."""

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
            message = f"No active Lifecycle Action found with instance ID {instance_id}"
            raise CloudError("ValidationError", message)
        return machine

    # --- on the way in --------------------------------------------------------------------------

    def _start(self, machine: SimulatedMachine, group: GroupState) -> None:
        if group.holding(Transition.LAUNCHING):
            self._begin(machine, group, group.start_s(self.now_s))
        else:
            super()._start(machine, group)

    def _begin(self, machine: SimulatedMachine, group: GroupState, start_s: float) -> None:
        """Put an instance into service after `start_s`, or once its hooks complete."""
        now_s = self.now_s
        machine.serves_s = None if group.starts_badly(now_s) else now_s + start_s
        if group.holding(Transition.LAUNCHING):
            held_s = now_s + min(BOOT_S, start_s)
            self._at(held_s, START, lambda: self._hold_launch(machine))
        else:
            self._at(now_s + start_s, START, lambda: self._serve(machine))

    def _hold_launch(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None and machine.state == PENDING and machine.group:
            self._hold(machine, PENDING_WAIT, Transition.LAUNCHING)

    # --- on the way out -------------------------------------------------------------------------

    def _leave(self, machine: SimulatedMachine) -> None:
        group = machine.group
        held = group and machine.ended_s is None and group.holding(Transition.TERMINATING)
        if not group or not held or machine.state != IN_SERVICE:
            if machine.state != TERMINATING or not machine.waits:
                super()._leave(machine)
            return
        self._serving[machine.purchase] -= 1
        self._hold(machine, TERMINATING, Transition.TERMINATING)
        self._dirty.add(group.spec.name)

    # --- held -----------------------------------------------------------------------------------

    def _hold(self, machine: SimulatedMachine, state: str, transition: Transition) -> None:
        """Hold an instance by every hook of a transition; without one it goes on at once."""
        group = machine.group
        assert group
        hooks = group.holding(transition)
        machine.state, machine.held_s = state, self.now_s
        self._touch(machine)
        kind = {
            Transition.LAUNCHING: EventKind.LAUNCH_ACTION,
            Transition.TERMINATING: EventKind.TERMINATE_ACTION,
        }[transition]
        for hook in hooks:
            self._wait_until(machine, hook, self.now_s + hook.heartbeat_s)
            self._tell(kind, group.spec.name, machine.instance_id)
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

    def _proceed(self, machine: SimulatedMachine) -> None:
        """Go on to where the hooks held an instance back from."""
        if machine.state == TERMINATING or machine.state.startswith(f"{WARMED}Terminating"):
            self._end(machine)
        else:
            self._serve(machine)

    # --- helpers --------------------------------------------------------------------------------

    def _act(self, state: GroupState) -> None:
        self._dirty.add(state.spec.name)
        self._fill_dirty()

    def _group(self, name: str) -> GroupState:
        try:
            return self._groups[name]
        except KeyError:
            message = f"AutoScalingGroup name not found - AutoScalingGroup {name} not found"
            raise CloudError("ValidationError", message) from None


# A stopped instance is in service so soon where the physics do not say.
START_S = 10.0
_PREPARING = f"{WARMED}Pending"


class CloudWarm(CloudHooks):
    """Groups with warm pools; a group without one is as it was."""

    def put_warm_pool(self, group: str, pool: WarmPool) -> None:
        """Give a group a warm pool, or change it; refused where the group buys spot."""
        state = self._group(group)
        if state.spec.purchase is Purchase.SPOT:
            message = "You can't add a warm pool to an Auto Scaling group that has Spot Instances."
            raise CloudError("ValidationError", message)
        state.pool = pool
        self._act(state)

    def delete_warm_pool(self, group: str) -> None:
        state = self._group(group)
        if state.pool is None:
            raise CloudError("ValidationError", f"No warm pool found for {group}")
        state.pool = None
        for machine in list(state.warm.values()):
            self._end(machine)

    def warm_pool(self, group: str) -> tuple[WarmPool | None, tuple[InstanceView, ...]]:
        """A group's warm pool, if it has one, and the instances in it."""
        state = self._group(group)
        return state.pool, tuple(machine.view() for machine in state.warm.values())

    # --- into it --------------------------------------------------------------------------------

    def _fill(self, group: GroupState) -> None:
        super()._fill(group)
        if group.pool is None or LAUNCH in group.suspensions or group.block_message(self.now_s):
            return
        there = list(group.warm.values())
        missing = group.pool.size(group.desired, group.spec.maximum) - len(there)
        for _ in range(missing):
            self._prepare(group)
        for machine in there[len(there) + missing :] if missing < 0 else ():
            self._end(machine)

    def _prepare(self, group: GroupState) -> None:
        """Launch an instance into the pool."""
        self._numbered += 1
        pool = group.pools_by_use()[0]
        machine = SimulatedMachine(self._numbered, pool, group.spec.purchase, self.now_s, group)
        self._machines[machine.instance_id] = machine
        self._enter(machine, group, self.physics.cold_start_s)

    def _enter(self, machine: SimulatedMachine, group: GroupState, in_s: float) -> None:
        machine.state, machine.serves_s = _PREPARING, None
        group.warm[machine.instance_id] = machine
        self._at(self.now_s + in_s, START, lambda: self._prepared(machine))

    def _prepared(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None and machine.state == _PREPARING:
            self._hold(machine, f"{_PREPARING}:Wait", Transition.LAUNCHING)

    def _proceed(self, machine: SimulatedMachine) -> None:
        group = machine.group
        if machine.warm and group and group.pool:
            machine.state = WARMED + group.pool.state
        elif group and self._reused(machine, group):
            del group.members[machine.instance_id]
            group.touch()
            self._dirty.add(group.spec.name)
            self._enter(machine, group, START_S)
        else:
            super()._proceed(machine)

    def _reused(self, machine: SimulatedMachine, group: GroupState) -> bool:
        """Whether an instance that leaves its group is stopped and kept."""
        pool = group.pool
        if machine.state != TERMINATING or pool is None or not pool.reuse or not machine.healthy:
            return False
        return len(group.warm) < pool.size(group.desired, group.spec.maximum)

    # --- out of it ------------------------------------------------------------------------------

    def _launch(self, group: GroupState, pool: str) -> None:
        state = WARMED + group.pool.state if group.pool else ""
        machine = next((one for one in group.warm.values() if one.state == state), None)
        if machine is None:
            super()._launch(group, pool)
            return
        del group.warm[machine.instance_id]
        machine.state, machine.launched_s = PENDING, self.now_s
        self._launched[machine.purchase] += 1
        group.launched(machine)
        warm_s = self.physics.warm_start_s
        self._begin(machine, group, START_S if warm_s is None else warm_s)

    def _leave(self, machine: SimulatedMachine) -> None:
        """End an instance politely, or stop it where it is to be used again."""
        group = machine.group
        reused = group and group.pool and group.pool.reuse
        if not group or not reused or machine.ended_s is not None or machine.state != IN_SERVICE:
            super()._leave(machine)
            return
        self._serving[machine.purchase] -= 1
        self._dirty.add(group.spec.name)
        self._hold(machine, TERMINATING, Transition.TERMINATING)

    def _part(self, machine: SimulatedMachine, why: str) -> None:
        group = machine.group
        if group and group.warm.pop(machine.instance_id, None):
            self._dirty.add(group.spec.name)
        else:
            super()._part(machine, why)


SHOWN_S = 3600.0
"""So long AWS shows spot requests and instances that have ended."""


class CloudStates(CloudWarm):
    """Health, suspended processes, recommendations."""

    # --- health ---------------------------------------------------------------------------------

    def set_unhealthy(self, instance_id: str, *, after_grace: bool = False) -> None:
        """Have the group of an instance replace it; within its grace period only if asked so."""
        machine = self._member(instance_id)
        state = self._of(machine)
        young = self.now_s < (machine.in_service_s or self.now_s) + state.spec.grace_s
        if after_grace and young:
            return
        machine.healthy = False
        state.touch()
        if REPLACE_UNHEALTHY not in state.suspensions:
            self._leave(machine)
            self._act(state)

    def set_grace(self, group: str, grace_s: float) -> None:
        """Change for how long the health of new instances is not checked."""
        state = self._group(group)
        state.spec = replace(state.spec, grace_s=grace_s)
        state.touch()

    # --- processes ------------------------------------------------------------------------------

    def suspend(self, group: str, process: str, reason: str = USER_SUSPENDED) -> None:
        """Suspend a process of a group; refused where AWS knows none of that name."""
        state = self._group(group)
        _known_process(process)
        state.suspensions.setdefault(process, reason)
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
                self._leave(machine)
        for machine in state.surplus():
            self._leave(machine)
        self._act(state)

    # --- what AWS recommends ----------------------------------------------------------------------

    def recommend(self, instance_ids: Iterable[str]) -> None:
        """Recommend that instances be rebalanced: their risk is elevated, nothing more."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine and machine.purchase is Purchase.SPOT:
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

    def _member(self, instance_id: str) -> SimulatedMachine:
        machine = self._machines.get(instance_id) or self._departed.get(instance_id)
        if machine is None or machine.group is None or machine.state == TERMINATED:
            message = (
                f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
            )
            raise CloudError("ValidationError", message)
        return machine

    def _of(self, machine: SimulatedMachine) -> GroupState:
        return self._group(machine.group.spec.name if machine.group else "")

    def _detachable(self, state: GroupState, instance_id: str) -> SimulatedMachine:
        machine = state.members.get(instance_id)
        if machine is None:
            message = (
                f"The instance {instance_id} is not part of Auto Scaling group {state.spec.name}."
            )
            raise CloudError("ValidationError", message)
        if machine.state != IN_SERVICE:
            message = f"The instance {instance_id} is not in InService or Standby."
            raise CloudError("ValidationError", message)
        return machine


def not_found(instance_id: str) -> CloudError:
    """EC2's refusal of an instance that it does not know, or no longer."""
    message = f"The instance ID '{instance_id}' does not exist"
    return CloudError("InvalidInstanceID.NotFound", message)


def _known_process(process: str) -> None:
    if process not in PROCESSES:
        message = f"{process} is not a valid scaling process; there are {', '.join(PROCESSES)}"
        raise CloudError("ValidationError", message)
