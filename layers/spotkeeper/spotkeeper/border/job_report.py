"""Reports of a job's machines, and what else invokes keep_jobs: events that name an instance."""

import json
import re
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from spotkeeper.border import wrong_fields
from spotkeeper.domain.jobs.job import Report

NOTICE = timedelta(minutes=2)
WARNING = "EC2 Spot Instance Interruption Warning"
# What a job may own, by its id or in an ARN.
_OWNED = re.compile(r"\b(?:i|vol|snap)-[0-9a-f]{8,17}\b")


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1]
    job: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    attempt: Annotated[int, Field(ge=1)]
    instance_id: Annotated[str, Field(pattern=r"^i-[0-9a-f]{8,17}$")]
    generation: Annotated[int, Field(ge=0)]
    seq: Annotated[int, Field(ge=0)]
    event: Literal["booted", "proved", "running", "committed", "left", "exited", "idle", "failed"]
    at: AwareDatetime
    volume: Annotated[str, Field(pattern=r"^vol-[0-9a-f]{8,17}$")] | None = None
    step: Annotated[str, Field(max_length=200)] | None = None
    gpu: Annotated[float, Field(ge=0, le=100)] | None = None
    exit_code: int | None = None
    reason: Annotated[str, Field(max_length=2000)] = ""
    ignored: Annotated[str, Field(max_length=2000)] = ""
    uncommitted_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    ran_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    final: bool = False
    doing: Annotated[str, Field(max_length=2000)] = ""


def read_job_messages(
    event: Mapping[str, Any], now: datetime, account: str
) -> tuple[list[Report], dict[str, datetime], list[str]]:
    """Read the messages of an invocation; an event of AWS, or a tick, only asks for a turn.

    Returns the reports, the instances that AWS takes back with the time of their end, and what is
    wrong with each message that is no report. Machines of jobs may send to the queue, too: no time
    is later than now, and a warning is EC2's of this account.
    """
    reports: list[Report] = []
    unread: list[str] = []
    warned: dict[str, datetime] = {}
    for record in event.get("Records", ()):
        body = _body(record)
        if "detail-type" in body:
            # What has no time is no event of AWS.
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                at = datetime.fromisoformat(str(body["time"])).astimezone(UTC)
                of_aws = (body["source"], body["account"]) == ("aws.ec2", account)
                if body["detail-type"] == WARNING and of_aws:
                    warned[str(body["detail"]["instance-id"])] = min(at, now) + NOTICE
            continue
        try:
            checked = _Report.model_validate(body)
            report = Report(**checked.model_dump(exclude={"version", "gpu"}))
            reports.append(replace(report, at=min(report.at, now)))
        except ValidationError as error:
            unread.append(f"a job's report: {wrong_fields(error, 'report')}")
    return reports, warned, unread


def named_by_events(event: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of instances, volumes and snapshots that AWS's events of a batch name."""
    bodies = [record.get("body", "") for record in event.get("Records", ())]
    return frozenset(i for body in bodies if "detail-type" in body for i in _OWNED.findall(body))


def messages_of(event: Mapping[str, Any], jobs: Set[str]) -> list[str]:
    """Name the messages of a batch that tell of some jobs: their reports, and any warning."""
    bodies = [(record.get("messageId"), _body(record)) for record in event.get("Records", ())]
    return [
        str(i)
        for i, body in bodies
        if i and jobs and (body.get("job") in jobs or body.get("detail-type") == WARNING)
    ]


def _body(record: Mapping[str, Any]) -> dict[str, Any]:
    try:
        body = json.loads(record.get("body", ""))
    except (ValueError, RecursionError):
        # No JSON, lists thousands deep, or a number of thousands of digits.
        return {}
    return body if isinstance(body, dict) else {}
