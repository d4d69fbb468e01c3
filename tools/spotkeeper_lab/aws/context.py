"""AWS in this process, as boto3's own clients find it, with moto behind them.

botocore checks a call's parameters against AWS's own models, and then asks whether somebody has an
answer: here a simulated cloud, tables of our own, and whatever else a caller brings. What it is
given has the shape that it would have read off the wire.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import boto3
from botocore import handlers, useragent, xform_name
from botocore.model import OperationModel
from botocore.signers import RequestSigner
from moto import backend_index, mock_aws
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.sqs import models as sqs_models

from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import CREDENTIALS
from spotkeeper_lab.aws.dynamodb import Tables
from spotkeeper_lab.aws.wire import Respond, VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# moto makes 1,300 machine images of each region; the cloud's instances need none.
NO_IMAGES = {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
# What the functions call, and what an operator's commands call besides.
SERVICES = frozenset({
    "autoscaling", "dynamodb", "ec2", "sqs", "ssm",
    "cloudformation", "cloudwatch", "fis", "iam", "kms", "awslambda", "scheduler",
    "events", "servicequotas", "sns", "sts",
})  # fmt: skip
_SANITIZE = "sanitize_user_agent_string_component"
_PARAMS = "spotkeeper_lab.params"

type _Answers = Mapping[str, Mapping[str, Respond]]
type _Answered = tuple[SimpleNamespace, dict[str, Any]]


@contextmanager
def local_aws(cloud: Cloud, time: VirtualTime) -> Iterator[Tables]:
    """Answer every call from a cloud and from tables, which it gives, and the rest from moto."""
    answers, tables = Answers(cloud, time), Tables()
    known: _Answers = {
        "autoscaling": answers.auto_scaling(),
        "ec2": answers.ec2(),
        "dynamodb": tables.answers(),
    }
    with (
        patch.dict(os.environ, CREDENTIALS | NO_IMAGES),
        mock_aws(),
        faster_moto(),
        answering(known),
        # Queues send, delay and drop their messages in virtual time: moto drops those of four days.
        patch.object(sqs_models, "unix_time_millis", lambda: 1000.0 * _unix_s(cloud, time)),
        patch.object(sqs_models, "unix_time", lambda: _unix_s(cloud, time)),
        _own_session(),
    ):
        yield tables


def _unix_s(cloud: Cloud, time: VirtualTime) -> float:
    return time.at(cloud.now_s).timestamp()


@contextmanager
def _own_session() -> Iterator[None]:
    """Restore boto3's default session and what is registered on it at the end."""
    before = boto3.DEFAULT_SESSION
    boto3.setup_default_session()
    try:
        yield
    finally:
        boto3.DEFAULT_SESSION = before


# --- answers instead of requests ------------------------------------------------------------------


@contextmanager
def answering(answers: _Answers) -> Iterator[None]:
    """Answer these operations for every session that is made meanwhile."""

    def known(model: OperationModel) -> Respond | None:
        return answers.get(model.service_model.service_name, {}).get(xform_name(model.name))

    def keep(params: object, model: OperationModel, context: dict[str, Any], **_: object) -> None:
        if known(model):
            context[_PARAMS] = params

    def answer(model: OperationModel, context: dict[str, Any], **_: object) -> _Answered | None:
        respond = known(model)
        return _answered(respond, model, context[_PARAMS]) if respond else None

    ours: list[tuple[str, Callable[..., Any], Any]] = [
        ("before-parameter-build", keep, handlers.REGISTER_LAST),
        # Registered last: calls are counted before.
        ("before-call", answer, handlers.REGISTER_LAST),
    ]
    with patch.object(handlers, "BUILTIN_HANDLERS", [*handlers.BUILTIN_HANDLERS, *ours]):
        yield


def _answered(respond: Respond, model: OperationModel, params: Mapping[str, Any]) -> _Answered:
    """The answer and its status; what is refused is an error of the service."""
    status, parsed = 200, dict[str, Any]()
    try:
        answer = respond(params)
        parsed = _read(model.output_shape, answer) if model.output_shape else {}
    except CloudError as refusal:
        status, parsed = 400, {"Error": {"Code": refusal.code, "Message": refusal.message}}
    told = {"HTTPStatusCode": status, "RetryAttempts": 0}
    return SimpleNamespace(status_code=status), {**parsed, "ResponseMetadata": told}


def _read(shape: Any, value: Any) -> Any:
    """A value as botocore reads it: without what is None; KeyError for what AWS does not have."""
    match shape.type_name:
        case "structure":
            members = shape.members
            return {n: _read(members[n], one) for n, one in value.items() if one is not None}
        case "list":
            return [_read(shape.member, one) for one in value]
        case "map":
            return {key: _read(shape.value, one) for key, one in value.items()}
    return value


# --- what botocore and moto work out anew on every call is remembered -----------------------------


@contextmanager
def faster_moto() -> Iterator[None]:
    """Speed moto up; valid requests get the same answers."""
    ours = [known for known in backend_index.backend_url_patterns if known[0] in SERVICES]
    exchanged: tuple[tuple[Any, str, Any], ...] = (
        (responses, "method_names_from_class", cache(method_names_from_class)),
        (backend_index, "backend_url_patterns", ours),
        (useragent, _SANITIZE, cache(getattr(useragent, _SANITIZE))),
        (RequestSigner, "sign", _unsigned),
    )
    with ExitStack() as stack:
        for owner, name, replacement in exchanged:
            stack.enter_context(patch.object(owner, name, replacement))
        yield


def _unsigned(signer: RequestSigner, *_: object, **__: object) -> None:
    """Leave a request without a signature; nothing here checks one."""


def create_table(dynamodb: "DynamoDBClient", name: str) -> None:
    """Create a table with the keys of the product's."""
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
    )
