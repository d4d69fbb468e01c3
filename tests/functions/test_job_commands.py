"""The commands of jobs while answers of AWS are lost, partial or refused."""

from typing import Any

import pytest
from botocore.client import BaseClient

from spotkeeper_operator.aws import OperatorError
from tests.functions.test_keep_jobs import DOCUMENT, Account, account
from tests.operator.command import intercept

__all__ = ["account"]


@pytest.fixture
def ended(account: Account) -> Account:
    """A job that was stopped and left a checkpoint."""
    account.start(DOCUMENT)
    account.tick()
    account.put("steps/9-1/model.pt", b"ab")
    account.jobs.stop("resnet", now=True)
    account.tick()
    return account


def test_objects_that_s3_does_not_delete_are_named_and_the_job_stays(
    ended: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers with success where a right is missing, and names each object that it kept."""

    def kept(_: BaseClient, operation: str, given: Any) -> Any:
        if operation != "DeleteObjects":
            return None
        wrong = {"Code": "AccessDenied", "Message": "Access Denied"}
        return {"Errors": [{"Key": it["Key"], **wrong} for it in given["Delete"]["Objects"]]}

    intercept(monkeypatch, kept)
    with pytest.raises(OperatorError, match=r"s3:DeleteObject of jobs/resnet/.*: AccessDenied"):
        ended.jobs.delete("resnet")
    assert ended.jobs.one("resnet")[1].outcome == "stopped"


def test_a_job_that_never_was_is_not_deleted(account: Account) -> None:
    with pytest.raises(OperatorError, match="there is no job resnet2"):
        account.jobs.delete("resnet2")
