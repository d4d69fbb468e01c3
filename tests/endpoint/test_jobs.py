"""A job as a user has it, with fewer interruptions than `job_as_a_user` has by itself."""

import pytest

from tests.endpoint.job_as_a_user import disturbed, failed, undisturbed

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]
EPOCHS = 12


def test_the_weights_are_those_of_a_run_that_nobody_interrupts() -> None:
    expected = undisturbed(EPOCHS)
    for volume in (False, True):
        weights, place, job = disturbed(2, EPOCHS, volume=volume)
        assert (job.outcome, job.exit_code) == ("done", 0)
        assert len(place.hosts) >= 2
        assert weights == expected


def test_a_command_that_fails_ends_the_job_with_its_code() -> None:
    job = failed()
    assert (job.outcome, job.exit_code) == ("failed", 3)
