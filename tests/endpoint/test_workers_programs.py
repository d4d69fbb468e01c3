"""The programs of docs/workers.md that need no AWS: installed, built, shown and measured."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoint.conftest import CHECKOUT, types
from tests.worker.page import of

MINE = CHECKOUT / ".venv/bin"
CLIENTS = {"boto3": "boto3", "celery": "celery", "rabbitmq": "aio_pika", "sqs": "boto3"}
"""What each extra installs."""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has nothing but pip."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    return folder / "bin"


@pytest.mark.parametrize("line", of("pip install"))
def test_the_distribution_is_installed(line: str, empty: Path) -> None:
    types(line, dict(os.environ), empty)
    wanted = re.findall(r"\[(\w+)\]", line)
    for name in ("spotkeeper_worker", *(CLIENTS[one] for one in wanted)):
        types(f"python -c 'import {name}'", dict(os.environ), empty)
    (example,) = of("python -m spotkeeper_worker.example")
    told = types(example, dict(os.environ), empty)
    assert "search logs that arrived: 10 of 10, lost: 0" in told


def test_the_stack_is_built() -> None:
    (line,) = of("make sam-build")
    types(line, dict(os.environ), MINE)
    assert (CHECKOUT / ".aws-sam/build/template.yaml").exists()


def test_the_figures_are_measured() -> None:
    """In little: what they are is the page's."""
    (line,) = of("python -m bench worker")
    told = types(f"{line} --kills 4 --machines 1 --seconds 1", dict(os.environ), MINE)
    for figure in ("a request's time", "notice to draining", "memory", "hooks completed"):
        assert figure in told
