"""What a job's machines report, merged: at least once each, and in any order."""

from dataclasses import dataclass, replace
from datetime import datetime

from spotkeeper.domain.jobs.job import Job, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of the agent of a machine."""

    job: str
    attempt: int
    instance_id: str
    generation: int
    seq: int
    event: str
    at: datetime
    volume: str | None = None
    step: str | None = None
    exit_code: int | None = None
    reason: str = ""


def merged(job: Job, report: Report) -> Job:
    """Add a report to the job's memory; an older one adds events, but no time and no step."""
    machine = job.machines.get(report.instance_id)
    if machine is None or machine.attempt != report.attempt:
        # This item did not launch the machine: another or a lost item did.
        return job
    before = job.told.get(report.attempt, Told())
    told = replace(
        before,
        generation=max(before.generation, report.generation),
        left=before.left or report.event == "left",
        idle=before.idle or report.event == "idle",
    )
    if report.event == "proved" and report.volume and report.volume not in before.proved:
        told = replace(told, proved=(*before.proved, report.volume))
    if report.event == "exited" and before.exit_code is None:
        told = replace(told, exit_code=report.exit_code)
    if report.event == "failed":
        told = replace(told, failed=report.reason or "the machine reported a failure")
    if report.seq > before.seq:
        told = replace(told, seq=report.seq, at=report.at, step=report.step or before.step)
    return replace(job, told={**job.told, report.attempt: told}) if told != before else job
