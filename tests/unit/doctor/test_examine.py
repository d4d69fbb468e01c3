"""Seeded misconfigurations, each found by its name, and a good stack without a finding."""

from dataclasses import replace

import pytest

from spotkeeper.domain.doctor.checks import examine
from spotkeeper.domain.doctor.facts import Facts, Hook, Unseen
from spotkeeper.domain.doctor.finding import Severity, exit_code
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from tests.unit.doctor import good

E, W, U = Severity.ERROR, Severity.WARNING, Severity.UNKNOWN
SLOW_READY = (replace(good.HOOKS[0], heartbeat_s=600), good.HOOKS[1])
SLOW_DRAIN = (good.HOOKS[0], replace(good.HOOKS[1], heartbeat_s=7201))
DENIED = "Refused: AccessDenied: no"
TWINS = replace(good.FLEET, name="night", bounds=Bounds(spot_min=0, spot_max=0, on_demand_max=0))

# What was seeded, the finding that must come and how bad it is, and words of its evidence.
SEEDED: dict[str, tuple[Facts, str, Severity, str]] = {
    "the post-mortem's quotas: spot 32": (good.quota(spot=32), "quota-too-small", E, "32 vCPUs"),
    "the post-mortem's quotas: on-demand 0": (
        good.quota(on_demand=0), "quota-too-small", E, 'G and VT instances" is 0 vCPUs',
    ),
    "a larger type of the group counts": (
        good.spot(types=("g5.xlarge", "g5.2xlarge")), "quota-too-small", E, "may need 160",
    ),
    "a family that no quota names": (
        good.spot(types=("g5.xlarge", "trn1.2xlarge")), "quota-not-found", U, "trn1.2xlarge",
    ),
    "a strategy that takes the cheapest pools": (
        good.spot(allocation="lowest-price"), "allocation-strategy", W, "lowest-price",
    ),
    "a maximum price of the group": (good.spot(max_price="0.5"), "spot-max-price", W, "0.5 USD"),
    "a maximum price of the launch template": (
        good.machine(max_price="0.4"), "spot-max-price", W, "0.4 USD",
    ),
    "turns that failed": (
        good.stack(failed_turns=(("main", "3 of the last 60"),)),
        "turns-failed", E, "3 of the last 60",
    ),
    "a drain of half a minute": (
        good.spot(hooks=(good.HOOKS[0], replace(good.HOOKS[1], heartbeat_s=30))),
        "drain-too-short", W, "spotkeeper-drain waits 30 s",
    ),
    "no metadata endpoint": (
        good.machine(metadata_enabled=False, tags_in_metadata=False), "metadata-disabled", E,
        "HttpEndpoint is disabled",
    ),
    "no role, before there is a stack": (
        replace(good.machine(profile_policies=None), stack=None), "no-instance-profile", E, "role",
    ),
    "an Arm type for an x86 image": (
        replace(
            good.machine(architecture="x86_64"),
            account=replace(good.ACCOUNT, architectures=good.ONE_OF_ARM),
        ),
        "wrong-architecture", E, "g6.xlarge is arm64, the image is x86_64",
    ),
    "an Arm type among x86, with an image that is not known": (
        good.account(architectures=good.ONE_OF_ARM), "wrong-architecture", E,
        "the rest of the group is x86_64",
    ),
    "a type that does not exist": (
        good.spot(types=("g5.xlarge", "g6.xlarge", "g5.huge")), "no-such-type", E,
        "g5.huge does not exist",
    ),
    "a rule without a target": (
        good.stack(rules_without_target=("SpotWarning",)), "rule-without-target", E, "no target",
    ),
    "a function that never runs": (
        good.stack(stopped_functions=("check",)), "function-stopped", E, "concurrency is 0",
    ),
    "an alarm that notifies nobody": (
        good.stack(silenced_alarms=("both-short",)), "alarm-actions-disabled", W, "disabled",
    ),
    "one protected instance": (
        good.spot(protected_instances=("i-1",)), "protected-instance", W, "i-1",
    ),
    "a spot minimum that binds": (good.spot(minimum=5), "spot-minimum", W, "minimum is 5"),
    "instances that are retained": (
        good.spot(retains_abandoned=True), "retained-instances", W, "TerminateHookAbandon",
    ),
    "a group that cannot be deleted": (
        good.spot(deletion_protection="prevent-all-deletion"), "deletion-protection", W, "prevent",
    ),
    "a deleted launch template": (
        good.spot(machine=Unseen(
            action="ec2:DescribeLaunchTemplateVersions", why="Gone: does not exist",
        )),
        "launch-part-gone", E, "the launch template does not exist",
    ),
    "a deleted image": (
        good.spot(machine=Unseen(action="ec2:DescribeImages", why="Gone: ami-1")),
        "launch-part-gone", E, "the image does not exist",
    ),
    "a deleted instance profile": (
        good.machine(profile_policies=Unseen(
            action="iam:GetInstanceProfile, iam:ListAttachedRolePolicies", why="Gone: worker",
        )),
        "launch-part-gone", E, "the instance profile does not exist",
    ),
    "no role for Auto Scaling": (
        good.account(roles=frozenset({"AWSServiceRoleForEC2Spot"})),
        "no-service-linked-role", E, "AWSServiceRoleForAutoScaling",
    ),
    "no role for spot": (
        good.account(roles=frozenset({"AWSServiceRoleForAutoScaling"})),
        "no-service-linked-role", E, "AWSServiceRoleForEC2Spot",
    ),
    "a new account's concurrency": (
        good.account(unreserved_concurrency=10), "little-concurrency", W, "10",
    ),
    "one zone": (good.spot(zones=frozenset({"us-east-1a"})), "one-zone", W, "us-east-1a"),
    "one zone for the fallback": (
        good.on_demand(zones=frozenset({"us-east-1b"})), "one-zone", W, "us-east-1b",
    ),
    "one instance type": (good.spot(types=("g5.xlarge",)), "one-instance-type", W, "g5.xlarge"),
    "a type that a zone lacks": (
        good.account(offered={"g5.xlarge": good.ZONES, "g6.xlarge": frozenset({"us-east-1a"})}),
        "not-offered-in-a-zone", W, "g6.xlarge is not offered in us-east-1b, us-east-1c",
    ),
    "types that no zone has": (
        good.account(offered={}), "not-offered-anywhere", E, "g5.xlarge, g6.xlarge",
    ),
    "capacity rebalance": (good.spot(capacity_rebalance=True), "capacity-rebalance", E, "both"),
    "zones are evened out": (
        replace(
            good.spot(suspended={}),
            fleets=(
                replace(good.FLEET, availability=AvailabilityPolicy(suspend_az_rebalance=False)),
            ),
        ),
        "az-rebalance", W, "ends busy instances",
    ),
    "launches suspended by AWS": (
        good.spot(suspended={"Launch": "Automatically suspended after failed launches"}),
        "process-suspended", E, "Automatically suspended",
    ),
    "terminations suspended by a user": (
        good.on_demand(suspended={"Terminate": "User suspended at 2026-11-01T00:00:00Z"}),
        "process-suspended", E, "Terminate is suspended: User",
    ),
    "dead instances are not replaced": (
        good.spot(suspended={"ReplaceUnhealthy": ""}), "process-suspended", E, "no reason given",
    ),
    "scale-in protection": (
        good.on_demand(protected_from_scale_in=True), "scale-in-protection", W, "all the same",
    ),
    "a group that counts in units": (
        good.spot(weighted=True), "weighted-capacity", E, "units",
    ),
    "a foreign policy on the fallback": (
        good.on_demand(policies=("cpu-50",)), "foreign-scaling-policy", E, "cpu-50",
    ),
    "a foreign schedule on a sized spot group": (
        good.spot(scheduled_actions=("night",)), "foreign-scaling-schedule", E, "night",
    ),
    "no terminate hook": (good.spot(hooks=good.HOOKS[:1]), "no-terminate-hook", E, "lost"),
    "a launch hook beyond the deadline": (
        good.spot(hooks=SLOW_READY), "hook-too-long", E, "600 s, beyond 600",
    ),
    "a drain of hours": (good.on_demand(hooks=SLOW_DRAIN), "hook-too-long", E, "7201"),
    "a maximum below the bound": (good.spot(maximum=10), "maximum-below-bound", E, "allows 20"),
    "more instances than the bound": (
        good.spot(desired=30, maximum=40), "desired-above-bound", E, "ends 10 of them at once",
    ),
    "no room for backfill": (good.on_demand(maximum=0), "maximum-below-bound", E, "is 0"),
    "a minimum that is never given back": (
        good.on_demand(minimum=2), "on-demand-minimum", W, "minimum is 2",
    ),
    "a spot group that is partly on demand": (
        good.spot(spot_share=0.7), "not-wholly-spot", E, "30%",
    ),
    "a fallback on spot": (good.on_demand(spot_share=0.5), "not-wholly-on-demand", E, "50%"),
    "warm in the document only": (
        good.fleet(availability=AvailabilityPolicy(on_demand_warm=True)), "no-warm-pool", E, "late",
    ),
    "a warm pool that nobody knows": (
        good.on_demand(warm_pool=True), "warm-pool-unknown", W, "as if it were cold",
    ),
    "workers without a role": (
        good.machine(profile_policies=None), "no-instance-profile", E, "no role",
    ),
    "a role that may not send": (
        good.machine(profile_policies=frozenset({"AmazonSSMManagedInstanceCore"})),
        "role-cannot-send", W, "policy for search logs",
    ),
    "tags hidden from workers": (
        good.machine(tags_in_metadata=False), "tags-not-in-metadata", E, "drain",
    ),
    "a tag key that metadata cannot hold": (
        good.spot(tag_keys=("cost center",)), "tag-keys", E, "'cost center'",
    ),
    "a tag key of the template that metadata cannot hold": (
        good.machine(tag_keys=("kubernetes.io/cluster/a",)), "tag-keys", E, "kubernetes.io",
    ),
    "tags that could not be shown to workers": (
        good.machine(tags_in_metadata=False, tag_keys=("cost center",)),
        "tags-not-in-metadata", W, "'cost center'",
    ),
    "metadata without tokens": (
        good.machine(tokens_required=False), "metadata-tokens", W, "optional",
    ),
    "metadata out of containers' reach": (
        good.machine(hop_limit=1), "metadata-hop-limit", W, "containers",
    ),
    "market options in the template": (
        good.machine(market_options=True), "market-options", E, "refuses",
    ),
    "a key without a grant": (
        good.account(key_grants=frozenset()), "key-without-grant", E, good.KEY,
    ),
    "an e-mail that nobody confirmed": (
        good.stack(unconfirmed=("ops@example.org",)), "e-mail-unconfirmed", W, "ops@example.org",
    ),
    "alarms that nobody hears": (good.stack(nobody_told=True), "nobody-told", W, "notify nobody"),
    "stale search logs": (
        good.stack(search_log_ages={"main": 900.0}), "search-logs-stale", W, "900 s old",
    ),
    "no search log ever": (
        good.stack(search_log_ages={"main": None}), "search-logs-stale", W, "none ever arrived",
    ),
    "a schedule that is off": (
        good.stack(schedules_disabled=("spotkeeper-check-availability",)),
        "schedule-disabled", E, "no turns",
    ),
    "a rule that is off": (
        good.stack(rules_disabled=("spotkeeper-SpotWarning",)),
        "events-disabled", E, "seen by the next minute's turn only",
    ),
    "a queue that nobody reads": (
        good.stack(queues_unread=("14e0db71",)),
        "queue-disabled", E, "nothing reads its queue",
    ),
    "a document that does not validate": (
        replace(good.FACTS, wrong_documents=("fleet document night: bounds: Field required",)),
        "wrong-document", E, "bounds",
    ),
    "settings of an earlier release": (
        replace(good.FACTS, fleets=(replace(good.FLEET, unused=("availability.settle_s",)),)),
        "unused-settings", W, "availability.settle_s",
    ),
    "a fleet that may go to sleep and hears of no request": (
        good.fleet(bounds=Bounds(spot_min=0, spot_max=9, on_demand_max=9)),
        "nothing-wakes-it", W, "no request queue is named",
    ),
    "a group that is gone": (
        replace(good.FACTS, groups={good.SPOT.name: good.SPOT}), "no-group", E, "does not exist",
    ),
    "a group in two fleets": (
        replace(good.FACTS, fleets=(good.FLEET, TWINS)), "group-in-two-fleets", E, "main, night",
    ),
    "a group of another stack": (
        replace(good.FACTS, other_stacks={"ocr-on-demand": ("/spotkeeper/night/fleets/main",)}),
        "group-in-two-stacks", E, "/spotkeeper/night/fleets/main names it too",
    ),
    "documents of other stacks that may not be read": (
        replace(
            good.FACTS, other_stacks=Unseen(action="ssm:GetParametersByPath", why=DENIED)
        ),
        "unseen", U, "ssm:GetParametersByPath: Refused: AccessDenied",
    ),
    "a poor market": (good.account(placement_scores={"main": 2}), "placement-score", W, "2 of 10"),
    "quotas that may not be read": (
        good.account(quotas=Unseen(action="servicequotas:ListServiceQuotas", why=DENIED)),
        "unseen", U, "servicequotas:ListServiceQuotas: Refused: AccessDenied",
    ),
    "hooks that may not be read": (
        good.spot(hooks=Unseen(action="autoscaling:DescribeLifecycleHooks", why=DENIED)),
        "unseen", U, "autoscaling:DescribeLifecycleHooks",
    ),
}  # fmt: skip


def test_a_good_stack_has_no_finding() -> None:
    assert examine(good.FACTS) == ()
    assert exit_code(()) == 0


def test_nor_has_a_good_account_before_there_is_a_stack() -> None:
    assert examine(replace(good.FACTS, stack=None)) == ()


def test_at_least_thirty_misconfigurations_are_seeded() -> None:
    assert len(SEEDED) >= 30


@pytest.mark.parametrize("seeded", SEEDED)
def test_a_seeded_misconfiguration_is_the_only_finding(seeded: str) -> None:
    facts, found_id, severity, words = SEEDED[seeded]
    found = examine(facts)
    assert {(f.id, f.severity) for f in found} == {(found_id, severity)}
    assert any(words in f.evidence for f in found)
    assert all(f.fix and f.about for f in found)
    assert exit_code(found) == (2 if severity is E else 1)


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


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        (
            "Refused: AccessDenied: no",
            "allow iam:GetRole to the role that runs this, and run it again",
        ),
        ("Unavailable: Unable to locate credentials", "run it again when AWS can be reached"),
        ("Throttled: Throttling: Rate exceeded", "run it again when AWS can be reached"),
        ("Gone: NoSuchEntity: not found", "correct what is named, and run it again"),
        ("the group has no launch template", "correct what is named, and run it again"),
    ],
)
def test_only_a_refusal_is_mended_by_a_permission(why: str, fix: str) -> None:
    (found,) = examine(good.account(roles=Unseen(action="iam:GetRole", why=why)))
    assert found.evidence == f"iam:GetRole: {why}"
    assert found.fix.startswith(fix)


def test_everything_unseen_is_never_well() -> None:
    nothing = Unseen(
        action="autoscaling:DescribeAutoScalingGroups", why="Refused: ExpiredToken: old"
    )
    found = examine(replace(good.FACTS, groups=nothing))
    assert [f.severity for f in found] == [U]
    assert exit_code(found) == 1
