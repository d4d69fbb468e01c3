"""AWS in this process: moto, with a simulated cloud behind Auto Scaling and EC2.

moto's Auto Scaling knows no capacity, no failed activity and no life of a spot instance. Here the
calls that concern groups and instances are answered from a `Cloud` instead, the length of a
simulated request queue by its meter, and items, which most calls are about, by tables of our own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3
from moto import mock_aws
from moto.sqs import models as sqs_models

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.local_aws.answers import (
    REGION,
    Answers,
    Meters,
    VirtualTime,
    request_queues,
)
from spotkeeper_lab.local_aws.direct import answering
from spotkeeper_lab.local_aws.dynamodb.tables import Tables
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
def local_aws(cloud: Cloud, time: VirtualTime, queues: Meters | None = None) -> Iterator[Tables]:
    """Answer every boto3 call of this process from moto and the cloud, with made-up credentials.

    Gives the tables. Where there are meters of request queues, they are the only queues whose
    length is known.
    """
    answers, tables = Answers(cloud, time), Tables()
    with (
        patch.dict(os.environ, CREDENTIALS | NO_IMAGES),
        mock_aws(),
        faster_moto(),
        answering(
            {
                "autoscaling": answers.auto_scaling(),
                "ec2": answers.ec2(),
                "dynamodb": tables.answers(),
                "sqs": request_queues(queues) if queues else {},
            }
        ),
        _delaying(lambda: time.at(cloud.now_s).timestamp()),
        _own_session(),
    ):
        yield tables


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
