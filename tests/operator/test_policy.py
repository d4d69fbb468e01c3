"""The role SpotkeeperOperator may do what the commands are seen to do, and nothing else."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from spotkeeper.adapters.doctor.account import account_facts, placement_scores
from spotkeeper.adapters.doctor.groups import LaunchTemplates, template_of
from spotkeeper.adapters.doctor.stack import stack_facts
from spotkeeper.adapters.ec2.prices import on_demand_prices, spot_prices
from spotkeeper.domain.doctor.facts import GroupFacts, Unseen
from spotkeeper_lab.template import PSEUDO
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.drill import check, interrupt
from spotkeeper_operator.rollout import read_refresh
from tests.builders import NOON
from tests.functions.conftest import TABLE, Stage, document
from tests.operator.command import STACK, intercept, run
from tests.operator.conftest import ring
from tests.rights import ACCOUNT, ARNS, GROUP, REGION, Call, calls_of, permits
from tests.template.stack import Stack, as_list, statements
from tests.unit.doctor.good import FLEET

POLICIES = {"SpotkeeperOperator", "Examine", "LookAtFleets", "KeepScores", "StartDrills"}
# What moto does not know, or what only other groups and accounts have.
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "cloudwatch": {"DescribeAlarmContributors": {"AlarmContributors": []}},
    "ec2": {
        "DescribeLaunchTemplateVersions": {"LaunchTemplateVersions": [
            {"LaunchTemplateData": {
                "ImageId": "ami-1", "IamInstanceProfile": {"Name": "worker"}, "KeyName": "key",
                "SecurityGroupIds": ["sg-1"], "Placement": {"GroupName": "near"},
            }}
        ]},
        "DescribeImages": {"Images": [{"ImageId": "ami-1", "BlockDeviceMappings": [
            {"Ebs": {"Encrypted": True, "SnapshotId": "snap-1"}}
        ]}]},
        "DescribeKeyPairs": {"KeyPairs": [{"KeyName": "key"}]},
        "DescribeSecurityGroups": {"SecurityGroups": [{"GroupId": "sg-1"}]},
        "DescribePlacementGroups": {"PlacementGroups": [{"GroupName": "near"}]},
        "DescribeSubnets": {"Subnets": [{"SubnetId": "subnet-1"}]},
        "DescribeSnapshots": {"Snapshots": [{"SnapshotId": "snap-1", "KmsKeyId": "key-1"}]},
        "GetEbsEncryptionByDefault": {"EbsEncryptionByDefault": True},
        "GetEbsDefaultKmsKeyId": {"KmsKeyId": "key-1"},
        "DescribeInstanceTypes": {"InstanceTypes": []},
        "DescribeInstanceTypeOfferings": {"InstanceTypeOfferings": []},
        "GetSpotPlacementScores": {"SpotPlacementScores": [{"Region": REGION, "Score": 5}]},
        "GetInstanceMetadataDefaults": {"AccountLevel": {}},
    },
    "elbv2": {"DescribeTargetGroups": {"TargetGroups": []}},
    "iam": {
        "GetInstanceProfile": {"InstanceProfile": {"Roles": [{"RoleName": "worker"}]}},
        "ListAttachedRolePolicies": {"AttachedPolicies": []},
        "GetRole": {},
    },
    "kms": {
        "DescribeKey": {"KeyMetadata": {"Arn": "arn:1", "KeyManager": "CUSTOMER"}},
        "ListGrants": {"Grants": []},
        "GetKeyPolicy": {"Policy": ""},
    },
    "lambda": {
        "GetAccountSettings": {"AccountLimit": {"UnreservedConcurrentExecutions": 1000}},
        "GetFunctionConcurrency": {},
        "GetEventSourceMapping": {"State": "Enabled"},
    },
    "service-quotas": {"ListServiceQuotas": {"Quotas": []}},
    "scheduler": {"GetSchedule": {"State": "ENABLED"}},
    "events": {"DescribeRule": {"State": "ENABLED"}, "ListTargetsByRule": {"Targets": []}},
    "pricing": {"GetProducts": {"PriceList": []}},
    "sqs": {"GetQueueAttributes": {"Attributes": {
        f"ApproximateNumberOfMessages{which}": "3" for which in ("", "Delayed", "NotVisible")
    }}},
    "autoscaling": {
        "DescribeLifecycleHooks": {"LifecycleHooks": [
            {"LifecycleHookName": "spotkeeper-drain", "LifecycleTransition": "x"}
        ]},
        "DeleteLifecycleHook": {},
    },
    "ce": {"GetCostAndUsage": {"ResultsByTime": []}},
    "fis": {
        "CreateExperimentTemplate": {"experimentTemplate": {"id": "EXT1"}},
        "StartExperiment": {"experiment": {"id": "EXP1"}},
        "DeleteExperimentTemplate": {},
        "GetExperiment": {"experiment": {"state": {"status": "running"}}},
    },
}  # fmt: skip
# These groups name their types; test_doctor_facts.py calls it for one that names attributes.
BY_ATTRIBUTES = {"ec2:GetInstanceTypesFromInstanceRequirements"}
# Everybody may ask who they are.
ALWAYS = {"sts:GetCallerIdentity"}


def fis(resource: str) -> str:
    return f"arn:aws:fis:{REGION}:{ACCOUNT}:{resource}"


TEMPLATE, EXPERIMENT = fis("experiment-template/EXT1"), fis("experiment/EXP1")


def needs(service: str, operation: str, given: Mapping[str, Any]) -> Iterator[Call]:
    """The authorizations that a call of botocore needs, those of FIS too."""
    action = f"{service}:{operation}"
    tags = tuple(
        (f"aws:RequestTag/{key}", str(it)) for key, it in dict(given.get("tags") or {}).items()
    )
    match service, operation:
        case "fis", "CreateExperimentTemplate":
            (wanted,) = given["actions"].values()
            yield Call(action, fis(f"action/{wanted['actionId']}"), tags)
            yield Call(action, TEMPLATE, tags)
            yield Call("fis:TagResource", TEMPLATE, tags)
            yield Call("iam:PassRole", given["roleArn"])
        case "fis", "StartExperiment":
            yield Call(action, TEMPLATE)
            yield Call(action, EXPERIMENT, tags)
            yield Call("fis:TagResource", EXPERIMENT, tags)
            # An account's first experiment makes it.
            role = "aws-service-role/fis.amazonaws.com/AWSServiceRoleForFIS"
            yield Call("iam:CreateServiceLinkedRole", f"arn:aws:iam::{ACCOUNT}:role/{role}")
        case "fis", _:
            yield Call(action, TEMPLATE if "Template" in operation else EXPERIMENT)
        case _:
            yield from calls_of(service, operation, given)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> set[Call]:
    """Every authorization that was needed since."""
    needed: set[Call] = set()

    def noted(client: BaseClient, operation: str, arguments: Any) -> Any:
        service = client.meta.service_model.service_name
        needed.update(needs(service, operation, arguments))
        return ANSWERS.get(service, {}).get(operation)

    intercept(monkeypatch, noted)
    return needed


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The statements of the operator's policies, for the groups of the stage."""
    monkeypatch.setitem(PSEUDO, "AWS::Region", REGION)
    given = {
        "SpotGroupName": "main-spot",
        "OnDemandGroupName": "main-on-demand",
        "Drills": "true",
        "RequestQueueName": "requests",
    }
    found: list[Mapping[str, Any]] = [
        it for owner, it in statements(Stack.with_parameters(given, STACK)) if owner in POLICIES
    ]
    assert found
    return found


def test_every_call_is_allowed_and_every_permission_is_used(
    deployed: Stage,
    recorded: set[Call],
    allowed: list[Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    topic = Aws(REGION).stack(STACK).outputs["AlarmTopicArn"]
    monkeypatch.setitem(ARNS, "AlarmTopic", topic)
    queue = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/requests"
    deployed.put("main", json.dumps(document("main", request_queue_url=queue)))
    deployed.put("main.overrides", '{"mode": "act"}')
    # An instance carries the tags that turns set.
    spot = [i.instance_id for i in deployed.cloud.group("main-spot").instances]
    deployed.cloud.tag(spot[:1], {}, deployed.cloud.now_s + 60)
    deployed.cloud.tag_group("main-spot", "spotkeeper:owner", "nonce")
    tags = {"spotkeeper:group": "main-spot", "spotkeeper:nonce": "nonce"}
    boto3.client("ec2").create_tags(
        Resources=spot[:1], Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
    )
    query = "SELECT MAX(BothShort) FROM SCHEMA(Spotkeeper, service, fleet) GROUP BY fleet"
    ring("both-short", query=query)
    recorded.clear()
    out, file = tmp_path / "market.csv", tmp_path / "main.overrides.json"
    file.write_text('{"mode": "act", "bounds": {"spot_min": 2}}')
    for line in (
        f"trace export --table {TABLE} --fleet main --group main-spot --out {out}",
        "status", "status --instances", "status --events", "explain --since 1h", "observe report",
        "doctor", "cost --since 2h --actual", "mode main observe", "mode main act --yes",
        "pause main --for 1h --why x", "resume main --yes", "fleet show main",
        f"fleet diff {file}", f"fleet apply {file} --yes", "stop main --anyway --yes",
    ):  # fmt: skip
        assert run(*line.split())[0] in (0, 1, 2), line
    # The ledger is empty, so cost asks for no price.
    spot_prices(boto3.client("ec2"), ["us-east-1a/g5.xlarge"], NOON, NOON)
    on_demand_prices(boto3.client("pricing", region_name=REGION), ["g5.xlarge"], REGION)
    look_at_everything()
    service = boto3.client("fis", region_name=REGION)
    check(service, interrupt(service, STACK, ARNS["DrillRole.Arn"], ["i-1"]))
    refused = {
        call for call in recorded
        if call.action not in ALWAYS and not any(permits(it, call) for it in allowed)
    }  # fmt: skip
    assert refused == set()
    used = {call.action for call in recorded} - ALWAYS | BY_ATTRIBUTES
    assert {action for it in allowed for action in as_list(it["Action"])} == used


@pytest.mark.parametrize(
    "call",
    [
        Call("dynamodb:PutItem", ARNS["Table.Arn"], (("dynamodb:LeadingKeys", "load#main"),)),
        Call("autoscaling:SetDesiredCapacity", GROUP + "web"),
        # Without any key it deletes all tags.
        Call("ec2:DeleteTags", f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1", ()),
        Call("ec2:DeleteTags", f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1",
             (("aws:TagKeys", "Name"),)),
        Call("ssm:GetParametersByPath", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/other"),
        Call("cloudformation:DescribeStacks",
             f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/other/1"),
        Call("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin"),
        Call("fis:StartExperiment", fis("experiment/EXP1"), (("aws:RequestTag/spotkeeper", "x"),)),
        Call("fis:CreateExperimentTemplate", fis("action/aws:ec2:stop-instances")),
        Call("ec2:TerminateInstances", f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1"),
        Call("autoscaling:DetachInstances", GROUP + "main-spot"),
    ],
    ids=lambda call: call.action + " " + call.resource.rpartition(":")[2],
)  # fmt: skip
def test_requests_outside_the_operators_permissions_are_refused(
    call: Call, allowed: list[Mapping[str, Any]]
) -> None:
    assert not any(permits(it, call) for it in allowed)


def look_at_everything() -> None:
    """Let the doctor look at a group that has a launch template, and at an account for it."""
    aws = Aws(REGION)
    template = template_of(aws.client, "lt-1", "$Default")
    assert not isinstance(template, Unseen)
    assert read_refresh(aws.autoscaling, "main-spot") is None
    described = {
        "AutoScalingGroupName": "main-spot", "VPCZoneIdentifier": "subnet-1",
        "TargetGroupARNs": ["arn:1"],
    }  # fmt: skip
    launches = LaunchTemplates(aws.client, [template], [described])
    group = GroupFacts(
        aws=described,
        spot_share=1.0,
        types=("g5.xlarge",),
        launch_template=launches.of(template, {}, mixed=True),
    )
    account_facts(aws.client, [group])
    fleets, groups = [replace(FLEET, spot_group="main-spot")], {"main-spot": group}
    assert placement_scores(aws.client, TABLE, fleets, groups, NOON)
    parts = {
        "AWS::Scheduler::Schedule": "health",
        "AWS::Events::Rule": "rule",
        "AWS::Lambda::EventSourceMapping": "source",
        "AWS::Lambda::Function": "function",
        "AWS::CloudWatch::Alarm": "alarm",
        "AWS::SQS::Queue": "queue",
    }
    resources = {kind: (kind, f"{STACK}-{name}") for kind, name in parts.items()}
    stack_facts(aws.client, replace(aws.stack(STACK), resources=resources), [])
