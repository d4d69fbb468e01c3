"""What the functions may change is named: two groups, and instances by their tags."""

import re
from collections import defaultdict
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest

from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper_lab.template import PSEUDO
from tests.rights import REGION, Call, of_function, permits, seen
from tests.template.stack import ADOPT, JOBS, ROOT, Stack, as_list, statements, template

READING = re.compile(r"\w+:(Describe|Get|List|Query)\w*$")
GROUP = re.compile(r"arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:\*:(.+)$")
OPERATOR = "SpotkeeperOperator"
# The doctor's eyes: people's, and those of the daily look.
EXAMINE, LOOK, SCORES = "Examine", "LookAtFleets", "KeepScores"
# Their conditions: test_resources_of_jobs_are_changed_by_their_stacks_tag_only.
OF_JOBS = {"JobMachines", "KeepJobsPolicy", "OperateJobs"}
THERE = "arn:aws:dynamodb:us-east-2:123456789012:table/there"
INSTANCES = "arn:aws:ec2:us-west-2:123456789012:instance/*"


def of(stack: Stack, *owners: str) -> list[dict[str, Any]]:
    """The statements of some policies or roles."""
    return [statement for owner, statement in statements(stack) if owner in owners]


def actions(found: list[dict[str, Any]]) -> set[str]:
    return {action for it in found for action in as_list(it["Action"])}


def test_no_action_that_changes_something_has_a_wildcard_resource(stack: Stack) -> None:
    """And each action is written out."""
    for owner, statement in statements(stack):
        assert statement["Effect"] == "Allow"
        assert not [it for it in as_list(statement["Action"]) if "*" in it], owner
        changing = [it for it in as_list(statement["Action"]) if not READING.match(it)]
        for resource in as_list(statement["Resource"]) if changing else []:
            by_tag = "ResourceTag/" in str(statement.get("Condition"))
            named = GROUP.sub(r"\1", resource)
            bounded = named == INSTANCES and by_tag
            if owner in OF_JOBS:
                # What CreateFleet launches, RunInstances must allow.
                bounded = "Condition" in statement or changing == ["ec2:CreateFleet"]
                bounded |= named.startswith("JobBucket.Arn/")
            bounded |= owner == OPERATOR and named.endswith(":parameter/spotkeeper/ocr/fleets/*")
            assert "*" not in named or bounded, f"{owner}: {changing}"


BOTH = {"ocr-spot", "ocr-on-demand"}


def test_only_instances_of_the_groups_are_marked_and_only_with_the_mark(adopted: Stack) -> None:
    [tagging] = [it for _, it in statements(adopted) if "ec2:CreateTags" in it["Action"]]
    groups = tagging["Condition"]["StringLike"]["ec2:ResourceTag/aws:autoscaling:groupName"]
    assert set(groups) == BOTH
    removing = [it for _, it in statements(adopted) if "ec2:DeleteTags" in as_list(it["Action"])]
    assert len(removing) == 2
    for it in removing:
        keys = it["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"]
        assert keys == ["spotkeeper:draining", "spotkeeper:group", "spotkeeper:nonce"]
        # `ForAllValues` holds for a call without any key, which removes all tags.
        assert it["Condition"]["Null"] == {"aws:TagKeys": "false"}


def test_only_instances_that_were_marked_in_the_spot_groups_are_terminated(adopted: Stack) -> None:
    """Other stacks use the same keys, and an on-demand instance is never detached."""
    further = Stack.with_parameters({**ADOPT, "FurtherGroupPrefix": "team-"})
    for stack, groups in ((adopted, ["ocr-spot"]), (further, ["ocr-spot", "team-*"])):
        [ending] = [it for _, it in statements(stack) if "ec2:TerminateInstances" in it["Action"]]
        assert ending["Condition"]["StringLike"] == {
            "ec2:ResourceTag/spotkeeper:draining": "*",
            "ec2:ResourceTag/spotkeeper:group": groups,
        }
        assert ending["Condition"]["StringEquals"] == {
            "ec2:InstanceMarketType": "spot",
            "ec2:ResourceTag/spotkeeper:nonce": "51af3dc0-da77",
        }
        checkers = (stack.functions()[name] for name in ("CheckAvailability", "HandleInterruption"))
        nonces = {it["Environment"]["Variables"]["STACK_NONCE"] for it in checkers}
        assert nonces == {"51af3dc0-da77"}


def test_further_groups_are_allowed_by_their_prefix_only_when_one_is_given(adopted: Stack) -> None:
    further = Stack.with_parameters({**ADOPT, "FurtherGroupPrefix": "team-"})
    assert not [it for it in map(str, statements(adopted)) if "autoScalingGroupName/*" in it]
    owners = {owner for owner, it in statements(further) if "GroupName/team-*" in str(it)}
    assert owners == {"SizeSpot", "KeepAvailability", "SendSearchLogs", OPERATOR}


def test_a_request_queue_is_read_only_when_one_is_given(adopted: Stack) -> None:
    named = [it["Action"] for _, it in statements(adopted) if ":sqs:" in str(it)]
    # Whether the stack's own queues exist.
    assert named == ["sqs:GetQueueUrl"]


FUNCTIONS = sorted(seen())
# Lambda reads a function's queue for it, sends what failed, and writes its log.
RECEIVING = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
LAMBDAS = RECEIVING | {"sqs:SendMessage", "logs:CreateLogStream", "logs:PutLogEvents"}
# CreateFleet launches as its caller; without ListBucket a missing object is refused. The doctor
# keeps scores, which moto does not have.
FOR_AWS = {
    "keep_jobs": {"ec2:RunInstances", "iam:PassRole", "s3:ListBucket"},
    "examine_account": {"dynamodb:PutItem"},
}
# They run the same turn.
LIKE = {"handle_interruption": "check_availability", "check_availability": "handle_interruption"}
# What no test has a function do: a volume that is of no use to its job, the price of spot, and
# launches of the on-demand group that AWS suspended.
UNSEEN = {
    "keep_jobs": {"ec2:DetachVolume", "ec2:DescribeSpotPriceHistory"},
    **{name: {"autoscaling:ResumeProcesses"} for name in LIKE},
}


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> tuple[Stack, Stack]:
    """A fleet's home and another of its regions, with all that a stack can have."""
    monkeypatch.setitem(PSEUDO, "AWS::Region", REGION)
    groups = {"SpotGroupName": "main-spot", "OnDemandGroupName": "main-on-demand"}
    given = {**JOBS, **groups, "RequestQueueName": "requests"}
    home, region = {**given, "Regions": THERE}, {**given, "Home": REGION}
    return Stack.with_parameters(home, "test"), Stack.with_parameters(region, "test")


def conceivable(calls: set[Call]) -> set[Call]:
    """The calls, and each change of a group or a queue on every group or queue."""
    changes = {call for call in calls if call.action.startswith(("autoscaling:", "sqs:"))}
    return calls | {
        replace(call, resource=other.resource)
        for call, other in product(changes, repeat=2)
        if not READING.match(call.action) and call.action[:4] == other.action[:4]
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_may_do_what_it_was_seen_to_do_and_nothing_else(
    whole: tuple[Stack, Stack], name: str
) -> None:
    """By the calls of the tests of functions, which `make rights` lists."""
    found = [statement for stack in whole for statement in of_function(stack, name)]
    own = seen()[name] | seen().get(LIKE.get(name, ""), set())
    assert {call for call in own if not any(permits(it, call) for it in found)} == set()
    others = {
        call for call in conceivable({call for calls in seen().values() for call in calls})
        if not any(call.action == it.action and {*call.keys} <= {*it.keys} and
                   call.resource == it.resource for it in own)
    }  # fmt: skip
    # What the doctor reads is an operator's too: tests/operator/test_policy.py has all of it.
    doctors = actions(of(whole[0], EXAMINE, "ExamineJobs")) if name == "examine_account" else set()
    too_much = {call for call in others if any(permits(it, call) for it in found)}
    unseen = UNSEEN.get(name, set())
    assert {call for call in too_much if call.action not in doctors | unseen} == set()
    explained = {call.action for call in own} | LAMBDAS | FOR_AWS.get(name, set()) | doctors
    assert actions(found) - explained <= unseen


def test_each_partition_that_a_function_may_write_is_one_that_it_writes(
    whole: tuple[Stack, Stack],
) -> None:
    for name in set(FUNCTIONS) - {"examine_account"}:
        own = seen()[name] | seen().get(LIKE.get(name, ""), set())
        keys = {value for call in own for key, value in call.keys if key.endswith("LeadingKeys")}
        found = [statement for stack in whole for statement in of_function(stack, name)]
        for statement in found:
            for test in statement.get("Condition", {}).values():
                for pattern in test.get("dynamodb:LeadingKeys", ()):
                    assert any(fnmatchcase(key, pattern) for key in keys), (name, pattern)


def test_drills_and_jobs_have_resources_only_on_request(adopted: Stack) -> None:
    assert "fis" not in str(list(statements(adopted)))
    assert "DrillRole" not in adopted.resources("AWS::IAM::Role")
    assert "Job" not in str(adopted.resources().keys())


def test_fis_may_interrupt_instances_of_the_spot_groups_only() -> None:
    given = {**ADOPT, "Drills": "true", "FurtherGroupPrefix": "team-"}
    stack = Stack.with_parameters(given)
    role = stack.resources("AWS::IAM::Role")["DrillRole"]
    [trust] = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "fis.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    interrupting, looking = role["Policies"][0]["PolicyDocument"]["Statement"]
    assert interrupting["Action"] == "ec2:SendSpotInstanceInterruptions"
    assert interrupting["Condition"]["StringLike"] == {
        "ec2:ResourceTag/aws:autoscaling:groupName": ["ocr-spot", "team-*"]
    }
    assert looking["Action"] == "ec2:DescribeInstances"


def test_experiments_are_those_that_carry_the_stacks_name() -> None:
    stack = Stack.with_parameters({**ADOPT, "Drills": "true"})
    for it in of(stack, "StartDrills"):
        [[(key, value)]] = [list(each.items()) for each in it["Condition"].values()]
        tagged = key.rpartition("/")[0] in ("aws:RequestTag", "aws:ResourceTag")
        assert value == "ocr" if tagged else value == "fis.amazonaws.com"


def test_a_workers_role_allows_exactly_the_agents_calls(stack: Stack) -> None:
    source = (ROOT / "worker/spotkeeper_worker/agent/aws.py").read_text()
    called = set(re.findall(r"(?:_ask\(\s*\"|\"Amazon(?:SQS|SSM)\.)(\w+)", source))
    allowed = of(stack, "SendSearchLogs")
    assert {action.partition(":")[2] for action in actions(allowed)} == called
    for it in allowed:
        if "autoscaling:CompleteLifecycleAction" in it["Action"]:
            assert {resource.rpartition("/")[2] for resource in it["Resource"]} == BOTH


def test_resources_of_jobs_are_changed_by_their_stacks_tag_only() -> None:
    stack = Stack.with_parameters(JOBS)
    by_tag = {
        "ec2:TerminateInstances", "ec2:AttachVolume", "ec2:DetachVolume", "ec2:DeleteVolume",
        "ec2:DeleteSnapshot", "ec2:DeregisterImage", "ec2:ModifyInstanceAttribute",
    }  # fmt: skip
    found = of(stack, "KeepJobsPolicy")
    for it in found:
        if "ec2:CreateVolume" in it["Action"]:
            assert "51af3dc0-da77" in it["Condition"]["StringEquals"].values()
            kinds = (":volume/*", ":snapshot/*", ":image/*")
            assert all(resource.endswith(kinds) for resource in it["Resource"])
        if it["Action"] == "iam:PassRole":
            assert {arn.rpartition("/")[2] for arn in it["Resource"]} == {"trainer"}
        if by_tag & set(as_list(it["Action"])):
            assert it["Condition"]["StringEquals"] == {
                "ec2:ResourceTag/spotkeeper:nonce": "51af3dc0-da77"
            }
    [launching] = [it for it in found if it["Action"] == "ec2:RunInstances"]
    assert "lt-0123456789abcdef1" in str(launching["Condition"]["ArnLike"])
    assert stack.resources("AWS::IAM::ManagedPolicy")["JobMachines"]["Roles"] == ["trainer"]
    assert not [it for it in actions(of(stack, "JobMachines")) if it.startswith("ec2:")]


def test_an_operator_may_do_what_the_commands_of_jobs_call() -> None:
    source = (ROOT / "tools/spotkeeper_operator/jobs.py").read_text()
    source += (ROOT / "layers/spotkeeper/spotkeeper/adapters/dynamodb/jobs.py").read_text()
    calls = re.findall(r'(?:_(s3|logs)|\b(ec2))\.(?:get_paginator\("(\w+)|(\w+)\()', source)
    called = {f"{a or b}:{camel(page or call)}" for a, b, page, call in calls}
    called |= {
        f"ec2:Describe{it.capitalize()}" for it in re.findall(r'_described\("(\w+)"', source)
    }
    # What `adapters.table.Items` calls for each of its methods.
    called |= {
        f"dynamodb:{camel(it)}{'' if it == 'query' else 'Item'}"
        for it in re.findall(r"self\._(get|put|update|delete|query)\(", source)
    }
    # S3 names these permissions otherwise.
    called -= {"s3:GetPaginator"}
    called |= {"ec2:DescribeInstanceTypeOfferings"} if "offers(ec2" in source else set()
    called = {it.replace("ListObjectsV2", "ListBucket").removesuffix("s") if "s3:" in it else it
              for it in called}  # fmt: skip
    assert called == actions(of(Stack.with_parameters(JOBS), "OperateJobs"))


def test_a_permissions_boundary_bounds_every_role() -> None:
    bound = "arn:aws:iam::123456789012:policy/boundary"
    given = {**JOBS, "Drills": "true", "PermissionsBoundary": bound}
    for parameters, expected in ((given, bound), (ADOPT, None)):
        stack = Stack.with_parameters(parameters)
        shared = stack.resolve(template()["Globals"]["Function"])
        schedules = [schedule for _, schedule in stack.sources("ScheduleV2")]
        roles = stack.resources("AWS::IAM::Role").values()
        found = [it.get("PermissionsBoundary") for it in (shared, *schedules, *roles)]
        assert len(found) > 8
        assert set(found) == {expected}


def test_the_policy_is_attached_to_the_role_that_is_named() -> None:
    """What an operator may do is what the commands do: tests/operator/test_policy.py."""
    for role, roles in (("ocr-workers", ["ocr-workers"]), ("", None)):
        stack = Stack.with_parameters({**ADOPT, "WorkerRole": role})
        policy = stack.resources("AWS::IAM::ManagedPolicy")["SendSearchLogs"]
        assert policy.get("Roles") == roles
        # Another description would replace it: roles that have it by hand would lose it.
        assert policy["Description"].endswith("hooks of the fleet's groups, and extend them.")
        operator = stack.resources("AWS::IAM::Role")[OPERATOR]
        assert operator["ManagedPolicyArns"] == [EXAMINE, LOOK, SCORES]


def test_who_only_looks_may_change_nothing(stack: Stack) -> None:
    """What the commands that look may read is what they do: tests/operator/test_policy.py."""
    viewer = stack.resources("AWS::IAM::Role")["SpotkeeperViewer"]
    assert viewer["ManagedPolicyArns"] == [EXAMINE, LOOK]
    assert "Policies" not in viewer
    assert not [it for it in actions(of(stack, EXAMINE, LOOK)) if not READING.match(it)]


def camel(method: str) -> str:
    """Spell a method of boto3 as its action: set_desired_capacity is SetDesiredCapacity."""
    return "".join(word.title() for word in method.split("_"))


def test_each_function_has_its_own_role_of_the_stacks_own_policies(stack: Stack) -> None:
    """SAM's roles may write to every log group, and delete the messages of every queue."""
    roles = stack.resources("AWS::IAM::Role")
    policies = stack.resources("AWS::IAM::ManagedPolicy").keys()
    for name, function in stack.functions().items():
        assert (function["Role"], "Policies" in function) == (f"{name}Role.Arn", False)
        assert policies >= {*roles[f"{name}Role"]["ManagedPolicyArns"]} >= {"WriteLogs"}
        allowed: dict[str, set[str]] = defaultdict(set)
        for it in of(stack, f"{name}Role", *roles[f"{name}Role"]["ManagedPolicyArns"]):
            for resource in as_list(it["Resource"]):
                allowed[resource] |= {*as_list(it["Action"])}
        # What Lambda does as the function: no test of a function has it.
        assert allowed["LogGroup.Arn"] == {"logs:CreateLogStream", "logs:PutLogEvents"}
        read = {it["Properties"]["Queue"]: RECEIVING
                for it in function["Events"].values() if it["Type"] == "SQS"}  # fmt: skip
        received = {queue: its & RECEIVING for queue, its in allowed.items() if its & RECEIVING}
        assert received == read
        if "EventInvokeConfig" in function:
            failed = function["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]
            assert "sqs:SendMessage" in allowed[failed["Destination"]]


def test_a_home_reaches_two_items_of_another_regions_table_and_nothing_else() -> None:
    """`tests/contract/test_regions.py` shows that these are all that the partition key has."""
    home = Stack.with_parameters({**ADOPT, "Regions": THERE})
    [(owner, reaching)] = [
        (owner, it) for owner, it in statements(home) if "us-east-2" in str(it["Resource"])
    ]
    assert as_list(reaching["Resource"]) == [THERE]
    assert set(reaching["Action"]) == {"dynamodb:Query", "dynamodb:PutItem"}
    assert reaching["Condition"] == {
        "ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["region#*"]}
    }
    roles = home.resources("AWS::IAM::Role")
    assert [n for n, role in roles.items() if owner in role.get("ManagedPolicyArns", ())] == [
        "CheckHealthRole"
    ]


def test_a_region_reaches_the_queue_of_its_home_and_nothing_else() -> None:
    region = Stack.with_parameters({**ADOPT, "Home": "eu-west-1"})
    reaching = [it for _, it in statements(region) if "eu-west-1" in str(it["Resource"])]
    queue = "arn:aws:sqs:eu-west-1:123456789012:ocr-regions"
    assert reaching == [{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": queue}]
    home = Stack.with_parameters({**ADOPT, "Regions": f"{THERE},{THERE}2"})
    for stack, where in ((region, ("eu-west-1", {})), (home, (None, {"us-east-2": "there2"}))):
        text = stack.resources("AWS::SSM::Parameter")["FleetDocument"]["Value"]
        fleet = parse_fleet("main", text)
        assert (fleet.home, fleet.elsewhere) == where
    assert home.resources("AWS::SQS::Queue")["RegionsQueue"]["QueueName"] == "ocr-regions"


def test_the_head_of_a_job_is_written_under_a_condition_only() -> None:
    policies = Stack.with_parameters(JOBS).resources("AWS::S3::BucketPolicy")
    found = policies["JobBucketPolicy"]["PolicyDocument"]["Statement"]
    [heads] = [it for it in found if str(it["Resource"]).endswith("/jobs/*/head.json")]
    assert (heads["Effect"], heads["Action"]) == ("Deny", "s3:PutObject")
    assert heads["Condition"] == {"Null": {"s3:if-match": "true", "s3:if-none-match": "true"}}
