"""The dashboard and the alarms as template.yaml has them, for a stack of given parameters.

Only what both use of CloudFormation is worked out: Ref, Fn::Sub and Fn::GetAtt.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import spotkeeper
from spotkeeper_lab.end_to_end.functions import NotACheckout

STACK = "demo"
PSEUDO = {"AWS::StackName": STACK, "AWS::Region": "us-east-1"}
_NAMED = re.compile(r"\$\{([^}]+)\}")
# What an alarm tells, and to whom, says nothing about when it rings.
_TOLD = ("AlarmActions", "OKActions", "InsufficientDataActions")


class NoTemplate(NotACheckout):
    """template.yaml is not beside the package: the dashboard is drawn from a checkout only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The widgets of the dashboard, and the alarms by their logical names."""

    widgets: tuple[dict[str, Any], ...]
    alarms: Mapping[str, dict[str, Any]]


def board(parameters: Mapping[str, object]) -> Board:
    """Read the template; `parameters` go before its defaults. Raises `NoTemplate`."""
    path = Path(spotkeeper.__file__).parents[3] / "template.yaml"
    if not path.is_file():
        raise NoTemplate(f"{path} is missing: draw the dashboard from a checkout of Spotkeeper")
    template = yaml.load(path.read_text(encoding="utf-8"), _Loader)
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


class _Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms, `!Ref x`, as their long ones, `{Ref: x}`."""


def _long_form(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    match node:
        case yaml.ScalarNode():
            value: Any = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case yaml.MappingNode():
            value = loader.construct_mapping(node, deep=True)
        case _:
            raise yaml.YAMLError(f"!{name}: of nothing that CloudFormation knows")
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _long_form)


def _resolved(node: Any, values: Mapping[str, Any]) -> Any:
    match node:
        case {"Ref": str(name), **rest} if not rest:
            return values.get(name, name)
        case {"Fn::GetAtt": name, **rest} if not rest:
            return name
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
