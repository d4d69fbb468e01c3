"""AWS in this process, as boto3's own clients find it: a simulated cloud and tables, and moto."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import boto3
from botocore import handlers, xform_name
from botocore.exceptions import ClientError
from botocore.model import OperationModel
from moto import backend_index, mock_aws
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.sqs import models as sqs_models

from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import CREDENTIALS
from spotkeeper_lab.aws.dynamodb import Tables
from spotkeeper_lab.aws.limits import beyond
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


@contextmanager
def answering(answers: Mapping[str, Mapping[str, Respond]]) -> Iterator[None]:
    """Answer these operations, without a request, for every session that is made meanwhile."""

    def known(model: OperationModel) -> Respond | None:
        return answers.get(model.service_model.service_name, {}).get(xform_name(model.name))

    def keep(params: object, model: OperationModel, context: dict[str, Any], **_: object) -> None:
        if known(model):
            context[_PARAMS] = params
        if isinstance(params, dict) and (too_much := beyond(model, params)):
            error: Any = {"Error": {"Code": "ValidationError", "Message": too_much}}
            raise ClientError(error, model.name)

    def answer(model: OperationModel, context: dict[str, Any], **_: object) -> Any:
        if (respond := known(model)) is None:
            return None
        status = 200
        try:
            parsed = dict(respond(context[_PARAMS]))
        except CloudError as refusal:
            status, parsed = 400, {"Error": {"Code": refusal.code, "Message": refusal.message}}
        metadata = {"HTTPStatusCode": status, "RetryAttempts": 0}
        return SimpleNamespace(status_code=status), {**parsed, "ResponseMetadata": metadata}

    ours: list[tuple[str, Callable[..., Any], Any]] = [
        ("before-parameter-build", keep, handlers.REGISTER_LAST),
        # Registered last: calls are counted before.
        ("before-call", answer, handlers.REGISTER_LAST),
    ]
    with patch.object(handlers, "BUILTIN_HANDLERS", [*handlers.BUILTIN_HANDLERS, *ours]):
        yield


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
