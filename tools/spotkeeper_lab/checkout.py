"""What is deployed, read from the checkout that the package lies in: handlers and template.yaml."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import spotkeeper

ROOT = Path(spotkeeper.__file__).parents[3]

type Handler = Callable[[Any, Any], Any]


class NotACheckout(Exception):
    """A deployed file is not beside the package; the message says how to have it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is missing: in a checkout of Spotkeeper, pip install -e '.[lab]' or make "
            "bootstrap (without -e the package does not find the checkout)"
        )


def load_handler(name: str) -> Handler:
    """Load a function's handler from its file, as it is deployed; raises `NotACheckout`."""
    path = _file(f"functions/{name}/app.py")
    spec = importlib.util.spec_from_file_location(f"spotkeeper_lab_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Handler = module.handler
    return handler


def read_template() -> dict[str, Any]:
    """Read template.yaml, its short forms (`!Ref x`) as long ones; raises `NotACheckout`."""
    text = _file("template.yaml").read_text(encoding="utf-8")
    template: dict[str, Any] = yaml.load(text, _Loader)
    return template


def _file(name: str) -> Path:
    path = ROOT / name
    if not path.is_file():
        raise NotACheckout(path)
    return path


class _Loader(yaml.CSafeLoader):
    """Reads CloudFormation's short forms; a version is a text there, not a date."""


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
            raise yaml.YAMLError(f"!{name}: not a form of CloudFormation")
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _long_form)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
