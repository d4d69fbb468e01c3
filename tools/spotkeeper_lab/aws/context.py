"""AWS in this process, as boto3's own clients find it, with moto behind them.

botocore checks a call's parameters against AWS's own models, and then asks whether somebody has an
answer: here a simulated cloud, tables of our own, and whatever else a caller brings. What it is
given has the shape that it would have read off the wire.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import boto3
from botocore import handlers, xform_name
from botocore.model import OperationModel
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
_PARAMS = "spotkeeper_lab.params"

type _Answers = Mapping[str, Mapping[str, Respond]]
type _Answered = tuple[SimpleNamespace, dict[str, Any]]


@contextmanager
def local_aws(cloud: Cloud, time: VirtualTime) -> Iterator[None]:
    """Answer every call from a cloud and from tables of its own, and the rest from moto."""
    answers = Answers(cloud, time)
    known = {
        "autoscaling": answers.auto_scaling(),
        "ec2": answers.ec2(),
        "dynamodb": Tables().answers(),
    }

    def unix_s() -> float:
        return time.at(cloud.now_s).timestamp()

    before = boto3.DEFAULT_SESSION
    with (
        patch.dict(os.environ, CREDENTIALS | NO_IMAGES),
        mock_aws(),
        faster_moto(),
        answering(known),
        # Queues send, delay and drop their messages in virtual time: moto drops those of four days.
        patch.object(sqs_models, "unix_time_millis", lambda: 1000.0 * unix_s()),
        patch.object(sqs_models, "unix_time", unix_s),
    ):
        # What is registered on the session goes with it.
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


@contextmanager
def faster_moto() -> Iterator[None]:
    """Have moto remember what it works out anew on every call, and look through fewer services."""
    ours = [known for known in backend_index.backend_url_patterns if known[0] in SERVICES]
    methods = cache(method_names_from_class)
    with (
        patch.object(responses, "method_names_from_class", methods),
        patch.object(backend_index, "backend_url_patterns", ours),
    ):
        yield


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
