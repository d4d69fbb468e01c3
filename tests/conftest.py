"""What every test stands on: no real AWS account, no network, no clock-bound deadlines."""

import os

from hypothesis import settings

_DUMMY_AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "POWERTOOLS_TRACE_DISABLED": "true",
}


def pytest_configure() -> None:
    """Replace the developer's AWS settings before any test module is imported."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "POWERTOOLS_"))]:
        del os.environ[name]
    os.environ.update(_DUMMY_AWS)
    settings.register_profile("spotkeeper", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("spotkeeper")
