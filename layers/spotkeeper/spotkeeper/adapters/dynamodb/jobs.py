"""Jobs in the table.

    pk job#NAME  sk state      document, what is remembered, version of the item, lease
    pk job#NAME  sk turn#TIME  what a turn did; expires after 30 days
    pk jobs      sk NAME       a job that is not over

Nothing of it expires while anything may be paid for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.border.job_document import JobDocument, JobDocumentError, parse_job
from spotkeeper.domain.jobs.job import Job
from spotkeeper.job_ports import Kept, Overtaken
from spotkeeper.ports import Conflict, Unavailable, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Longer than the function may run (template.yaml: 60 s).
LEASE = timedelta(seconds=75)
KEPT_AFTER, TURNS_KEPT = timedelta(days=90), timedelta(days=30)
_JOB = TypeAdapter(Job)


class JobItems:
    """The job table of the keeper, and of the commands."""

    def __init__(
        self, dynamodb: "DynamoDBClient", table: str, zones: Callable[[], Sequence[str]]
    ) -> None:
        """Take a typed client, the table's name, and what knows the zones of the subnets."""
        self._dynamodb, self._table, self._zones = dynamodb, table, zones
        self._holder = ""

    def names(self) -> Sequence[str]:
        """List the jobs that are not over."""
        with aws_errors("listing the jobs"):
            return [item["sk"]["S"] for item in self._query("pk = :pk", pk="jobs")]

    def create(self, document: JobDocument, now: datetime) -> bool:
        """Begin a job; false if one of its name is there that is not over."""
        item = {
            **_key(document.name),
            "document": {"S": document.model_dump_json()},
            "job": {"S": _JOB.dump_json(Job(name=document.name, created_at=now)).decode()},
            "version": {"N": "0"},
        }
        is_new = False
        with suppress(Conflict), aws_errors("writing a job"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item=item,
                ConditionExpression="attribute_not_exists(pk) OR attribute_exists(expires_at)",
            )
            is_new = True
        # One that is there may be this one: an answer was lost, and the call was repeated.
        with aws_errors(f"listing job {document.name}"):
            self._dynamodb.put_item(TableName=self._table, Item=_listed(document.name))
        return is_new

    def relist(self, name: str) -> None:
        """List a job again that was over."""
        with aws_errors(f"listing job {name}"):
            self._dynamodb.update_item(
                TableName=self._table, Key=_key(name), UpdateExpression="REMOVE expires_at"
            )
            self._dynamodb.put_item(TableName=self._table, Item=_listed(name))

    def delete(self, name: str) -> None:
        """Forget a job."""
        with aws_errors(f"deleting job {name}"):
            for key in (_listed(name), _key(name)):
                self._dynamodb.delete_item(TableName=self._table, Key=key)

    def read(self, name: str) -> tuple[JobDocument, Job] | None:
        """Read a job without its lease."""
        found = self._item(name)
        return (_document(found), _job(found)) if found else None

    def change(self, name: str, change: Callable[[Job], Job]) -> Job | None:
        """Change a job from outside of its turns; None if there is none. Raises `Unavailable`."""
        for _ in range(10):
            found = self._item(name)
            if not found:
                return None
            job = _job(found)
            changed = change(job)
            if changed == job or self._write(name, changed, int(found["version"]["N"])):
                return changed
        raise Unavailable(f"job {name} changed several times meanwhile: try again")

    def acquire(self, name: str, now: datetime) -> Kept | None:
        """Take a job's lease and read it; None if another turn has it, or there is no such job."""
        self._holder = uuid4().hex
        values = {
            ":holder": {"S": self._holder},
            ":until": {"N": str((now + LEASE).timestamp())},
            ":now": {"N": str(now.timestamp())},
        }
        with suppress(Conflict), aws_errors(f"taking the lease of job {name}"):
            found = self._dynamodb.update_item(
                TableName=self._table,
                Key=_key(name),
                UpdateExpression="SET holder = :holder, lease_until = :until",
                ConditionExpression="attribute_exists(pk) AND (holder = :holder"
                " OR attribute_not_exists(lease_until) OR lease_until < :now)",
                ExpressionAttributeValues=values,
                ReturnValues="ALL_NEW",
            )["Attributes"]
            spec, version = _document(found).spec(self._zones()), int(found["version"]["N"])
            return Kept(spec=spec, job=_job(found), version=version)
        return None

    def save(self, kept: Kept, job: Job) -> Kept:
        """Write a job; raises `Overtaken`."""
        if not self._write(job.name, job, kept.version):
            raise Overtaken
        return replace(kept, job=job, version=kept.version + 1)

    def record(self, name: str, at: datetime, lines: Sequence[str]) -> None:
        """Keep what a turn did."""
        with aws_errors(f"recording a turn of job {name}"):
            self._dynamodb.update_item(
                TableName=self._table,
                Key={**_key(name), "sk": {"S": f"turn#{at.astimezone(UTC).isoformat()}"}},
                UpdateExpression="SET #lines = :lines, expires_at = :until",
                ExpressionAttributeNames={"#lines": "lines"},
                ExpressionAttributeValues={
                    ":lines": {"L": [{"S": line[:1000]} for line in lines]},
                    ":until": {"N": str(int((at + TURNS_KEPT).timestamp()))},
                },
            )

    def turns(
        self, name: str, first: datetime, last: datetime
    ) -> Sequence[tuple[datetime, Sequence[str]]]:
        """Read what the turns of a job did between two instants, oldest first."""
        keys = [f"turn#{at.astimezone(UTC).isoformat()}" for at in (first, last)]
        between = "pk = :pk AND sk BETWEEN :first AND :last"
        with aws_errors(f"reading the turns of job {name}"):
            return [
                (
                    datetime.fromisoformat(item["sk"]["S"].partition("#")[2]),
                    [line["S"] for line in item["lines"]["L"]],
                )
                for item in self._query(
                    between, pk=f"job#{name}", first=keys[0], last=f"{keys[1]}~"
                )
            ]

    def release(self, kept: Kept) -> None:
        """Release the lease, unless another turn has it by now."""
        with suppress(Conflict), aws_errors(f"releasing the lease of job {kept.job.name}"):
            self._dynamodb.update_item(
                TableName=self._table,
                Key=_key(kept.job.name),
                UpdateExpression="REMOVE holder, lease_until",
                ConditionExpression="holder = :holder",
                ExpressionAttributeValues={":holder": {"S": self._holder}},
            )

    def close(self, kept: Kept) -> None:
        """Mark a job as over: it is not listed any more, and expires."""
        ended = kept.job.ended_at or kept.job.created_at
        with aws_errors(f"closing job {kept.job.name}"):
            self._dynamodb.update_item(
                TableName=self._table,
                Key=_key(kept.job.name),
                UpdateExpression="SET expires_at = :at",
                ExpressionAttributeValues={
                    ":at": {"N": str(int((ended + KEPT_AFTER).timestamp()))}
                },
            )
            listed = _listed(kept.job.name)
            self._dynamodb.delete_item(TableName=self._table, Key=listed)

    def _write(self, name: str, job: Job, version: int) -> bool:
        with suppress(Conflict), aws_errors(f"writing job {name}"):
            self._dynamodb.update_item(
                TableName=self._table,
                Key=_key(name),
                UpdateExpression="SET job = :job, version = :next",
                ConditionExpression="version = :version",
                ExpressionAttributeValues={
                    ":job": {"S": _JOB.dump_json(job).decode()},
                    ":version": {"N": str(version)},
                    ":next": {"N": str(version + 1)},
                },
            )
            return True
        return False

    def _query(self, condition: str, **values: str) -> Iterator[Any]:
        pages: Any = self._dynamodb.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression=condition,
            ExpressionAttributeValues={f":{name}": {"S": it} for name, it in values.items()},
        )
        yield from pages.search("Items[]")

    def _item(self, name: str) -> Any:
        with aws_errors(f"reading job {name}"):
            return self._dynamodb.get_item(
                TableName=self._table, Key=_key(name), ConsistentRead=True
            ).get("Item")


def _key(name: str) -> dict[str, Any]:
    return {"pk": {"S": f"job#{name}"}, "sk": {"S": "state"}}


def _listed(name: str) -> dict[str, Any]:
    return {"pk": {"S": "jobs"}, "sk": {"S": name}}


def _document(item: dict[str, Any]) -> JobDocument:
    try:
        return parse_job(json.loads(item["document"]["S"]))
    except (JobDocumentError, ValueError, KeyError) as error:
        raise Unreadable(f"the document of {item['pk']['S']} cannot be read: {error}") from error


def _job(item: dict[str, Any]) -> Job:
    """Read what is remembered; items of before machines and volumes were remembered name one."""
    try:
        job: dict[str, Any] = json.loads(item["job"]["S"])
        if "machines" not in job:
            job["machines"] = {
                job[role]: {"attempt": job[f"{role}_attempt"], "at": job[f"{role}_at"]}
                for role in ("machine", "successor")
                if job.get(role)
            }
            own = {"generation": job["generation"], "move": job["moves"], "at": job["created_at"]}
            job["volumes"] = {job["home"]: own} if job.get("home") else {}
        return _JOB.validate_python(job)
    except (ValueError, KeyError) as error:
        raise Unreadable(f"the item {item['pk']['S']} cannot be read: {error}") from error
