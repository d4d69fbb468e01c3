"""Which authorizations a call of AWS needs, and whether statements of IAM have them.

tests/evidence/rights.tsv has what each function was seen to call: `make rights` writes it anew.
"""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

from botocore.client import BaseClient

from tests.builders import EVIDENCE, TABLE, evidence
from tests.template.stack import Stack, as_list, snake, statements

REGION, ACCOUNT = "us-east-1", "123456789012"
HERE = f"{REGION}:{ACCOUNT}"
GROUP = f"arn:aws:autoscaling:{HERE}:autoScalingGroup:*:autoScalingGroupName/"
# Names that the template cannot know before it is deployed.
ARNS = {
    "Table.Arn": f"arn:aws:dynamodb:{HERE}:table/{TABLE}",
    "AlarmTopic": f"arn:aws:sns:{HERE}:alarms",
    "DrillRole.Arn": f"arn:aws:iam::{ACCOUNT}:role/drill",
    "WakeUpQueue.Arn": f"arn:aws:sqs:{HERE}:wake-ups",
    "HealthQueue.Arn": f"arn:aws:sqs:{HERE}:health",
    "JobBucket.Arn": "arn:aws:s3:::the-jobs",
}
SERVICES = {"service-quotas": "servicequotas", "elbv2": "elasticloadbalancing"}
# What a call of a service is about, by its parameters.
ABOUT = {
    "ssm": f"arn:aws:ssm:{HERE}:parameter{{Path}}{{Name}}",
    "cloudformation": f"arn:aws:cloudformation:{HERE}:stack/{{StackName}}/1",
    "sns": "{TopicArn}",
    "scheduler": f"arn:aws:scheduler:{HERE}:schedule/default/{{Name}}",
    "s3": "arn:aws:s3:::{Bucket}/{Key}",
}
# What calls make, which have no id yet.
MADE = {"CreateVolume": {f"{HERE}:volume"}, "CreateSnapshot": {f"{REGION}::snapshot"},
        "RegisterImage": {f"{REGION}::image"}}  # fmt: skip
# EC2's kinds of resources, by how their ids begin.
KINDS = {
    "i": f"{HERE}:instance", "vol": f"{HERE}:volume",
    "snap": f"{REGION}::snapshot", "ami": f"{REGION}::image",
}  # fmt: skip
_ID = re.compile(r"^(i|vol|snap|ami)-[0-9a-f]+$")
_LOGICAL = re.compile(r"^\w+(\.Arn)?(?=/|$)")
_FUNCTION = re.compile(r"functions/(\w+)/app\.py$")


@dataclass(frozen=True, order=True)
class Call:
    """An action on a resource, with what conditions look at."""

    action: str
    resource: str = "*"
    keys: tuple[tuple[str, str], ...] = ()


def calls_of(service: str, operation: str, given: Mapping[str, Any]) -> Iterator[Call]:
    """The authorizations that a call of botocore needs; those of FIS are the operator's alone."""
    action = f"{SERVICES.get(service, service)}:{operation.removesuffix('Batch')}"
    reads = operation.startswith(("Describe", "Get", "List", "Query"))
    match service, operation:
        case "dynamodb", _:
            table = str(given.get("TableName", ""))
            for pk in sorted(partitions(given)):
                named = table if table.startswith("arn:") else ARNS["Table.Arn"]
                yield Call(action, named, (("dynamodb:LeadingKeys", pk),))
        case "sqs", "GetQueueUrl":
            yield Call(action, f"arn:aws:sqs:{HERE}:{given['QueueName']}")
        case "sqs", _:
            region = given["QueueUrl"].split(".")[1]
            name = given["QueueUrl"].rpartition("/")[2]
            yield Call(action, f"arn:aws:sqs:{region}:{ACCOUNT}:{name}")
        case "autoscaling", "DeleteTags" | "CreateOrUpdateTags":
            for tag in given["Tags"]:
                yield Call(action, GROUP + tag["ResourceId"], (("aws:TagKeys", tag["Key"]),))
        case "autoscaling", "TerminateInstanceInAutoScalingGroup":
            yield from (Call(action, GROUP + name) for name in ("main-spot", "main-on-demand"))
        case "autoscaling", _ if not reads:
            yield Call(action, GROUP + given["AutoScalingGroupName"])
        case "events", "PutEvents":
            for entry in given["Entries"]:
                yield Call(action, f"arn:aws:events:{HERE}:event-bus/{entry['EventBusName']}")
        case "ec2", _ if not reads:
            keys = tuple(("aws:TagKeys", tag["Key"]) for tag in given.get("Tags", ()))
            made = MADE.get(operation, set())
            kinds = set() if operation == "CreateFleet" else kinds_of(given) | made
            for resource in [f"arn:aws:ec2:{kind}/1" for kind in sorted(kinds)] or ["*"]:
                yield Call(action, resource, keys)
        case _:
            yield Call(action, ABOUT.get(service, "*").format_map(defaultdict(str, given)))


def partitions(given: Any) -> set[str]:
    """The partition keys that a call of DynamoDB names."""
    if isinstance(given, list):
        return {pk for each in given for pk in partitions(each)}
    if not isinstance(given, dict):
        return set()
    named = [given[key]["S"] for key in ("pk", ":pk") if key in given]
    return {*named, *(pk for each in given.values() for pk in partitions(each))}


def kinds_of(given: Any) -> set[str]:
    """The kinds of resources whose ids are in the parameters of a call of EC2."""
    if isinstance(given, str):
        found = _ID.match(given)
        return {KINDS[found[1]]} if found else set()
    if isinstance(given, dict):
        return {kind for key, one in given.items() if "Tag" not in key for kind in kinds_of(one)}
    return {kind for one in given for kind in kinds_of(one)} if isinstance(given, list) else set()


def permits(statement: Mapping[str, Any], call: Call) -> bool:
    """Whether a statement allows a call; tags on resources are taken to be there.

    Tags that come with what a call makes are no calls of their own here.
    """
    if call.action not in as_list(statement["Action"]):
        return False
    resources: list[str] = as_list(statement["Resource"])
    named = [_LOGICAL.sub(lambda it: ARNS.get(it[0], it[0]), resource) for resource in resources]
    if not any(fnmatchcase(call.resource, it.replace("[", "[[]")) for it in named):
        return False
    conditions = dict(statement.get("Condition", {}))
    if "ec2:CreateAction" in str(conditions):
        return False
    for key, is_missing in conditions.pop("Null", {}).items():
        if (key not in dict(call.keys)) is not (is_missing == "true"):
            return False
    return all(
        any(fnmatchcase(value, pattern) for pattern in as_list(patterns))
        for tests in conditions.values()
        for key, patterns in tests.items()
        for known, value in call.keys
        if known == key
    )


def of_function(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The statements of the role of a function, by the name of its folder."""
    by_folder = {snake(logical): it for logical, it in stack.functions().items()}
    role = by_folder[name]["Role"].removesuffix(".Arn")
    owners = {role, *stack.resources("AWS::IAM::Role")[role]["ManagedPolicyArns"]}
    return [statement for owner, statement in statements(stack) if owner in owners]


def running_function() -> str | None:
    """The function that makes the present call, if one does."""
    frame = sys._getframe(1)
    while frame:
        if found := _FUNCTION.search(frame.f_code.co_filename):
            return found[1]
        frame = frame.f_back  # type: ignore[assignment]
    return None


# Names that tests give, and those of the stack of test_permissions.py.
_NAMES = (
    (r"(?<=autoScalingGroupName/).*-on-demand$", "main-on-demand"),
    (r"(?<=autoScalingGroupName/)(?!main-on-demand$).*", "main-spot"),
    (r":requests.*", ":requests"),
    (r":[\w-]+-regions$", ":test-regions"),
    (r":[\w-]*AlarmTopic-\w+$", ":alarms"),
    (r"(?<=/jobs/).*", "main"),
)


def plain(call: Call) -> Call:
    """A call without the names that its test gave."""
    resource = call.resource
    for named, plainly in _NAMES:
        resource = re.sub(named, plainly, resource)
    keys = tuple(sorted((key, re.sub("#.*", "#main", value)) for key, value in call.keys))
    return Call(call.action, resource, keys)


def seen() -> dict[str, set[Call]]:
    """What each function calls, by the list."""
    calls: dict[str, set[Call]] = defaultdict(set)
    for row in evidence("rights"):
        keys = [tuple(each.split("=", 1)) for each in row["keys"].split()]
        calls[row["function"]].add(Call(row["action"], row["resource"], tuple(keys)))  # type: ignore[arg-type]
    return calls


@contextmanager
def only_what_is_listed() -> Iterator[None]:
    """Fail afterwards where a function called what the list does not have, or write it down."""
    known, new = seen(), set[tuple[str, Call]]()
    send = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(client: BaseClient, operation: str, given: Any) -> Any:
        if function := running_function():
            service = client.meta.service_model.service_name
            called = {plain(call) for call in calls_of(service, operation, given)}
            new.update((function, call) for call in called - known[function])
        return send(client, operation, given)

    with patch.object(BaseClient, "_make_api_call", noted):
        yield
    if new and os.environ.get("RIGHTS") == "write":
        rows = {(name, call) for name, calls in known.items() for call in calls} | new
        with (EVIDENCE / "rights.tsv").open("w", encoding="utf-8") as file:
            file.write("function\taction\tresource\tkeys\n")
            for name, call in sorted(rows):
                keys = " ".join("=".join(each) for each in call.keys)
                file.write(f"{name}\t{call.action}\t{call.resource}\t{keys}\n")
        return
    assert not new, "a function calls what tests/evidence/rights.tsv does not list: make rights"
