"""Seeded misconfigurations, each found by its name, and a good stack without a finding."""

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from spotkeeper.domain.doctor.checks import examine, quota_for
from spotkeeper.domain.doctor.facts import Facts, LaunchTemplate, Unseen
from spotkeeper.domain.doctor.finding import Severity, exit_code
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.spread import Place, Report, Standing
from spotkeeper_operator.doctor import TABLES, doctor_text
from tests.builders import NOON
from tests.unit.doctor import good
from tests.unit.doctor.good import DRAIN, FACTS, FLEET, NAME, ON_DEMAND, READY, SPOT, but, quota

DENIED = "Refused: AccessDenied: no"
TWINS = replace(FLEET, name="night", bounds=Bounds(spot_min=0, spot_max=0, on_demand_max=0))
ZONE = "us-east-1a"
ONE_ZONE = frozenset({ZONE})
REFUSED = Report(at=NOON, refused={FailureClass.QUOTA: NOON})


def mixed(*overrides: dict[str, str], **distribution: object) -> dict[str, Any]:
    policy = {"LaunchTemplate": {"Overrides": overrides}, "InstancesDistribution": distribution}
    return {"MixedInstancesPolicy": policy}


def reserved(preference: str) -> dict[str, Any]:
    return {"CapacityReservationSpecification": {"CapacityReservationPreference": preference}}


def segments(*kinds: str) -> dict[str, Any]:
    return mixed(DistributionSegments=[{"TargetCapacityTypes": [*kinds]}])


def hooks(ready_s: int, drain_s: int) -> tuple[dict[str, Any], ...]:
    return READY | {"HeartbeatTimeout": ready_s}, DRAIN | {"HeartbeatTimeout": drain_s}


def suspended(process: str, reason: str = "") -> dict[str, Any]:
    ours = {"ProcessName": "AZRebalance"}
    processes = [ours, {"ProcessName": process, "SuspensionReason": reason}]
    return {"SuspendedProcesses": processes}


def tagged(key: str) -> dict[str, Any]:
    return {"Tags": [{"Key": key, "PropagateAtLaunch": True}]}


PROTECTED = [
    {"InstanceId": "i-1", "ProtectedFromScaleIn": True},
    {"InstanceId": "i-2", "ProtectedFromScaleIn": False},
]
RESERVED = replace(good.TEMPLATE, reservations_only=True)
RETAINED = {"RetentionTriggers": {"TerminateHookAbandon": "retain"}}


def unseen(action: str, why: str = DENIED) -> Unseen:
    return Unseen(action=action, why=why, kind=why.partition(":")[0])


# The one finding, the misconfiguration, and words of its evidence that depend on the facts.
SEEDED: tuple[tuple[str, Facts, str], ...] = (
    ("quota-too-small", quota(spot=32), "32 vCPUs"),
    ("quota-too-small", quota(on_demand=0), 'G and VT instances" is 0 vCPUs'),
    ("quota-too-small", but(spot__types=("g5.xlarge", "g5.2xlarge")), "may need 160"),
    ("quota-not-found", but(spot__types=("g5.xlarge", "trn1.2xlarge")), "trn1.2xlarge"),
    ("allocation-strategy", but(spot=mixed()), ""),
    ("allocation-strategy", but(spot=mixed(SpotAllocationStrategy="lowest-price")), ""),
    ("spot-max-price", but(spot=mixed(SpotMaxPrice="0.5", SpotAllocationStrategy="x")), "0.5 USD"),
    ("spot-max-price", but(template__max_price="0.4"), "0.4 USD"),
    ("turns-failed", but(stack__failed_turns=(("main", "3 of the last 60"),)), "3 of the last 60"),
    ("turn-incomplete", but(stack__unread=(("main", "request queue: Gone"),)), "queue: Gone"),
    ("set-by-hand", but(stack__set_by_hand=(("/a/main", '{"slots": 4}'),)), '{"slots": 4}'),
    ("drain-too-short", but(spot__hooks=hooks(300, 30)), "spotkeeper-drain waits 30 s"),
    ("metadata-disabled",
     but(template__metadata_enabled=False, template__tags_in_metadata=False), ""),
    ("no-instance-profile", but(template__profile_policies=None, facts__stack=None), ""),
    ("no-grace", but(spot={"HealthCheckType": "ELB"}, spot__hooks=(DRAIN,)), "are ELB"),
    ("maximum-lifetime", but(spot={"MaxInstanceLifetime": 86_400}), "86400 s"),
    ("custom-termination",
     but(on_demand={"TerminationPolicies": ["arn:aws:lambda:x:1:function:f"]}), "function:f"),
    ("balanced-only",
     but(spot={"AvailabilityZoneDistribution": {"CapacityDistributionStrategy": "balanced-only"}}),
     ""),
    ("zonal-shift",
     but(spot={"AvailabilityZoneImpairmentPolicy": {"ZonalShiftEnabled": True}}), ""),
    ("group-is-deleted", but(on_demand={"Status": "Delete in progress"}), "Delete in progress"),
    ("launches-before-it-ends",
     but(spot={"InstanceMaintenancePolicy": {"MinHealthyPercentage": 100}}), "100 %"),
    ("launch-part-gone", but(template__missing=("the key pair gpu",)), "the key pair gpu"),
    ("launch-part-gone", but(spot__missing=("the subnet subnet-1",)), "the subnet subnet-1"),
    ("subnet-full", but(spot__full=("subnet-1",)), "subnet-1"),
    ("disk-too-small", but(template__small_disks=("8 GiB for sda",)), "asks for 8 GiB for sda"),
    ("disk-stays", but(template__kept_disks=("/dev/sdb",)), "of /dev/sdb is false"),
    ("not-for-spot", but(template__not_for_spot=("hibernates",)), "hibernates"),
    ("not-for-spot", but(template__reservations_only=True), "the launch template allows"),
    ("not-for-spot", but(spot=reserved("capacity-reservations-only")), "CapacityReservationSpec"),
    ("only-reserved", but(on_demand=reserved("capacity-reservations-only")), "the group's Cap"),
    ("only-reserved", but(on_demand__launch_template=RESERVED), "the launch template allows"),
    ("only-reserved", but(on_demand=segments("capacity-block")), "DistributionSegments allows"),
    # The template of an override: its own image may fit, and its own mistakes count.
    ("no-instance-profile",
     but(spot__further_templates=(LaunchTemplate(profile_policies=None, types=("g6.xlarge",)),)),
     ""),
    ("unseen", but(spot__further_templates=(unseen("a:H"),)), "a:H"),
    ("wrong-architecture",
     but(template__architecture="x86_64", account__architectures=good.ONE_OF_ARM),
     "g6.xlarge is arm64, the image is x86_64"),
    ("wrong-architecture",
     but(account__architectures=good.ONE_OF_ARM), "the rest of the group is x86_64"),
    ("no-such-type",
     but(spot__types=("g5.xlarge", "g6.xlarge", "g5.huge")), "g5.huge does not exist"),
    ("rule-without-target", but(stack__rules_without_target=("SpotWarning",)), ""),
    ("function-stopped", but(stack__stopped_functions=("check",)), ""),
    ("alarm-actions-disabled", but(stack__silenced_alarms=("both-short",)), ""),
    ("protected-instance", but(spot={"Instances": PROTECTED}), ": i-1;"),
    ("spot-minimum", but(spot={"MinSize": 5}), "minimum is 5"),
    ("retained-instances", but(spot={"InstanceLifecyclePolicy": RETAINED}), ""),
    ("deletion-protection", but(spot={"DeletionProtection": "prevent-all-deletion"}), "prevent"),
    ("launch-part-gone",
     but(spot__launch_template=unseen("ec2:DescribeLaunchTemplateVersions", "Gone: no such")),
     "the launch template does not exist"),
    ("launch-part-gone",
     but(spot__launch_template=unseen("ec2:DescribeImages", "Gone: ami-1")),
     "the image does not exist"),
    ("launch-part-gone",
     but(template__profile_policies=unseen("iam:GetInstanceProfile, iam:More", "Gone: worker")),
     "the instance profile does not exist"),
    ("no-service-linked-role",
     but(account__roles=frozenset({"AWSServiceRoleForEC2Spot"})), "AWSServiceRoleForAutoScaling"),
    ("no-service-linked-role",
     but(account__roles=frozenset({"AWSServiceRoleForAutoScaling"})), "AWSServiceRoleForEC2Spot"),
    ("little-concurrency", but(account__unreserved_concurrency=0), "is 0"),
    ("one-zone", but(spot={"AvailabilityZones": [ZONE]}), ZONE),
    ("one-zone", but(on_demand={"AvailabilityZones": [ZONE]}), ZONE),
    ("one-instance-type", but(spot__types=("g5.xlarge",)), "g5.xlarge"),
    ("no-type-selected", but(spot__selected=()), "no instance type"),
    ("types-selected", but(spot__selected=("g5.xlarge", "g6.xlarge")), "g5.xlarge, g6.xlarge"),
    ("not-offered-in-a-zone",
     but(account__offered={"g5.xlarge": good.ZONES, "g6.xlarge": ONE_ZONE}),
     "g6.xlarge is not offered in us-east-1b, us-east-1c"),
    ("not-offered-anywhere", but(account__offered={}), "g5.xlarge, g6.xlarge"),
    ("capacity-rebalance", but(spot={"CapacityRebalance": True}), ""),
    ("az-rebalance",
     but(spot={"SuspendedProcesses": []},
         fleet__availability=AvailabilityPolicy(suspend_az_rebalance=False)),
     ""),
    ("process-suspended",
     but(spot=suspended("Launch", "Automatically suspended after failed launches")),
     "Automatically suspended"),
    ("process-suspended", but(on_demand=suspended("Terminate")), "no reason given"),
    ("scale-in-protection", but(on_demand={"NewInstancesProtectedFromScaleIn": True}), ""),
    ("weighted-capacity", but(spot={"DesiredCapacityType": "vcpu"}), ""),
    ("weighted-capacity",
     but(spot=mixed({"WeightedCapacity": "2"}, SpotAllocationStrategy="x")), ""),
    ("foreign-scaling-policy", but(on_demand__policies=("cpu-50",)), "cpu-50"),
    ("foreign-scaling-schedule", but(spot__scheduled_actions=("night",)), "night"),
    ("no-terminate-hook", but(spot__hooks=(READY,)), ""),
    ("hook-too-long",
     but(spot__hooks=hooks(600, 120)), "600 s, beyond 600"),
    ("hook-too-long", but(on_demand__hooks=hooks(300, 7201)), "7201"),
    ("maximum-below-bound", but(spot={"MaxSize": 10}), "allows 20"),
    ("desired-above-bound", but(spot={"DesiredCapacity": 30, "MaxSize": 40}), "ends 10 instances"),
    ("maximum-below-bound", but(on_demand={"MaxSize": 0}), "is 0"),
    ("on-demand-minimum", but(on_demand={"MinSize": 2}), "minimum is 2"),
    ("not-wholly-spot", but(spot__spot_share=0.7), "30%"),
    ("not-wholly-on-demand", but(on_demand__spot_share=0.5), "50%"),
    ("no-warm-pool", but(fleet__availability=AvailabilityPolicy(on_demand_warm=True)), ""),
    ("warm-pool-unknown", but(on_demand={"WarmPoolConfiguration": {}}), ""),
    ("no-instance-profile", but(template__profile_policies=None), ""),
    ("role-cannot-send",
     but(template__profile_policies=frozenset({"AmazonSSMManagedInstanceCore"})), ""),
    ("tags-not-in-metadata", but(template__tags_in_metadata=False), ""),
    ("tag-keys", but(spot=tagged("cost center")), "'cost center'"),
    ("tag-keys", but(template__tag_keys=("kubernetes.io/cluster/a",)), "kubernetes.io"),
    ("tags-not-in-metadata",
     but(template__tags_in_metadata=False, template__tag_keys=("cost center",)), "'cost center'"),
    ("metadata-tokens", but(template__tokens_required=False), ""),
    ("metadata-hop-limit", but(template__hop_limit=1), ""),
    ("market-options", but(template__market_options=True), ""),
    ("key-without-grant", but(account__key_grants=frozenset()), ""),
    ("e-mail-unconfirmed", but(stack__unconfirmed=("ops@example.org",)), "ops@example.org"),
    ("nobody-told", but(stack__nobody_told=True), ""),
    ("region-gone", but(stack__regions=(("us-east-2", Place(standing=Standing.GONE)),)), "no time"),
    ("region-untried",
     but(stack__regions=(("us-east-2", Place(standing=Standing.STALE)),)), "older release"),
    ("region-untried", but(stack__regions=(("us-east-2", Place(report=REFUSED)),)), "quota"),
    ("search-logs-stale", but(stack__search_log_ages={"main": 900.0}), "900 s old"),
    ("search-logs-stale", but(stack__search_log_ages={"main": None}), "none ever arrived"),
    ("schedule-disabled", but(stack__schedules_disabled=("spotkeeper-check",)), ""),
    ("events-disabled", but(stack__rules_disabled=("spotkeeper-SpotWarning",)), ""),
    ("queue-disabled", but(stack__queues_unread=("14e0db71",)), ""),
    ("queue-gone", but(stack__queues_gone=("logs",)), ""),
    ("wrong-document", but(facts__wrong_documents=("fleet document night: bounds: no",)), "bounds"),
    ("unused-settings", but(fleet__unused=("availability.settle_s",)), "availability.settle_s"),
    ("waits-unseen", but(fleet__objective=Objective(wait_s=10, share=0.95)), ""),
    ("nothing-wakes-it", but(fleet__bounds=Bounds(spot_min=0, spot_max=9, on_demand_max=9)), ""),
    ("no-group", but(facts__groups={SPOT.name: SPOT}), ""),
    ("group-in-two-fleets", but(facts__fleets=(FLEET, TWINS)), "main, night"),
    ("group-in-two-stacks",
     but(facts__other_stacks={"ocr-on-demand": ("/spotkeeper/night/fleets/main",)}),
     "/spotkeeper/night/fleets/main names it too"),
    ("placement-score", but(account__placement_scores={"main": 2}), "2 of 10"),
    ("job-shutdown-stops", but(jobs__on_shutdown="stop"), ""),
    ("job-tags-not-in-metadata", but(job_template__tags_in_metadata=False), ""),
    ("job-no-instance-profile", but(job_template__profile_policies=None), ""),
    ("job-other-role", but(job_template__profile_policies=frozenset({"Other"})), ""),
    ("job-one-zone", but(jobs__zones=ONE_ZONE), "us-east-1a"),
    ("launch-part-gone",
     but(jobs__bucket=unseen("s3:ListBucket", "Gone: NoSuchBucket: no")), "the bucket"),
    *(
        ("unseen", facts, f"{action}: Refused: AccessDenied")
        for action, facts in (
            ("a:A", but(facts__other_stacks=unseen("a:A"))),
            ("a:B", but(account__quotas=unseen("a:B"))),
            ("a:C", but(jobs__zones=unseen("a:C"))),
            ("a:D", but(spot__hooks=unseen("a:D"))),
            ("a:E", but(spot__launch_template=unseen("a:E"))),
            ("a:F", but(jobs__launch_template=unseen("a:F"))),
            ("a:G", but(facts__groups=unseen("a:G"))),
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize(("found_id", "facts", "words"), SEEDED)
def test_a_seeded_misconfiguration_is_the_only_finding(
    found_id: str, facts: Facts, words: str
) -> None:
    found = examine(facts)
    assert {f.id for f in found} == {found_id}
    assert any(words in f.evidence for f in found)
    assert all(f.fix and f.about for f in found)
    # Commands can be pasted, also where the name of a group is odd.
    for line in re.findall("aws autoscaling .*", doctor_text(found).replace("\\\n", "")):
        assert {f"--auto-scaling-group-name={name}" for name in FLEET.groups} & {*shlex.split(line)}
    assert exit_code(found) == {Severity.ERROR: 2, Severity.NOTE: 0}.get(found[0].severity, 1)


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("Refused: AccessDenied: no", "allow a:A to the role that runs this, and run it again"),
        *((f"{kind}: no", "run it again when AWS can be reached from here and answers")
          for kind in ("Unavailable", "TimedOut", "Throttled")),
        ("Gone: no", "correct what is named, and run it again"),
        ("the group has no launch template", "correct what is named, and run it again"),
    ],
)  # fmt: skip
def test_unread_facts_say_what_helps(why: str, fix: str) -> None:
    (found,) = examine(but(facts__other_stacks=unseen("a:A", why)))
    assert found.fix == fix


def test_every_check_finds_what_it_is_for() -> None:
    assert {found_id for found_id, _, _ in SEEDED} == {
        check.id for _, checks in TABLES for check in checks
    }


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        replace(FACTS, stack=None, jobs=None),
        # A document that sets its own size is left alone.
        but(
            spot__policies=("cpu-50",), spot__scheduled_actions=("night",),
            fleet__sizing=SizingPolicy(enabled=False),
        ),
        but(facts__other_stacks={"asr-spot": ("/spotkeeper/night/fleets/main",)}),
        but(spot__hooks=hooks(599, 7200)),
        but(spot={"DesiredCapacityType": "units"} | mixed(SpotAllocationStrategy="x")),
    ],
    ids=["whole", "no stack yet", "own size", "groups of another stack", "hooks within their time",
         "instances are units"],
)  # fmt: skip
def test_what_is_good_has_no_finding(facts: Facts) -> None:
    assert examine(facts) == ()
    assert exit_code(()) == 0


def test_two_fleets_share_a_quota() -> None:
    second = replace(
        FLEET, name="night", spot_group=f"{NAME}2", on_demand_group="ocr-on-demand2",
        bounds=Bounds(spot_min=1, spot_max=1, on_demand_max=0),
    )  # fmt: skip
    by_name = {
        name: replace(like, aws={**like.aws, "AutoScalingGroupName": name})
        for like in (SPOT, ON_DEMAND)
        for name in (like.name, f"{like.name}2")
    }
    (found,) = examine(but(facts__fleets=(FLEET, second), facts__groups=by_name))
    assert found.about == f"{NAME}, {NAME}2"
    assert "80 vCPUs; the fleets may need 84" in found.evidence


QUOTAS = (
    "All F Spot Instance Requests",
    "All G and VT Spot Instance Requests",
    "All Inf Spot Instance Requests",
    "All P4, P3 and P2 Spot Instance Requests",
    "All P5 Spot Instance Requests",
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "All Trn Spot Instance Requests",
    "Running Dedicated p3 Hosts",
    "Running On-Demand G and VT instances",
    "Running On-Demand High Memory instances",
    "Running On-Demand Inf instances",
    "Running On-Demand P instances",
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
)
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


@pytest.mark.parametrize(
    ("instance_type", "spot", "on_demand"),
    [
        ("g4dn.xlarge", "G and VT", "G and VT"),
        ("gr6.4xlarge", "G and VT", "G and VT"),
        ("vt1.3xlarge", "G and VT", "G and VT"),
        ("p3.2xlarge", "P4, P3 and P2", "P"),
        ("p4d.24xlarge", "P4, P3 and P2", "P"),
        ("p5.48xlarge", "P5", "P"),
        ("inf2.xlarge", "Inf", "Inf"),
        ("m7i.large", STANDARD, STANDARD),
        ("im4gn.large", STANDARD, STANDARD),
        ("trn1.2xlarge", "Trn", None),
        ("u-6tb1.metal", None, None),
        ("", None, None),
    ],
)
def test_a_type_counts_against_the_quota_of_its_family(
    instance_type: str, spot: str | None, on_demand: str | None
) -> None:
    found = quota_for(instance_type, PurchaseOption.SPOT, QUOTAS)
    assert found == (spot and f"All {spot} Spot Instance Requests")
    found = quota_for(instance_type, PurchaseOption.ON_DEMAND, QUOTAS)
    assert found == (on_demand and f"Running On-Demand {on_demand} instances")
