"""AWS in this process, as boto3's own clients find it: a simulated cloud and tables, and moto."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import boto3
from botocore import xform_name
from botocore.client import BaseClient
from moto import backend_index, mock_aws
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.sqs import models as sqs_models

from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import CREDENTIALS, answered
from spotkeeper_lab.aws.dynamodb import Tables
from spotkeeper_lab.aws.wire import Respond, VirtualTime
from spotkeeper_lab.cloud.api import Cloud

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
    """Have every client of boto3 answered where there is an answer, without a request.

    Whoever counts calls counts these, too.
    """
    original = BaseClient._make_api_call

    def call(client: BaseClient, name: str, params: dict[str, Any]) -> Any:
        model, events = client.meta.service_model, client.meta.events
        respond = answers.get(model.service_name, {}).get(xform_name(name))
        if respond is None:
            return original(client, name, params)
        operation, context = model.operation_model(name), {"client_config": client.meta.config}
        event = f"provide-client-params.{model.service_name}.{name}"
        events.emit(event, params=params, model=operation, context=context)
        return answered(operation, respond, params)

    with patch.object(BaseClient, "_make_api_call", call):
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
