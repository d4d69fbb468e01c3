"""Real agents and a real training over S3 by moto, killed and warned at random moments."""

import pytest

from bench import jobs

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]


def test_machines_are_killed_and_the_weights_are_those_of_an_uninterrupted_run() -> None:
    ended, wrong = jobs.disturbed(kills=12)
    assert wrong == []
    assert sum(ended.values()) >= 12
