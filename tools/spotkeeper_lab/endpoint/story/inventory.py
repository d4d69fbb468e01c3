"""What there is in an account, kind by kind: what a stack left is there after it and not before."""

from collections.abc import Callable, Mapping
from typing import Any

type Inventory = Mapping[str, list[str]]

# service, call, what it answers, and the name of each; the answer may lack what is empty.
_KINDS: Mapping[str, tuple[str, str, str, str]] = {
    "stacks": ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    "tables": ("dynamodb", "list_tables", "TableNames", ""),
    "queues": ("sqs", "list_queues", "QueueUrls", ""),
    "functions": ("lambda", "list_functions", "Functions", "FunctionName"),
    "layers": ("lambda", "list_layers", "Layers", "LayerName"),
    "mappings": ("lambda", "list_event_source_mappings", "EventSourceMappings", "UUID"),
    "rules": ("events", "list_rules", "Rules", "Name"),
    "schedules": ("scheduler", "list_schedules", "Schedules", "Name"),
    "roles": ("iam", "list_roles", "Roles", "RoleName"),
    "policies": ("iam", "list_policies", "Policies", "PolicyName"),
    "parameters": ("ssm", "describe_parameters", "Parameters", "Name"),
    "log groups": ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "alarms": ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "dashboards": ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "topics": ("sns", "list_topics", "Topics", "TopicArn"),
    "keys": ("kms", "list_aliases", "Aliases", "AliasName"),
    "groups": (
        "autoscaling",
        "describe_auto_scaling_groups",
        "AutoScalingGroups",
        "AutoScalingGroupName",
    ),
}
_ASKED: Mapping[str, Mapping[str, str]] = {"policies": {"Scope": "Local"}}
# sam keeps its bucket, and the stack that made it, for the next deployment.
_OF_SAM = "aws-sam-cli-managed-default"


def inventory(aws: Callable[[str], Any]) -> Inventory:
    """The names of all that there is; `aws` makes a client of a service."""
    return {kind: _names(aws, kind) for kind in _KINDS}


def left(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What there is now and was not before, by kind; what is nothing is left out."""
    more = {kind: sorted(set(after[kind]) - set(before[kind])) for kind in after}
    return {kind: names for kind, names in more.items() if names}


def _names(aws: Callable[[str], Any], kind: str) -> list[str]:
    service, call, answer, key = _KINDS[kind]
    found = getattr(aws(service), call)(**_ASKED.get(kind, {})).get(answer, [])
    names = sorted(one[key] if key else one for one in found)
    return [name for name in names if name != _OF_SAM]
