"""docs/ci.md: CloudFormation's role may make each resource, and no role without the boundary."""

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER  # type: ignore[import-untyped]

from tests.template.stack import ADOPT, CREATE, JOBS, ROOT, Stack, as_list, statements, template

# What SAM makes of its own types, and of the events of functions.
OF_SAM = {
    "AWS::Serverless::Function": (
        "AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::Lambda::EventSourceMapping",
        "AWS::Lambda::EventInvokeConfig", "AWS::Scheduler::Schedule", "AWS::Events::Rule",
    ),
    "AWS::Serverless::LayerVersion": ("AWS::Lambda::LayerVersion",),
}  # fmt: skip
# Properties that the template does not set need these: endpoints, replicas, exports, users, VPCs.
UNUSED = {
    "elasticfilesystem", "elasticloadbalancing", "firehose", "kinesis", "kms", "managed-fleets",
    "s3files", "s3tables", "vpc-lattice", "iam:AttachGroupPolicy", "iam:AttachUserPolicy",
    "iam:DetachGroupPolicy", "iam:DetachUserPolicy", "iam:DeleteRolePermissionsBoundary",
}  # fmt: skip
BOUNDARY = "arn:aws:iam::111122223333:policy/boundary-of-spotkeeper"
OWN_ROLES = "arn:aws:iam::111122223333:role/spotkeeper-*"
SERVICES_ROLES = "arn:aws:iam::111122223333:role/aws-service-role/*"


def policy(name: str) -> list[dict[str, Any]]:
    text = (ROOT / f"docs/{name}.json").read_text(encoding="utf-8")
    # A managed policy has 6,144 characters at most.
    assert len(json.dumps(json.loads(text), separators=(",", ":"))) <= 6_144
    found: list[dict[str, Any]] = json.loads(text)["Statement"]
    return found


def allowed(action: str, granted: list[dict[str, Any]]) -> bool:
    return any(fnmatchcase(action, it) for one in granted for it in as_list(one["Action"]))


def kinds() -> set[str]:
    """The types of the template's resources, as CloudFormation makes them."""
    written = {resource["Type"] for resource in template()["Resources"].values()}
    return {made for kind in written for made in OF_SAM.get(kind, (kind,))}


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_cloudformation_may_make_change_and_delete_each_resource(kind: str) -> None:
    """By AWS's own schema of the type, which lists what its handlers call."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
    handlers = [schema["handlers"].get(verb, {}) for verb in ("create", "update", "delete")]
    needed = {action for handler in handlers for action in handler.get("permissions", [])}
    needed = {one for one in needed if not {one, one.partition(":")[0]} & UNUSED}
    granted = policy("ci-cloudformation-policy")
    assert [action for action in sorted(needed) if not allowed(action, granted)] == []


def test_every_role_that_ci_can_make_has_the_boundary() -> None:
    """Without it, a template of a leaked token could make an administrator's role."""
    for statement in policy("ci-cloudformation-policy"):
        gives = {"iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy"}
        gives |= {"iam:PutRolePermissionsBoundary"}
        if gives & set(as_list(statement["Action"])):
            bound = {"iam:PermissionsBoundary": BOUNDARY}
            assert statement["Condition"] == {"StringEquals": bound}
        # The boundary and the roles of CI are not named after the stack: none can be changed.
        if any(it.startswith("iam:") for it in as_list(statement["Action"])):
            own = {OWN_ROLES, OWN_ROLES.replace("role/", "policy/")}
            assert set(as_list(statement["Resource"])) <= own | {SERVICES_ROLES}


def test_cloudformation_may_pass_the_roles_that_services_take_from_it() -> None:
    """Functions, schedules and targets of rules; `spotkeeper drill` passes the one of FIS."""
    notify = {"NotifyBy": "slack", "NotifySecret": "slack", "NotifyChannel": "C1"}
    roles = Stack.with_parameters({**JOBS, **notify}).resources("AWS::IAM::Role").values()
    trusted = [it["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] for it in roles]
    services = {it["Service"] for it in trusted if "Service" in it} | {"scheduler.amazonaws.com"}
    [passing] = [it for it in policy("ci-cloudformation-policy") if it["Action"] == "iam:PassRole"]
    assert {*passing["Condition"]["StringEquals"]["iam:PassedToService"]} == services


def test_the_boundary_has_what_the_roles_of_the_stack_have_and_no_more() -> None:
    drills = {**JOBS, "Drills": "true", "RequestQueueName": "requests", "EventBusName": "events"}
    drills |= {"NotifyBy": "slack", "NotifySecret": "slack", "NotifyChannel": "C1"}
    stacks = [Stack.with_parameters(given) for given in (ADOPT, CREATE, drills)]
    needed = {a for stack in stacks for _, one in statements(stack) for a in as_list(one["Action"])}
    # A boundary limits what a key's policy gives to a role, too.
    key = json.loads((ROOT / "docs/kms-statements.json").read_text(encoding="utf-8"))
    needed |= {a for one in key if "AWS" in one["Principal"] for a in as_list(one["Action"])}
    boundary = policy("ci-boundary")
    assert {a for one in boundary for a in as_list(one["Action"])} == needed
    [passed] = [one["Resource"] for one in boundary if "iam:PassRole" in as_list(one["Action"])]
    assert passed == OWN_ROLES
