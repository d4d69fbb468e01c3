"""Rolling out a version of the launch template, by EC2's instance refresh.

All that a group launches while a refresh with a desired configuration is active has the new
version (docs/truth.md), so a lost instance would make a second canary. The refresh is therefore
cancelled once the canary is launching, and the next one begins when the canary has proven itself.
A canary that is lost meanwhile is followed by another one. Where nobody runs this command any more,
AWS waits for two days, and the alarm `new-version-worse` rolls the refresh back.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spotkeeper.adapters.doctor.groups import template_of
from spotkeeper.adapters.ec2.auto_scaling import activities_of, failure_from, is_failed_launch
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import OF_FLEETS, NewVersion, Verdict
from spotkeeper.domain.doctor.facts import GONE, Unseen
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.text import STALE_TURN_S, as_json

ALARM = "new-version-worse"
# Until then a new instance has reported, or the fleet's next turn counts it as one that is missing.
WARM_UP_S = 180
LOOK_EVERY_S = 5.0
# What a group launches until a canary's refresh is cancelled has the new version: look sooner.
LOOK_FOR_CANARY_S = 0.5
# How long AWS waits with a canary that nobody looks at any more: as long as it can.
UNATTENDED = timedelta(hours=48)
# A canary that is not launching by then does not launch now.
NO_LAUNCH = timedelta(minutes=2)
# A version goes back when this many of its canaries in a row were launching and never in service.
TRIES = 3
# A version that is not proven within this many bake times, and the start of an instance, goes back.
BAKES = 12
_ON_ITS_WAY = frozenset({"Cancelling", "RollbackInProgress"})
_ACTIVE = frozenset({"Pending", "InProgress", "Baking"}) | _ON_ITS_WAY
_FAILED = frozenset({"Failed", "RollbackFailed", "RollbackSuccessful"})
_SERVES, _STARTS = "InService", "Pending"
# What a person can do about launches that fail.
ADVICE = {
    FailureClass.CAPACITY: "more instance types or zones would help",
    FailureClass.PRICE: "raise the group's maximum price, or remove it",
    FailureClass.QUOTA: "have the quota raised",
    FailureClass.CONFIGURATION: "correct the launch template or the group",
    FailureClass.PERMISSION: "allow what it names, and the use of its disks' KMS key",
    FailureClass.BOOTSTRAP: "see the log of an instance: its workers do not start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """An instance refresh of a group; `version` is empty where it has no desired configuration.

    One of a `canary` waits for two days. `failure` is that of the group's newest activity since, if
    it is a failed launch, and if that was read.
    """

    status: str
    started: datetime
    version: str
    percentage: int
    to_update: int
    why: str
    canary: bool = False
    failure: LaunchFailure | None = None

    @property
    def active(self) -> bool:
        return self.status in _ACTIVE

    @property
    def stuck(self) -> str:
        """Why nothing launches, and what a person can do; empty where that is not known."""
        if (failure := self.failure) is None:
            return ""
        advice = ADVICE.get(failure.failure_class, "AWS repeats it")
        return f"the last launch FAILED at {failure.at:%H:%M}: {failure.text}: {advice}"

    @property
    def text(self) -> str:
        """What it does, for people."""
        version = f" to version {self.version}" if self.version else ""
        why = f": {self.why}" if self.why else ""
        done = f"{self.percentage} % new, {self.to_update} to replace"
        return f"instance refresh{version} since {self.started:%H:%M}: {self.status}, {done}{why}"


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """A group as AWS describes it, and its newest refresh."""

    answer: Mapping[str, Any]
    refresh: Refresh | None

    @property
    def name(self) -> str:
        return str(self.answer["AutoScalingGroupName"])

    @property
    def version(self) -> str:
        """What it launches."""
        return str(_spec(self.answer).get("Version", ""))

    def of(self, version: str | None = None, state: str = "") -> dict[str, str]:
        """The versions of the instances that serve or launch, of one version or state alone, by id.

        AWS replaces one that it finds unhealthy, and may do so at any moment.
        """
        return {
            one["InstanceId"]: its
            for one in self.answer["Instances"]
            if one["LifecycleState"].startswith(state or (_SERVES, _STARTS))
            and one.get("HealthStatus", "Healthy") == "Healthy"
            and version in (None, its := one.get("LaunchTemplate", {}).get("Version", ""))
        }

    @property
    def beyond(self) -> int:
        """How many instances more than desired; below 0, some are to be launched."""
        return len(self.of()) - int(self.answer["DesiredCapacity"])

    @property
    def active(self) -> Refresh | None:
        """Its refresh, while that replaces or is being ended."""
        return self.refresh if self.refresh and self.refresh.active else None

    def has(self, version: str) -> bool:
        """Whether it launches a version, and has no other instance."""
        return self.version == version and self.of(version) == self.of()


class Step(StrEnum):
    """What a roll-out does next."""

    CANARY = "replace the canary"
    HOLD = "replace no more for now"
    REST = "replace the others"
    ROLL_BACK = "roll back"
    WAIT = "wait"
    CANCEL = "cancel"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step of a roll-out: of a group, and why; look again after `again_s` seconds."""

    step: Step
    why: str
    group: str = ""
    again_s: float = LOOK_EVERY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is rolled out; without a `canary` nothing is compared first.

    The command `began`; what is not proven `until` then is rolled back. A group without a version
    from `before`, by its name, stays. Or all is to `undo` at once.
    """

    version: str
    canary: int
    bake: timedelta
    began: datetime
    until: datetime
    before: Mapping[str, str] = field(default_factory=dict)
    undo: bool = False


def next_step(
    wish: Wish,
    groups: Sequence[GroupVersions],
    trial: NewVersion | None,
    now: datetime,
    short: str = "",
    risk: str = "",
    tries: int = 0,
) -> Plan:
    """Decide what a roll-out does next; the group with the canary, or the larger, goes first.

    Nothing is replaced while the fleet is `short`, and nothing begins at a `risk`: both say why.
    `tries` canaries in a row were launching and never in service.
    """
    new = wish.version
    mine = trial if trial and trial.version.rpartition("/")[2] == new else None
    groups = sorted(groups, key=lambda g: (bool(g.of(new) or g.active), len(g.of())), reverse=True)
    for group in groups:
        if (refresh := group.refresh) is None:
            continue
        if refresh.active and refresh.version not in ("", new):
            return Plan(step=Step.FAILED, group=group.name, why=f"somebody else's {refresh.text}")
        if refresh.status in _ON_ITS_WAY or (refresh.active and not refresh.version):
            return Plan(step=Step.WAIT, group=group.name, why=refresh.text)
        if refresh.status in _FAILED and refresh.started >= wish.began:
            return _back(wish, groups, refresh.text)
    if mine and mine.verdict is Verdict.WORSE and any(not g.has(new) for g in groups):
        return _back(wish, groups, mine.text)
    for group in groups:
        if group.active and not group.active.canary:
            step = Step.HOLD if short else Step.WAIT
            return Plan(step=step, group=group.name, why=short or group.active.text)
    first = groups[0]
    baked = mine is not None and mine.since is not None and now - mine.since >= wish.bake
    proven = wish.canary == 0 or max(groups, key=lambda g: len(g.of())).has(new)
    if not proven and not (baked and mine and mine.verdict is Verdict.NO_WORSE):
        plan = _of_canary(wish, first, mine, now, short or risk)
        if tries >= TRIES * wish.canary and not first.of(new):
            why = f"{tries} instances of version {new} were launched, and none was ever in service"
        elif now + wish.bake * (plan.step is Step.CANARY) < wish.until:
            return plan
        else:
            why = f"not proven since {wish.began:%H:%M}: {plan.why}"
        return _back(wish, groups, why)
    for group in groups:
        if not group.has(new):
            why = short or risk or (mine.text if mine else "nothing is compared")
            step = Step.WAIT if short or risk else Step.REST
            return Plan(step=step, group=group.name, why=why)
    return Plan(step=Step.DONE, why=f"every instance has version {new}")


def versions_before(groups: Sequence[GroupVersions], new: str) -> dict[str, str]:
    """Say what each group launched before a version; where that is unknown, it is left out.

    What one of them does not show, the other one does: they have one launch template.
    """
    numbered = {g.name: {g.version} - {new} if g.version.isdigit() else set() for g in groups}
    own = {g.name: numbered[g.name] or {*g.of().values()} - {new} for g in groups}
    every = {version for versions in own.values() for version in versions}
    return {name: min(of or every) for name, of in own.items() if len(of or every) == 1}


def _back(wish: Wish, groups: Sequence[GroupVersions], why: str = "") -> Plan:
    """Roll back; what AWS would roll back to the version that it launches is cancelled first."""
    new, before, back = wish.version, wish.before, list[str]()
    for group in groups:
        active = group.active
        if active and active.status in _ON_ITS_WAY:
            return Plan(step=Step.WAIT, group=group.name, why=active.text)
        if active and active.version == group.version:
            return Plan(step=Step.HOLD, group=group.name, why=active.text)
        if active or (group.name in before and not group.has(before[group.name])):
            back.append(group.name)
    stay = [g.name for g in groups if g.name not in before and (g.of(new) or g.version == new)]
    if stay and any(not group.has(new) for group in groups):
        text = f"{', '.join(stay)} keeps {new}: roll out the version from before, by its number"
        why = f"{why}; {text}" if why else text
    if not back and not why:
        return Plan(step=Step.DONE, why="nothing to do")
    return Plan(step=Step.ROLL_BACK, group=", ".join(back), why=why)


def _of_canary(
    wish: Wish, group: GroupVersions, mine: NewVersion | None, now: datetime, short: str
) -> Plan:
    new, since = wish.version, mine.since if mine else None
    running = group.active
    # Of too many, AWS ends the oldest version.
    newer = new.isdigit() and int(new) > int(group.version)
    serves = len(group.of(new, _SERVES)) >= wish.canary and group.beyond <= 0
    if running and (serves or (newer and len(group.of(new)) >= wish.canary)):
        return Plan(step=Step.HOLD, group=group.name, why="the canary is there")
    if running and (group.beyond < 0 or (not group.of(new) and now - running.started > NO_LAUNCH)):
        # Whatever the group launches has the new version, also in place of what it has lost.
        return Plan(step=Step.HOLD, group=group.name, why="AWS launches no canary now")
    if running or group.of(new):
        text = mine.text if mine else f"{len(group.of(new))} of version {new}, none is compared yet"
        until = f" (at least until {since + wish.bake:%H:%M})" if since else ""
        soon = LOOK_EVERY_S if group.of(new) else LOOK_FOR_CANARY_S
        return Plan(step=Step.WAIT, group=group.name, why=f"{text}{until}", again_s=soon)
    if group.of(state=_STARTS) or group.beyond < 0:
        # What it launches beside the canary would have the new version, too.
        short = "the group is launching instances"
    elif len(group.of()) <= wish.canary:
        # On-demand that stands in for it is released once the canary counts.
        short = "no instance would be left to compare the canary with"
    if short:
        return Plan(step=Step.WAIT, group=group.name, why=short)
    why = f"{wish.canary} of {len(group.of())}"
    return Plan(step=Step.CANARY, group=group.name, why=why, again_s=LOOK_FOR_CANARY_S)


class Rollout:
    """A roll-out as AWS and the fleet's last turn show it."""

    def __init__(self, aws: Aws, stack: str, fleet: str, now: Callable[[], datetime]) -> None:
        """Look the fleet up; raises `Gone` and `OperatorError`."""
        self._aws, self._stack, self.now = aws, aws.stack(stack), now
        self._tried = set[str]()
        self._proven = self._serves = self._old = False
        self._fleets = aws.documents(self._stack)
        (self.fleet,) = chosen(self._fleets, fleet)

    def wish(self, version: int, canary: int, bake: timedelta) -> Wish:
        """Say what is to be rolled out; raises `OperatorError` where AWS cannot."""
        groups = self.groups()
        for group in groups:
            cannot(group)
        if not _of_one_template(groups):
            names = " and ".join(group.name for group in groups)
            raise OperatorError(f"{names} have two launch templates: give both one, to roll it out")
        now, start = self.now(), timedelta(seconds=self.fleet.availability.launch_deadline_s)
        new, template = str(version), str(_spec(groups[0].answer)["LaunchTemplateId"])
        # A role that may not read it learns it from AWS, which refuses the instance refresh.
        data = template_of(self._aws.client, template, new)
        if isinstance(data, Unseen) and data.kind == GONE:
            raise OperatorError(f"version {new} of {template} cannot be rolled out: {data.why}")
        self._serves = any(group.of(new, _SERVES) for group in groups)
        return Wish(
            version=new,
            canary=canary,
            bake=bake,
            # One to this version that fails later is not begun again, whoever began it.
            began=min([now, *(g.active.started for g in groups if g.active)]),
            until=now + BAKES * bake + start,
            before=versions_before(groups, new),
        )

    def _alone(self, wish: Wish, plan: Plan) -> Plan:
        """Wait, or give up, where the alarm may ring for another version: it is one for all fleets.

        Another fleet's version is being proven for as long as one of this wish.
        """
        for fleet in self._fleets.fleets:
            _, health = self._turns(fleet)
            trial: NewVersion = (health.new_version if health else None) or NewVersion()
            worse, lasts = trial.verdict is Verdict.WORSE, wish.until - wish.began
            if fleet == self.fleet:
                if worse and not self._serves and trial.version.rpartition("/")[2] != wish.version:
                    return replace(plan, step=Step.FAILED, why=f"{trial.text}; roll it back first")
                continue
            age = self.now() - trial.since if trial.since else lasts
            new = trial.verdict is Verdict.UNKNOWN and age < lasts
            groups = read_versions(self._aws.autoscaling, fleet)
            if worse or new or any(group.active for group in groups):
                why = f"fleet {fleet.name} is rolled out, or has a version that is worse"
                return replace(plan, step=Step.WAIT, why=why)
        return plan

    def undo(self) -> Wish:
        """Say what is to be rolled back: what is compared, or what was rolled out last."""
        groups, now = self.groups(), self.now()
        rolled = sorted((g.refresh.started, g.refresh.version) for g in groups if g.refresh)
        new = rolled[-1][-1] if rolled else ""
        with suppress(FleetError):
            _, health = self._turns()
            if health and health.new_version:
                new = health.new_version.version.rpartition("/")[2]
        own = new if _of_one_template(groups) else ""
        before = versions_before(groups, own) if new else {}
        wish = Wish(version=new, canary=0, bake=timedelta(), began=now, until=now, undo=True)
        return replace(wish, before=before)

    def groups(self) -> tuple[GroupVersions, ...]:
        if groups := read_versions(self._aws.autoscaling, self.fleet):
            return groups
        names = " and ".join(self.fleet.groups)
        raise OperatorError(f"no group {names}: correct the fleet document, or create them")

    def look(self, wish: Wish) -> Plan:
        """Decide the next step by what is there now."""
        if wish.undo:
            return _back(wish, self.groups())
        now, trial, short, stands_in = self.now(), None, "", 0
        risk = "whether enough serve is not known"
        with suppress(FleetError):
            turn, health = self._turns()
            trial = health.new_version if health else None
            if seen := turn.availability if turn else None:
                missing, leaving = seen.shortfall_unfilled, seen.spot_at_risk
                stands_in = seen.spot_desired - seen.spot_serving
                short = f"{missing} serve nowhere" if missing else ""
                risk = f"{leaving} are at risk" if leaving else ""
            if not health:
                risk = "whether workers serve is not known"
            elif any(not one.on_premises for one in health.suspects):
                risk = "workers are suspected"
            # What served before the new version began needs no canary, and is not compared.
            other = trial is not None and trial.version.rpartition("/")[2] != wish.version
            self._old |= bool(other and self._serves and health and health.at >= wish.began)
        groups = self.groups()
        for group in groups:
            self._tried |= group.of(wish.version, _STARTS).keys()
        if any(group.of(wish.version, _SERVES) for group in groups):
            self._tried.clear()
        # The fleet's memory may be lost, or no other version left, before all are replaced.
        wish = replace(wish, canary=0) if self._proven or self._old else wish
        wish = replace(wish, before={}) if self._old else wish
        if wish.canary and stands_in > 0:
            # Launches that fail, or are late, limit what on-demand covers beyond.
            risk = risk or f"{stands_in} of spot do not serve"
        plan = next_step(wish, groups, trial, now, short, risk, len(self._tried))
        active = next((group.active for group in groups if group.name == plan.group), None)
        if active and plan.step in (Step.WAIT, Step.HOLD) and plan.again_s >= LOOK_EVERY_S:
            with suppress(FleetError):
                failure = failed_launch(self._aws.autoscaling, plan.group, active.started)
                stuck = replace(active, failure=failure).stuck
                plan = replace(plan, why="; ".join(filter(None, (plan.why, stuck))))
        self._proven = self._proven or plan.step is Step.REST
        gone = {*self.fleet.groups} - {group.name for group in groups}
        if gone and plan.step in (Step.CANARY, Step.REST, Step.DONE):
            why = "it does not exist: create it, or correct the fleet document"
            return Plan(step=Step.WAIT, group=", ".join(sorted(gone)), why=why)
        return self._alone(wish, plan) if plan.step in (Step.CANARY, Step.REST) else plan

    def take(self, plan: Plan, wish: Wish) -> None:
        """Request a step of AWS."""
        groups = {group.name: group for group in self.groups()}
        with aws_errors(f"instance refresh of {plan.group or self.fleet.name}"):
            match plan.step:
                case Step.CANARY:
                    group = groups[plan.group]
                    share = max(1, min(99, 100 * wish.canary // max(1, len(group.of()))))
                    self._start(
                        group,
                        wish.version,
                        MaxHealthyPercentage=100,
                        CheckpointPercentages=[share, 100],
                        CheckpointDelay=int(UNATTENDED.total_seconds()),
                        **self._guard,
                    )
                case Step.REST:
                    # The alarm of a newer version may ring.
                    guard = {} if self._old else self._guard
                    self._start(groups[plan.group], wish.version, **guard)
                case Step.HOLD:
                    self._end(groups[plan.group])
                case Step.ROLL_BACK:
                    for group in groups.values():
                        self._end(group, "" if self._old else wish.before.get(group.name, ""))

    def cancel(self) -> Plan:
        """Cancel the active refreshes of both groups."""
        ended = [group.name for group in self.groups() if self._end(group)]
        return Plan(step=Step.CANCEL, group=", ".join(ended), why="" if ended else "nothing to do")

    def _end(self, group: GroupVersions, back_to: str | None = None) -> bool:
        """Roll a group back to a version, or where that is None, cancel its refresh."""
        client, status = self._aws.autoscaling, group.refresh.status if group.refresh else ""
        with aws_errors(f"instance refresh of {group.name}"):
            if status in _ACTIVE - _ON_ITS_WAY:
                cancels, rolls = client.cancel_instance_refresh, client.rollback_instance_refresh
                (cancels if back_to is None else rolls)(AutoScalingGroupName=group.name)
            elif back_to and status not in _ON_ITS_WAY and not group.has(back_to):
                self._start(group, back_to)
            else:
                return False
        return True

    def _turns(self, fleet: Fleet | None = None) -> Any:
        """Return the newest turn of each controller, None where that is old."""
        newest = self._aws.records(self._stack).newest((fleet or self.fleet).name, 20)
        each = [next(iter(newest.of(one)), None) for one in OF_FLEETS]
        old = timedelta(seconds=STALE_TURN_S)
        return [turn if turn and self.now() - turn.at <= old else None for turn in each]

    @property
    def _guard(self) -> dict[str, Any]:
        alarms = {"Alarms": [f"{self._stack.name}-{ALARM}"]}
        return {"AutoRollback": True, "AlarmSpecification": alarms}

    def _start(self, group: GroupVersions, version: str, **preferences: Any) -> None:
        """Start a refresh that launches a successor before an instance ends."""
        wish: Any = {
            "MinHealthyPercentage": 100,
            "MaxHealthyPercentage": 125,
            "InstanceWarmup": WARM_UP_S,
            "SkipMatching": True,
            "ScaleInProtectedInstances": "Refresh",
            "StandbyInstances": "Ignore",
        }
        self._aws.autoscaling.start_instance_refresh(
            AutoScalingGroupName=group.name,
            DesiredConfiguration=configuration(group.answer, version),
            Preferences=wish | preferences,
        )


def cannot(group: GroupVersions) -> None:
    """Raise `OperatorError` where an instance refresh cannot roll a version out."""
    policy = group.answer.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    own, why = {"InstanceRequirements", "LaunchTemplateSpecification"}, ""
    if not group.version.isdigit():
        named = f"it launches {group.version or 'no version'}"
        why = f"{named}: name the number of a version in the group, to which AWS can roll back"
    elif any(own & each.keys() for each in policy.get("Overrides", [])):
        why = "its types are chosen by attributes, or have launch templates of their own"
    if why:
        raise OperatorError(f"{group.name} cannot be rolled out: {why} (docs/rollouts.md)")


def _of_one_template(groups: Sequence[GroupVersions]) -> bool:
    return len({_spec(group.answer).get("LaunchTemplateId") for group in groups}) <= 1


def configuration(answer: Mapping[str, Any], version: str) -> Any:
    """Return a group's configuration with another version of its launch template."""
    # AWS takes the template's id or its name.
    wanted = {"LaunchTemplateId": _spec(answer)["LaunchTemplateId"], "Version": version}
    if "MixedInstancesPolicy" not in answer:
        return {"LaunchTemplate": wanted}
    policy: Any = deepcopy(answer["MixedInstancesPolicy"])
    policy["LaunchTemplate"]["LaunchTemplateSpecification"] = wanted
    return {"MixedInstancesPolicy": policy}


def read_versions(client: Any, fleet: Fleet) -> tuple[GroupVersions, ...]:
    """Read both groups, spot first, with the newest refresh of each."""
    with aws_errors("autoscaling:DescribeAutoScalingGroups"):
        answer = client.describe_auto_scaling_groups(AutoScalingGroupNames=[*fleet.groups])
    named = {group["AutoScalingGroupName"]: group for group in answer["AutoScalingGroups"]}
    return tuple(
        GroupVersions(named[name], read_refresh(client, name))
        for name in fleet.groups
        if name in named
    )


def _spec(configured: Mapping[str, Any]) -> Mapping[str, Any]:
    policy = configured.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    spec: Mapping[str, Any] = policy.get("LaunchTemplateSpecification", {})
    return configured.get("LaunchTemplate") or spec


def read_refresh(client: Any, group: str) -> Refresh | None:
    """Read a group's newest refresh, whoever started it."""
    with aws_errors("autoscaling:DescribeInstanceRefreshes"):
        answer = client.describe_instance_refreshes(AutoScalingGroupName=group, MaxRecords=1)
    for one in answer["InstanceRefreshes"]:
        return Refresh(
            status=one["Status"],
            started=one["StartTime"],
            version=_spec(one.get("DesiredConfiguration", {})).get("Version", ""),
            percentage=one.get("PercentageComplete", 0),
            to_update=one.get("InstancesToUpdate", 0),
            why=one.get("StatusReason", ""),
            canary=one.get("Preferences", {}).get("CheckpointDelay") == UNATTENDED.total_seconds(),
        )
    return None


def failed_launch(client: Any, group: str, since: datetime) -> LaunchFailure | None:
    """Return the failure of a group's newest activity, if that is a launch."""
    newest = next(activities_of(client, group, since, 1), None)
    return failure_from(newest) if newest and is_failed_launch(newest) else None


def rollout_text(fleet: str, plan: Plan) -> str:
    parts = [f"{plan.step} {plan.group}".strip(), *([plan.why] if plan.why else [])]
    return f"{fleet}: {': '.join(parts)}\n"


def rollout_json(fleet: str, plan: Plan) -> str:
    return as_json(fleet=fleet, step=plan.step, group=plan.group, why=plan.why)
