"""Warm pools in the simulated cloud: instances that wait beside their group, mostly stopped."""

from spotkeeper_lab.cloud.engine import START
from spotkeeper_lab.cloud.group import GroupState, SimulatedMachine
from spotkeeper_lab.cloud.hooks import CloudHooks
from spotkeeper_lab.cloud.values import CloudError, InstanceView, Purchase, Transition, WarmPool
from spotkeeper_lab.cloud.words import IN_SERVICE, LAUNCH, PENDING, TERMINATING, WARMED

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
        """End a warm pool with the instances in it."""
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

    def _part(self, machine: SimulatedMachine) -> None:
        group = machine.group
        if group and group.warm.pop(machine.instance_id, None):
            self._dirty.add(group.spec.name)
        else:
            super()._part(machine)
