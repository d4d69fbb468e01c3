"""moto, faster: what it works out anew on every call is remembered, and its answers stay the same.

A day of the demo makes some 20,000 calls. Without this most of their time goes into finding the
names of moto's own methods, the spellings of attributes, the grammar of four expressions, sorting a
table that is sorted again, the addresses of 200 services, and signatures that nobody checks.
"""

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from botocore import useragent
from botocore.signers import RequestSigner
from moto import backend_index
from moto.core import responses
from moto.core.serialize import (
    AttributePickerContext,
    BaseJSONSerializer,
    XFormedAttributePicker,
)
from moto.core.utils import method_names_from_class
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing import ast_nodes, expressions, validators
from moto.utilities import aws_headers

# moto leaves these modules untyped.
_PARSER: Any = vars(expressions)["UpdateExpressionParser"]
_TRAVERSER: Any = vars(ast_nodes)["DepthFirstTraverser"]
_SANITIZE = "sanitize_user_agent_string_component"

# What the functions call, and what an operator's commands call besides.
SERVICES = frozenset({
    "autoscaling", "dynamodb", "ec2", "sqs", "ssm",
    "cloudformation", "cloudwatch", "fis", "iam", "kms", "awslambda", "scheduler",
    "servicequotas", "sns", "sts",
})  # fmt: skip
REQUEST_ID = "0" * 52
MOST_PICKLES = 10_000
SELDOM = (50_000, 20, 50)
"""When garbage is collected: after so many new objects, and so many collections of younger ones."""
# Checks of expressions that are always the same ones; the contract tests have them made.
CHECKS = (
    "ActionCountValidator",
    "OverlappingPathsValidator",
    "UpdateHashRangeKeyValidator",
    "TypeMismatchValidator",
    "EmptyStringKeyValueValidator",
)

# The members of a DynamoDB value are never spelled otherwise; those of one text or number are
# written as they are.
ATTRIBUTE_VALUE = "AttributeValue"
PLAIN = frozenset({"S", "N"})


@contextmanager
def faster_moto() -> Iterator[None]:
    """Speed moto up; what is exchanged gives the same answers to valid requests."""
    pick, write = XFormedAttributePicker.__call__, BaseJSONSerializer._serialize_type_structure
    exchanged: tuple[tuple[Any, str, Any], ...] = (
        (responses, "method_names_from_class", cache(method_names_from_class)),
        (XFormedAttributePicker, "__call__", _values_as_spelled(pick)),
        (BaseJSONSerializer, "_serialize_type_structure", _values_as_they_are(write)),
        (_PARSER, "make", cache(_PARSER.make)),
        (_TRAVERSER, "nodes_to_be_processed", _remembered_nodes()),
        (validators, "deepcopy", _quick_copies()),
        (Table, "all_items", _items_as_they_lie),
        (useragent, _SANITIZE, cache(getattr(useragent, _SANITIZE))),
        (RequestSigner, "sign", _unsigned),
        (aws_headers, "gen_amzn_requestid_long", _request_id),
        (backend_index, "backend_url_patterns", _our_services()),
        *((getattr(validators, name), "traverse", _unchecked) for name in CHECKS),
    )
    with ExitStack() as stack:
        for owner, name, replacement in exchanged:
            stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(_little_garbage())
        yield


def _values_as_spelled(
    pick: Callable[[XFormedAttributePicker, AttributePickerContext], Any],
) -> Callable[[XFormedAttributePicker, AttributePickerContext], Any]:
    """Look for the members of DynamoDB's values by the one name that they have."""

    def pick_as_spelled(picker: XFormedAttributePicker, context: AttributePickerContext) -> Any:
        parent = getattr(context.shape, "parent", None)
        if parent is not None and parent.name == ATTRIBUTE_VALUE:
            return context.obj.get(context.key)
        return pick(picker, context)

    return pick_as_spelled


def _values_as_they_are(write: Callable[..., None]) -> Callable[..., None]:
    """Write texts and numbers of DynamoDB without looking for their other nine kinds."""

    def write_structure(
        serializer: BaseJSONSerializer, serialized: Any, value: Any, shape: Any, key: str
    ) -> None:
        if shape.name == ATTRIBUTE_VALUE and key and value and value.keys() <= PLAIN:
            serializer._default_serialize(serialized, value, shape, key)
        else:
            write(serializer, serialized, value, shape, key)

    return write_structure


def _remembered_nodes() -> Callable[[Any], tuple[type, ...]]:
    """Ask each kind of traverser only once for the kinds of nodes that it looks at."""
    known: dict[type, tuple[type, ...]] = {}

    def nodes_to_be_processed(traverser: Any) -> tuple[type, ...]:
        kind = type(traverser)
        if kind not in known:
            known[kind] = tuple(traverser._processing_map())
        return known[kind]

    return nodes_to_be_processed


def _quick_copies() -> Callable[[Any], Any]:
    """Copy parsed expressions from their pickles; each stays alive, so that none shares its id."""
    pickles: dict[int, tuple[Any, bytes]] = {}

    def deepcopy(tree: Any) -> Any:
        if id(tree) not in pickles:
            if len(pickles) >= MOST_PICKLES:
                pickles.clear()
            pickles[id(tree)] = (tree, pickle.dumps(tree))
        return pickle.loads(pickles[id(tree)][1])

    return deepcopy


def _items_as_they_lie(table: Table) -> list[Any]:
    """All items of a table with sort keys, unsorted: a query sorts what it has found."""
    return [item for partition in table.items.values() for item in partition.values()]


def _unsigned(signer: RequestSigner, *_: object, **__: object) -> None:
    """Leave a request without a signature; moto checks none."""


def _request_id(headers: Any = None) -> str:
    """The id of every request; nobody tells them apart."""
    if headers is not None:
        headers["x-amzn-requestid"] = REQUEST_ID
    return REQUEST_ID


def _our_services() -> list[Any]:
    """The addresses of the services in use, of the 200 that each request is held against."""
    return [known for known in backend_index.backend_url_patterns if known[0] in SERVICES]


def _unchecked(_: object, tree: Any) -> Any:
    """Leave a parsed expression as it is."""
    return tree


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Leave what exists out of garbage collection: botocore's models are many objects."""
    before = gc.get_threshold()
    if before[0] >= SELDOM[0]:
        # A caller that enters often has done so for all of its time.
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
