"""moto, faster: what it works out anew on every call is remembered, and its answers stay the same.

Without this most of a call's time goes into finding the names of moto's own methods, the addresses
of 200 services, and signatures that nobody checks.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from botocore import session, useragent
from botocore.client import ClientCreator
from botocore.loaders import create_loader
from botocore.signers import RequestSigner
from moto import backend_index
from moto.core import responses
from moto.core.utils import method_names_from_class

_SANITIZE = "sanitize_user_agent_string_component"

# What the functions call, and what an operator's commands call besides.
SERVICES = frozenset({
    "autoscaling", "dynamodb", "ec2", "sqs", "ssm",
    "cloudformation", "cloudwatch", "fis", "iam", "kms", "awslambda", "scheduler",
    "servicequotas", "sns", "sts",
})  # fmt: skip
MODELS = create_loader()
"""AWS's own models, each read from its file once; EC2's alone takes a fifth of a second."""
_MAKE_CLASS: Any = vars(ClientCreator)["_create_client_class"]
_CLASSES: dict[str, type] = {}
SELDOM = (50_000, 20, 50)
"""When garbage is collected: after so many new objects, and so many collections of younger ones."""


@contextmanager
def faster_moto() -> Iterator[None]:
    """Speed moto up; what is exchanged gives the same answers to valid requests."""
    exchanged: tuple[tuple[Any, str, Any], ...] = (
        (responses, "method_names_from_class", cache(method_names_from_class)),
        (useragent, _SANITIZE, cache(getattr(useragent, _SANITIZE))),
        (session, "create_loader", lambda *_: MODELS),
        (ClientCreator, "_create_client_class", _known_class),
        (RequestSigner, "sign", _unsigned),
        (backend_index, "backend_url_patterns", _our_services()),
    )
    with ExitStack() as stack:
        for owner, name, replacement in exchanged:
            stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(_little_garbage())
        yield


def _known_class(creator: Any, service: str, model: Any) -> type:
    """The class of a service's clients, which has a method for each of its operations."""
    if service not in _CLASSES:
        _CLASSES[service] = _MAKE_CLASS(creator, service, model)
    return _CLASSES[service]


def _unsigned(signer: RequestSigner, *_: object, **__: object) -> None:
    """Leave a request without a signature; moto checks none."""


def _our_services() -> list[Any]:
    """The addresses of the services in use, of the 200 that each request is held against."""
    return [known for known in backend_index.backend_url_patterns if known[0] in SERVICES]


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
