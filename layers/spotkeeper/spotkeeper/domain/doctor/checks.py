"""Every check of the doctor, in tables: id, severity, evidence, fix, and what finds it.

`examine` runs them all. In a text, `{it}` is what was found; `{group.name}`, `{fleet.name}` and
`{template.hop_limit}` are facts. In a command, `!q` quotes one for the shell. docs/findings.md is
generated from these tables (`make docs`).
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from string import Formatter
from typing import Any

from spotkeeper.domain.doctor.facts import (
    GONE,
    Facts,
    GroupFacts,
    JobFacts,
    LaunchTemplate,
    StackFacts,
    Unseen,
    known,
)
from spotkeeper.domain.doctor.finding import Finding, Severity, worst_first
from spotkeeper.domain.failure import needs_operator
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.domain.spread import NEVER, Place, Standing

ERROR, WARNING, UNKNOWN, NOTE = Severity


class _Text(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shlex.quote(value) if conversion == "q" else super().convert_field(value, conversion)


type Found = Iterable[object] | float | None
"""What a check found: each item is a finding. A text, a number or True is one, unless empty."""


@dataclass(frozen=True, slots=True)
class Check[Scope]:
    """One check of a scope."""

    id: str
    severity: Severity
    evidence: str
    fix: str
    find: Callable[[Scope], Found]

    def findings(self, scope: Scope, about: str, **facts: object) -> Iterator[Finding]:
        """Run it on one scope; a tuple is another resource and what was found of it."""
        subjects = self.find(scope)
        if not isinstance(subjects, Iterable) or isinstance(subjects, str):
            subjects = [subjects] if subjects else []
        for subject in subjects:
            name, detail = subject if isinstance(subject, tuple) else (about, subject)
            yield Finding(
                id=self.id,
                severity=self.severity,
                about=name,
                evidence=_Text().format(self.evidence, it=detail, about=name, **facts),
                fix=_Text().format(self.fix, it=detail, about=name, **facts),
            )


@dataclass(frozen=True, slots=True)
class Member:
    """A group of a fleet."""

    facts: Facts
    fleet: Fleet
    group: GroupFacts
    option: PurchaseOption
    most: int
    """The bound that the fleet's document sets."""
    further: LaunchTemplate | Unseen | None = None
    """The launch template of some overrides alone, where that is what is checked."""

    @property
    def template(self) -> LaunchTemplate:
        """How its instances start; one without a problem where that is not known."""
        return known(self.further or self.group.launch_template, _UNKNOWN_TEMPLATE)

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the launch template launches."""
        others = {t for each in self.group.further_templates for t in known(each, _NONE).types}
        own = tuple([t for t in self.group.types if t not in others])
        return self.template.types if self.further else own

    @property
    def aws(self) -> Mapping[str, Any]:
        """The group as AWS describes it."""
        return self.group.aws

    @property
    def zones(self) -> frozenset[str]:
        """The zones of its subnets."""
        return frozenset(self.aws["AvailabilityZones"])

    @property
    def distribution(self) -> Mapping[str, Any]:
        """The shares of spot and on-demand in its mixed instances policy, if it has one."""
        policy = self.aws.get("MixedInstancesPolicy", {})
        return dict(policy.get("InstancesDistribution", {}))

    @property
    def only_reserved(self) -> str:
        """What keeps its launches within capacity reservations; empty where nothing does."""
        segments = self.distribution.get("DistributionSegments", ())
        kinds = {kind for each in segments for kind in each.get("TargetCapacityTypes", ())}
        specified = self.aws.get("CapacityReservationSpecification", {})
        preference = specified.get("CapacityReservationPreference", "default")
        if preference == "capacity-reservations-only":
            return "the group's CapacityReservationSpecification"
        if kinds and "on-demand" not in kinds:
            return "the group's DistributionSegments"
        by_template = preference == "default" and self.template.reservations_only
        return "the launch template" if by_template else ""

    @property
    def suspended(self) -> Mapping[str, str]:
        """Its suspended processes, each with the reason that AWS reports."""
        processes = self.aws.get("SuspendedProcesses", [])
        return {each["ProcessName"]: each.get("SuspensionReason", "") for each in processes}

    def hooks(self, transition: str) -> list[tuple[str, int]]:
        """The lifecycle hooks of a transition, each with its heartbeat in seconds."""
        return [
            (hook["LifecycleHookName"], hook.get("HeartbeatTimeout", 3600))
            for hook in known(self.group.hooks, ())
            if hook["LifecycleTransition"] == f"autoscaling:EC2_INSTANCE_{transition}"
        ]

    @property
    def is_spot(self) -> bool:
        """Whether it is the fleet's spot group."""
        return self.option is PurchaseOption.SPOT

    @property
    def is_sized(self) -> bool:
        """Whether Spotkeeper alone sets the group's desired capacity."""
        return self.fleet.sizing.enabled or not self.is_spot

    @property
    def existing(self) -> list[str]:
        """The group's types that exist, as far as that is known."""
        vcpus = self.facts.account.vcpus
        return [t for t in self.group.types if isinstance(vcpus, Unseen) or t in vcpus]


_UNKNOWN_TEMPLATE = LaunchTemplate(profile_policies=Unseen(action="", why=""))
_NONE = LaunchTemplate()


def _lacks(template: LaunchTemplate, policy: str) -> bool:
    """Say whether a template has a role, but not a policy."""
    policies = template.profile_policies
    return isinstance(policies, frozenset) and policy not in policies


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Return every finding, worst first; empty means that nothing is wrong."""
    return worst_first(_findings(facts))


def _findings(facts: Facts) -> Iterator[Finding]:
    for check in ACCOUNT_CHECKS:
        yield from check.findings(facts, "account")
    if facts.stack:
        for of_stack in STACK_CHECKS:
            yield from of_stack.findings(facts.stack, "alarms")
    if facts.jobs:
        for of_jobs in JOB_CHECKS:
            yield from of_jobs.findings(facts.jobs, "jobs")
    for at in _members(facts):
        yield from _of_group(at, GROUP_CHECKS)
        # The same may be wrong with several templates.
        each = (replace(at, further=one) for one in (None, *at.group.further_templates))
        yield from dict.fromkeys(found for one in each for found in _of_group(one, TEMPLATE_CHECKS))


def _of_group(at: Member, checks: Sequence[Check[Member]]) -> Iterator[Finding]:
    named = {"fleet": at.fleet, "group": at.group, "aws": at.aws, "template": at.template}
    for check in checks:
        yield from check.findings(at, at.group.name, most=at.most, **named)


def _members(facts: Facts) -> Iterator[Member]:
    groups = known(facts.groups, {})
    for fleet in facts.fleets:
        bounds = fleet.bounds
        for name, option, most in (
            (fleet.spot_group, PurchaseOption.SPOT, bounds.spot_max),
            (fleet.on_demand_group, PurchaseOption.ON_DEMAND, bounds.on_demand_max),
        ):
            if name in groups:
                yield Member(facts, fleet, groups[name], option, most)


# --- the account and the documents ----------------------------------------------------------------

_ROLES = {
    "AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com",
    "AWSServiceRoleForEC2Spot": "spot.amazonaws.com",
}
ROLES = tuple(_ROLES)
# One stack needs the 10 of a new account; other functions need some, too.
LEAST_CONCURRENCY = 20
LOW_SCORE = 3
_QUOTAS = {
    PurchaseOption.SPOT: re.compile(r"All (.+) Spot Instance Requests"),
    PurchaseOption.ON_DEMAND: re.compile(r"Running On-Demand (.+) instances"),
}
_TYPE = re.compile(r"([a-z]+)(\d?)")
_FAMILY = re.compile(r"[A-Za-z]+\d*")
# im4gn and is4gen count as I (EC2 user guide, "EC2 instance type quotas"). A belief: gr6 as G.
_COUNTED_AS = {"im": "i", "is": "i", "gr": "g"}


def quota_for(instance_type: str, option: PurchaseOption, names: Sequence[str]) -> str | None:
    """Find the quota that an instance type counts against, by the families in the quota's name.

    Service Quotas names them "All G and VT Spot Instance Requests" or "Running On-Demand Standard
    (A, C, D, H, I, M, R, T, Z) instances".
    """
    family = _TYPE.match(instance_type.lower())
    if family is None:
        return None
    letters = _COUNTED_AS.get(family[1], family[1])
    wanted = {letters, letters + family[2]}
    for name in names:
        match = _QUOTAS[option].fullmatch(name)
        if match and wanted & {token.lower() for token in _FAMILY.findall(match[1])}:
            return name
    return None


def _small_quotas(facts: Facts) -> Iterator[object]:
    quotas, vcpus = known(facts.account.quotas, {}), known(facts.account.vcpus, {})
    wanted: dict[str, float] = defaultdict(float)
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for member in _members(facts):
        largest: dict[str, int] = {}
        for instance_type in member.group.types if member.most else ():
            quota = quota_for(instance_type, member.option, tuple(quotas))
            if quota and instance_type in vcpus:
                largest[quota] = max(largest.get(quota, 0), vcpus[instance_type])
        for quota, size in largest.items():
            wanted[quota] += member.most * size
            groups[quota][member.group.name] = None
    for quota, needed in wanted.items():
        if quotas[quota] < needed:
            detail = {"quota": quota, "is": f"{quotas[quota]:g}", "needed": f"{needed:g}"}
            yield ", ".join(groups[quota]), detail


def _owners(facts: Facts) -> Mapping[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for fleet in facts.fleets:
        for group in (fleet.spot_group, fleet.on_demand_group):
            owners.setdefault(group, []).append(fleet.name)
    return owners


def _stale_logs(facts: Facts) -> Iterator[object]:
    ages: Mapping[str, float | None] = known(facts.stack.search_log_ages, {}) if facts.stack else {}
    for fleet in facts.fleets:
        if fleet.sizing.enabled and fleet.name in ages:
            age = ages[fleet.name]
            if age is None:
                yield f"fleet {fleet.name}", "none ever arrived"
            # A request queue shows whether a fleet is idle or its logs are missing.
            elif age > fleet.sizing.stale_after_s and fleet.request_queue_url is None:
                yield f"fleet {fleet.name}", f"the newest is {age:.0f} s old"


def _unseen_parts(facts: Facts) -> Iterator[tuple[str, str, Unseen]]:
    """Every part that could not be read, with its group and its name."""
    parts: list[tuple[str, object]] = [("", facts), ("", facts.account), ("", facts.stack)]
    if facts.jobs:
        parts += [("jobs", facts.jobs), ("jobs", facts.jobs.launch_template)]
    for group in known(facts.groups, {}).values():
        parts += [(group.name, group), (group.name, group.launch_template)]
        for template in group.further_templates:
            if isinstance(template, Unseen):
                yield group.name, "launch template", template
            else:
                parts.append((group.name, template))
    for name, part in parts:
        for each in fields(part) if part and not isinstance(part, Unseen) else ():  # type: ignore
            if isinstance(value := getattr(part, each.name), Unseen):
                yield name, each.name.replace("_", " "), value


# Launches fail when AWS says that one of these does not exist.
_NEEDED_FOR_LAUNCHES = {
    "ec2:DescribeLaunchTemplateVersions": "launch template",
    "ec2:DescribeImages": "image",
    "iam:GetInstanceProfile": "instance profile",
    "ec2:DescribeSubnets": "subnet",
    "s3:ListBucket": "bucket",
}


def _gone_part(group: str, unseen: Unseen) -> str:
    is_gone = group and unseen.kind == GONE
    parts = _NEEDED_FOR_LAUNCHES.items()
    return next((part for action, part in parts if is_gone and action in unseen.action), "")


def _unseen(facts: Facts) -> Iterator[object]:
    later = "run it again when AWS can be reached from here and answers"
    for group, name, unseen in _unseen_parts(facts):
        if not _gone_part(group, unseen):
            allow = f"allow {unseen.action} to the role that runs this, and run it again"
            fixes = {"Unavailable": later, "TimedOut": later, "Throttled": later, "Refused": allow}
            fix = fixes.get(unseen.kind, "correct what is named, and run it again")
            yield name, {"what": f"{unseen.action}: {unseen.why}", "fix": fix}


ACCOUNT_CHECKS: tuple[Check[Facts], ...] = (
    Check("no-service-linked-role", ERROR,
        "{it[0]} does not exist: launches fail with AuthFailure",
        "aws iam create-service-linked-role --aws-service-name {it[1]}",
        lambda facts: (
            ("account", [role, _ROLES[role]])
            for role in ROLES if role not in known(facts.account.roles, frozenset(ROLES))
        )),
    Check("little-concurrency", WARNING,
        "Lambda's unreserved concurrency is {it}; this stack alone needs 10",
        'request more than 20 (Service Quotas, "Concurrent executions")',
        lambda facts: [
            free for free in [facts.account.unreserved_concurrency]
            if not isinstance(free, Unseen) and free < LEAST_CONCURRENCY
        ]),
    Check("quota-too-small", ERROR,
        'quota "{it[quota]}" is {it[is]} vCPUs; the fleets may need {it[needed]}',
        'request {it[needed]} in Service Quotas (ec2, "{it[quota]}"), or lower the bounds',
        _small_quotas),
    Check("placement-score", WARNING,
        "AWS scores the spot capacity for these types and this maximum at {it} of 10",
        "add types and zones; expect to pay for on-demand for a while",
        lambda facts: (
            (fleet.spot_group, score) for fleet in facts.fleets
            if (score := known(facts.account.placement_scores or {}, {}).get(fleet.name, 10))
            <= LOW_SCORE
        )),
    Check("wrong-document", ERROR, "{it}",
        "correct the document; what it says takes effect then",
        lambda facts: (("documents", each) for each in facts.wrong_documents)),
    Check("no-group", ERROR, "the document of {it} names it, but it does not exist",
        "correct the document or create the group",
        lambda facts: (
            (group, names[0]) for group, names in _owners(facts).items()
            if group not in known(facts.groups, {group: None})
        )),
    Check("group-in-two-fleets", ERROR,
        "it is in the documents of {it}: each fleet undoes what the other does",
        "use a group of its own for each fleet",
        lambda facts: (
            (group, ", ".join(names)) for group, names in _owners(facts).items() if names[1:]
        )),
    Check("group-in-two-stacks", ERROR,
        "{it} names it too: where both stacks act, each undoes what the other does",
        "leave it to one stack: let the other observe (`spotkeeper mode`), then delete its "
        "document; the document may also be left over from a deleted stack",
        lambda facts: (
            (group, parameter) for group in _owners(facts)
            for parameter in known(facts.other_stacks, {}).get(group, ())
        )),
    Check("unused-settings", WARNING,
        "settings of an earlier release have no effect: {it}",
        "remove them from the fleet's document (docs/settings.md)",
        lambda facts: ((f.name, ", ".join(f.unused)) for f in facts.fleets if f.unused)),
    Check("nothing-wakes-it", WARNING,
        "bounds.spot_min is 0 and no request queue is named: an empty group grows only by logs of "
        "on-premises workers, or by one where logs had arrived and are missing",
        "set bounds.spot_min to 1 or more, or name the request_queue_url",
        lambda facts: (
            (fleet.name, "") for fleet in facts.fleets
            if fleet.sizing.enabled and fleet.bounds.spot_min == 0 < fleet.bounds.spot_max
            and fleet.request_queue_url is None
        )),
    Check("waits-unseen", NOTE,
        "only served requests have search logs, so an overrun fleet sees a small load: no request "
        "queue is named",
        "name the request_queue_url: it shows how many wait (docs/sizing.md)",
        lambda facts: (
            (fleet.name, "") for fleet in facts.fleets
            if fleet.sizing.enabled and fleet.objective and fleet.request_queue_url is None
        )),
    Check("search-logs-stale", WARNING, "search logs are stale, {it}: the fleet keeps its size",
        "check that workers send to the output SearchLogQueueUrl, with this fleet's name, and that "
        "CollectSearchLogs counts its messages",
        _stale_logs),
    Check("launch-part-gone", ERROR, "the {it[0]} does not exist: launches fail ({it[1]})",
        "create it again, or correct the launch template",
        lambda facts: (
            (group, [part, unseen.why]) for group, _, unseen in _unseen_parts(facts)
            if (part := _gone_part(group, unseen))
        )),
    Check("unseen", UNKNOWN, "{it[what]}", "{it[fix]}", _unseen),
)  # fmt: skip

# --- the groups, and how their instances start ----------------------------------------------------

_PROCESSES = ("Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy", "AddToLoadBalancer")
# An instance that leaves for longer than this is paid for without serving.
LONGEST_DRAIN_S = 7200
SHORTEST_DRAIN_S = 60
# One more than the instance itself.
HOPS_INTO_A_CONTAINER = 2
# Instance metadata serves a tag under its key as a path: EC2 refuses to launch with these in a key
# while tags are in the metadata (EC2 user guide, "Use instance tags in metadata").
_NOT_IN_A_PATH = (" ", "/")
_NOT_A_KEY = frozenset({".", "..", "_index"})
_UPDATE = "aws autoscaling update-auto-scaling-group --auto-scaling-group-name={group.name!q} "
_HOOK = "aws autoscaling put-lifecycle-hook --auto-scaling-group-name={group.name!q} "
_METADATA = "in the launch template's MetadataOptions"


def _long_hooks(at: Member) -> Iterator[object]:
    deadline = at.fleet.availability.launch_deadline_s
    for hook, heartbeat_s in at.hooks("LAUNCHING"):
        if heartbeat_s >= deadline:
            yield [hook, heartbeat_s, deadline]
    for hook, heartbeat_s in at.hooks("TERMINATING"):
        if heartbeat_s > LONGEST_DRAIN_S:
            yield [hook, heartbeat_s, LONGEST_DRAIN_S]


def _counts_in_units(at: Member) -> bool:
    policy = at.aws.get("MixedInstancesPolicy", {"LaunchTemplate": {}})
    overrides = policy["LaunchTemplate"].get("Overrides", [])
    has_weights = any(override.get("WeightedCapacity", "1") != "1" for override in overrides)
    return has_weights or at.aws.get("DesiredCapacityType", "units") != "units"


def _protected(at: Member) -> str:
    instances = at.aws.get("Instances", [])
    return " ".join(each["InstanceId"] for each in instances if each["ProtectedFromScaleIn"])


def _is_retained(at: Member) -> bool:
    triggers = at.aws.get("InstanceLifecyclePolicy", {}).get("RetentionTriggers", {})
    return bool(triggers.get("TerminateHookAbandon") == "retain")


def _without_quota(at: Member) -> Found:
    quotas = at.facts.account.quotas
    if isinstance(quotas, Unseen) or isinstance(at.facts.account.vcpus, Unseen) or not at.most:
        return None
    if not at.group.types:
        return "its types, which are not known"
    return ", ".join(t for t in at.group.types if quota_for(t, at.option, tuple(quotas)) is None)


def _not_offered(at: Member) -> dict[str, list[str]]:
    """The zones that do not offer a type, by type."""
    offered = at.facts.account.offered
    if isinstance(offered, Unseen):
        return {}
    return {t: sorted(at.zones - offered.get(t, frozenset())) for t in at.existing}


def _is_offered(at: Member) -> bool:
    missing = _not_offered(at)
    return not missing or any(len(zones) < len(at.zones) for zones in missing.values())


def _foreign_architectures(at: Member) -> Found:
    of_type, image = at.facts.account.architectures, at.template.architecture
    types = [t for t in at.types if t in of_type]
    wanted = {image} if image else next((of_type[t] for t in types), frozenset[str]())
    rest = f"{'the image' if image else 'the rest of the group'} is {'/'.join(sorted(wanted))}"
    return [
        f"{t} is {'/'.join(sorted(of_type[t]))}, {rest}" for t in types if not wanted & of_type[t]
    ]


def _bad_keys(at: Member) -> str:
    own = (tag["Key"] for tag in at.aws.get("Tags", []) if tag.get("PropagateAtLaunch"))
    keys = dict.fromkeys((*own, *at.template.tag_keys))
    wrong = [k for k in keys if k in _NOT_A_KEY or any(c in k for c in _NOT_IN_A_PATH)]
    return ", ".join(map(repr, wrong))


GROUP_CHECKS: tuple[Check[Member], ...] = (
    Check("not-wholly-spot", ERROR,
        "it launches {it:.0%} on demand: Spotkeeper counts all of it as spot",
        "set OnDemandBaseCapacity and OnDemandPercentageAboveBaseCapacity to 0",
        lambda at: at.is_spot and 1 - (1 if at.group.spot_share is None else at.group.spot_share)),
    Check("not-wholly-on-demand", ERROR,
        "it launches {group.spot_share:.0%} as spot: the fallback fails when spot does",
        "set OnDemandPercentageAboveBaseCapacity to 100, and no market options in the launch "
        "template",
        lambda at: not at.is_spot and at.group.spot_share),
    Check("allocation-strategy", WARNING,
        "its SpotAllocationStrategy is lowest-price (the default), which ignores how much capacity "
        "is left: interruptions are more frequent",
        "set SpotAllocationStrategy to price-capacity-optimized in its mixed instances policy",
        lambda at: at.is_spot and "MixedInstancesPolicy" in at.aws
        and at.distribution.get("SpotAllocationStrategy", "lowest-price") == "lowest-price"),
    Check("spot-max-price", WARNING,
        "it pays at most {it} USD an hour for spot: AWS interrupts such instances more often",
        "remove SpotMaxPrice (MaxPrice in the launch template); on-demand's price is the limit",
        lambda at: at.is_spot
        and (at.distribution.get("SpotMaxPrice") or at.template.max_price)),
    Check("maximum-below-bound", ERROR,
        "its maximum is {aws[MaxSize]}, the document of {fleet.name} allows {most}: AWS refuses "
        "more than the maximum",
        f"lower the bound, or raise the maximum:\n{_UPDATE}--max-size {{most}}",
        lambda at: at.aws["MaxSize"] < at.most),
    Check("desired-above-bound", ERROR,
        "its desired capacity is {aws[DesiredCapacity]}, the document of {fleet.name} allows "
        "{most}: a turn that acts ends {it} instances at once",
        "raise bounds.spot_max (SpotMax of the stack), or lower the group yourself",
        lambda at: at.is_spot and at.is_sized and max(0, at.aws["DesiredCapacity"] - at.most)),
    Check("spot-minimum", WARNING,
        "its minimum is {aws[MinSize]}, the document of {fleet.name} allows "
        "{fleet.bounds.spot_min}: the fleet never shrinks below the group's minimum",
        "raise bounds.spot_min, or lower the minimum:\n"
        f"{_UPDATE}--min-size {{fleet.bounds.spot_min}}",
        lambda at: at.is_spot and at.is_sized and at.aws["MinSize"] > at.fleet.bounds.spot_min),
    Check("on-demand-minimum", WARNING,
        "its minimum is {aws[MinSize]}: that many instances are never released",
        f"{_UPDATE}--min-size 0",
        lambda at: not at.is_spot and at.aws["MinSize"] > 0),
    Check("foreign-scaling-policy", ERROR, "{it} also sets its desired capacity",
        "delete it, or set sizing.enabled to false to leave the spot group to it",
        lambda at: at.is_sized and ", ".join(known(at.group.policies, ()))),
    Check("foreign-scaling-schedule", ERROR, "{it} also sets its desired capacity",
        "delete it, or set sizing.enabled to false to leave the spot group to it",
        lambda at: at.is_sized and ", ".join(known(at.group.scheduled_actions, ()))),
    Check("warm-pool-unknown", WARNING,
        "it has a warm pool, but on_demand_warm is false: Spotkeeper treats it as cold",
        "set availability.on_demand_warm in the document of {fleet.name}",
        lambda at: not at.is_spot
        and "WarmPoolConfiguration" in at.aws and not at.fleet.availability.on_demand_warm),
    Check("no-warm-pool", ERROR,
        "on_demand_warm is true, but there is no warm pool: backfill would be late",
        "create one, or set availability.on_demand_warm to false in the document of {fleet.name}",
        lambda at: not at.is_spot
        and "WarmPoolConfiguration" not in at.aws and at.fleet.availability.on_demand_warm),
    Check("capacity-rebalance", ERROR,
        "CapacityRebalance is on: the group and Spotkeeper both replace instances at risk",
        f"{_UPDATE}--no-capacity-rebalance",
        lambda at: at.is_spot and at.aws.get("CapacityRebalance", False)),
    Check("scale-in-protection", WARNING,
        "new instances are protected from scale-in; Spotkeeper ends them anyway, by id",
        "let a terminate hook hold what must finish, and turn the protection off:\n"
        f"{_UPDATE}--no-new-instances-protected-from-scale-in",
        lambda at: at.aws.get("NewInstancesProtectedFromScaleIn", False)),
    Check("protected-instance", WARNING,
        "protected from scale-in: {it}; Spotkeeper ends instances anyway, by id",
        "aws autoscaling set-instance-protection --no-protected-from-scale-in "
        "--auto-scaling-group-name={group.name!q} --instance-ids {it}",
        lambda at: not at.aws.get("NewInstancesProtectedFromScaleIn") and _protected(at)),
    Check("retained-instances", WARNING,
        "TerminateHookAbandon is retain: an instance whose terminate hook is abandoned keeps "
        "running, and costs money, until somebody ends it",
        "set TerminateHookAbandon to terminate in its instance lifecycle policy",
        _is_retained),
    Check("deletion-protection", WARNING,
        "DeletionProtection is {aws[DeletionProtection]}: a stack that created the group cannot "
        "delete it",
        f"{_UPDATE}--deletion-protection none",
        lambda at: at.aws.get("DeletionProtection", "none") != "none"),
    Check("weighted-capacity", ERROR,
        "it counts capacity in units, by weights, vCPUs or memory: Spotkeeper counts instances "
        "and would see a shortfall where there is none",
        "remove WeightedCapacity from its types, set DesiredCapacityType to units, and set its "
        "sizes in instances",
        _counts_in_units),
    Check("process-suspended", ERROR, "{it[0]} is suspended: {it[1]}",
        "aws autoscaling resume-processes --auto-scaling-group-name={group.name!q} "
        "--scaling-processes {it[0]}",
        lambda at: (
            [process, at.suspended[process] or "no reason given"]
            for process in _PROCESSES if process in at.suspended
        )),
    Check("az-rebalance", WARNING,
        "AZRebalance is active: it ends busy instances to balance the zones",
        "set availability.suspend_az_rebalance to true in the document of {fleet.name}",
        lambda at: not at.fleet.availability.suspend_az_rebalance
        and "AZRebalance" not in at.suspended),
    Check("no-terminate-hook", ERROR,
        "no hook on EC2_INSTANCE_TERMINATING: an instance that leaves loses its requests",
        f"{_HOOK}--lifecycle-hook-name spotkeeper-drain --heartbeat-timeout 120 "
        "--default-result CONTINUE --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING",
        lambda at: not isinstance(at.group.hooks, Unseen) and not at.hooks("TERMINATING")),
    Check("drain-too-short", WARNING,
        "{it[0]} waits {it[1]} s: requests that take longer are cut off",
        "let it wait as long as the longest request takes, here two minutes:\n"
        f"{_HOOK}--lifecycle-hook-name={{it[0]!q}} --heartbeat-timeout 120",
        lambda at: ([*hook] for hook in at.hooks("TERMINATING") if hook[1] < SHORTEST_DRAIN_S)),
    Check("hook-too-long", ERROR, "{it[0]} waits {it[1]} s, beyond {it[2]} s",
        "shorten its heartbeat, or lengthen launch_deadline_s for a slow start", _long_hooks),
    Check("one-zone", WARNING, "only {it}: when this zone has no capacity, the group has none",
        "add subnets in further zones",
        lambda at: len(at.zones) == 1 and at.zones),
    Check("one-instance-type", WARNING, "only {it}: one spot pool in each zone",
        "add instance types that can run a worker to the mixed instances policy",
        lambda at: len(at.group.types) == 1 and at.group.spot_share and at.group.types),
    Check("no-type-selected", ERROR, "no instance type has the attributes that the group names",
        "require fewer vCPUs, GPUs or GiB, or name other accelerators",
        lambda at: at.group.selected == ()),
    Check("types-selected", NOTE, "AWS selects these types for the group's attributes: {it}",
        "change the attributes if one of them cannot run a worker",
        lambda at: ", ".join(known(at.group.selected or (), ()))),
    Check("quota-not-found", UNKNOWN, "no quota found in Service Quotas for {it}",
        "check the quota in the Service Quotas console", _without_quota),
    Check("no-such-type", ERROR, "{it} does not exist in this region: launches of it fail",
        "remove it from the group, or correct its name",
        lambda at: sorted({*at.group.types} - {*at.existing})),
    Check("not-offered-anywhere", ERROR, "no zone of the group offers {it}",
        "choose other types, or subnets in zones that offer them",
        lambda at: not _is_offered(at) and ", ".join(at.existing)),
    Check("not-offered-in-a-zone", WARNING, "{it[0]} is not offered in {it[1]}",
        "add another type for those zones, or leave them out",
        lambda at: (
            [t, ", ".join(zones)] for t, zones in _not_offered(at).items()
            if zones and _is_offered(at)
        )),
    Check("no-grace", ERROR,
        "its health checks are {aws[HealthCheckType]}, without grace and without a launch hook: a "
        "new instance is ended before its worker can answer",
        f"{_UPDATE}--health-check-grace-period 300",
        lambda at: at.aws.get("HealthCheckType", "EC2") != "EC2"
        and not at.aws.get("HealthCheckGracePeriod") and not at.hooks("LAUNCHING")),
    Check("launch-part-gone", ERROR, "it names {it}, which does not exist: launches fail",
        "remove it from the group",
        lambda at: at.group.missing),
    Check("subnet-full", WARNING, "{it} has no free address: launches there fail",
        "free addresses of it, or add subnets",
        lambda at: at.group.full),
    Check("maximum-lifetime", WARNING,
        "it ends each instance after {it} s, busy or not",
        f"let it end none, or make the terminate hook long enough:\n"
        f"{_UPDATE}--max-instance-lifetime 0",
        lambda at: at.aws.get("MaxInstanceLifetime", 0)),
    Check("custom-termination", NOTE,
        "a function of yours chooses what a smaller group ends: {it}",
        "Spotkeeper ends instances by id where it can; the function decides of the others",
        lambda at: ", ".join(
            p for p in at.aws.get("TerminationPolicies", ()) if p.startswith("arn:"))),
    Check("balanced-only", WARNING,
        "its zones are balanced-only: a zone without capacity keeps the group short",
        "set CapacityDistributionStrategy to balanced-best-effort",
        lambda at: at.aws.get("AvailabilityZoneDistribution", {})
        .get("CapacityDistributionStrategy") == "balanced-only"),
    Check("zonal-shift", NOTE,
        "zonal shift is enabled: while zones are shifted away, nothing is launched there",
        "expect on-demand while a shift lasts; it needs capacity in the other zones",
        lambda at: at.aws.get("AvailabilityZoneImpairmentPolicy", {}).get("ZonalShiftEnabled")),
    Check("group-is-deleted", ERROR, "AWS is deleting it: {aws[Status]}",
        "name another group in the document of {fleet.name}",
        lambda at: "delet" in str(at.aws.get("Status", "")).lower()),
    Check("launches-before-it-ends", NOTE,
        "an instance maintenance policy keeps {it} % healthy: an instance that fails a health "
        "check of AWS stays until its successor is healthy",
        "nothing: Spotkeeper ends workers that hang itself",
        lambda at: max(
            0, at.aws.get("InstanceMaintenancePolicy", {}).get("MinHealthyPercentage", 0))),
)  # fmt: skip

# Of the group's launch template, and of those that single overrides name.
TEMPLATE_CHECKS: tuple[Check[Member], ...] = (
    Check("launch-part-gone", ERROR, "the launch template names {it}, which does not exist",
        "correct the launch template, and set its new version",
        lambda at: at.template.missing),
    Check("disk-too-small", ERROR, "the launch template asks for {it}: launches fail",
        "raise VolumeSize in the launch template, and set its new version",
        lambda at: at.template.small_disks),
    Check("disk-stays", WARNING,
        "DeleteOnTermination of {it} is false: each instance leaves a disk that costs money",
        "set DeleteOnTermination to true in the launch template, and set its new version",
        lambda at: at.template.kept_disks),
    Check("not-for-spot", ERROR, "{it}: spot launches fail",
        "remove that option",
        lambda at: at.is_spot and [
            *[f"the launch template {option}" for option in at.template.not_for_spot],
            *[f"{at.only_reserved} allows capacity reservations only"] * bool(at.only_reserved)]),
    Check("only-reserved", WARNING,
        "{it} allows capacity reservations only: where they are used up, nothing stands in for "
        "spot",
        "prefer capacity-reservations-first, or name on-demand in the last segment",
        lambda at: not at.is_spot and at.only_reserved),
    Check("wrong-architecture", ERROR, "{it}: launches of it fail",
        "remove it, or set a launch template with an image for it in the overrides",
        _foreign_architectures),
    Check("market-options", ERROR,
        "the launch template has market options: a mixed instances policy refuses them",
        "remove InstanceMarketOptions; the group sets what is spot",
        lambda at: at.template.market_options),
    Check("metadata-disabled", ERROR,
        "HttpEndpoint is disabled: no instance metadata, so no warnings and no credentials",
        f"set HttpEndpoint to enabled {_METADATA}",
        lambda at: not at.template.metadata_enabled),
    Check("tag-keys", ERROR,
        "instance metadata cannot hold the tag keys {it}: launches fail",
        "rename the tags of group and launch template: no spaces, no slashes; or disable "
        "InstanceMetadataTags (docs/workers.md, Traps, describes the drawback)",
        lambda at: at.template.tags_in_metadata and _bad_keys(at)),
    Check("tags-not-in-metadata", ERROR,
        "InstanceMetadataTags is not enabled: workers cannot see that they must drain",
        f"set InstanceMetadataTags to enabled {_METADATA}",
        lambda at: at.template.metadata_enabled
        and not at.template.tags_in_metadata and not _bad_keys(at)),
    Check("tags-not-in-metadata", WARNING,
        "InstanceMetadataTags is off, as the tag keys {it} require: a detached instance stops at "
        "once instead of serving for the rest of its two minutes",
        "rename the tags: no spaces, no slashes; then enable InstanceMetadataTags",
        lambda at: not at.template.tags_in_metadata and _bad_keys(at)),
    Check("metadata-tokens", WARNING,
        "HttpTokens is optional: anyone that makes a worker fetch a URL can read its credentials",
        f"set HttpTokens to required {_METADATA}",
        lambda at: not at.template.tokens_required),
    Check("metadata-hop-limit", WARNING,
        "HttpPutResponseHopLimit is {template.hop_limit}: workers in containers see no warning "
        "unless spotkeeper-agent runs on the host",
        "run the agent on the host (docs/workers.md), or set HttpPutResponseHopLimit to 2",
        lambda at: at.template.hop_limit < HOPS_INTO_A_CONTAINER),
    Check("key-without-grant", ERROR,
        "disks are encrypted with {it}, which Auto Scaling may not use: launches fail",
        "enable the key, and allow AWSServiceRoleForAutoScaling to use it (`aws kms create-grant`)",
        lambda at: [
            key for key in at.template.keys
            if key not in known(at.facts.account.key_grants, frozenset(at.template.keys))
        ]),
    Check("no-instance-profile", ERROR,
        "instances have no role: their workers cannot send search logs",
        "set an instance profile whose role has the policy of the output SendSearchLogsPolicy",
        lambda at: at.template.profile_policies is None),
    Check("role-cannot-send", WARNING,
        "the workers' role does not have the stack's policy for search logs",
        "attach the policy of the output SendSearchLogsPolicy, unless another one allows the same",
        lambda at: at.facts.stack is not None
        and _lacks(at.template, at.facts.stack.sends_search_logs)),
)  # fmt: skip

# --- the stack ------------------------------------------------------------------------------------


def _each(names: tuple[str, ...] | Unseen) -> Found:
    """Each name is the resource."""
    return ((name, name) for name in known(names, ()))


def _untried(place: Place) -> str:
    """Say why a region that reports gets no trials until an operator acts."""
    if place.standing is Standing.STALE:
        return "it runs an older release than its home, or has not reported for minutes"
    refused = sorted(each for each in place.report.refused if needs_operator(each))
    return f"its spot is refused by {', '.join(refused)}" if refused else ""


STACK_CHECKS: tuple[Check[StackFacts], ...] = (
    Check("schedule-disabled", ERROR, "it is disabled: this controller has no turns",
        "enable it in EventBridge Scheduler; `spotkeeper pause` pauses a fleet for a while",
        lambda stack: _each(stack.schedules_disabled)),
    Check("events-disabled", ERROR,
        "it is disabled: only the next minute's turn sees warnings and group events",
        "aws events enable-rule --name {it}",
        lambda stack: _each(stack.rules_disabled)),
    Check("rule-without-target", ERROR,
        "it has no target: only the next minute's turn sees warnings and group events",
        "add the function HandleInterruption as its target, or delete the rule and deploy again",
        lambda stack: _each(stack.rules_without_target)),
    Check("queue-disabled", ERROR,
        "this event source mapping is disabled: nothing reads its queue of search logs or wake-ups",
        "aws lambda update-event-source-mapping --enabled --uuid {it}",
        lambda stack: _each(stack.queues_unread)),
    Check("queue-gone", ERROR,
        "this queue of the stack does not exist: what is sent to it is lost",
        "create it again by its name, at least a minute after it was deleted, then set what "
        "CloudFormation's drift detection names:\n"
        "aws sqs create-queue --attributes VisibilityTimeout=190 "
        "--queue-name {it}",
        lambda stack: _each(stack.queues_gone)),
    Check("function-stopped", ERROR,
        "its reserved concurrency is 0: Lambda throttles every invocation",
        "aws lambda delete-function-concurrency --function-name {it}",
        lambda stack: _each(stack.stopped_functions)),
    Check("alarm-actions-disabled", WARNING, "its actions are disabled: it notifies nobody",
        "aws cloudwatch enable-alarm-actions --alarm-names {it}",
        lambda stack: _each(stack.silenced_alarms)),
    Check("turns-failed", ERROR, "in the last hour of its records, {it}",
        "correct what the error names; `spotkeeper explain --since 1h` shows every failed turn",
        lambda stack: known(stack.failed_turns, ())),
    Check("turn-incomplete", WARNING, "its newest turn went on without {it}",
        "make what is gone, or name another in the fleet's document; of a refusal, allow the read",
        lambda stack: known(stack.unread, ())),
    Check("set-by-hand", WARNING,
        "settings that the stack's parameters do not have: {it}; a deployment that writes the "
        "document anew discards them",
        "put them into {about}.overrides, which no deployment touches:\n"
        "aws ssm put-parameter --type String --name {about}.overrides --value {it!q}",
        lambda stack: known(stack.set_by_hand, ())),
    Check("region-gone", ERROR,
        "neither its report nor its search logs arrive: its cover has moved; last known at {it}",
        "spotkeeper doctor --region {about} says what runs there; where nothing does, region add",
        lambda stack: ((region, f"{at:%Y-%m-%d %H:%M} UTC" if at > NEVER else "no time")
            for region, place in known(stack.regions, ())
            for at in [place.report.at] if place.standing is Standing.GONE)),
    Check("region-untried", WARNING, "it gets no trials: {it}",
        "spotkeeper doctor --region {about} names what to mend; deploy the home's release there",
        lambda stack: ((region, why) for region, place in known(stack.regions, ())
            if (why := _untried(place)))),
    Check("e-mail-unconfirmed", WARNING,
        "{it} has not confirmed its subscription: no alarm arrives there",
        "open the message from AWS Notifications and confirm the subscription",
        lambda stack: known(stack.unconfirmed, ())),
    Check("nobody-told", WARNING,
        "the alarm topic is gone, or has no subscription: alarms notify nobody",
        "deploy with AlarmEmail, or subscribe something to the topic; make a lost one by its name",
        lambda stack: stack.nobody_told is True),
)  # fmt: skip

# --- jobs -----------------------------------------------------------------------------------------


def _job_template(jobs: JobFacts) -> LaunchTemplate:
    return known(jobs.launch_template, _UNKNOWN_TEMPLATE)


JOB_CHECKS: tuple[Check[JobFacts], ...] = (
    Check("job-shutdown-stops", ERROR,
        "a shutdown stops a machine and must terminate it: the disks of a stopped machine cost "
        "money",
        "set InstanceInitiatedShutdownBehavior to terminate in the launch template of jobs",
        lambda jobs: jobs.on_shutdown != "terminate"
        and not isinstance(jobs.launch_template, Unseen)),
    Check("job-tags-not-in-metadata", ERROR,
        "InstanceMetadataTags is not enabled: the agent cannot see which job its machine runs",
        "set HttpEndpoint and InstanceMetadataTags to enabled in the launch template of jobs",
        lambda jobs: not (
            _job_template(jobs).metadata_enabled and _job_template(jobs).tags_in_metadata
        )),
    Check("job-no-instance-profile", ERROR,
        "the launch template of jobs names no instance profile: agents cannot call AWS",
        "name the instance profile of the role that JobRole names",
        lambda jobs: _job_template(jobs).profile_policies is None),
    Check("job-other-role", ERROR,
        "the role of the instance profile lacks the stack's policy for jobs, so it is not "
        "JobRole: launches are refused",
        "name the instance profile of JobRole in the launch template, or its role as JobRole",
        lambda jobs: _lacks(_job_template(jobs), jobs.policy)),
    Check("job-one-zone", WARNING,
        "all subnets of jobs are in {it}: a job waits until this zone has capacity",
        "name one subnet for each zone in JobSubnetIds",
        lambda jobs: len(zones := known(jobs.zones, frozenset())) == 1 and zones),
)  # fmt: skip
