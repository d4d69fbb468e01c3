"""What the keeper of jobs needs of the world, in the domain's words."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.jobs.job import Job, JobResources, JobSpec
from spotkeeper.domain.jobs.steps import Step


class NotMade(Exception):
    """AWS made nothing of a token, and never will; the message is AWS's."""


class Denied(NotMade):
    """AWS did not accept the call; an earlier one with the token may have had its effect."""


class Overtaken(Exception):
    """Somebody else wrote the job's item since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A job as the table keeps it; `version` is that of the item, and `holder` has its lease."""

    spec: JobSpec
    job: Job
    version: int
    holder: str = ""


class JobTable(Protocol):
    """Keeps the items of jobs; one holder at a time may act for a job."""

    def names(self) -> Sequence[str]:
        """List the jobs that are not over."""
        ...

    def naming(self, ids: Set[str], now: datetime) -> Sequence[str]:
        """Name the jobs that remember an instance, a volume or a snapshot of these ids."""
        ...

    def change(self, name: str, change: Callable[[Job], Job]) -> Job | None:
        """Change a job without its lease; None if there is none."""
        ...

    def acquire(self, name: str, now: datetime) -> Kept | None:
        """Take a job's lease and read it; None if another turn has it, or there is no such job.

        A lease that ends later than any that is taken now is void.
        """
        ...

    def save(self, kept: Kept, job: Job) -> Kept:
        """Write a job; raises `Overtaken`."""
        ...

    def record(self, record: DecisionRecord) -> None:
        """Leave a decision record."""
        ...

    def release(self, kept: Kept) -> None:
        """Release the lease."""
        ...

    def close(self, kept: Kept) -> None:
        """Mark a job as over: it is not listed any more."""
        ...


class JobCloud(Protocol):
    """Looks at a job's machines, volumes and checkpoints, and acts on them."""

    def look(self, spec: JobSpec, job: Job, now: datetime) -> JobResources:
        """Look at what the job remembers, by id; what AWS does not list is left out."""
        ...

    def do(self, spec: JobSpec, job: Job, step: Step) -> str:
        """Do a step; return the id of what it made. Raises `NotMade` if AWS makes nothing."""
        ...
