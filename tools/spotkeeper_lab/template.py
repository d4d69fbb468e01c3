"""template.yaml with its parameters, conditions and references worked out, as far as tests ask."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from spotkeeper_lab.checkout import read_template

_NO_VALUE = object()
PSEUDO = {
    "AWS::NoValue": _NO_VALUE,
    "AWS::StackId": "arn:aws:cloudformation:us-west-2:123456789012:stack/ocr/51af3dc0-da77",
    "AWS::Region": "us-west-2",
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}

template = cache(read_template)


@dataclass(frozen=True, slots=True)
class Stack:
    """The template for given parameters; what a false condition leaves out is not there."""

    parameters: Mapping[str, Any]
    name: str = "ocr"

    @classmethod
    def with_parameters(cls, given: Mapping[str, Any], name: str = "ocr") -> "Stack":
        """Take the defaults for parameters that are not given."""
        known = template()["Parameters"]
        assert given.keys() <= known.keys()
        values = {name: given.get(name, known[name]["Default"]) for name in known}
        lists = {name for name in known if known[name]["Type"] == "CommaDelimitedList"}
        taken = {key: v.split(",") if key in lists else v for key, v in values.items()}
        return cls(taken, name)

    def resources(self, kind: str = "") -> dict[str, Any]:
        """Resolve the properties of all resources of a type, by logical id."""
        return {
            name: self.resolve(resource["Properties"])
            for name, resource in template()["Resources"].items()
            if resource["Type"].startswith(kind) and self._holds(resource.get("Condition"))
        }

    def functions(self) -> dict[str, Any]:
        """Resolve the functions, the globals' environment within their own."""
        shared = self.resolve(template()["Globals"]["Function"]["Environment"]["Variables"])
        functions = self.resources("AWS::Serverless::Function")
        for function in functions.values():
            own = function.setdefault("Environment", {"Variables": {}})
            own["Variables"] |= shared
        return functions

    def sources(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Whatever of a type invokes functions, with the function's name."""
        return [
            (name, event["Properties"])
            for name, function in self.functions().items()
            for event in function["Events"].values()
            if event["Type"] == kind
        ]

    def resolve(self, node: Any) -> Any:
        """Work out the intrinsic functions below a node."""
        if isinstance(node, list):
            return [value for value in map(self.resolve, node) if value is not _NO_VALUE]
        if not isinstance(node, dict):
            return node
        if len(node) == 1 and (key := next(iter(node))) in _INTRINSICS:
            return _INTRINSICS[key](self, node[key])
        resolved = {key: self.resolve(value) for key, value in node.items()}
        return {key: value for key, value in resolved.items() if value is not _NO_VALUE}

    def refusals(self) -> list[str]:
        """What CloudFormation says against the parameters, by the rules."""
        return [
            assertion["AssertDescription"]
            for rule in template()["Rules"].values()
            if self.resolve(rule.get("RuleCondition", True))
            for assertion in rule["Assertions"]
            if not self.resolve(assertion["Assert"])
        ]

    def _holds(self, condition: str | None) -> bool:
        return condition is None or bool(self.resolve(template()["Conditions"][condition]))

    def _reference(self, name: str) -> Any:
        if name == "AWS::StackName":
            return self.name
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self.parameters:
            return self.parameters[name]
        known = template()["Resources"][name]["Properties"]
        named = known.get("AutoScalingGroupName", known.get("AlarmName"))
        return name if named is None else self.resolve(named)

    def _substitute(self, argument: str | list[Any]) -> str:
        text, given = (argument, {}) if isinstance(argument, str) else argument
        own = self.resolve(given)

        def value(match: re.Match[str]) -> str:
            name = match[1]
            return str(own[name] if name in own else name if "." in name else self._reference(name))

        return re.sub(r"\$\{([^}]+)\}", value, text)


_INTRINSICS: dict[str, Any] = {
    "Ref": Stack._reference,
    "Fn::Sub": Stack._substitute,
    "Fn::GetAtt": lambda _, name: ".".join(name) if isinstance(name, list) else name,
    "Fn::If": lambda stack, it: stack.resolve(it[1] if stack._holds(it[0]) else it[2]),
    "Fn::Select": lambda stack, it: stack.resolve(it[1])[int(it[0])],
    "Fn::Join": lambda stack, it: it[0].join(map(str, stack.resolve(it[1]))),
    "Fn::Split": lambda stack, it: stack.resolve(it[1]).split(it[0]),
    "Fn::Contains": lambda stack, it: str(stack.resolve(it[1])) in stack.resolve(it[0]),
    "Fn::FindInMap": lambda stack, it: template()["Mappings"][it[0]][stack.resolve(it[1])][it[2]],
    "Fn::Equals": lambda stack, it: str(stack.resolve(it[0])) == str(stack.resolve(it[1])),
    "Fn::Not": lambda stack, it: not stack.resolve(it[0]),
    "Fn::And": lambda stack, it: all(stack.resolve(it)),
    "Fn::Or": lambda stack, it: any(stack.resolve(it)),
    "Condition": lambda stack, it: stack._holds(it) if isinstance(it, str) else stack.resolve(it),
}
