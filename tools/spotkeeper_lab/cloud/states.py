"""What operators make of groups and instances in the simulated cloud; what limits launches."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spotkeeper_lab.cloud.group import GroupState, Refusal, SimulatedMachine
from spotkeeper_lab.cloud.lives import USER_SHUTDOWN
from spotkeeper_lab.cloud.values import CloudError, EventKind, Purchase
from spotkeeper_lab.cloud.warm import CloudWarm
from spotkeeper_lab.cloud.words import (
    IN_SERVICE,
    ON_DEMAND_QUOTA,
    PENDING,
    PROCESSES,
    REPLACE_UNHEALTHY,
    SPOT_QUOTA,
    STANDBY,
    TERMINATED,
    USER_SUSPENDED,
)

SHOWN_S = 3600.0
"""So long AWS shows spot requests and instances that have ended."""
VCPUS = 4
"""Of every instance: those of an xlarge."""


class CloudStates(CloudWarm):
    """Health, standby, protection, suspended processes, quotas, recommendations."""

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

    def set_health(self, group: str, grace_s: float | None, protect_new: bool | None) -> None:
        """Change how long new instances are not looked at, and whether they are protected."""
        state = self._group(group)
        spec = state.spec
        state.spec = replace(
            spec,
            grace_s=spec.grace_s if grace_s is None else grace_s,
            protect_new=spec.protect_new if protect_new is None else protect_new,
        )
        state.touch()

    # --- processes ------------------------------------------------------------------------------

    def suspend(self, group: str, process: str, reason: str = USER_SUSPENDED) -> None:
        """Suspend a process of a group; refused where AWS knows none of that name."""
        state = self._group(group)
        _known_process(process)
        state.suspensions.setdefault(process, reason)
        state.touch()

    def resume(self, group: str, process: str) -> None:
        """Resume a process of a group, which makes up for what it left."""
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

    # --- standby and protection -----------------------------------------------------------------

    def enter_standby(self, group: str, instance_ids: Sequence[str], *, decrement: bool) -> None:
        """Take instances out of service; others are launched in their place unless `decrement`."""
        state = self._group(group)
        machines = [self._in_state(state, one, IN_SERVICE) for one in instance_ids]
        if decrement and state.desired - len(machines) < state.spec.minimum:
            raise _out_of_bounds(state, "place into", len(machines))
        for machine in machines:
            machine.state = STANDBY
            self._serving[machine.purchase] -= 1
        state.desired -= len(machines) if decrement else 0
        state.touch()
        self._act(state)

    def exit_standby(self, group: str, instance_ids: Sequence[str]) -> None:
        """Bring instances back into service; desired grows by as many."""
        state = self._group(group)
        machines = [self._in_state(state, one, STANDBY) for one in instance_ids]
        if state.desired + len(machines) > state.spec.maximum:
            raise _out_of_bounds(state, "exit from", len(machines))
        state.desired += len(machines)
        state.touch()
        for machine in machines:
            machine.state = PENDING
            self._begin(machine, state, 0.0)
        self._act(state)
        self._happen()

    def protect(self, group: str, instance_ids: Sequence[str], *, protected: bool) -> None:
        """Keep instances from scale-in, or no longer."""
        state = self._group(group)
        for machine in [self._in_state(state, one, IN_SERVICE) for one in instance_ids]:
            machine.protected = protected
        state.touch()
        for machine in state.surplus():
            self._leave(machine)
        self._act(state)

    # --- what AWS gives -------------------------------------------------------------------------

    def set_quota(self, purchase: Purchase, vcpus: int | None) -> None:
        """Limit what the account may run of a kind; None is no limit."""
        self._quotas[purchase] = vcpus
        self._dirty |= {g.spec.name for g in self._groups.values() if g.spec.purchase is purchase}
        self._fill_dirty()

    def recommend(self, instance_ids: Iterable[str]) -> None:
        """Recommend that instances be rebalanced: their risk is elevated, nothing more."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine and machine.purchase is Purchase.SPOT:
                self._tell(EventKind.REBALANCE, "", machine.instance_id)

    def _try_spot(self, group: GroupState, pool: str, refused: dict[str, Refusal]) -> None:
        if self._over_quota(Purchase.SPOT):
            refused |= {one: Refusal(pool, SPOT_QUOTA) for one in group.spec.pools}
        else:
            super()._try_spot(group, pool, refused)

    def _try_on_demand(self, group: GroupState) -> Refusal | None:
        if limit := self._over_quota(Purchase.ON_DEMAND):
            return Refusal(group.pools_by_use()[0], ON_DEMAND_QUOTA.format(limit=limit))
        return super()._try_on_demand(group)

    def _over_quota(self, purchase: Purchase) -> str:
        """The quota that one more instance would exceed, or nothing."""
        limit = self._quotas.get(purchase)
        if limit is None:
            return ""
        running = sum(m.purchase is purchase and not m.warm for m in self._machines.values())
        return str(limit) if (running + 1) * VCPUS > limit else ""

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

    def _in_state(self, state: GroupState, instance_id: str, wanted: str) -> SimulatedMachine:
        machine = self._detachable(state, instance_id)
        if machine.state != wanted:
            raise CloudError("ValidationError", f"The instance {instance_id} is not in {wanted}.")
        return machine

    def _detachable(self, state: GroupState, instance_id: str) -> SimulatedMachine:
        machine = state.members.get(instance_id)
        if machine is None:
            message = (
                f"The instance {instance_id} is not part of Auto Scaling group {state.spec.name}."
            )
            raise CloudError("ValidationError", message)
        if machine.state not in {IN_SERVICE, STANDBY}:
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


def _out_of_bounds(state: GroupState, what: str, count: int) -> CloudError:
    spec = state.spec
    message = (
        f"AutoScalingGroup {spec.name} has min-size={spec.minimum}, max-size={spec.maximum}, and "
        f"desired-size={state.desired}. To {what} standby {count} instances, please update the "
        "AutoScalingGroup sizes appropriately."
    )
    return CloudError("ValidationError", message)
