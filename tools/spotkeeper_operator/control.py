"""Mode, pause, resume and stop: what an operator says of a fleet, and a way out."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG, AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.errors import translated
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.permission import LONGEST_PAUSE, Control, Mode, Pause
from spotkeeper_operator.aws import CONFIG, Aws, OperatorError, chosen

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack


class Controls:
    """The controls of a stack's fleets, changed in the name of who runs the command."""

    def __init__(self, aws: Aws, stack_name: str) -> None:
        """Look the stack up; raises `Gone` when there is none of that name."""
        self._aws = aws
        self._stack: Stack = aws.stack(stack_name)
        self._fleets = aws.documents(self._stack).fleets
        self._table = ControlTable(aws.dynamodb, self._stack.table)

    def fleet(self, name: str) -> Fleet:
        """Find a fleet; raises `OperatorError` for an unknown one."""
        (found,) = chosen(self._fleets, name)
        return found

    def set_mode(self, name: str, mode: Mode, now: datetime) -> Control:
        """Let a fleet's turns act, or only observe."""
        seen = self._table.of(self.fleet(name).name)
        wanted = replace(seen, mode=mode, mode_by=self._who(), mode_at=now)
        return self._table.change(name, seen, wanted)

    def pause(self, name: str, lasting: timedelta, why: str, now: datetime) -> Control:
        """Pause a fleet's turns for a time; raises `OperatorError` for none, or more than a day."""
        if not timedelta() < lasting <= LONGEST_PAUSE:
            raise OperatorError("a pause lasts longer than nothing and at most 24h: give --for")
        if not why.strip():
            raise OperatorError("say --why: who finds the fleet paused wants to know")
        seen = self._table.of(self.fleet(name).name)
        pause = Pause(until=now + lasting, why=why.strip(), by=self._who(), at=now)
        return self._table.change(name, seen, replace(seen, pause=pause))

    def resume(self, name: str, now: datetime) -> Control:
        """End a pause; raises `OperatorError` when there is none."""
        seen = self._table.of(self.fleet(name).name)
        if seen.pause is None or seen.pause.until <= now:
            raise OperatorError(f"{name} is not paused")
        return self._table.change(name, seen, replace(seen, pause=None))

    def _who(self) -> str:
        with translated("sts:GetCallerIdentity"):
            client = self._aws.session.client("sts", config=CONFIG)
            return client.get_caller_identity()["Arn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What stopping a fleet did, and what is left for its operator, in words."""

    did: tuple[str, ...]
    left: tuple[str, ...]


def stop(aws: Aws, stack_name: str, name: str, now: datetime, *, anyway: bool) -> Stopped:
    """Give backfill back, undo what turns did to the groups, and let turns only observe.

    Raises `OperatorError` while on-demand stands in for spot, unless `anyway`: spot must serve
    what on-demand serves before that goes.
    """
    controls = Controls(aws, stack_name)
    fleet = controls.fleet(name)
    groups = AutoScalingReader(aws.autoscaling, aws.ec2).describe(
        [fleet.spot_group, fleet.on_demand_group]
    )
    _make_before_break(
        fleet, groups.get(fleet.spot_group), groups.get(fleet.on_demand_group), anyway
    )
    controls.set_mode(name, Mode.OBSERVE, now)
    did = [f"{name} only observes from now on"]
    writer = AutoScalingWriter(aws.autoscaling, aws.ec2)
    on_demand = groups.get(fleet.on_demand_group)
    if on_demand is not None and on_demand.desired > on_demand.minimum:
        writer.set_desired(on_demand.name, on_demand.minimum)
        did.append(f"{on_demand.name}: desired {on_demand.desired} -> {on_demand.minimum}")
    for group in groups.values():
        did += _undo(aws, group)
    return Stopped(did=tuple(did), left=_left(fleet, groups.values(), aws))


def _make_before_break(
    fleet: Fleet, spot: Group | None, on_demand: Group | None, anyway: bool
) -> None:
    if anyway or spot is None or on_demand is None or not on_demand.desired:
        return
    serving = sum(i.phase is Phase.IN_SERVICE and i.healthy for i in spot.instances)
    if serving < spot.desired:
        raise OperatorError(
            f"{spot.desired - serving} of {spot.desired} spot instances do not serve, and "
            f"{on_demand.desired} on demand stand in for them: wait, or give --anyway"
        )


def _undo(aws: Aws, group: Group) -> list[str]:
    """Take back what turns set on a group: AZRebalance suspended, instances marked."""
    did: list[str] = []
    if "AZRebalance" in group.suspended:
        with translated(f"resuming AZRebalance of {group.name}"):
            aws.autoscaling.resume_processes(
                AutoScalingGroupName=group.name, ScalingProcesses=["AZRebalance"]
            )
        did.append(f"{group.name}: AZRebalance resumed")
    if marked := _marked(aws, group):
        with translated(f"removing the marks of {', '.join(marked)}"):
            aws.ec2.delete_tags(Resources=marked, Tags=[{"Key": DRAINING_TAG}])
        did.append(f"{group.name}: {DRAINING_TAG} removed from {', '.join(marked)}")
    return did


def _marked(aws: Aws, group: Group) -> list[str]:
    ids = [i.instance_id for i in group.instances]
    if not ids:
        return []
    pages = aws.ec2.get_paginator("describe_tags").paginate(
        Filters=[{"Name": "key", "Values": [DRAINING_TAG]}, {"Name": "resource-id", "Values": ids}]
    )
    with translated("ec2:DescribeTags"):
        return sorted(tag["ResourceId"] for page in pages for tag in page["Tags"])


def _left(fleet: Fleet, groups: Collection[Group], aws: Aws) -> tuple[str, ...]:
    """Say what nobody but the operator may decide about."""
    left = [f"{g.name}: desired {g.desired}, nobody sets it from now on" for g in groups]
    names = [g.name for g in groups]
    for name in names:
        with translated("autoscaling:DescribeLifecycleHooks"):
            hooks = aws.autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)
        ours = [h["LifecycleHookName"] for h in hooks["LifecycleHooks"]]
        if mine := [hook for hook in ours if hook.startswith("spotkeeper-")]:
            left.append(f"{name}: hooks {', '.join(mine)}; workers complete them as before")
    left.append(f"the document and the records of {fleet.name}; they go with the stack")
    return tuple(left)
