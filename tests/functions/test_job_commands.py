"""The commands of jobs while answers of AWS are lost, partial or refused."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from botocore.response import StreamingBody

from spotkeeper.domain.jobs.job import Outcome
from spotkeeper_operator.aws import OperatorError
from tests.builders import TABLE
from tests.functions.test_keep_jobs import DOCUMENT, Account, account
from tests.jobs_account import BUCKET
from tests.operator.command import intercept, refused, run, sleeps

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


def test_a_job_whose_machine_still_runs_is_not_deleted(account: Account) -> None:
    """AWS has refused to end the machine, and no turn of a deleted job tries again."""
    account.start(DOCUMENT)
    account.tick()
    account.jobs._table.change("resnet", lambda job: replace(job, outcome=Outcome.STOPPED))
    name = account.machine["InstanceId"]
    with pytest.raises(OperatorError, match=f"{name} of resnet still runs"):
        account.jobs.delete("resnet")
    account.tick()
    assert "deleted resnet" in account.jobs.delete("resnet")


def test_one_turn_at_a_time_has_the_lease_for_45_s(account: Account) -> None:
    account.start(DOCUMENT)
    table = account.jobs._table
    at = {after_s: account.now + timedelta(seconds=after_s) for after_s in (0, 1, 45, 46, 47, 94)}
    first = table.acquire("resnet", at[0])
    assert first
    assert [table.acquire("resnet", at[after_s]) for after_s in (1, 45)] == [None, None]
    second = table.acquire("resnet", at[46])
    assert second
    table.release(first)
    assert table.acquire("resnet", at[47]) is None
    table.release(second)
    assert table.acquire("resnet", at[94]), "it was released"
    assert table.acquire("resnet", at[47]), "the lease of a clock that was ahead is void"
    assert table.acquire("other", at[0]) is None


def test_a_job_that_never_was_is_not_deleted(account: Account) -> None:
    with pytest.raises(OperatorError, match="there is no job resnet2"):
        account.jobs.delete("resnet2")


def test_a_job_whose_first_answer_is_lost_is_launched(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore repeats the call, and the condition does not hold any more."""
    repeated: list[str] = []

    def lost(client: Any, operation: str, given: Any) -> Any:
        if operation == "PutItem" and "document" in given["Item"] and not repeated:
            repeated.append(operation)
            client.put_item(**given)
        return None

    intercept(monkeypatch, lost)
    with pytest.raises(OperatorError, match="already exists"):
        account.start(DOCUMENT)
    assert account.tick()[-1] == "Grant: generation 1"


def test_a_start_that_was_killed_before_the_job_was_listed_is_made_whole_by_the_next(
    account: Account,
) -> None:
    account.start(DOCUMENT)
    listed = {"pk": {"S": "jobs"}, "sk": {"S": "resnet"}}
    boto3.client("dynamodb", "us-east-1").delete_item(TableName=TABLE, Key=listed)
    with pytest.raises(OperatorError, match="already runs"):
        account.start(DOCUMENT)
    assert account.tick()[-1] == "Grant: generation 1"


def test_a_job_at_its_limit_does_not_go_on(checkpoint: Account) -> None:
    checkpoint.jobs._table.change("resnet", lambda job: replace(job, hours=48.0))
    with pytest.raises(OperatorError, match="resnet has reached max_hours"):
        checkpoint.jobs.recover("resnet", "9", checkpoint.now, print)


@pytest.fixture
def checkpoint(ended: Account) -> Account:
    ended.put_head(hashlib.sha256(b"ab").hexdigest())
    return ended


def test_a_download_that_breaks_off_leaves_no_file_of_a_checkpoints_name(
    checkpoint: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint.folder / "result"

    def broken(_: StreamingBody, size: int) -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(StreamingBody, "iter_chunks", broken)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.jobs.fetch("resnet", folder)
    assert not (folder / "model.pt").exists()
    assert checkpoint.jobs.fetch("resnet", folder) == [str(folder / "model.pt")]
    assert [it.name for it in folder.iterdir()] == ["model.pt"]


def test_a_checkpoint_that_is_one_file_is_fetched_under_its_name(ended: Account) -> None:
    ended.put_head(hashlib.sha256(b"ab").hexdigest(), path=".")
    folder = ended.folder / "result"
    folder.mkdir()
    assert ended.jobs.fetch("resnet", folder) == [str(folder / "9")]
    assert (folder / "9").read_bytes() == b"ab"


def test_outputs_are_fetched_with_the_checkpoint_and_alone(ended: Account) -> None:
    ended.put("outputs/runs/1", b"a")
    ended.put("outputs/../../x", b"a")
    with pytest.raises(OperatorError, match="a file outside"):
        ended.jobs.fetch("resnet", ended.folder / "wrong")
    ended.s3.delete_object(Bucket=BUCKET, Key="jobs/resnet/outputs/../../x")
    folder = ended.folder / "alone"
    assert ended.jobs.fetch("resnet", folder) == [str(folder / "outputs/runs/1")]
    ended.put_head(hashlib.sha256(b"ab").hexdigest())
    folder = ended.folder / "both"
    both = [str(folder / "outputs/runs/1"), str(folder / "model.pt")]
    assert ended.jobs.fetch("resnet", folder) == both


def test_a_checkpoint_that_a_newer_one_replaces_while_it_is_fetched(checkpoint: Account) -> None:
    checkpoint.s3.delete_object(Bucket=BUCKET, Key="jobs/resnet/steps/9-1/model.pt")
    with pytest.raises(OperatorError, match="step 9 of resnet is not in the bucket any more"):
        checkpoint.jobs.fetch("resnet", checkpoint.folder / "result")


@pytest.mark.parametrize("line", ["job status resnet --watch", "job logs resnet -f"])
def test_following_a_job_continues_when_aws_answers_again(
    account: Account, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Its exit code is the job's own: a call that is throttled is none."""
    monkeypatch.setattr(account.jobs, "_log_group", "/jobs")
    monkeypatch.setattr("spotkeeper_cli.job_commands._jobs", lambda _: account.jobs)
    account.start(DOCUMENT)
    account.tick()
    away: list[bool] = []

    def throttled(_: BaseClient, operation: str, __: Any) -> None:
        if away and away.pop() and operation in ("GetItem", "GetLogEvents"):
            answer: Any = {"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}
            raise ClientError(answer, operation)

    def sleep(_: float) -> None:
        if account.jobs.one("resnet")[1].outcome:
            return
        account.jobs.stop("resnet", now=True)
        account.tick()
        away.append(True)

    sleeps(monkeypatch, sleep)
    intercept(monkeypatch, throttled)
    code, _, err = run(*line.split())
    assert code == (1 if "status" in line else 0), err
    assert "error: reading " in err
    assert "ThrottlingException: Rate exceeded" in err


def test_without_a_terminal_a_job_is_neither_deleted_nor_rebuilt(ended: Account) -> None:
    nobody = "error: cannot ask for confirmation: give --yes, or run it in a terminal"
    assert refused("job", "delete", "resnet") == nobody
    ended.lose_item()
    assert refused("job", "recover", "resnet", "--from", "tags").endswith(nobody)
    with pytest.raises(OperatorError, match="there is no job"):
        ended.jobs.one("resnet")
    assert run("job", "recover", "resnet", "--from", "tags", "--yes")[0] == 0


def test_a_job_of_another_release_hides_no_other(account: Account) -> None:
    account.start(DOCUMENT)
    account.start(DOCUMENT.replace("resnet", "other"))
    account.replace_document("other")
    code, out, err = run("job", "status")
    assert (code, out.partition("  ")[0]) == (1, "resnet")
    assert "the document of job#other cannot be read" in err
    assert [it["name"] for it in json.loads(run("job", "status", "--json")[1])["jobs"]] == [
        "resnet"
    ]
