"""The doctor's eyes on moto: groups, launch templates, roles, keys, documents and scores."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber

from spotkeeper.adapters.doctor.account import account_facts, groups_elsewhere, placement_scores
from spotkeeper.adapters.doctor.groups import group_facts, metadata_defaults
from spotkeeper.adapters.doctor.looking import Clients
from spotkeeper.domain.doctor.checks import examine
from spotkeeper.domain.doctor.facts import GONE, GroupFacts, LaunchTemplate, Unseen
from tests.builders import NOON, TABLE
from tests.contract.conftest import IMAGE
from tests.unit.doctor.good import ACCOUNT, FLEET, ON_DEMAND, SPOT, but

TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
SEND = json.dumps({
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}],
})  # fmt: skip
# What EC2 uses where a template says nothing.
PLAIN = LaunchTemplate(
    architecture="x86_64", tokens_required=False, hop_limit=1, tags_in_metadata=False,
    profile_policies=None,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("aws")


def clients(**given: Any) -> Clients:
    """Clients by service; `given` have answers of their own."""
    make: Any = boto3.client
    return lambda service: given[service] if service in given else make(service)


def answering(**answers: Any) -> Any:
    """A client of EC2 with answers to calls that moto does not know."""
    ec2 = boto3.client("ec2")

    def answer(model: Any, **_: object) -> Any:
        known = answers.get(model.name)
        return known and (SimpleNamespace(status_code=200), known)

    ec2.meta.events.register_first("before-call", answer)
    return ec2


def template(name: str = "workers", **data: Any) -> dict[str, str]:
    """Make a launch template, as a group names it."""
    wanted: Any = {"ImageId": IMAGE, "InstanceType": "g5.xlarge", **data}
    answer = boto3.client("ec2").create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData=wanted
    )
    return {"LaunchTemplateId": answer["LaunchTemplate"]["LaunchTemplateId"], "Version": "1"}


def profile() -> str:
    """Make an instance profile whose role has one policy; the policy's ARN."""
    iam = boto3.client("iam")
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument=TRUST)
    policy = iam.create_policy(PolicyName="Send", PolicyDocument=SEND)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="worker", PolicyArn=policy)
    iam.create_instance_profile(InstanceProfileName="worker")
    iam.add_role_to_instance_profile(InstanceProfileName="worker", RoleName="worker")
    return policy


def mixed(
    *overrides: dict[str, Any], launch: dict[str, str] | None = None, **distribution: Any
) -> dict[str, Any]:
    settings = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0, **distribution}
    specified = {"LaunchTemplateSpecification": launch or template(), "Overrides": [*overrides]}
    return {
        "MixedInstancesPolicy": {"LaunchTemplate": specified, "InstancesDistribution": settings}
    }


def make(name: str, **settings: Any) -> None:
    boto3.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name, MinSize=0, MaxSize=10, DesiredCapacity=0,
        AvailabilityZones=["us-east-1a", "us-east-1b"], **settings,
    )  # fmt: skip


def seen(name: str, defaults: Any = None) -> GroupFacts:
    found = group_facts(clients(), [name], defaults or {})
    assert not isinstance(found, Unseen)
    return found[name]


GOOD: dict[str, Any] = {
    "IamInstanceProfile": {"Name": "worker"},
    "MetadataOptions": {
        "HttpTokens": "required", "HttpPutResponseHopLimit": 2, "InstanceMetadataTags": "enabled",
    },
}  # fmt: skip
OF_ARM = "g5g.xlarge"


def found_in_spot(*overrides: Any, launch: dict[str, str]) -> list[tuple[str, str]]:
    """What is found wrong with a spot group of these overrides."""
    chosen, good = "price-capacity-optimized", cast("Any", ACCOUNT)
    make(SPOT.name, **mixed(*overrides, launch=launch, SpotAllocationStrategy=chosen))
    facts = but(
        account__vcpus={**good.vcpus, OF_ARM: 4},
        account__offered={**good.offered, OF_ARM: frozenset(SPOT.aws["AvailabilityZones"])},
        account__architectures={"g5.xlarge": {"x86_64"}, OF_ARM: {"arm64"}},
        facts__stack=None,
    )
    group = replace(seen(SPOT.name), hooks=SPOT.hooks)
    findings = examine(replace(facts, groups={SPOT.name: group, ON_DEMAND.name: ON_DEMAND}))
    ours = {"az-rebalance", "maximum-below-bound"}
    return [(f.id, f.evidence) for f in findings if f.about == SPOT.name and f.id not in ours]


def test_an_override_has_a_launch_template_of_its_own() -> None:
    """arm64 beside x86_64, each with its image (terraform-aws-eks#1498)."""
    profile()
    arm = boto3.client("ec2").register_image(
        Name="arm", Architecture="arm64", RootDeviceName="/dev/xvda"
    )["ImageId"]
    own = template("arm", **{**GOOD, "ImageId": arm, "InstanceType": OF_ARM})
    overrides = [
        {"InstanceType": "g5.xlarge"}, {"InstanceType": OF_ARM, "LaunchTemplateSpecification": own},
    ]  # fmt: skip
    assert found_in_spot(*overrides, launch=template("main", **GOOD)) == []


def test_the_launch_template_of_an_override_is_examined() -> None:
    profile()
    gone = template("gone", ImageId="ami-0000000000000dead", InstanceType="g6.xlarge")
    off = template("off", InstanceType="g5.2xlarge", MetadataOptions={"HttpEndpoint": "disabled"})
    overrides = [
        {"InstanceType": "g5.xlarge"},
        {"InstanceType": "g6.xlarge", "LaunchTemplateSpecification": gone},
        {"InstanceType": "g5.2xlarge", "LaunchTemplateSpecification": off},
    ]
    found = dict(found_in_spot(*overrides, launch=template("main", **GOOD)))
    assert found.keys() >= {"launch-part-gone", "no-instance-profile", "metadata-disabled"}
    assert "image" in found["launch-part-gone"]


def test_what_a_launch_template_names_and_aws_does_not_have() -> None:
    profile()
    snapshot = {"DeviceName": "/dev/sdb", "Ebs": {"SnapshotId": "snap-0000000000000dead"}}
    named = {
        "KeyName": "deleted", "SecurityGroupIds": ["sg-0000000000000dead"],
        "BlockDeviceMappings": [snapshot],
    }  # fmt: skip
    types = [{"InstanceType": "g5.xlarge"}, {"InstanceType": "g6.xlarge"}]
    found = found_in_spot(*types, launch=template("main", **{**GOOD, **named}))
    assert [text for name, text in found if name == "launch-part-gone"] == [
        f"the launch template names the {what}, which does not exist"
        for what in (
            "key pair deleted", "security group sg-0000000000000dead",
            "snapshot snap-0000000000000dead",
        )
    ]  # fmt: skip


def test_a_group_whose_subnets_or_target_groups_are_gone_or_full() -> None:
    launched: Any = {"LaunchTemplate": template()}
    ec2 = boto3.client("ec2")
    network = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=network, CidrBlock=f"10.0.{n}.0/28")["Subnet"]["SubnetId"]
        for n in range(3)
    ]
    boto3.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="spot", MinSize=0, MaxSize=1, **launched,
        VPCZoneIdentifier=",".join(subnets),
    )  # fmt: skip
    ec2.delete_subnet(SubnetId=subnets[0])
    balancers = boto3.client("elbv2")
    targets = [
        balancers.create_target_group(Name=name, Protocol="HTTP", Port=80, VpcId=network)
        for name in ("kept", "gone")
    ]
    arns = [each["TargetGroups"][0]["TargetGroupArn"] for each in targets]
    boto3.client("autoscaling").attach_load_balancer_target_groups(
        AutoScalingGroupName="spot", TargetGroupARNs=arns
    )
    balancers.delete_target_group(TargetGroupArn=arns[1])
    for _ in range(16 - 5):
        ec2.create_network_interface(SubnetId=subnets[1])
    found = seen("spot")
    gone = (f"the subnet {subnets[0]}", f"the target group {arns[1]}")
    assert (found.missing, found.full) == (gone, (subnets[1],))


def test_a_group_as_it_is_set_up() -> None:
    policy = profile()
    launch = template(
        IamInstanceProfile={"Name": "worker"},
        MetadataOptions={
            "HttpTokens": "required", "HttpPutResponseHopLimit": 3,
            "InstanceMetadataTags": "enabled",
        },
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"KmsKeyId": "key-1"}}],
    )  # fmt: skip
    make(
        "spot", **mixed({"InstanceType": "g5.xlarge"}, {"InstanceType": "g6.xlarge"}, launch=launch)
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
    found = seen("spot")
    told = autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    (hook,) = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName="spot")["LifecycleHooks"]
    assert found == GroupFacts(
        aws=told[0],
        spot_share=1.0,
        types=("g5.xlarge", "g6.xlarge"),
        hooks=(hook,),
        policies=("cpu",),
        scheduled_actions=("night",),
        launch_template=replace(
            PLAIN, tokens_required=True, hop_limit=3, tags_in_metadata=True,
            profile_policies=frozenset({policy}), keys=("key-1",),
        ),
    )  # fmt: skip


SPOT_OPTIONS = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.4"}}
TAGS = [
    {"ResourceType": "instance", "Tags": [{"Key": "kubernetes.io/cluster/a", "Value": "owned"}]},
    {"ResourceType": "volume", "Tags": [{"Key": "a disk's", "Value": "x"}]},
]


@pytest.mark.parametrize(
    ("data", "machine"),
    [
        ({}, {}),
        ({"MetadataOptions": {"HttpEndpoint": "disabled"}}, {"metadata_enabled": False}),
        ({"InstanceMarketOptions": SPOT_OPTIONS}, {"max_price": "0.4"}),
        ({"TagSpecifications": TAGS}, {"tag_keys": ("kubernetes.io/cluster/a",)}),
        ({"CapacityReservationSpecification": {"CapacityReservationPreference": "open"}}, {}),
        ({"HibernationOptions": {"Configured": True}}, {"not_for_spot": ("hibernates",)}),
        ({"Placement": {"Tenancy": "host"}}, {"not_for_spot": ("asks for a dedicated host",)}),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 15}}]}, {}),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]},
            {"small_disks": ("8 GiB for /dev/sda1, and the image has 15",)},
        ),
        # privacysandbox/aggregation-service#87: 6,400 of them.
        (
            {
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/b", "Ebs": {"DeleteOnTermination": False}}
                ]
            },
            {"kept_disks": ("/dev/b",)},
        ),
        *(
            ({"CapacityReservationSpecification": specified}, {"reservations_only": True})
            for specified in (
                {"CapacityReservationPreference": "capacity-reservations-only"},
                {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
            )
        ),
    ],
)
def test_how_a_launch_template_starts_instances(
    data: dict[str, Any], machine: dict[str, Any]
) -> None:
    make("alone", LaunchTemplate=template(**data))
    found = seen("alone")
    assert found.launch_template == replace(PLAIN, **machine)
    assert found.spot_share == ("InstanceMarketOptions" in data)


@pytest.mark.parametrize(
    ("disk", "encrypts", "keys"),
    [({"KmsKeyId": "key-1"}, True, ("key-1",)), ({}, True, ("key-0",)), ({}, False, ())],
)
def test_a_disk_that_names_no_key_has_the_accounts(
    disk: dict[str, str], encrypts: bool, keys: tuple[str, ...]
) -> None:
    """Encryption by default with a key of one's own (terraform-provider-aws#39904)."""
    ec2 = answering(
        GetEbsEncryptionByDefault={"EbsEncryptionByDefault": encrypts},
        GetEbsDefaultKmsKeyId={"KmsKeyId": "key-0"},
    )
    launch: Any = template(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}])
    make("g", LaunchTemplate=launch)
    found: Any = group_facts(clients(ec2=ec2), ["g"])
    assert found["g"].launch_template.keys == keys


def test_a_mixed_group_may_be_partly_on_demand_and_refuses_market_options() -> None:
    launch = template(InstanceMarketOptions=SPOT_OPTIONS)
    make("mixed", **mixed(launch=launch, OnDemandPercentageAboveBaseCapacity=75))
    assert seen("mixed").spot_share == 0.25
    assert seen("mixed").launch_template == replace(PLAIN, market_options=True, max_price="0.4")


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
        make(f"g-{tags}", LaunchTemplate=template(f"t-{tags}", MetadataOptions=data))
        assert seen(f"g-{tags}", defaults).launch_template == replace(
            PLAIN, tokens_required=True, hop_limit=2, tags_in_metadata=tags
        )


@pytest.mark.parametrize(
    "data",
    [{"ImageId": "ami-0000000000000dead"}, {"IamInstanceProfile": {"Name": "nobody"}}, None],
    ids=["image", "profile", "template"],
)
def test_what_launches_need_and_does_not_exist_is_gone(data: dict[str, Any] | None) -> None:
    made = template(**(data or {}))
    make("spot", LaunchTemplate=made)
    if data is None:
        boto3.client("ec2").delete_launch_template(LaunchTemplateId=made["LaunchTemplateId"])
    machine = seen("spot").launch_template
    unseen = machine.profile_policies if isinstance(machine, LaunchTemplate) else machine
    assert isinstance(unseen, Unseen)
    assert unseen.kind == GONE


def test_types_that_aws_selects_by_attributes_are_read() -> None:
    types = [{"InstanceType": it} for it in ("g6.xlarge", "g5.xlarge")]
    ec2 = answering(GetInstanceTypesFromInstanceRequirements={"InstanceTypes": types})
    requirements = {"VCpuCount": {"Min": 4}, "MemoryMiB": {"Min": 0}}
    make("g", **mixed({"InstanceRequirements": requirements}))
    # Without an override, the launch template's own count.
    make("h", **mixed(launch=template("attributes", InstanceRequirements=requirements)))
    found = group_facts(clients(ec2=ec2), ["g", "h"])
    assert not isinstance(found, Unseen)
    for group in found.values():
        assert group.types == group.selected == ("g5.xlarge", "g6.xlarge")


def test_forty_fleets_take_one_call_a_group_besides_what_is_read_of_all_at_once() -> None:
    """AWS takes 50 names a call of DescribeAutoScalingGroups, and moto any number."""
    made = {service: boto3.client(service) for service in ("autoscaling", "ec2", "iam")}
    names, calls = [f"group-{n:02}" for n in range(80)], Counter[str]()
    profile()
    for spot, on_demand in zip(names[::2], names[1::2], strict=True):
        launch = template(spot, IamInstanceProfile={"Name": "worker"})
        for name in (spot, on_demand):
            make(name, LaunchTemplate=launch)

    def count(model: Any, **_: object) -> None:
        calls[model.name] += 1

    for client in made.values():
        client.meta.events.register("before-call", count)
    found = group_facts(clients(**made), [*names, "no group"])
    assert not isinstance(found, Unseen)
    # Those that do not exist are left out.
    assert found.keys() == {*names}
    assert calls == {
        "DescribeAutoScalingGroups": 2,
        "DescribeLifecycleHooks": 80,
        "DescribeLaunchTemplateVersions": 40,
        **dict.fromkeys(
            ("DescribePolicies", "DescribeScheduledActions", "DescribeImages",
             "GetEbsEncryptionByDefault",
             "GetInstanceProfile", "ListAttachedRolePolicies"),
            1,
        ),
    }  # fmt: skip


def test_without_any_name_no_group_is_read() -> None:
    make("spot", LaunchTemplate=template())
    assert group_facts(clients(), []) == {}


# --- the account ----------------------------------------------------------------------------------

ROLE = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling/AWSServiceRoleForAutoScaling"
QUOTA = {"QuotaName": "All G and VT Spot Instance Requests", "Value": 64.0}


@pytest.fixture
def quotas() -> Iterator[Any]:
    """Service Quotas, which moto does not have."""
    client = boto3.client("service-quotas")
    with Stubber(client) as stub:
        stub.add_response("list_service_quotas", {"Quotas": [QUOTA]}, {"ServiceCode": "ec2"})
        yield client


def with_keys(*keys: str) -> GroupFacts:
    first, further = (LaunchTemplate(keys=some) for some in (keys[:1], keys[1:]))
    types = ("g5.xlarge", "no.such")
    return replace(SPOT, types=types, launch_template=first, further_templates=(further,))


def test_roles_types_zones_and_keys_of_the_account(quotas: Any) -> None:
    kms = boto3.client("kms")
    boto3.client("iam").create_role(
        RoleName="AWSServiceRoleForEC2Spot", AssumeRolePolicyDocument=TRUST
    )
    barred, granted, disabled = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(3))
    for key in (granted, disabled):
        kms.create_grant(KeyId=key, GranteePrincipal=ROLE, Operations=["Decrypt"])
    kms.disable_key(KeyId=disabled.rpartition("/")[2])
    group = with_keys(barred, granted, disabled)
    found = account_facts(clients(**{"service-quotas": quotas}), [group])
    assert found.roles == frozenset({"AWSServiceRoleForEC2Spot"})
    assert found.key_grants == frozenset({granted})
    assert found.vcpus == {"g5.xlarge": 4}
    assert not isinstance(found.offered, Unseen)
    assert "us-east-1a" in found.offered["g5.xlarge"]
    assert found.quotas == {QUOTA["QuotaName"]: QUOTA["Value"]}


@pytest.mark.parametrize("granted", [True, False], ids=["by a grant", "by its policy"])
def test_a_key_named_by_its_alias_is_looked_up_by_its_arn(quotas: Any, *, granted: bool) -> None:
    """DescribeKey alone takes an alias; moto lets the other two pass, too."""
    arn, alias = "arn:aws:kms:us-east-1:123456789012:key/1", "alias/disks"
    metadata = {"KeyId": "1", "Arn": arn, "KeyManager": "CUSTOMER"}
    grants = [{"GranteePrincipal": ROLE}] if granted else []
    kms = boto3.client("kms")
    with Stubber(kms) as stub:
        stub.add_response("describe_key", {"KeyMetadata": metadata}, {"KeyId": alias})
        stub.add_response("list_grants", {"Grants": grants}, {"KeyId": arn})
        if not granted:
            named = {"KeyId": arn, "PolicyName": "default"}
            stub.add_response("get_key_policy", {"Policy": f'"{ROLE}"'}, named)
        given = clients(**{"kms": kms, "service-quotas": quotas})
        assert account_facts(given, [with_keys(alias)]).key_grants == frozenset({alias})
        stub.assert_no_pending_responses()


# --- spot placement scores, requested once a day and configuration --------------------------------

GROUPS = {SPOT.name: SPOT, ON_DEMAND.name: ON_DEMAND}
ASKED = {
    "InstanceTypes": sorted(SPOT.types), "TargetCapacity": FLEET.bounds.spot_max,
    "SingleAvailabilityZone": False, "RegionNames": ["us-east-1"],
}  # fmt: skip


@pytest.fixture
def ec2(dynamodb: object) -> Iterator[Stubber]:
    """EC2, whose model checks each call."""
    with Stubber(boto3.client("ec2", "us-east-1")) as stub:
        yield stub
        stub.assert_no_pending_responses()


def scores(ec2: Stubber, groups: Any = GROUPS, hours: float = 0) -> Any:
    now = NOON + timedelta(hours=hours)
    return placement_scores(clients(ec2=ec2.client), TABLE, [FLEET], groups, now)


def answer(ec2: Stubber, score: int, **asked: object) -> None:
    found = {"SpotPlacementScores": [{"Region": "us-east-1", "Score": score}]}
    ec2.add_response("get_spot_placement_scores", found, ASKED | asked)


def test_a_score_is_remembered_for_a_day_and_for_its_configuration(ec2: Stubber) -> None:
    answer(ec2, 7)
    assert scores(ec2) == scores(ec2, hours=23) == {"main": 7}
    answer(ec2, 2)
    assert scores(ec2, hours=24) == {"main": 2}
    answer(ec2, 4, InstanceTypes=["g6.xlarge"])
    other = GROUPS | {SPOT.name: replace(SPOT, types=("g6.xlarge",))}
    assert scores(ec2, other, hours=24) == {"main": 4}


def test_a_group_that_names_no_types_and_one_that_is_missing_are_left_out(ec2: Stubber) -> None:
    assert scores(ec2, {SPOT.name: replace(SPOT, types=())}) == scores(ec2, {}) == {}


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "MaxConfigLimitExceeded"])
def test_a_score_that_aws_refuses_is_not_known(ec2: Stubber, code: str) -> None:
    ec2.add_client_error("get_spot_placement_scores", code)
    found = scores(ec2)
    assert isinstance(found, Unseen)
    assert found.action == "ec2:GetSpotPlacementScores"


def test_a_region_without_a_score_has_none(ec2: Stubber) -> None:
    ec2.add_response("get_spot_placement_scores", {"SpotPlacementScores": []}, ASKED)
    assert scores(ec2) == {}


# --- groups that fleet documents of other stacks name ---------------------------------------------

OWN = "/spotkeeper/ours/fleets"


def put(name: str, value: str) -> None:
    boto3.client("ssm").put_parameter(Name=name, Value=value, Type="String")


def pair(name: str) -> str:
    """A document, of a release that has a field which this one does not know."""
    return f'{{"spot_group": "{name}-spot", "on_demand_group": "{name}-od", "later": 1}}'


def test_only_what_is_not_ours_counts_on_however_many_pages() -> None:
    put(f"{OWN}/main", pair("ours"))
    put("/spotkeeper/ours-2/fleets/main", pair("second"))
    for n in range(12):
        put(f"/spotkeeper/theirs/fleets/f{n:02}", pair(f"f{n}"))
    found = groups_elsewhere(boto3.client("ssm"), OWN)
    assert len(found) == 26
    assert found["second-od"] == ("/spotkeeper/ours-2/fleets/main",)
    assert found["f11-spot"] == ("/spotkeeper/theirs/fleets/f11",)
    # Before there is a stack, every document is another's.
    assert len(groups_elsewhere(boto3.client("ssm"), None)) == 28


def test_overrides_go_before_the_document() -> None:
    put("/spotkeeper/theirs/fleets/main", pair("old"))
    put("/spotkeeper/theirs/fleets/main-2", pair("second"))
    put("/spotkeeper/theirs/fleets/main.overrides", '{"spot_group": "new-spot"}')
    assert groups_elsewhere(boto3.client("ssm"), OWN) == {
        "new-spot": ("/spotkeeper/theirs/fleets/main",),
        "old-od": ("/spotkeeper/theirs/fleets/main",),
        "second-spot": ("/spotkeeper/theirs/fleets/main-2",),
        "second-od": ("/spotkeeper/theirs/fleets/main-2",),
    }


@pytest.mark.parametrize("value", ["no JSON", "[]", "{}", '{"spot_group": {"a": 1}}'])
def test_what_is_no_document_names_no_group(value: str) -> None:
    put("/spotkeeper/theirs/fleets/main", value)
    put("/spotkeeper/theirs/search-log-queue-url", pair("url"))
    assert groups_elsewhere(boto3.client("ssm"), OWN) == {}
