"""Whether a job may wait for spot, or has to be on demand to end in time.

The rule is that of "can't be late" (Wu et al., NSDI 2024), section 3: a job uses spot while, after
one more restart, the work that is left would still fit; then it is on demand until its end.
"""

from datetime import datetime, timedelta

from spotkeeper.domain.jobs.job import Job, JobSpec, step_number

# What one more restart costs beside the work since the last commit: a machine and its checkpoint.
RESTART = timedelta(minutes=10)
# By this share, a forecast of the work that is left may be wrong.
UNSURE = 0.03
# A machine on demand goes back to spot only with this many restarts to spare: going back is one.
TO_RETURN = 2


def ends_by(spec: JobSpec, job: Job) -> datetime | None:
    """Return the job's deadline as an instant."""
    return job.created_at + spec.deadline if isinstance(spec.deadline, timedelta) else spec.deadline


def work_left(spec: JobSpec, job: Job) -> timedelta:
    """Forecast the machine time that is left: by the pace of steps, once some were committed."""
    paced_steps, paced_h = job.paced
    if spec.steps and paced_steps:
        left = max(0, spec.steps - step_number(job.step))
        return timedelta(hours=left * paced_h / paced_steps)
    return max(timedelta(0), spec.work - timedelta(hours=job.worked_h))


def is_urgent(spec: JobSpec, job: Job, now: datetime, restarts: int = 1) -> bool:
    """Say whether a job with a deadline has no time left for some more restarts."""
    by = ends_by(spec, job)
    if by is None:
        return False
    left = work_left(spec, job) * (1 + UNSURE)
    return by - now <= left + restarts * (RESTART + timedelta(hours=job.commit_h))
