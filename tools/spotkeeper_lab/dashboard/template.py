"""template.yaml of the checkout, its short forms (`!Ref x`) read as their long ones."""

from pathlib import Path
from typing import Any

import yaml

import spotkeeper
from spotkeeper_lab.end_to_end.functions import NotACheckout


class NoTemplate(NotACheckout):
    """template.yaml is not beside the package: the dashboard is drawn from a checkout only."""


def read_template() -> dict[str, Any]:
    """Read it; raises `NoTemplate`."""
    path = Path(spotkeeper.__file__).parents[3] / "template.yaml"
    if not path.is_file():
        raise NoTemplate(path)
    template: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    return template


class _Loader(yaml.CSafeLoader):
    """Reads CloudFormation's short forms; a version is a text there, and no date."""


def _long_form(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    match node:
        case yaml.ScalarNode() if name == "GetAtt":
            value: Any = str(loader.construct_scalar(node)).split(".", 1)
        case yaml.ScalarNode():
            value = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case yaml.MappingNode():
            value = loader.construct_mapping(node, deep=True)
        case _:
            raise yaml.YAMLError(f"!{name}: of nothing that CloudFormation knows")
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _long_form)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
