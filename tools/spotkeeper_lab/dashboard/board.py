"""The dashboard and the alarms as template.yaml has them, for a stack of given parameters.

Only what both use of CloudFormation is worked out: Ref, Fn::Sub and Fn::GetAtt.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotkeeper_lab.dashboard.template import read_template

STACK = "demo"
PSEUDO = {"AWS::StackName": STACK, "AWS::Region": "us-east-1"}
_NAMED = re.compile(r"\$\{([^}]+)\}")
# What an alarm tells, and to whom, says nothing about when it rings.
_TOLD = ("AlarmActions", "OKActions", "InsufficientDataActions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The widgets of the dashboard, and the alarms by their logical names."""

    widgets: tuple[dict[str, Any], ...]
    alarms: Mapping[str, dict[str, Any]]


def board(parameters: Mapping[str, object]) -> Board:
    """Read the template; `parameters` go before its defaults. Raises `NoTemplate`."""
    template = read_template()
    defaults = {name: it.get("Default") for name, it in template["Parameters"].items()}
    values = PSEUDO | defaults | dict(parameters)
    kinds = template["Resources"].items()
    [shown] = [it for _, it in kinds if it["Type"] == "AWS::CloudWatch::Dashboard"]
    body = _resolved(shown["Properties"]["DashboardBody"], values)
    return Board(
        widgets=tuple(json.loads(body)["widgets"]),
        alarms={
            name: _resolved(
                {key: it for key, it in one["Properties"].items() if key not in _TOLD}, values
            )
            for name, one in kinds
            if one["Type"] == "AWS::CloudWatch::Alarm"
        },
    )


def _resolved(node: Any, values: Mapping[str, Any]) -> Any:
    match node:
        case {"Ref": str(name), **rest} if not rest:
            return values.get(name, name)
        case {"Fn::GetAtt": [*names], **rest} if not rest:
            return ".".join(names)
        case {"Fn::Sub": [str(text), dict(own)], **rest} if not rest:
            return _substituted(text, {**values, **_resolved(own, values)})
        case {"Fn::Sub": str(text), **rest} if not rest:
            return _substituted(text, values)
        case dict():
            return {key: _resolved(value, values) for key, value in node.items()}
        case list():
            return [_resolved(value, values) for value in node]
    return node


def _substituted(text: str, values: Mapping[str, Any]) -> str:
    return _NAMED.sub(lambda found: str(values.get(found[1], found[1])), text)
