"""The stack in its shapes: two groups adopted, two groups created, and with jobs."""

import pytest

from tests.template.stack import ADOPT, CREATE, JOBS, Stack


@pytest.fixture(params=[ADOPT, CREATE, JOBS], ids=["adopt", "create", "jobs"])
def stack(request: pytest.FixtureRequest) -> Stack:
    """Every promise of the template holds in each shape."""
    return Stack.with_parameters(request.param)


@pytest.fixture
def adopted() -> Stack:
    """The stack around the two groups that the files in events/ name."""
    return Stack.with_parameters(ADOPT)
