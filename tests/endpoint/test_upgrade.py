"""An upgrade from 0.2, back, and once more, while on-demand stands in and an instance drains."""

import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.endpoint.conftest import CHECKOUT, Endpoint, until
from tests.endpoint.test_stack import (
    ERLANGS,
    FLEET,
    IMPATIENT,
    STACK,
    change_document,
    desired,
    document,
    failed,
    records,
    serving,
)

at = datetime.fromisoformat
RELEASE = "161521f"
BUILT = CHECKOUT / "build/release-0.2"
TEMPLATE = BUILT / "build/local-aws/sam/template.yaml"


@pytest.fixture(scope="module")
def release() -> Path:
    """The built template of 0.2; it is built once, from the history of the checkout."""
    git = ["git", "-C", str(CHECKOUT)]
    if subprocess.run([*git, "cat-file", "-e", f"{RELEASE}^{{commit}}"], check=False).returncode:
        pytest.skip(f"the commit {RELEASE} is not in this clone: git fetch --unshallow")
    if not TEMPLATE.exists():
        shutil.rmtree(BUILT, ignore_errors=True)
        BUILT.mkdir(parents=True)
        packed = subprocess.run([*git, "archive", RELEASE], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=BUILT, input=packed, check=True)
        (BUILT / ".venv-sam").symlink_to(CHECKOUT / ".venv-sam")
        made = ["make", "-o", ".venv-sam/.installed", "local-build"]
        subprocess.run(made, cwd=BUILT, check=True, capture_output=True)
    return TEMPLATE


@pytest.fixture(scope="module")
def stack(endpoint: Endpoint, release: Path) -> Iterator[Endpoint]:
    """The stack of 0.2, with a load that sizes it and a setting that a person made."""
    endpoint.deploy(*FLEET, SAM_TEMPLATE_FILE=str(release))
    change_document(endpoint, IMPATIENT)
    endpoint.order(do="load", value=ERLANGS)
    yield endpoint
    endpoint.order(do="load", value=0)
    endpoint.order(do="capacity", value=4)
    endpoint.sam("delete", "--no-prompts", "--stack-name", STACK)


def both_turn(endpoint: Endpoint, since: str) -> None:
    """Wait until both controllers have had a turn since, and none of their turns failed."""

    def turned() -> bool:
        new = [one for one in records(endpoint) if not since or at(one["at"]) > at(since)]
        assert [one["reason"] for one in new if one["rule"] in ("failed", "afresh")] == []
        return {one["controller"] for one in new} == {"availability", "health"}

    until(turned, within_s=200, what="a turn of both controllers")
    assert failed(endpoint) == []


def running(endpoint: Endpoint, ids: set[str]) -> set[str]:
    runs = {"Name": "instance-state-name", "Values": ["running"]}
    only = {"Name": "instance-id", "Values": sorted(ids)}
    found = endpoint.aws("ec2").describe_instances(Filters=[only, runs])["Reservations"]
    return {one["InstanceId"] for each in found for one in each["Instances"]}


def members(endpoint: Endpoint, group: int) -> set[str]:
    return {one["id"] for one in endpoint.look("state")["groups"][group]["instances"]}


def test_nothing_is_lost_by_an_upgrade_a_rollback_and_an_upgrade(
    stack: Endpoint, release: Path
) -> None:
    both_turn(stack, "")
    until(lambda: serving(stack, 0) > ERLANGS, within_s=300, what="spot serves")
    need, warned = desired(stack, 0), members(stack, 0)
    stack.order(do="capacity", value=0)
    until(lambda: desired(stack, 1) >= need, within_s=120, what="a backfill")
    # What is warned is out of its group, and runs until its notice is over.
    assert running(stack, warned)
    releases: list[dict[str, str]] = [{}, {"SAM_TEMPLATE_FILE": str(release)}, {}]
    for keys in releases:
        standing_in = members(stack, 1)
        stack.deploy(*FLEET, **keys)
        both_turn(stack, str(stack.look("state")["at"]))
        turns = [(one["at"], one["controller"], one["reason"]) for one in records(stack)]
        assert standing_in <= members(stack, 1), turns
        assert desired(stack, 0) >= ERLANGS
        assert document(stack)["availability"]["busy_patience_s"] == IMPATIENT["busy_patience_s"]
    stack.order(do="capacity", value=4)
    until(lambda: serving(stack, 0) > ERLANGS, within_s=200, what="spot serves again")
    # With an empty memory the fleet is adopted: its load is known after five minutes.
    until(lambda: desired(stack, 1) == 0, within_s=500, what="a release")
