"""Lifecycle hooks in the simulated cloud: what holds an instance, for how long, and how it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotkeeper_lab.cloud.engine import END, START
from spotkeeper_lab.cloud.group import GroupState, SimulatedMachine
from spotkeeper_lab.cloud.lives import BOOT_S
from spotkeeper_lab.cloud.markets import CloudMarket
from spotkeeper_lab.cloud.values import (
    CloudError,
    EventKind,
    InstanceView,
    LifecycleHook,
    Result,
    Transition,
)
from spotkeeper_lab.cloud.words import (
    ABANDONED,
    HOOK_ABANDONED,
    IN_SERVICE,
    PENDING,
    PENDING_WAIT,
    STANDBY,
    TERMINATING,
    WARMED,
)

_ENDED_BY = frozenset({IN_SERVICE, STANDBY})


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
        """The hooks of a group."""
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
        """Let an instance come into service after `start_s`, or once its hooks let it."""
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
        if not group or not held or machine.state not in _ENDED_BY:
            if machine.state != TERMINATING or not machine.waits:
                super()._leave(machine)
            return
        self._serving[machine.purchase] -= machine.state == IN_SERVICE
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
