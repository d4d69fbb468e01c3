"""A way out: backfill goes, what was set for Spotkeeper is undone, and the rest is named."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.ec2.auto_scaling import MARKS, AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.permission import Mode
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.control import FleetControls

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack

# So the hooks are called that the template and the doctor's advice make.
HOOKS = "spotkeeper-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What stopping a fleet did, and what is left for its operator, in words."""

    did: tuple[str, ...]
    left: tuple[str, ...]


def stop(
    aws: Aws, stack_name: str, name: str, now: datetime, *, anyway: bool, keep_hooks: bool
) -> Stopped:
    """Give backfill back, undo what was set on the groups, and let turns only observe.

    What serves on demand where turns only observed is its owner's, and left alone. Raises
    `OperatorError` while on-demand stands in for spot, unless `anyway`: spot must serve what
    on-demand serves before that goes.
    """
    controls = FleetControls(aws, stack_name)
    fleet = controls.fleet(name)
    reader = AutoScalingReader(aws.autoscaling, aws.ec2)
    groups = reader.describe([fleet.spot_group, fleet.on_demand_group])
    spot, on_demand = groups.get(fleet.spot_group), groups.get(fleet.on_demand_group)
    backfilled = anyway or not controls.only_observes(name, now)
    if backfilled and not anyway:
        _make_before_break(spot, on_demand)
    controls.set_mode(name, Mode.OBSERVE, now)
    leaving = _Leaving(aws, reader, _created(controls.stack))
    leaving.did.append(f"{name} only observes from now on")
    if backfilled and on_demand is not None and on_demand.desired > on_demand.minimum:
        leaving.give_back(on_demand)
    # Once more: what was given back leaves now.
    for group in reader.describe(list(groups)).values():
        leaving.undo(group, keep_hooks=keep_hooks)
    for kept in (spot, None if backfilled else on_demand):
        if kept is not None:
            told = f"{kept.name}: desired {kept.desired}, nobody sets it from now on"
            leaving.left.append(told)
    leaving.left.append(f"the document and the records of {name}; they go with the stack")
    return Stopped(did=tuple(leaving.did), left=tuple(leaving.left))


def _created(stack: "Stack") -> frozenset[str]:
    """Name the groups that the stack made: they go with it, and their hooks with them."""
    if not stack.parameters.get("LaunchTemplateId"):
        return frozenset()
    return frozenset(stack.outputs[name] for name in ("SpotGroup", "OnDemandGroup"))


def _make_before_break(spot: Group | None, on_demand: Group | None) -> None:
    if spot is None or on_demand is None or on_demand.desired <= on_demand.minimum:
        return
    serving = sum(i.phase is Phase.IN_SERVICE and i.healthy for i in spot.instances)
    if serving < spot.desired:
        raise OperatorError(
            f"{spot.desired - serving} of {spot.desired} spot instances do not serve, and "
            f"{on_demand.desired} on demand stand in for them: wait, or give --anyway"
        )
    if serving < on_demand.desired:
        raise OperatorError(
            f"{serving} spot instances serve, and {on_demand.desired} on demand: wait until spot "
            "serves as many, or give --anyway"
        )


class _Leaving:
    """Undoes what was set, and notes what it did and what is left."""

    def __init__(self, aws: Aws, reader: AutoScalingReader, created: frozenset[str]) -> None:
        self._aws, self._reader, self._created = aws, reader, created
        self.did: list[str] = []
        self.left: list[str] = []

    def give_back(self, group: Group) -> None:
        """Lower a group to its minimum."""
        AutoScalingWriter(self._aws.autoscaling, self._aws.ec2).set_desired(
            group.name, group.minimum
        )
        self.did.append(f"{group.name}: desired {group.desired} -> {group.minimum}")

    def undo(self, group: Group, *, keep_hooks: bool) -> None:
        """Take back AZRebalance suspended, instances marked, hooks made for Spotkeeper."""
        if "AZRebalance" in group.suspended:
            with aws_errors(f"resuming AZRebalance of {group.name}"):
                self._aws.autoscaling.resume_processes(
                    AutoScalingGroupName=group.name, ScalingProcesses=["AZRebalance"]
                )
            self.did.append(f"{group.name}: AZRebalance resumed")
        self._unmark(group)
        self._unhook(group, keep_hooks)

    def _unmark(self, group: Group) -> None:
        """Remove the marks of its instances; name what was taken out: turns would have ended it."""
        marked = {mark.instance_id for mark in self._reader.marked([group.name])}
        members = {i.instance_id for i in group.instances}
        if mine := sorted(marked & members):
            with aws_errors(f"removing the marks of {', '.join(mine)}"):
                self._aws.ec2.delete_tags(Resources=mine, Tags=[{"Key": key} for key in MARKS])
            self.did.append(f"{group.name}: {' and '.join(MARKS)} removed from {', '.join(mine)}")
        for instance in sorted(marked - members):
            self.left.append(
                f"{instance}: taken out of {group.name} early and running; "
                f"aws ec2 terminate-instances --instance-ids {instance}"
            )

    def _unhook(self, group: Group, keep: bool) -> None:
        """Delete hooks that nobody completes any more; AWS ends instances that launch in one."""
        with aws_errors("autoscaling:DescribeLifecycleHooks"):
            answer = self._aws.autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group.name)
        names = [h["LifecycleHookName"] for h in answer["LifecycleHooks"]]
        hooks = [name for name in names if name.startswith(HOOKS)]
        if not hooks:
            return
        told = f"{group.name}: hooks {', '.join(hooks)}"
        waiting = sum(i.phase in (Phase.LAUNCHING, Phase.LEAVING) for i in group.instances)
        if group.name in self._created:
            self.left.append(f"{told}; they go with the stack, and the group and all in it, too")
        elif keep:
            self.left.append(f"{told}; without workers that complete them every start waits")
        elif waiting:
            self.left.append(f"{told}; {waiting} instances start or leave: stop again when not")
        else:
            for hook in hooks:
                with aws_errors(f"deleting the hook {hook} of {group.name}"):
                    self._aws.autoscaling.delete_lifecycle_hook(
                        AutoScalingGroupName=group.name, LifecycleHookName=hook
                    )
            self.did.append(f"{told} deleted")
