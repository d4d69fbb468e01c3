"""AWS in this process: moto, with a simulated cloud behind Auto Scaling and EC2.

moto's Auto Scaling knows no capacity, no failed activity and no life of a spot instance. Here the
calls that concern groups and instances are answered from a `Cloud` instead, and the length of a
simulated request queue by its meter; requests, answers and errors are still parsed and written by
moto and botocore, as on the way to AWS.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import boto3
from moto import mock_aws
from moto.autoscaling.exceptions import AutoscalingClientError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.sqs import models as sqs_models
from moto.sqs.exceptions import SQSException
from moto.sqs.responses import SQSResponse

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.answers import (
    REGION,
    Answers,
    Meters,
    VirtualTime,
    WireAction,
    request_queues,
)
from spotkeeper_lab.local_aws.speed import faster_moto

__all__ = ["VirtualTime", "local_aws"]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
# moto makes 1,300 machine images of each region; the cloud's instances need none.
NO_IMAGES = {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}


@contextmanager
def local_aws(cloud: Cloud, time: VirtualTime, queues: Meters | None = None) -> Iterator[None]:
    """Answer every boto3 call of this process from moto and the cloud, with made-up credentials.

    Where there are meters of request queues, they are the only queues whose length is known.
    """
    answers = Answers(cloud, time)
    with (
        patch.dict(os.environ, CREDENTIALS | NO_IMAGES),
        mock_aws(),
        faster_moto(),
        _answering(AutoScalingResponse, AutoscalingClientError, answers.auto_scaling()),
        _answering(EC2Response, EC2ClientError, answers.ec2()),
        _answering(SQSResponse, SQSException, request_queues(queues) if queues else {}),
        _delaying(lambda: time.at(cloud.now_s).timestamp()),
        _own_session(),
    ):
        yield


@contextmanager
def _own_session() -> Iterator[None]:
    """Keep boto3's default session, and what is registered on it, out of what comes after."""
    before = boto3.DEFAULT_SESSION
    boto3.setup_default_session()
    try:
        yield
    finally:
        boto3.DEFAULT_SESSION = before


@contextmanager
def _delaying(now: Callable[[], float]) -> Iterator[None]:
    """Let queues send and delay their messages in virtual time."""
    with patch.object(sqs_models, "unix_time_millis", lambda: 1000.0 * now()):
        yield


@contextmanager
def _answering(
    responses: type[BaseResponse], error: type[ServiceException], answers: Mapping[str, WireAction]
) -> Iterator[None]:
    """Exchange the named actions of a moto service; what the cloud refuses is its `error`."""
    with ExitStack() as exchanged:
        for name, action in answers.items():
            exchanged.enter_context(patch.object(responses, name, _method(action, error)))
        yield


def _method(
    action: WireAction, error: type[ServiceException]
) -> Callable[[BaseResponse], ActionResult]:
    def respond(response: BaseResponse) -> ActionResult:
        try:
            return ActionResult(action.respond(response._get_param))
        except CloudError as refusal:
            raise error(refusal.code, refusal.message) from refusal

    return respond
