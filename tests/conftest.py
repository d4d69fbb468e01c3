"""What every test stands on: no real AWS account, no network, no clock-bound deadlines."""

import gc
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore import session
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser
from botocore.loaders import create_loader
from hypothesis import settings
from typer import testing
from xdist.scheduler import LoadScopeScheduling

from tests.builders import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient
    from xdist.remote import Producer

_DUMMY_AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    # moto makes 1,300 machine images for each of its EC2s otherwise.
    "MOTO_AMIS_PATH": str(Path(__file__).parent / "images.json"),
}

# These run in one process each: what their tests share is made once.
TOGETHER = {"tests/e2e/test_demo.py": "an hour of the demo"}


# The same examples for everybody; `make laws` draws others each time, and many more.
settings.register_profile("spotkeeper", deadline=None, derandomize=True, max_examples=50)
settings.register_profile(
    "laws", deadline=None, derandomize=False, max_examples=20_000, print_blob=True
)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the developer's AWS settings before any test module is imported."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "POWERTOOLS_"))]:
        del os.environ[name]
    os.environ.update(_DUMMY_AWS)
    _read_models_once()
    settings.load_profile(config.getoption("hypothesis_profile", None) or "spotkeeper")


def _read_models_once() -> None:
    """Share between all tests what botocore and Typer work out anew for each session."""
    models = create_loader()
    session.create_loader = lambda *_: models
    _remember(ClientCreator, "_load_service_model")
    _remember(ClientCreator, "_create_client_class")
    _remember(EventAliaser, "_alias_event_name")
    inside = testing.__dict__
    inside["_get_command"] = cache(inside["_get_command"])


def _remember(owner: type, method: str) -> None:
    """Cache a method's answers by its first argument, across all instances of the class."""
    answer: Any = vars(owner)[method]
    known: dict[str, Any] = {}

    def remembered(self: object, name: str, *more: object) -> Any:
        if name not in known:
            known[name] = answer(self, name, *more)
        return known[name]

    setattr(owner, method, remembered)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of tests/endpoint in make test: make e2e runs all of it."""
    is_e2e = collection_path == Path(__file__).parent / "endpoint"
    return True if is_e2e and config.getoption("markexpr") == "not make_e2e" else None


def pytest_collection_finish() -> None:
    """Let no collection go through the modules of AWS again, and collect it seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process test after test, and those that belong together to one."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.partition("::")[0], nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> Scheduling | None:
    """Schedule a run that asks for nothing else."""
    return Scheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def dynamodb() -> "Iterator[DynamoDBClient]":
    """DynamoDB with the product's table."""
    import boto3
    from moto import mock_aws

    from spotkeeper_lab.aws.context import create_table, faster_moto

    with mock_aws(), faster_moto():
        client = boto3.client("dynamodb")
        create_table(client, TABLE)
        yield client
