"""A job as a user has it: fewer interruptions and stories than `job_as_a_user` itself runs."""

from functools import cache

import pytest

from tests.endpoint import job_as_a_user as stories

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]
EPOCHS = 12


@cache
def expected() -> str:
    return stories.undisturbed(EPOCHS)


@pytest.mark.parametrize(("kind", "kills"), [("checkpoints", 4), ("plain", 3), ("volume", 3)])
def test_the_weights_are_those_of_a_run_that_nobody_interrupts(kind: str, kills: int) -> None:
    stories.interrupted(kind, kills, EPOCHS, expected())


def test_a_root_is_kept_for_the_next_machine_and_the_next_job() -> None:
    stories.root_to_next_job(1, EPOCHS, expected())


def test_a_lost_item_is_rebuilt() -> None:
    stories.lost("volume", EPOCHS, expected())
