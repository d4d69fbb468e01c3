"""Jobs in the table.

    pk job#NAME  sk state      document, what is remembered, version of the item, lease
    pk jobs      sk NAME       a job that is not over

Nothing of it expires while anything may be paid for.
"""

import json
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import TypeAdapter

from spotkeeper.adapters.dynamodb.leases import (
    IS_FREE,
    IS_MINE,
    RELEASE,
    TAKE,
    LeasedItems,
    lease_of,
)
from spotkeeper.adapters.table import LAST, Item, epoch, parsed
from spotkeeper.border.job_document import JobDocument, JobDocumentError, parse_job
from spotkeeper.domain.jobs.job import Job
from spotkeeper.job_ports import Kept, Overtaken
from spotkeeper.ports import Conflict, Unavailable, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# In a busy account events of others arrive each second: their ids are compared with what was read.
READ_EVERY = timedelta(seconds=20)
KEPT_AFTER = timedelta(days=90)
_LIST = "jobs"
_LEASE = {"#holder": "holder", "#until": "lease_until"}
_JOB = TypeAdapter(Job)


class JobItems(LeasedItems):
    """The job table of the keeper, and of the commands."""

    def __init__(
        self, dynamodb: "DynamoDBClient", table: str, zones: Callable[[], Sequence[str]]
    ) -> None:
        """Take a typed client, the table's name, and what knows the zones of the subnets."""
        super().__init__(dynamodb, table)
        self._zones = zones
        self._texts: dict[str, str] = {}
        self._read_at: datetime | None = None

    def names(self) -> Sequence[str]:
        """List the jobs that are not over."""
        return [item["sk"]["S"] for item in self._query("listing the jobs", _LIST, " ", LAST)]

    def naming(self, ids: Set[str], now: datetime) -> Sequence[str]:
        """Name the jobs that remember one of these ids; what others wrote is read now and then."""
        if not ids:
            return []
        if self._read_at is None or not timedelta(0) <= now - self._read_at < READ_EVERY:
            items = {name: self._item(name) for name in self.names()}
            self._texts = {name: item["job"]["S"] for name, item in items.items() if item}
            self._read_at = now
        return [name for name, text in self._texts.items() if any(one in text for one in ids)]

    def create(self, document: JobDocument, now: datetime) -> bool:
        """Begin a job; false if one of its name is there that is not over."""
        name, is_new = document.name, False
        over = "attribute_not_exists(pk) OR attribute_exists(expires_at)"
        with suppress(Conflict):
            self._put(
                f"writing job {name}",
                *_state(name),
                {"ConditionExpression": over},
                document=document.model_dump_json(),
                job=_JOB.dump_json(Job(name=name, created_at=now)).decode(),
                version=0,
            )
            is_new = True
        # One that is there may be this one: an answer was lost, and the call was repeated.
        self._put(f"listing job {name}", _LIST, name)
        return is_new

    def relist(self, name: str) -> None:
        """List a job again that was over."""
        self._update(f"listing job {name}", *_state(name), "REMOVE expires_at")
        self._put(f"listing job {name}", _LIST, name)

    def delete(self, name: str) -> None:
        """Forget a job."""
        for key_of in ((_LIST, name), _state(name)):
            self._delete(f"deleting job {name}", *key_of)

    def read(self, name: str) -> tuple[JobDocument, Job] | None:
        """Read a job without its lease."""
        item = self._item(name)
        return (_document(item), _job(item)) if item else None

    def change(self, name: str, change: Callable[[Job], Job]) -> Job | None:
        """Change a job from outside of its turns; None if there is none. Raises `Unavailable`."""
        for _ in range(10):
            item = self._item(name)
            if not item:
                return None
            job = _job(item)
            changed = change(job)
            if changed == job or self._write(changed, int(item["version"]["N"])):
                return changed
        raise Unavailable(f"job {name} changed several times meanwhile: try again")

    def acquire(self, name: str, now: datetime) -> Kept | None:
        """Take a job's lease and read it; None if another turn has it, or there is no such job."""
        doing, holder = f"taking the lease of job {name}", uuid4().hex
        only, values = f"attribute_exists(pk) AND ({IS_FREE})", lease_of(holder, now)
        item = self._update(doing, *_state(name), TAKE, only, values, _LEASE)
        if item is None:
            return None
        spec, version = _document(item).spec(self._zones()), int(item["version"]["N"])
        return Kept(spec=spec, job=_job(item), version=version, holder=holder)

    def save(self, kept: Kept, job: Job) -> Kept:
        """Write a job; raises `Overtaken`."""
        if not self._write(job, kept.version):
            raise Overtaken(f"job {job.name} was written meanwhile")
        return replace(kept, job=job, version=kept.version + 1)

    def release(self, kept: Kept) -> None:
        """Release the lease, unless another turn has it by now."""
        doing, values = f"releasing the lease of job {kept.job.name}", {"holder": kept.holder}
        of = _state(kept.job.name)
        self._update(doing, *of, RELEASE, IS_MINE, values, _LEASE)

    def close(self, kept: Kept) -> None:
        """Mark a job as over: it is not listed any more, and expires."""
        doing, name = f"closing job {kept.job.name}", kept.job.name
        ended = kept.job.ended_at or kept.job.created_at
        expires = {"at": epoch(ended + KEPT_AFTER)}
        self._update(doing, *_state(name), "SET expires_at = :at", values=expires)
        self._delete(doing, _LIST, name)

    def _write(self, job: Job, version: int) -> bool:
        self._texts[job.name] = text = _JOB.dump_json(job).decode()
        written = self._update(
            f"writing job {job.name}",
            *_state(job.name),
            "SET job = :job, version = :next",
            "version = :version",
            {"job": text, "version": version, "next": version + 1},
        )
        return written is not None

    def _item(self, name: str) -> Item | None:
        return self._get(f"reading job {name}", *_state(name), consistent=True)


def _state(name: str) -> tuple[str, str]:
    return f"job#{name}", "state"


def _document(item: Item) -> JobDocument:
    try:
        return parse_job(json.loads(item["document"]["S"]))
    except (JobDocumentError, ValueError, KeyError) as error:
        raise Unreadable(f"the document of {item['pk']['S']} cannot be read: {error}") from error


def _job(item: Item) -> Job:
    return parsed(_JOB, item, "job", "deploy the release that wrote it")
