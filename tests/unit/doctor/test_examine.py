"""Seeded misconfigurations, each found by its name, and a good stack without a finding."""

from dataclasses import replace

import pytest

from spotkeeper.domain.doctor.checks import examine
from spotkeeper.domain.doctor.facts import Facts, Hook, Unseen
from spotkeeper.domain.doctor.finding import Severity, exit_code
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from tests.unit.doctor import good

U = Severity.UNKNOWN
SLOW_READY = (replace(good.HOOKS[0], heartbeat_s=600), good.HOOKS[1])
SLOW_DRAIN = (good.HOOKS[0], replace(good.HOOKS[1], heartbeat_s=7201))
DENIED = "Refused: AccessDenied: no"
TWINS = replace(good.FLEET, name="night", bounds=Bounds(spot_min=0, spot_max=0, on_demand_max=0))

# The one finding, the misconfiguration, and words of its evidence that depend on the facts.
SEEDED: tuple[tuple[str, Facts, str], ...] = (
    ("quota-too-small", good.quota(spot=32), "32 vCPUs"),
    ("quota-too-small", good.quota(on_demand=0), 'G and VT instances" is 0 vCPUs'),
    ("quota-too-small", good.spot(types=("g5.xlarge", "g5.2xlarge")), "may need 160"),
    ("quota-not-found", good.spot(types=("g5.xlarge", "trn1.2xlarge")), "trn1.2xlarge"),
    ("allocation-strategy", good.spot(allocation="lowest-price"), ""),
    ("spot-max-price", good.spot(max_price="0.5"), "0.5 USD"),
    ("spot-max-price", good.machine(max_price="0.4"), "0.4 USD"),
    ("turns-failed", good.stack(failed_turns=(("main", "3 of the last 60"),)), "3 of the last 60"),
    ("drain-too-short",
     good.spot(hooks=(good.HOOKS[0], replace(good.HOOKS[1], heartbeat_s=30))),
     "spotkeeper-drain waits 30 s"),
    ("metadata-disabled", good.machine(metadata_enabled=False, tags_in_metadata=False), ""),
    ("no-instance-profile", replace(good.machine(profile_policies=None), stack=None), ""),
    ("wrong-architecture",
     replace(
             good.machine(architecture="x86_64"),
             account=replace(good.ACCOUNT, architectures=good.ONE_OF_ARM),
         ),
     "g6.xlarge is arm64, the image is x86_64"),
    ("wrong-architecture",
     good.account(architectures=good.ONE_OF_ARM), "the rest of the group is x86_64"),
    ("no-such-type",
     good.spot(types=("g5.xlarge", "g6.xlarge", "g5.huge")), "g5.huge does not exist"),
    ("rule-without-target", good.stack(rules_without_target=("SpotWarning",)), ""),
    ("function-stopped", good.stack(stopped_functions=("check",)), ""),
    ("alarm-actions-disabled", good.stack(silenced_alarms=("both-short",)), ""),
    ("protected-instance", good.spot(protected_instances=("i-1",)), "i-1"),
    ("spot-minimum", good.spot(minimum=5), "minimum is 5"),
    ("retained-instances", good.spot(retains_abandoned=True), ""),
    ("deletion-protection", good.spot(deletion_protection="prevent-all-deletion"), "prevent"),
    ("launch-part-gone",
     good.spot(machine=Unseen(
             action="ec2:DescribeLaunchTemplateVersions", why="Gone: does not exist",
         )),
     "the launch template does not exist"),
    ("launch-part-gone",
     good.spot(machine=Unseen(action="ec2:DescribeImages", why="Gone: ami-1")),
     "the image does not exist"),
    ("launch-part-gone",
     good.machine(profile_policies=Unseen(
             action="iam:GetInstanceProfile, iam:ListAttachedRolePolicies", why="Gone: worker",
         )),
     "the instance profile does not exist"),
    ("no-service-linked-role",
     good.account(roles=frozenset({"AWSServiceRoleForEC2Spot"})), "AWSServiceRoleForAutoScaling"),
    ("no-service-linked-role",
     good.account(roles=frozenset({"AWSServiceRoleForAutoScaling"})), "AWSServiceRoleForEC2Spot"),
    ("little-concurrency", good.account(unreserved_concurrency=10), ""),
    ("one-zone", good.spot(zones=frozenset({"us-east-1a"})), "us-east-1a"),
    ("one-zone", good.on_demand(zones=frozenset({"us-east-1b"})), "us-east-1b"),
    ("one-instance-type", good.spot(types=("g5.xlarge",)), "g5.xlarge"),
    ("no-type-selected", good.spot(selected=()), "no instance type"),
    ("types-selected", good.spot(selected=("g5.xlarge", "g6.xlarge")), "g5.xlarge, g6.xlarge"),
    ("not-offered-in-a-zone",
     good.account(offered={"g5.xlarge": good.ZONES, "g6.xlarge": frozenset({"us-east-1a"})}),
     "g6.xlarge is not offered in us-east-1b, us-east-1c"),
    ("not-offered-anywhere", good.account(offered={}), "g5.xlarge, g6.xlarge"),
    ("capacity-rebalance", good.spot(capacity_rebalance=True), ""),
    ("az-rebalance",
     replace(
             good.spot(suspended={}),
             fleets=(
                 replace(good.FLEET, availability=AvailabilityPolicy(suspend_az_rebalance=False)),
             ),
         ),
     ""),
    ("process-suspended",
     good.spot(suspended={"Launch": "Automatically suspended after failed launches"}),
     "Automatically suspended"),
    ("process-suspended",
     good.on_demand(suspended={"Terminate": "User suspended at 2026-11-01T00:00:00Z"}),
     "Terminate is suspended: User"),
    ("process-suspended", good.spot(suspended={"ReplaceUnhealthy": ""}), "no reason given"),
    ("scale-in-protection", good.on_demand(protected_from_scale_in=True), ""),
    ("weighted-capacity", good.spot(weighted=True), ""),
    ("foreign-scaling-policy", good.on_demand(policies=("cpu-50",)), "cpu-50"),
    ("foreign-scaling-schedule", good.spot(scheduled_actions=("night",)), "night"),
    ("no-terminate-hook", good.spot(hooks=good.HOOKS[:1]), ""),
    ("hook-too-long", good.spot(hooks=SLOW_READY), "600 s, beyond 600"),
    ("hook-too-long", good.on_demand(hooks=SLOW_DRAIN), "7201"),
    ("maximum-below-bound", good.spot(maximum=10), "allows 20"),
    ("desired-above-bound", good.spot(desired=30, maximum=40), "ends 10 of them at once"),
    ("maximum-below-bound", good.on_demand(maximum=0), "is 0"),
    ("on-demand-minimum", good.on_demand(minimum=2), "minimum is 2"),
    ("not-wholly-spot", good.spot(spot_share=0.7), "30%"),
    ("not-wholly-on-demand", good.on_demand(spot_share=0.5), "50%"),
    ("no-warm-pool", good.fleet(availability=AvailabilityPolicy(on_demand_warm=True)), ""),
    ("warm-pool-unknown", good.on_demand(warm_pool=True), ""),
    ("no-instance-profile", good.machine(profile_policies=None), ""),
    ("role-cannot-send",
     good.machine(profile_policies=frozenset({"AmazonSSMManagedInstanceCore"})), ""),
    ("tags-not-in-metadata", good.machine(tags_in_metadata=False), ""),
    ("tag-keys", good.spot(tag_keys=("cost center",)), "'cost center'"),
    ("tag-keys", good.machine(tag_keys=("kubernetes.io/cluster/a",)), "kubernetes.io"),
    ("tags-not-in-metadata",
     good.machine(tags_in_metadata=False, tag_keys=("cost center",)), "'cost center'"),
    ("metadata-tokens", good.machine(tokens_required=False), ""),
    ("metadata-hop-limit", good.machine(hop_limit=1), ""),
    ("market-options", good.machine(market_options=True), ""),
    ("key-without-grant", good.account(key_grants=frozenset()), ""),
    ("e-mail-unconfirmed", good.stack(unconfirmed=("ops@example.org",)), "ops@example.org"),
    ("nobody-told", good.stack(nobody_told=True), ""),
    ("search-logs-stale", good.stack(search_log_ages={"main": 900.0}), "900 s old"),
    ("search-logs-stale", good.stack(search_log_ages={"main": None}), "none ever arrived"),
    ("schedule-disabled", good.stack(schedules_disabled=("spotkeeper-check-availability",)), ""),
    ("events-disabled", good.stack(rules_disabled=("spotkeeper-SpotWarning",)), ""),
    ("queue-disabled", good.stack(queues_unread=("14e0db71",)), ""),
    ("wrong-document",
     replace(good.FACTS, wrong_documents=("fleet document night: bounds: Field required",)),
     "bounds"),
    ("unused-settings",
     replace(good.FACTS, fleets=(replace(good.FLEET, unused=("availability.settle_s",)),)),
     "availability.settle_s"),
    ("nothing-wakes-it", good.fleet(bounds=Bounds(spot_min=0, spot_max=9, on_demand_max=9)), ""),
    ("no-group", replace(good.FACTS, groups={good.SPOT.name: good.SPOT}), ""),
    ("group-in-two-fleets", replace(good.FACTS, fleets=(good.FLEET, TWINS)), "main, night"),
    ("group-in-two-stacks",
     replace(good.FACTS, other_stacks={"ocr-on-demand": ("/spotkeeper/night/fleets/main",)}),
     "/spotkeeper/night/fleets/main names it too"),
    ("unseen",
     replace(
             good.FACTS, other_stacks=Unseen(action="ssm:GetParametersByPath", why=DENIED)
         ),
     "ssm:GetParametersByPath: Refused: AccessDenied"),
    ("placement-score", good.account(placement_scores={"main": 2}), "2 of 10"),
    ("unseen",
     good.account(quotas=Unseen(action="servicequotas:ListServiceQuotas", why=DENIED)),
     "servicequotas:ListServiceQuotas: Refused: AccessDenied"),
    ("job-shutdown-stops", good.jobs(on_shutdown="stop"), ""),
    ("job-tags-not-in-metadata",
     good.jobs(machine=replace(good.JOB_MACHINE, tags_in_metadata=False)), ""),
    ("job-no-instance-profile",
     good.jobs(machine=replace(good.JOB_MACHINE, profile_policies=None)), ""),
    ("job-other-role",
     good.jobs(machine=replace(good.JOB_MACHINE, profile_policies=frozenset({"Other"}))), ""),
    ("job-one-zone", good.jobs(zones=frozenset({"us-east-1a"})), "us-east-1a"),
    ("launch-part-gone",
     good.jobs(bucket=Unseen(action="s3:ListBucket", why="Gone: NoSuchBucket: no")), "the bucket"),
    ("unseen", good.jobs(zones=Unseen(action="ec2:DescribeSubnets", why=DENIED)), "Subnets"),
    ("unseen",
     good.spot(hooks=Unseen(action="autoscaling:DescribeLifecycleHooks", why=DENIED)),
     "autoscaling:DescribeLifecycleHooks"),
)  # fmt: skip


def test_a_good_stack_has_no_finding() -> None:
    assert examine(good.FACTS) == ()
    assert exit_code(()) == 0


def test_nor_has_a_good_account_before_there_is_a_stack() -> None:
    assert examine(replace(good.FACTS, stack=None)) == ()


@pytest.mark.parametrize(("found_id", "facts", "words"), SEEDED)
def test_a_seeded_misconfiguration_is_the_only_finding(
    found_id: str, facts: Facts, words: str
) -> None:
    found = examine(facts)
    assert {f.id for f in found} == {found_id}
    assert any(words in f.evidence for f in found)
    assert all(f.fix and f.about for f in found)
    assert exit_code(found) == {Severity.ERROR: 2, Severity.NOTE: 0}.get(found[0].severity, 1)


def test_what_is_known_of_a_document_that_sets_its_own_size_is_left_alone() -> None:
    facts = replace(
        good.spot(policies=("cpu-50",), scheduled_actions=("night",)),
        fleets=(replace(good.FLEET, sizing=SizingPolicy(enabled=False)),),
    )
    assert examine(facts) == ()


def test_a_group_of_another_stack_that_no_fleet_here_has_is_not_ours() -> None:
    other_stacks = {"asr-spot": ("/spotkeeper/night/fleets/main",)}
    assert examine(replace(good.FACTS, other_stacks=other_stacks)) == ()


def test_a_hook_just_within_its_deadline_is_well() -> None:
    hook = Hook(name="ready", launching=True, heartbeat_s=599)
    assert examine(good.spot(hooks=(hook, good.HOOKS[1]))) == ()


def test_two_fleets_share_a_quota() -> None:
    second = replace(
        good.FLEET,
        name="night",
        spot_group="night-spot",
        on_demand_group="night-on-demand",
        bounds=Bounds(spot_min=1, spot_max=1, on_demand_max=0),
    )
    groups = {
        good.SPOT.name: good.SPOT,
        good.ON_DEMAND.name: good.ON_DEMAND,
        "night-spot": replace(good.SPOT, name="night-spot"),
        "night-on-demand": replace(good.ON_DEMAND, name="night-on-demand"),
    }
    (found,) = examine(replace(good.FACTS, fleets=(good.FLEET, second), groups=groups))
    assert found.about == "ocr-spot, night-spot"
    assert "80 vCPUs; the fleets may need 84" in found.evidence


def test_everything_unseen_is_never_well() -> None:
    nothing = Unseen(
        action="autoscaling:DescribeAutoScalingGroups", why="Refused: ExpiredToken: old"
    )
    found = examine(replace(good.FACTS, groups=nothing))
    assert [f.severity for f in found] == [U]
    assert exit_code(found) == 1
