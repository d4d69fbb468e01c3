"""What every test stands on: no real AWS account, no network, no clock-bound deadlines."""

import gc
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.builders import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

_DUMMY_AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


# The same examples for everybody; `make laws` draws others each time, and many more.
settings.register_profile("spotkeeper", deadline=None, derandomize=True)
settings.register_profile(
    "laws", deadline=None, derandomize=False, max_examples=20_000, print_blob=True
)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the developer's AWS settings before any test module is imported."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "POWERTOOLS_"))]:
        del os.environ[name]
    os.environ.update(_DUMMY_AWS)
    settings.load_profile(config.getoption("hypothesis_profile", None) or "spotkeeper")


def pytest_collection_finish() -> None:
    """Let no collection go through the modules of AWS again, and collect as seldom as local_aws."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture
def dynamodb() -> "Iterator[DynamoDBClient]":
    """DynamoDB with the product's table."""
    import boto3
    from moto import mock_aws

    from spotkeeper_lab.local_aws.table import create_table

    with mock_aws():
        client = boto3.client("dynamodb")
        create_table(client, TABLE)
        yield client
