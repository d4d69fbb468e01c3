"""Queues, table, fleet document and groups are what the functions count on."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spotkeeper.adapters.doctor.stack import set_by_hand
from spotkeeper.adapters.stacks import Stack as DeployedStack
from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper.border.sections import settings_of
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper_lab import workers
from spotkeeper_lab.cloud.values import Transition
from tests.template.stack import ADOPT, CREATE, JOBS, ROOT, Stack, template

QUEUES = "https://sqs.us-west-2.amazonaws.com/123456789012"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize("given", ["", KEY])
def test_everything_stored_is_encrypted_with_the_given_key(given: str) -> None:
    stack = Stack.with_parameters({**JOBS, "KmsKeyArn": given})
    key, own = given or None, None if given else True
    queues = [it for name, it in stack.resources("AWS::SQS::Queue").items() if "Policy" not in name]
    assert {queue.get("SqsManagedSseEnabled") for queue in queues} == {own}
    (table,) = stack.resources("AWS::DynamoDB::Table").values()
    # A table without a specification is encrypted with a key of DynamoDB's own.
    keys = {table.get("SSESpecification", {}).get("KMSMasterKeyId")}
    keys |= {it.get("KmsMasterKeyId") for it in queues}
    keys |= {it.get("KmsMasterKeyId") for it in stack.resources("AWS::SNS::Topic").values()}
    keys |= {it.get("KmsKeyId") for it in stack.resources("AWS::Logs::LogGroup").values()}
    assert keys == {key}
    bucket = stack.resources("AWS::S3::Bucket")["JobBucket"]
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"].get("KMSMasterKeyID") == key
    assert stack.functions()["KeepJobs"]["Environment"]["Variables"]["JOB_KMS_KEY_ARN"] == given


def test_a_message_that_fails_goes_to_the_dead_letters_after_a_few_tries(stack: Stack) -> None:
    """Only the messages that failed, and none while it is handled."""
    functions, queues = stack.functions(), stack.resources("AWS::SQS::Queue")
    usual_s = template()["Globals"]["Function"]["Timeout"]
    for name, source in stack.sources("SQS"):
        queue = queues[source["Queue"].removesuffix(".Arn")]
        # Lambda's guide: and the batch window.
        waited_s = source.get("MaximumBatchingWindowInSeconds", 0)
        timeout_s = functions[name].get("Timeout", usual_s)
        assert queue["VisibilityTimeout"] >= 6 * timeout_s + waited_s
        logs = name == "CollectSearchLogs"
        dead = "SearchLogDeadLetters.Arn" if logs else "FailedInvocations.Arn"
        assert queue["RedrivePolicy"]["deadLetterTargetArn"] == dead
        assert 2 <= queue["RedrivePolicy"]["maxReceiveCount"] <= 5
        if logs:
            of_lab = (workers.VISIBILITY_TIMEOUT_S, workers.MESSAGE_RECEIVES)
            known = (queue["VisibilityTimeout"], queue["RedrivePolicy"]["maxReceiveCount"])
            assert known == of_lab
        assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        if name.startswith("Check"):
            # The minute's turn has made up for it; what is older says nothing.
            assert queue["MessageRetentionPeriod"] <= 900


def test_the_table_is_on_demand_encrypted_expiring_and_can_be_restored(stack: Stack) -> None:
    [table] = stack.resources("AWS::DynamoDB::Table").values()
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert "SSESpecification" not in table
    assert table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    keys = {key["KeyType"]: key["AttributeName"] for key in table["KeySchema"]}
    assert keys == {"HASH": "pk", "RANGE": "sk"}


def test_the_fleet_document_lies_where_the_functions_look_and_has_the_defaults(
    stack: Stack,
) -> None:
    document = stack.resources("AWS::SSM::Parameter")["FleetDocument"]
    for function in stack.functions().values():
        path = function["Environment"]["Variables"]["FLEET_DOCUMENTS_PATH"]
        assert path == document["Name"].rpartition("/")[0]
    fleet = parse_fleet("main", document["Value"])
    assert (fleet.spot_group, fleet.on_demand_group) == ("ocr-spot", "ocr-on-demand")
    written = json.loads(document["Value"])
    sparse = {key: value for key, value in written.items() if key not in ("sizing", "availability")}
    assert parse_fleet("main", json.dumps(sparse)) == fleet


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"ObjectiveWaitSeconds": "2.5", "ObjectiveShare": "0.99"}, "objective",
         Objective(wait_s=2.5, share=0.99)),
        ({"ObjectiveWaitSeconds": "0"}, "objective", None),
        ({"RequestQueueName": "requests"}, "request_queue_url", f"{QUEUES}/requests"),
        ({"RequestQueueName": "requests.fifo"}, "request_queue_url", f"{QUEUES}/requests.fifo"),
    ],
)  # fmt: skip
def test_parameters_become_the_fleets_settings(
    given: dict[str, str], field: str, value: object
) -> None:
    document = Stack.with_parameters(ADOPT | given).resources("AWS::SSM::Parameter")
    assert getattr(parse_fleet("main", document["FleetDocument"]["Value"]), field) == value
    for name, text in given.items():
        assert re.fullmatch(template()["Parameters"][name]["AllowedPattern"], text)


def test_the_launch_hook_ends_before_the_launch_deadline() -> None:
    deadline = AvailabilityPolicy().launch_deadline_s
    assert template()["Parameters"]["ReadySeconds"]["MaxValue"] < deadline


def test_created_groups_have_bounded_hooks_and_adopted_ones_are_not_created(stack: Stack) -> None:
    groups = stack.resources("AWS::AutoScaling::AutoScalingGroup")
    assert bool(groups) is (stack.parameters["SpotGroupName"] == "")
    for group in groups.values():
        hooks = {it["LifecycleTransition"]: it for it in group["LifecycleHookSpecificationList"]}
        assert hooks.keys() == set(Transition)
        assert all(30 <= hook["HeartbeatTimeout"] <= 7200 for hook in hooks.values())


RESERVATIONS = "arn:aws:resource-groups:us-east-1:123456789012:group/gpus"


@pytest.mark.parametrize(
    ("given", "preference"),
    [
        ("", None),
        ("none", "none"),
        ("open", "capacity-reservations-first"),
        (RESERVATIONS, "capacity-reservations-first"),
    ],
)
def test_on_demand_takes_reservations_first_where_it_is_said(
    given: str, preference: str | None
) -> None:
    made = Stack.with_parameters({**CREATE, "OnDemandReservations": given})
    groups = made.resources("AWS::AutoScaling::AutoScalingGroup")
    specified = groups["OnDemandGroup"].get("CapacityReservationSpecification") or {}
    assert specified.get("CapacityReservationPreference") == preference
    assert (RESERVATIONS in str(specified.get("CapacityReservationTarget"))) is (":" in given)
    assert "CapacityReservationSpecification" not in groups["SpotGroup"]


@pytest.mark.parametrize(
    "given",
    [
        ADOPT,
        CREATE | {"WarmPoolSize": "2", "Mode": "observe", "Slots": "4"},
        ADOPT | {"RequestQueueName": "requests", "SpotMax": "7", "SizeByLoad": "false"},
        ADOPT | {"Home": "us-west-2"},
        ADOPT | {"Regions": "arn:aws:dynamodb:us-east-2:123456789012:table/there"},
    ],
)
def test_what_a_person_set_in_the_document_is_known_before_a_deployment(
    given: dict[str, str],
) -> None:
    made = Stack.with_parameters(given)
    document = json.loads(made.resources("AWS::SSM::Parameter")["FleetDocument"]["Value"])
    outputs = {
        name: template()["Outputs"][name]["Value"] for name in ("SpotGroup", "OnDemandGroup")
    }
    deployed = DeployedStack(
        name="ocr",
        outputs=made.resolve(outputs),
        parameters={name: str(value) for name, value in made.parameters.items()},
        resources={},
    )
    assert set_by_hand(document, deployed) == {}
    mode = "act" if document["mode"] == "observe" else "observe"
    changed = {"mode": mode, "request_queue_url": "rabbitmq://a/b", "worker_health": {"enabled": 0}}
    document["sizing"]["window_s"] = 60
    assert set_by_hand(document | changed, deployed) == changed | {"sizing": {"window_s": 60}}


def test_an_upgrade_leaves_the_document_as_it_is() -> None:
    """CloudFormation writes it when its text changes, which loses what a person set in it."""
    text = Stack.with_parameters(ADOPT).resources("AWS::SSM::Parameter")["FleetDocument"]["Value"]
    kept = ROOT / "tests/formats/0.2/stack_document.txt"
    assert text == kept.read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("count", [1, 2, 4, 9, 10])
def test_created_groups_have_one_to_ten_types_in_the_order_given(count: int) -> None:
    wanted = [f"g{number}.xlarge" for number in range(count)]
    made = Stack.with_parameters({**CREATE, "InstanceTypes": ",".join(wanted)})
    groups = made.resources("AWS::AutoScaling::AutoScalingGroup").values()
    assert [_types(group) for group in groups] == [wanted, wanted]


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ({"Gpus": 0}, {"AcceleratorCount": {"Min": 0, "Max": 0}}),
        (
            {"Vcpus": 4, "GpuMemoryGib": "24", "Accelerator": "a10g,l4"},
            {
                "VCpuCount": {"Min": 4},
                "AcceleratorCount": {"Min": 1, "Max": 1},
                "AcceleratorTypes": ["gpu"],
                "AcceleratorManufacturers": ["nvidia"],
                "AcceleratorNames": ["a10g", "l4"],
                # A g5.xlarge and a g6.xlarge have 22,888 MiB by EC2's count.
                "AcceleratorTotalMemoryMiB": {"Min": 22118},
            },
        ),
    ],
)
def test_created_groups_may_name_attributes_in_place_of_types(
    asked: dict[str, Any], more: dict[str, Any]
) -> None:
    made = Stack.with_parameters({**CREATE, "InstanceTypes": "", **asked})
    for group in made.resources("AWS::AutoScaling::AutoScalingGroup").values():
        policy = group["MixedInstancesPolicy"]
        (override,) = policy["LaunchTemplate"]["Overrides"]
        assert override["InstanceRequirements"] == {
            "VCpuCount": {"Min": 1},
            "MemoryMiB": {"Min": 0},
            "SpotMaxPricePercentageOverLowestPrice": 100,
            "OnDemandMaxPricePercentageOverLowestPrice": 100,
            **more,
        }
        # "The prioritized allocation strategy is not compatible with instance requirements."
        strategy = policy["InstancesDistribution"].get("OnDemandAllocationStrategy")
        assert strategy in (None, "lowest-price")


def _types(group: dict[str, Any]) -> list[str]:
    overrides = group["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    return [it["InstanceType"] for it in overrides]


def test_the_warm_pool_is_on_the_on_demand_group_and_stopped() -> None:
    made = Stack.with_parameters({**CREATE, "WarmPoolSize": 2})
    [pool] = made.resources("AWS::AutoScaling::WarmPool").values()
    assert pool["AutoScalingGroupName"] == "ocr-on-demand"
    # Price and simulation assume that used instances return to the pool; nothing refills it.
    assert (pool["PoolState"], pool["MaxGroupPreparedCapacity"]) == ("Stopped", 2)
    assert pool.get("MinSize", 0) == 0
    assert pool["InstanceReusePolicy"] == {"ReuseOnScaleIn": True}


def test_cloudformation_waits_for_no_capacity_of_a_created_group() -> None:
    stack = Stack.with_parameters({**CREATE, "SpotMin": 3})
    groups = stack.resources("AWS::AutoScaling::AutoScalingGroup").values()
    assert {group["MinSize"] for group in groups} == {0}
    assert not any("DesiredCapacity" in group for group in groups)


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("LaunchTemplateVersion", ("1", "42"), ("", "$Default", "$Latest", "0", "v2")),
        ("ObjectiveShare", ("0.95", "0.5", "0.9999"), (".95", "0.4", "1", "95")),
        ("TargetLoadRate", ("0.7", "0.05", "1"), (".7", "0.04", "0", "1.5")),
        ("ObjectiveWaitSeconds", ("0", "10", "2.5", "3600"), (".5", "-1", "3601", "2,5", "010")),
        # One stands in a JSON document and in a policy's resource.
        ("SpotGroupName", ("ocr-spot", "a/b:c+d=e", ""), ("ocr-*", "ocr?", 'a"b', "a\\b")),
        ("OnDemandGroupName", ("ocr-od",), ("*", 'a"b')),
        (
            "InstanceTypes",
            ("", "a.x", "a.x,b.x", ",".join(["a.x"] * 10)),
            (",".join(["a.x"] * 11), "a.x, b.x", "a.x,"),
        ),
        ("Accelerator", ("a10g", "a10g,l4", "rtx-pro-6000", ""), ("A10G", "a10g, l4", "a10g,")),
    ],
)
def test_a_parameter_that_would_fail_later_is_refused_with_a_word(
    name: str, accepted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    parameter = template()["Parameters"][name]
    pattern = re.compile(parameter["AllowedPattern"])
    assert all(map(pattern.fullmatch, (*accepted, parameter["Default"])))
    assert not any(map(pattern.fullmatch, refused))
    assert parameter["ConstraintDescription"]


def test_a_number_that_the_document_would_refuse_is_refused_at_the_deployment() -> None:
    settings = {field.name: rule for cls in (Fleet, Bounds) for field, rule in settings_of(cls)}
    for name, setting in {
        "WorkersPerInstance": "workers_per_instance",
        "Slots": "slots",
        "OnPremWorkers": "onprem_workers",
        "SpotMin": "spot_min",
        "SpotMax": "spot_max",
        "OnDemandMax": "on_demand_max",
    }.items():
        parameter = template()["Parameters"][name]
        assert parameter["MaxValue"] == settings[setting].most, name
        assert parameter["MinValue"] >= (settings[setting].least or 0), name


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (ADOPT, ""),
        (CREATE, ""),
        ({**ADOPT, "SpotMin": 0}, "SpotMin must be 1 or more"),
        ({**CREATE, "SpotMin": 0}, "SpotMin must be 1 or more"),
        ({**ADOPT, "SpotMin": 0, "SizeByLoad": "false"}, ""),
        ({**ADOPT, "SpotMin": 0, "RequestQueueName": "requests"}, ""),
        ({**ADOPT, "SpotMin": 9, "SpotMax": 5}, "SpotMin must not be more than SpotMax"),
        ({**ADOPT, "SpotMin": 21, "SpotMax": 20}, "SpotMin must not be more than SpotMax"),
        ({**ADOPT, "SpotMin": 30, "SpotMax": 10}, "SpotMin must not be more than SpotMax"),
        ({**ADOPT, "SpotMin": 5, "SpotMax": 5}, ""),
        ({**ADOPT, "SpotMin": 1, "SpotMax": 10000}, ""),
        ({**ADOPT, "WarmPoolSize": 2}, "WarmPoolSize is for created groups"),
        ({**CREATE, "WarmPoolSize": 2}, ""),
        ({**ADOPT, "OnDemandGroupName": "ocr-spot"}, "two different ones"),
        ({"LaunchTemplateId": "lt-0"}, "give SubnetIds"),
        ({**CREATE, **ADOPT}, "leave their names empty"),
        ({**ADOPT, "NotifyBy": "pagerduty"}, "NotifyBy needs NotifySecret"),
        ({**ADOPT, "NotifyBy": "slack", "NotifySecret": "s"}, "NotifyBy slack needs NotifyChannel"),
        (
            {**ADOPT, "AlarmTopicArn": "arn:aws:sns:eu-west-1:1:t", "AlarmEmail": "a@b.org"},
            "AlarmEmail empty",
        ),
        ({**CREATE, "WarmPoolSize": "2", "OnDemandMax": "0"}, "more than OnDemandMax"),
        ({**CREATE, "WarmPoolSize": "19", "OnDemandMax": "18"}, "more than OnDemandMax"),
        ({**CREATE, "WarmPoolSize": "18", "OnDemandMax": "18"}, ""),
    ],
)
def test_parameters_that_do_not_go_together_are_refused_with_a_word(
    parameters: dict[str, object], told: str
) -> None:
    refusals = Stack.with_parameters(parameters).refusals()
    assert len(refusals) == bool(told)
    assert all(told in refusal for refusal in refusals)


def compared(node: Any) -> Iterator[Any]:
    """Whatever a part of the template compares with something else."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "Fn::Equals":
            yield from value
        yield from compared(value)
    for value in node if isinstance(node, list) else ():
        yield from compared(value)


def test_rules_compare_texts() -> None:
    """A parameter of type Number is a text, too, where a rule compares it."""
    found = [*compared(template()["Rules"])]
    assert [it for it in found if not isinstance(it, str | dict)] == []
    assert found.count("0") == 3
