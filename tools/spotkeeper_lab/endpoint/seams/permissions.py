"""Roles enforced on the resources and condition keys that AWS names for a call."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from spotkeeper_lab.endpoint.seams.release import module

_instances: ContextVar[tuple[str, ...]] = ContextVar("instances", default=())
used: Counter[tuple[str, str]] = Counter()
"""How often a principal was allowed an action."""
refused: Counter[tuple[str, str]] = Counter()


def authorize_as_aws(
    tags_of: Callable[[str], Mapping[str, str]], group_of: Callable[[str], str]
) -> None:
    """Roles are enforced on the resources and condition keys that AWS names for a call.

    `tags_of` answers the tags of an instance, `group_of` the group that it is in.
    """
    _name_resources(group_of)
    evaluator = module("core.iam_evaluator")
    enforce = evaluator.enforce

    def enforce_each(key: str, action: str, service: str, *call: Any, **named: Any) -> Any:
        context = named.pop("service_context", None) or {}
        first = named.pop("resource_arn", "*")
        denied = None
        for arn in (service == "ec2" and _instances.get()) or (first,):
            tags = tags_of(arn.rpartition("/")[2]) if ":instance/" in arn else {}
            keys = context | {f"ec2:ResourceTag/{name}": value for name, value in tags.items()}
            denied = denied or enforce(
                key, action, service, *call, resource_arn=arn, service_context=keys, **named
            )
        (refused if denied else used)[_principal(key), action] += 1
        return denied

    evaluator.enforce = enforce_each


def loopback_is_secure() -> None:
    """Buckets that refuse what is not encrypted take what never leaves this machine."""
    app = module("app")
    pin = app.pin_request_origin
    app.pin_request_origin = lambda address, _secure: pin(address, True)


def _name_resources(group_of: Callable[[str], str]) -> None:
    actions = module("core.iam_actions")
    original = actions.extract_resource_arn

    def extract(*call: Any) -> str:
        service, _method, _path, headers, body, query, region, account = call
        where = f"{region}:{account}"
        _instances.set(())
        if service == "ssm" and "GetParametersByPath" in headers.get("x-amz-target", ""):
            path = str(json.loads(body)["Path"]).rstrip("/")
            return f"arn:aws:ssm:{where}:parameter{path}"
        if service == "autoscaling" and "InstanceId" in query:
            group = group_of(actions._query_param(query, "InstanceId"))
            return f"arn:aws:autoscaling:{where}:autoScalingGroup:*:autoScalingGroupName/{group}"
        if service == "autoscaling" and "Tags.member.1.ResourceId" in query:
            group = actions._query_param(query, "Tags.member.1.ResourceId")
            return f"arn:aws:autoscaling:{where}:autoScalingGroup:*:autoScalingGroupName/{group}"
        if service == "ec2" and (ids := _instance_ids(query)):
            arns = tuple(f"arn:aws:ec2:{where}:instance/{one}" for one in ids)
            _instances.set(arns)
            return arns[0]
        return str(original(*call))

    actions.extract_resource_arn = extract


def _instance_ids(query: Mapping[str, Any]) -> list[str]:
    """The instances that a call of EC2 names, under whatever name it lists them."""
    read = module("core.iam_actions")._query_param
    found = (
        str(read(query, name)) for name in query if name.startswith(("ResourceId.", "InstanceId."))
    )
    return [value for value in found if value.startswith("i-")]


def _principal(key: str) -> str:
    found = module("core.iam_evaluator").resolve_caller_identity(key) or {}
    return _role(str(found.get("userArn", key)))


def _role(arn: str) -> str:
    """A principal by its short name: `user/x`, or `role/x` for whoever assumed it."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    return f"role/{name.partition('/')[0]}" if kind == "assumed-role" else f"{kind}/{name}"


def seen() -> set[tuple[str, str]]:
    """Who asked for what."""
    return {*used, *refused}


def allowed(role: str, account: str) -> set[str]:
    """The actions that the policies of a role name."""
    policies = module("core.iam_evaluator")._gather_role_policies(role, account)
    allowing = (one for policy in policies for one in policy if one.effect == "Allow")
    return {action for statement in allowing for action in statement.actions}


def may(function: Mapping[str, Any], action: str, resource: str) -> bool:
    """Whether the role of a function is allowed an action; without enforcement it always is."""
    if not module("app").AUTH:
        return True
    _, _, _, region, account, _ = resource.split(":", 5)
    keys = module("core.lambda_runtime").execution_credentials(function)
    evaluator = module("core.iam_evaluator")
    principal = evaluator.resolve_principal(keys["AWS_ACCESS_KEY_ID"], account)
    asked = evaluator.EvalContext(
        principal_arn=principal.arn,
        principal_type=principal.type,
        principal_account=principal.account,
        action=action,
        resource_arn=resource,
        region=region,
    )
    allows = evaluator.evaluate(asked, principal.policies).decision == "Allow"
    (used if allows else refused)[_role(principal.arn), action] += 1
    return bool(allows)
