"""A good account, stack and fleet, for tests to spoil one thing at a time."""

from dataclasses import replace
from typing import Any

from spotkeeper.domain.doctor.facts import (
    AccountFacts,
    Facts,
    GroupFacts,
    JobFacts,
    LaunchTemplate,
    StackFacts,
)
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.sizing import Bounds

ZONES = frozenset({"us-east-1a", "us-east-1b", "us-east-1c"})
TYPES = ("g5.xlarge", "g6.xlarge")
NAME = "it's --min-size 1; $(id)"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1"
READY, DRAIN = (
    {
        "LifecycleHookName": f"spotkeeper-{name}", "HeartbeatTimeout": heartbeat_s,
        "LifecycleTransition": f"autoscaling:EC2_INSTANCE_{transition}",
    }
    for name, transition, heartbeat_s in [
        ("ready", "LAUNCHING", 300), ("drain", "TERMINATING", 120),
    ]
)  # fmt: skip
TEMPLATE = LaunchTemplate(profile_policies=frozenset({"SendSearchLogs"}), keys=(KEY,))
FLEET = Fleet(
    name="main",
    spot_group=NAME,
    on_demand_group="ocr-on-demand",
    bounds=Bounds(spot_min=1, spot_max=20, on_demand_max=20),
)
ONE_OF_ARM = {"g5.xlarge": frozenset({"x86_64"}), "g6.xlarge": frozenset({"arm64"})}
SPOT = GroupFacts(
    aws={
        "AutoScalingGroupName": NAME, "MinSize": 0, "MaxSize": 20, "DesiredCapacity": 0,
        "AvailabilityZones": sorted(ZONES),
        "SuspendedProcesses": [{"ProcessName": "AZRebalance", "SuspensionReason": "User"}],
        "Tags": [
            {"Key": "team", "PropagateAtLaunch": True},
            {"Key": "not of instances", "PropagateAtLaunch": False},
        ],
    },
    spot_share=1.0,
    types=TYPES,
    hooks=(READY, DRAIN),
    launch_template=TEMPLATE,
)  # fmt: skip
ON_DEMAND = replace(SPOT, aws={**SPOT.aws, "AutoScalingGroupName": "ocr-on-demand"}, spot_share=0.0)
ACCOUNT = AccountFacts(
    quotas={
        "All G and VT Spot Instance Requests": 80.0,
        "All P4, P3 and P2 Spot Instance Requests": 0.0,
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 5.0,
        "Running On-Demand G and VT instances": 80.0,
        "Running On-Demand P instances": 0.0,
        "Running Dedicated g5 Hosts": 0.0,
    },
    vcpus={"g5.xlarge": 4, "g6.xlarge": 4, "g5.2xlarge": 8, "p3.2xlarge": 8, "trn1.2xlarge": 8},
    offered=dict.fromkeys((*TYPES, "g5.2xlarge", "trn1.2xlarge"), ZONES),
    roles=frozenset({"AWSServiceRoleForAutoScaling", "AWSServiceRoleForEC2Spot"}),
    unreserved_concurrency=1000,
    key_grants=frozenset({KEY}),
    placement_scores={"main": 9},
)
JOB_TEMPLATE = LaunchTemplate(profile_policies=frozenset({"JobMachines"}))
JOBS = JobFacts(launch_template=JOB_TEMPLATE, policy="JobMachines", zones=ZONES)
STACK = StackFacts(search_log_ages={"main": 12.0})
FACTS = Facts(
    fleets=(FLEET,),
    wrong_documents=(),
    groups={SPOT.name: SPOT, ON_DEMAND.name: ON_DEMAND},
    account=ACCOUNT,
    stack=STACK,
    jobs=JOBS,
)


def but(**changes: Any) -> Facts:
    """The good facts but for some fields: `spot__types` are those of the spot group.

    `spot` is what AWS answers otherwise of it. The parts are spot and on_demand, template and
    job_template, fleet, account, stack and jobs.
    """
    parts: dict[str, Any] = {
        "template": TEMPLATE, "job_template": JOB_TEMPLATE, "spot": SPOT, "on_demand": ON_DEMAND,
        "fleet": FLEET, "account": ACCOUNT, "stack": STACK, "jobs": JOBS, "facts": FACTS,
    }  # fmt: skip
    for name, value in changes.items():
        part, _, changed = name.partition("__")
        new = {changed: value} if changed else {"aws": {**parts[part].aws, **value}}
        parts[part] = replace(parts[part], **new)
    if parts["template"] is not TEMPLATE:
        parts["spot"] = replace(parts["spot"], launch_template=parts["template"])
    if parts["job_template"] is not JOB_TEMPLATE:
        parts["jobs"] = replace(parts["jobs"], launch_template=parts["job_template"])
    whole: Facts = parts["facts"]
    return replace(
        whole,
        fleets=whole.fleets if whole.fleets != FACTS.fleets else (parts["fleet"],),
        groups=whole.groups
        if whole.groups != FACTS.groups
        else {SPOT.name: parts["spot"], ON_DEMAND.name: parts["on_demand"]},
        account=parts["account"],
        stack=whole.stack and parts["stack"],
        jobs=parts["jobs"],
    )


def quota(**values: float) -> Facts:
    """The good facts with other quotas, `spot` and `on_demand` of G and VT."""
    names = {
        "spot": "All G and VT Spot Instance Requests",
        "on_demand": "Running On-Demand G and VT instances",
    }
    quotas: dict[str, float] = dict(ACCOUNT.quotas)  # type: ignore[arg-type]
    return but(account__quotas=quotas | {names[name]: value for name, value in values.items()})
