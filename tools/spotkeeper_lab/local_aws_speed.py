"""moto, faster: what it works out anew on every call is remembered, and its answers stay the same.

A day of the demo makes some 20,000 calls; without this two thirds of their time go into finding
the names of moto's own methods, the spellings of attributes, and the grammar of four expressions.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from botocore import useragent
from moto.core import responses
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import method_names_from_class
from moto.dynamodb.parsing import ast_nodes, expressions

# moto leaves these modules untyped.
_PARSER: Any = vars(expressions)["UpdateExpressionParser"]
_TRAVERSER: Any = vars(ast_nodes)["DepthFirstTraverser"]
_SANITIZE = "sanitize_user_agent_string_component"

# The members of these structures are never spelled otherwise.
EXACT = frozenset({"AttributeValue"})


class Exact(dict[str, object]):
    """An answer whose keys are spelled as AWS does: what is not there has no other name."""


@contextmanager
def faster_moto() -> Iterator[None]:
    """Speed moto up; only functions that depend on nothing but their arguments are touched."""
    pick = XFormedAttributePicker.__call__
    with (
        patch.object(responses, "method_names_from_class", cache(method_names_from_class)),
        patch.object(XFormedAttributePicker, "__call__", _exactly_first(pick)),
        patch.object(_PARSER, "make", cache(_PARSER.make)),
        patch.object(_TRAVERSER, "nodes_to_be_processed", _processed_nodes),
        patch.object(useragent, _SANITIZE, cache(getattr(useragent, _SANITIZE))),
        _little_garbage(),
    ):
        yield


def _processed_nodes(traverser: Any) -> tuple[type, ...]:
    """The kinds of nodes that a kind of traverser looks at; the same for all of its kind."""
    kind = type(traverser)
    if kind not in _nodes:
        _nodes[kind] = tuple(traverser._processing_map())
    return _nodes[kind]


_nodes: dict[type, tuple[type, ...]] = {}


def _exactly_first(
    pick: Callable[[XFormedAttributePicker, AttributePickerContext], Any],
) -> Callable[[XFormedAttributePicker, AttributePickerContext], Any]:
    """Look for the exact name before any other spelling."""

    def pick_exactly(picker: XFormedAttributePicker, context: AttributePickerContext) -> Any:
        answer = context.obj
        if isinstance(answer, dict) and not picker.response_transformers:
            value = answer.get(context.key)
            if value is not None or isinstance(answer, Exact):
                return value
            parent = getattr(context.shape, "parent", None)
            if parent is not None and parent.name in EXACT:
                return None
        return pick(picker, context)

    return pick_exactly


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Leave what exists out of garbage collection: botocore's models are many objects."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
