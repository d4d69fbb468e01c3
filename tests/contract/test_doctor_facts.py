"""The doctor's eyes on moto: groups, launch templates, roles and keys as they were set up."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from spotkeeper.adapters.doctor.account import account_facts
from spotkeeper.adapters.doctor.groups import group_facts, metadata_defaults
from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.domain.doctor.facts import GONE, GroupFacts, Hook, Machine, Unseen
from tests.contract.conftest import IMAGE

TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
SEND = json.dumps({
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}],
})  # fmt: skip


pytestmark = pytest.mark.usefixtures("aws")


def clients(**given: Any) -> Clients:
    """Clients by service; `given` have answers of their own."""
    make: Any = boto3.client
    return lambda service: given[service] if service in given else make(service)


def template(name: str = "workers", **data: Any) -> str:
    """Make a launch template; its id."""
    wanted = {"ImageId": IMAGE, "InstanceType": "g5.xlarge", **data}
    answer = boto3.client("ec2").create_launch_template(
        LaunchTemplateName=name,
        LaunchTemplateData=wanted,  # type: ignore[arg-type]
    )
    return answer["LaunchTemplate"]["LaunchTemplateId"]


def profile() -> str:
    """Make an instance profile whose role has one policy; the policy's ARN."""
    iam = boto3.client("iam")
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument=TRUST)
    policy = iam.create_policy(PolicyName="Send", PolicyDocument=SEND)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="worker", PolicyArn=policy)
    iam.create_instance_profile(InstanceProfileName="worker")
    iam.add_role_to_instance_profile(InstanceProfileName="worker", RoleName="worker")
    return policy


def mixed(template_id: str, *types: str, on_demand: int = 0, base: int = 0) -> dict[str, Any]:
    return {
        "MixedInstancesPolicy": {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": template_id, "Version": "$Latest",
                },
                "Overrides": [{"InstanceType": it} for it in types],
            },
            "InstancesDistribution": {
                "OnDemandBaseCapacity": base, "OnDemandPercentageAboveBaseCapacity": on_demand,
            },
        }
    }  # fmt: skip


def make(name: str, **settings: Any) -> None:
    boto3.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name, MinSize=0, MaxSize=10, DesiredCapacity=0,
        AvailabilityZones=["us-east-1a", "us-east-1b"], **settings,
    )  # fmt: skip


def seen(name: str) -> GroupFacts:
    found = group_facts(clients(), [name])
    assert not isinstance(found, Unseen)
    return found[name]


def test_a_group_as_it_is_set_up() -> None:
    policy = profile()
    template_id = template(
        IamInstanceProfile={"Name": "worker"},
        MetadataOptions={
            "HttpTokens": "required", "HttpPutResponseHopLimit": 3,
            "InstanceMetadataTags": "enabled",
        },
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"KmsKeyId": "key-1"}}],
    )  # fmt: skip
    make(
        "spot",
        **mixed(template_id, "g5.xlarge", "g6.xlarge"),
        NewInstancesProtectedFromScaleIn=True,
        CapacityRebalance=True,
        Tags=[
            {"Key": "team", "Value": "ocr", "PropagateAtLaunch": True},
            {"Key": "not here", "Value": "x", "PropagateAtLaunch": False},
        ],
    )
    autoscaling = boto3.client("autoscaling")
    autoscaling.put_lifecycle_hook(
        AutoScalingGroupName="spot", LifecycleHookName="ready", HeartbeatTimeout=300,
        LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
    )  # fmt: skip
    autoscaling.put_scaling_policy(
        AutoScalingGroupName="spot", PolicyName="cpu", AdjustmentType="ChangeInCapacity",
        ScalingAdjustment=1,
    )  # fmt: skip
    autoscaling.put_scheduled_update_group_action(
        AutoScalingGroupName="spot", ScheduledActionName="night", DesiredCapacity=1,
        Recurrence="0 0 * * *",
    )  # fmt: skip
    autoscaling.suspend_processes(AutoScalingGroupName="spot", ScalingProcesses=["Terminate"])
    found = seen("spot")
    assert found.machine == Machine(
        architecture="x86_64", hop_limit=3, profile_policies=frozenset({policy}), keys=("key-1",)
    )
    assert found.hooks == (Hook(name="ready", launching=True, heartbeat_s=300),)
    assert (found.policies, found.scheduled_actions) == (("cpu",), ("night",))
    assert set(found.suspended) == {"Terminate"}
    assert (found.spot_share, found.types) == (1.0, ("g5.xlarge", "g6.xlarge"))
    assert found.zones == {"us-east-1a", "us-east-1b"}
    assert found.protected_from_scale_in
    assert not found.weighted
    assert found.capacity_rebalance
    assert found.tag_keys == ("team",)


def described(group: dict[str, Any], **given: Any) -> GroupFacts:
    """A group with what moto does not keep."""
    made = {
        "AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 9, "DesiredCapacity": 0,
        "DefaultCooldown": 300, "AvailabilityZones": ["us-east-1a"], "HealthCheckType": "EC2",
        "CreatedTime": datetime(2026, 11, 20, tzinfo=UTC), "Instances": [], **group,
    }  # fmt: skip
    autoscaling = boto3.client("autoscaling")
    with Stubber(autoscaling) as stub:
        stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [made]})
        facts = group_facts(clients(autoscaling=autoscaling, **given), ["g"])
    assert isinstance(facts, Mapping)
    return facts["g"]


def test_allocation_price_protection_and_retention_of_a_group() -> None:
    settings = mixed(template(), "g5.xlarge")
    plain = described(settings)
    assert (plain.allocation, plain.max_price) == ("lowest-price", "")
    assert (plain.retains_abandoned, plain.deletion_protection) == (False, "none")
    distribution = settings["MixedInstancesPolicy"]["InstancesDistribution"]
    distribution |= {"SpotAllocationStrategy": "price-capacity-optimized", "SpotMaxPrice": "0.5"}
    instance = {
        "InstanceId": "i-1", "AvailabilityZone": "us-east-1a", "LifecycleState": "InService",
        "HealthStatus": "Healthy",
    }  # fmt: skip
    found = described(
        settings
        | {
            "Instances": [
                {**instance, "ProtectedFromScaleIn": True},
                {**instance, "InstanceId": "i-2", "ProtectedFromScaleIn": False},
            ],
            "InstanceLifecyclePolicy": {"RetentionTriggers": {"TerminateHookAbandon": "retain"}},
            "DeletionProtection": "prevent-all-deletion",
        }
    )
    assert (found.allocation, found.max_price) == ("price-capacity-optimized", "0.5")
    assert found.protected_instances == ("i-1",)
    assert (found.retains_abandoned, found.deletion_protection) == (True, "prevent-all-deletion")


def test_the_accounts_metadata_defaults_apply_where_a_template_says_nothing() -> None:
    """The order: launch template, account, image (EC2 user guide)."""
    ec2 = boto3.client("ec2")
    level = {
        "HttpTokens": "required", "HttpPutResponseHopLimit": 2, "InstanceMetadataTags": "enabled",
        "HttpEndpoint": "no-preference",
    }  # fmt: skip
    with Stubber(ec2) as stub:
        stub.add_response("get_instance_metadata_defaults", {"AccountLevel": level})
        defaults = metadata_defaults(ec2)
    for data, tags in (({}, True), ({"InstanceMetadataTags": "disabled"}, False)):
        made = template(f"t-{tags}", MetadataOptions=data)
        make(f"g-{tags}", LaunchTemplate={"LaunchTemplateId": made, "Version": "1"})
        found = group_facts(clients(), [f"g-{tags}"], defaults)
        assert isinstance(found, Mapping)
        machine = found[f"g-{tags}"].machine
        assert isinstance(machine, Machine)
        assert (machine.tokens_required, machine.hop_limit) == (True, 2)
        assert (machine.metadata_enabled, machine.tags_in_metadata) == (True, tags)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"ImageId": "ami-0000000000000dead"}, "machine"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "profile"),
        (None, "machine"),
    ],
)
def test_what_launches_need_and_does_not_exist_is_gone(
    data: dict[str, Any] | None, part: str
) -> None:
    made = template(**(data or {}))
    make("spot", LaunchTemplate={"LaunchTemplateId": made, "Version": "1"})
    if data is None:
        boto3.client("ec2").delete_launch_template(LaunchTemplateId=made)
    machine = seen("spot").machine
    if part == "profile":
        assert isinstance(machine, Machine)
        machine = machine.profile_policies  # type: ignore[assignment]
    assert isinstance(machine, Unseen)
    assert machine.kind == GONE


def test_a_launch_template_without_a_metadata_endpoint_and_with_a_price() -> None:
    options: dict[str, Any] = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.4"}}
    made = template(MetadataOptions={"HttpEndpoint": "disabled"}, InstanceMarketOptions=options)
    make("spot", LaunchTemplate={"LaunchTemplateId": made, "Version": "1"})
    machine = seen("spot").machine
    assert isinstance(machine, Machine)
    assert (machine.metadata_enabled, machine.max_price) == (False, "0.4")


def test_what_a_template_leaves_out_is_what_ec2_uses() -> None:
    make("plain", LaunchTemplate={"LaunchTemplateId": template(), "Version": "1"})
    found = seen("plain")
    assert found.machine == Machine(
        architecture="x86_64",
        tokens_required=False,
        hop_limit=1,
        tags_in_metadata=False,
        profile_policies=None,
    )
    assert (found.spot_share, found.types) == (0.0, ("g5.xlarge",))


def test_a_template_that_asks_for_spot_by_itself() -> None:
    template_id = template(InstanceMarketOptions={"MarketType": "spot"})
    make("alone", LaunchTemplate={"LaunchTemplateId": template_id, "Version": "1"})
    make("mixed", **mixed(template_id, "g5.xlarge", on_demand=30))
    alone, together = seen("alone"), seen("mixed")
    assert isinstance(alone.machine, Machine)
    assert isinstance(together.machine, Machine)
    assert (alone.spot_share, alone.machine.market_options) == (1.0, False)
    assert together.machine.market_options
    assert together.spot_share == pytest.approx(0.7)


def test_a_group_whose_types_have_weights_counts_in_units() -> None:
    settings = mixed(template(), "g5.xlarge", "g5.2xlarge")
    overrides = settings["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    for override, weight in zip(overrides, ("1", "2"), strict=True):
        override["WeightedCapacity"] = weight
    make("weighted", **settings)
    assert seen("weighted").weighted


@pytest.mark.parametrize(("counted_in", "weighted"), [("units", False), ("vcpu", True)])
def test_a_group_that_chooses_types_by_attributes_may_count_in_units(
    counted_in: str, weighted: bool
) -> None:
    launch = {"LaunchTemplateId": template(), "Version": "1"}
    group = {"DesiredCapacityType": counted_in, "LaunchTemplate": launch}
    assert described(group).weighted is weighted


def test_types_that_aws_selects_by_attributes_are_read() -> None:
    """EC2's answer is stubbed: moto knows no attributes."""
    requirements = {"VCpuCount": {"Min": 4}, "MemoryMiB": {"Min": 0}}
    launch = {
        "LaunchTemplateSpecification": {"LaunchTemplateId": template(), "Version": "1"},
        "Overrides": [{"InstanceRequirements": requirements}],
    }
    ec2 = boto3.client("ec2")

    def answer(model: Any, **_: object) -> Any:
        if model.name == "GetInstanceTypesFromInstanceRequirements":
            types = [{"InstanceType": it} for it in ("g6.xlarge", "g5.xlarge")]
            return SimpleNamespace(status_code=200), {"InstanceTypes": types}
        return None

    ec2.meta.events.register_first("before-call", answer)
    found = described({"MixedInstancesPolicy": {"LaunchTemplate": launch}}, ec2=ec2)
    assert found.types == found.selected == ("g5.xlarge", "g6.xlarge")


def test_forty_fleets_take_one_call_a_group_besides_what_is_read_of_all_at_once() -> None:
    """AWS takes 50 names a call of DescribeAutoScalingGroups, and moto any number."""
    autoscaling, ec2, iam = (boto3.client(s) for s in ("autoscaling", "ec2", "iam"))
    names, calls = [f"group-{n:02}" for n in range(80)], Counter[str]()
    profile()
    for spot, on_demand in zip(names[::2], names[1::2], strict=True):
        launch = template(spot, IamInstanceProfile={"Name": "worker"})
        for name in (spot, on_demand):
            make(name, LaunchTemplate={"LaunchTemplateId": launch, "Version": "1"})

    def count(model: Any, **_: object) -> None:
        calls[model.name] += 1

    for client in (autoscaling, ec2, iam):
        client.meta.events.register("before-call", count)
    found = group_facts(clients(autoscaling=autoscaling, ec2=ec2, iam=iam), [*names, "no group"])
    assert isinstance(found, Mapping)
    assert found.keys() == {*names}
    assert calls == {
        "DescribeAutoScalingGroups": 2,
        "DescribeLifecycleHooks": 80,
        "DescribeLaunchTemplateVersions": 40,
        **dict.fromkeys(
            ("DescribePolicies", "DescribeScheduledActions", "DescribeImages",
             "GetInstanceProfile", "ListAttachedRolePolicies"),
            1,
        ),
    }  # fmt: skip


def test_groups_that_do_not_exist_are_left_out() -> None:
    assert group_facts(clients(), ["nope"]) == {}
    assert group_facts(clients(), []) == {}


def test_roles_types_zones_and_keys_of_the_account() -> None:
    kms = boto3.client("kms")
    boto3.client("iam").create_role(
        RoleName="AWSServiceRoleForEC2Spot", AssumeRolePolicyDocument=TRUST
    )
    granted = kms.create_key()["KeyMetadata"]["Arn"]
    barred = kms.create_key()["KeyMetadata"]["Arn"]
    role = (
        "arn:aws:iam::123456789012:role/aws-service-role/autoscaling/AWSServiceRoleForAutoScaling"
    )
    kms.create_grant(KeyId=granted, GranteePrincipal=role, Operations=["Decrypt"])
    group = GroupFacts(
        name="spot", spot_share=1.0, minimum=0, maximum=1, zones=frozenset(),
        types=("g5.xlarge", "no.such"), machine=Machine(keys=(granted, barred)),
    )  # fmt: skip
    quotas = boto3.client("service-quotas")
    with Stubber(quotas) as stub:
        quota = {"QuotaName": "All G and VT Spot Instance Requests", "Value": 64.0}
        stub.add_response("list_service_quotas", {"Quotas": [quota]}, {"ServiceCode": "ec2"})
        found = account_facts(clients(**{"service-quotas": quotas}), [group])
    assert found.roles == frozenset({"AWSServiceRoleForEC2Spot"})
    assert found.key_grants == frozenset({granted})
    assert found.vcpus == {"g5.xlarge": 4}
    assert not isinstance(found.offered, Unseen)
    assert "us-east-1a" in found.offered["g5.xlarge"]
    assert found.quotas == {"All G and VT Spot Instance Requests": 64.0}


@pytest.mark.parametrize("granted", [True, False], ids=["by a grant", "by its policy"])
def test_a_key_that_is_named_by_its_alias_is_asked_about_by_its_arn(*, granted: bool) -> None:
    """DescribeKey alone takes an alias; moto lets the other two pass, too."""
    arn, alias = "arn:aws:kms:us-east-1:123456789012:key/1", "alias/disks"
    metadata = {"KeyId": "1", "Arn": arn, "KeyManager": "CUSTOMER"}
    role = "arn:aws:iam::123456789012:role/AWSServiceRoleForAutoScaling"
    grants = [{"GranteePrincipal": role}] if granted else []
    machine = Machine(keys=(alias,))
    group = GroupFacts(
        name="spot", spot_share=1.0, minimum=0, maximum=1, zones=frozenset(), types=(),
        machine=machine,
    )  # fmt: skip
    kms, service_quotas = boto3.client("kms"), boto3.client("service-quotas")
    with Stubber(service_quotas) as quotas, Stubber(kms) as stub:
        quotas.add_response("list_service_quotas", {"Quotas": []})
        stub.add_response("describe_key", {"KeyMetadata": metadata}, {"KeyId": alias})
        stub.add_response("list_grants", {"Grants": grants}, {"KeyId": arn})
        if not granted:
            named = {"KeyId": arn, "PolicyName": "default"}
            stub.add_response("get_key_policy", {"Policy": f'"{role}"'}, named)
        given = clients(**{"kms": kms, "service-quotas": service_quotas})
        assert account_facts(given, [group]).key_grants == frozenset({alias})
        stub.assert_no_pending_responses()


def test_what_is_denied_is_unseen_and_names_the_action() -> None:
    def denied() -> None:
        told = {"Error": {"Code": "AccessDenied", "Message": "no"}}
        raise ClientError(told, "GetRole")  # type: ignore[arg-type]

    assert look("iam:GetRole", denied) == Unseen(
        action="iam:GetRole", why="Refused: AccessDenied: no"
    )


def test_tags_of_the_template_are_its_instances_too() -> None:
    tags = {
        "ResourceType": "instance",
        "Tags": [{"Key": "kubernetes.io/cluster/a", "Value": "owned"}],
    }
    volumes = {"ResourceType": "volume", "Tags": [{"Key": "a disk's", "Value": "x"}]}
    made = template(TagSpecifications=[tags, volumes])
    make("tagged", LaunchTemplate={"LaunchTemplateId": made, "Version": "1"})
    machine = seen("tagged").machine
    assert isinstance(machine, Machine)
    assert machine.tag_keys == ("kubernetes.io/cluster/a",)
