"""What an operator decides for a fleet: mode, pause, resume, and stop before a stack is deleted."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.ec2.auto_scaling import MARKS, AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.fleet_documents import OVERRIDES
from spotkeeper.domain.decision import FAILED, OF_FLEETS
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.permission import LONGEST_PAUSE, Control, Mode, Pause, Permission
from spotkeeper.ports import OWNER_TAG, FleetError
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.text import STALE_TURN_S, age_from, as_json, spoken

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack

# Records in which the newest turns of both controllers are found, also while turns fail.
RECENT = 40


class FleetControl:
    """The control of one fleet, and the caller who changes it."""

    def __init__(self, aws: Aws, stack_name: str, fleet: str, now: datetime) -> None:
        """Look stack and fleet up; raises `Gone` and `OperatorError` when there are none."""
        self._aws, self._now = aws, now
        self.stack: Stack = aws.stack(stack_name)
        (self.fleet,) = chosen(aws.documents(self.stack), fleet)
        self._table = ControlTable(aws.dynamodb, self.stack.table)

    def only_observes(self) -> bool:
        """Say whether the fleet's turns only observe even without a pause."""
        control = replace(self._table.of(self.fleet.name), pause=None)
        return control.permission(self.fleet.mode, self._now) is Permission.OBSERVE

    def serving(self) -> int | None:
        """Return how many spot instances served at the last turn, by their workers' logs, too.

        None where no turn has succeeded lately: nobody knows.
        """
        records = self._aws.records(self.stack).newest(self.fleet.name, RECENT)
        turns = ((r.at, r.availability) for r in records.records if r.availability)
        at, figures = next(turns, (None, None))
        known = at and age_from(at, self._now) <= STALE_TURN_S
        return figures.spot_serving if figures and known else None

    def preview(self) -> list[str]:
        """List the calls that the newest turns of a fleet that does not act would have made."""
        records = self._aws.records(self.stack).newest(self.fleet.name, RECENT)
        lines: list[str] = []
        for controller in OF_FLEETS:
            turn = next((r for r in records.of(controller) if r.rule != FAILED), None)
            age_s = age_from(turn.at, self._now) if turn else 0.0
            if turn is None or age_s > STALE_TURN_S:
                since = f"for {spoken(age_s)}" if turn else "yet"
                lines.append(f"{controller}: not known, no turn has succeeded {since}")
                continue
            wishes = [one.text() for one in turn.observed] or ["nothing"]
            lines += [f"{controller} ({spoken(age_s)} ago): {wish}" for wish in wishes]
        return lines

    def set_mode(self, mode: Mode) -> Control:
        """Let the fleet's turns act, or only observe."""
        return self._change(mode=mode, mode_by=self._who(), mode_at=self._now)

    def pause(self, lasting: timedelta, why: str) -> Control:
        """Pause the fleet's turns; raises `OperatorError` for no time, or more than a day."""
        if not timedelta() < lasting <= LONGEST_PAUSE:
            raise OperatorError("give --for: a pause lasts more than 0 s, and at most 24h")
        if not why.strip():
            raise OperatorError("give --why: status shows it while the fleet is paused")
        # The bytes of an argument that is no text arrive as halves of characters.
        why.encode()
        until = self._now + lasting
        return self._change(pause=Pause(until=until, why=why.strip(), by=self._who(), at=self._now))

    def require_paused(self) -> None:
        """Raise `OperatorError` for a fleet that is not paused."""
        pause = self._table.of(self.fleet.name).pause
        if pause is None or pause.until <= self._now:
            raise OperatorError(f"{self.fleet.name} is not paused")

    def resume(self) -> Control:
        """End a pause."""
        return self._change(pause=None)

    def leave(self, region: str) -> Control:
        """Have a region give its cover away; raises `OperatorError` for one that it has not."""
        if region not in self.fleet.elsewhere:
            known = ", ".join(self.fleet.elsewhere) or "none"
            raise OperatorError(f"{self.fleet.name} has no region {region}; it has: {known}")
        leaving = self._table.of(self.fleet.name).leaving
        return self._change(leaving=tuple(sorted({*leaving, region})))

    def stay(self, region: str) -> bool:
        """Keep a region that was to be removed; return whether it was."""
        leaving = self._table.of(self.fleet.name).leaving
        if region not in leaving:
            return False
        self._change(leaving=tuple([one for one in leaving if one != region]))
        return True

    def _change(self, **changes: Any) -> Control:
        before = self._table.of(self.fleet.name)
        return self._table.change(self.fleet.name, before, replace(before, **changes))

    def _who(self) -> str:
        with aws_errors("sts:GetCallerIdentity"):
            return str(self._aws.client("sts").get_caller_identity()["Arn"])


# So the hooks are called that the template and the doctor's advice make.
HOOKS = "spotkeeper-"


class Leaving:
    """The steps that end a fleet, in their order, and what they leave to its operator.

    Backfill ends, what was set on the groups is undone, and turns only observe. On-demand instances
    of a fleet whose turns only observed are its owner's, and are left alone. Nothing is changed
    before `stop`. Raises `OperatorError` while on-demand stands in for spot, unless `anyway`: spot
    must serve what on-demand serves before that goes.
    """

    def __init__(
        self,
        aws: Aws,
        stack_name: str,
        name: str,
        now: datetime,
        *,
        anyway: bool = False,
        keep_hooks: bool = False,
    ) -> None:
        """Read the fleet and plan."""
        control = FleetControl(aws, stack_name, name, now)
        fleet, stack = control.fleet, control.stack
        self._aws, self._fleet, self._keep_hooks = aws, name, keep_hooks
        self._reader = AutoScalingReader(aws.autoscaling, aws.ec2)
        # The groups that the stack made go with it, and their hooks with them.
        made = bool(stack.parameters.get("LaunchTemplateId"))
        self._created = {stack.outputs[output] for output in ("SpotGroup", "OnDemandGroup") if made}
        self.left: list[str] = []
        self._steps: list[tuple[str, Callable[[], object]]] = [
            (f"{name} only observes from now on", lambda: control.set_mode(Mode.OBSERVE))
        ]
        groups = self._reader.describe([fleet.spot_group, fleet.on_demand_group])
        spot, on_demand = groups.get(fleet.spot_group), groups.get(fleet.on_demand_group)
        self._backfilled = backfilled = anyway or not control.only_observes()
        ending = None
        if backfilled and on_demand is not None and on_demand.desired > on_demand.minimum:
            ending = on_demand
            if spot is not None and not anyway:
                _check_spot_serves(spot, on_demand, control.serving())
            change = f"{ending.name}: desired {ending.desired} -> {ending.minimum}"
            writer = AutoScalingWriter(aws.autoscaling, aws.ec2)
            self._steps.append((change, partial(writer.set_desired, ending.name, ending.minimum)))
        for group in groups.values():
            self._undo(group, leaves=group is ending)
        for kept in (spot, None if backfilled else on_demand):
            if kept is not None:
                text = f"{kept.name}: desired {kept.desired}, Spotkeeper no longer sets it"
                self.left.append(text)
        self.left.append(f"the records of {name}, until you delete the stack")
        self._stay_stopped(stack)

    def preview(self) -> list[str]:
        """List what `stop` would do."""
        return [step_text for step_text, _ in self._steps]

    def stop(self) -> Mapping[str, Any]:
        """Do it, step by step, and tell what it `did` and what is `left` for its operator.

        Raises `OperatorError` with what is not done when a step fails. A fleet that only observes
        by then looks as if its on-demand were its owner's.
        """
        for number, (_, step) in enumerate(self._steps):
            try:
                step()
            except FleetError as error:
                steps = self.preview()
                done, left = "; ".join(steps[:number]) or "nothing", "; ".join(steps[number:])
                again = f"spotkeeper stop {self._fleet}{' --anyway' if self._backfilled else ''}"
                message = f"{error}. Done: {done}. Not done: {left}. Stop it again: {again}"
                raise OperatorError(message) from error
        return {"fleet": self._fleet, "did": self.preview(), "left": self.left}

    def _stay_stopped(self, stack: "Stack") -> None:
        """Write `observe` into documents that outlive the stack and the mode in its table.

        A new stack of the name would find them, and act.
        """
        ssm, path = self._aws.client("ssm"), stack.documents_path
        texts, own = self._aws.document_texts(stack), f"{path}/{self._fleet}"
        own = stack.outputs.get("FleetDocumentName", own)
        for name in (self._fleet, f"{self._fleet}{OVERRIDES}"):
            parameter = f"{path}/{name}"
            if name not in texts or parameter == own:
                continue
            self.left.append(
                f"{parameter}, which `sam delete` does not delete: "
                f"aws ssm delete-parameter --name {parameter}"
            )
            given = json.loads(texts[name].removeprefix("\ufeff"))
            if given.get("mode", Mode.ACT if name == self._fleet else "observe") == Mode.ACT:
                text = json.dumps(given | {"mode": Mode.OBSERVE}, indent=2)
                self._steps.append(
                    (f"{parameter}: mode observe", partial(_write_document, ssm, parameter, text))
                )

    def _undo(self, group: Group, *, leaves: bool) -> None:
        """Resume AZRebalance, remove tags and the hooks made for Spotkeeper; name what is left."""
        name, autoscaling = group.name, self._aws.autoscaling

        def step(step_text: str, doing: str, call: Callable[..., object], **arguments: Any) -> None:
            def do() -> None:
                with aws_errors(doing):
                    call(**arguments)

            self._steps.append((step_text, do))

        if "AZRebalance" in group.suspended:
            step(
                f"{name}: AZRebalance resumed",
                f"resuming AZRebalance of {name}",
                autoscaling.resume_processes,
                AutoScalingGroupName=name,
                ScalingProcesses=["AZRebalance"],
            )
        if group.owner:
            step(
                f"{name}: the tag {OWNER_TAG} removed",
                f"removing the tag {OWNER_TAG} from {name}",
                autoscaling.delete_tags,
                Tags=[{"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": OWNER_TAG}],
            )
        marked = {mark.instance_id for mark in self._reader.marked([name])}
        members = {i.instance_id for i in group.instances}
        if mine := sorted(marked & members):
            step(
                f"{name}: {' and '.join(MARKS)} removed from {', '.join(mine)}",
                f"removing the marks of {', '.join(mine)}",
                self._aws.ec2.delete_tags,
                Resources=mine,
                Tags=[{"Key": key} for key in MARKS],
            )
        # Turns would have ended what was detached.
        self.left += (
            f"{instance}: detached from {name} early and running; "
            f"aws ec2 terminate-instances --instance-ids {instance}"
            for instance in sorted(marked - members)
        )
        # Nothing completes hooks any more; AWS ends instances that launch in one.
        with aws_errors("autoscaling:DescribeLifecycleHooks"):
            answer = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=name)
        names = [h["LifecycleHookName"] for h in answer["LifecycleHooks"]]
        hooks = [hook for hook in names if hook.startswith(HOOKS)]
        text = f"{name}: hooks {', '.join(hooks)}"
        waiting = sum(i.phase in (Phase.LAUNCHING, Phase.LEAVING) for i in group.instances)
        waiting += group.desired - group.minimum if leaves else 0
        if not hooks:
            return
        if name in self._created:
            self.left.append(f"{text}; deleting the stack deletes them and the group")
        elif self._keep_hooks:
            self.left.append(f"{text}; every launch waits for them unless workers complete them")
        elif waiting:
            self.left.append(f"{text}; {waiting} instances launch or leave: stop again afterwards")
        else:

            def delete() -> None:
                for hook in hooks:
                    with aws_errors(f"deleting the hook {hook} of {name}"):
                        autoscaling.delete_lifecycle_hook(
                            AutoScalingGroupName=name, LifecycleHookName=hook
                        )

            self._steps.append((f"{text} deleted", delete))


def _write_document(ssm: Any, parameter: str, text: str) -> None:
    with aws_errors(f"writing the fleet document {parameter}"):
        ssm.put_parameter(Name=parameter, Value=text, Overwrite=True)


def _check_spot_serves(spot: Group, on_demand: Group, known: int | None) -> None:
    """Raise `OperatorError` unless spot serves what was desired of it, and what on-demand serves.

    An instance in service may hang: `known` is how many served at the last turn.
    """
    if known is None:
        raise OperatorError(
            f"no availability turn has succeeded lately, so it is unknown whether spot serves what "
            f"{on_demand.desired} on demand serve: see `spotkeeper status`, or give --anyway"
        )
    there = sum(i.phase is Phase.IN_SERVICE and i.healthy for i in spot.instances)
    serving = min(there, known)
    if serving < spot.desired:
        raise OperatorError(
            f"{spot.desired - serving} of {spot.desired} spot instances do not serve, and "
            f"{on_demand.desired} on demand replace them: wait, or give --anyway"
        )
    if serving < on_demand.desired:
        raise OperatorError(
            f"{serving} spot instances serve, and {on_demand.desired} on demand: wait until spot "
            "serves that many, or give --anyway"
        )


def mode_text(fleet: str, control: Control) -> str:
    """Say what a fleet's turns may do, and who set it."""
    return f"{fleet}: {control.mode}, set by {control.mode_by}\n"


def pause_text(fleet: str, control: Control) -> str:
    """Say until when a fleet is paused."""
    if control.pause is None:
        return f"{fleet}: not paused any more\n"
    return f"{fleet}: paused until {control.pause.until:%Y-%m-%d %H:%M:%S} UTC\n"


def stopped_text(stopped: Mapping[str, Sequence[str]]) -> str:
    """List what stopping did, and what it left; the lines name the fleet."""
    return "".join(f"{kind:<6}{each}\n" for kind in ("did", "left") for each in stopped[kind])


def control_json(fleet: str, control: Control) -> str:
    return as_json(fleet=fleet, control=control)
