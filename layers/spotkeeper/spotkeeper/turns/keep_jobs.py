"""The turn of a job: read what exists, decide one step, do it, and record AWS's answer."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.decide import YOUNG, answered, decide, refused, without_image
from spotkeeper.domain.jobs.job import SPOT, Job, JobSpec, Report, Seen, merged
from spotkeeper.domain.jobs.steps import Step, Write
from spotkeeper.domain.money.prices import PriceBook
from spotkeeper.job_ports import Denied, JobCloud, JobTable, Kept, NotMade, Overtaken
from spotkeeper.ports import FleetError, Prices, Unreadable

# A turn takes this many steps at most; the next minute's turn continues.
MOST_STEPS = 12
# The function has 60 s (template.yaml). No job begins later than this after the invocation, ...
JOBS_S = 30.0
# ... and no step: the slowest call takes 20 s.
STEPS_S = 35.0
# Each minute the first job is another one. Steps of this part of the list reach all parts early.
GOLDEN = (5**0.5 - 1) / 2
# A job that does not go on for this long rings the alarm.
STUCK = timedelta(hours=1)
# A late answer of AWS is still found, and what it made deleted, for this time after the end.
WATCHED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPorts:
    """All that the keeper needs of the world."""

    table: JobTable
    cloud: JobCloud
    prices: Prices
    clock: Callable[[], datetime]


@dataclass(slots=True, kw_only=True)
class JobTurn:
    """What a turn did for a job."""

    name: str
    steps: list[str] = field(default_factory=list)
    stuck_for: str = ""
    is_unnoted: bool = False
    error: FleetError | None = None
    is_late: bool = False


def keep_jobs(
    reports: Sequence[Report],
    warned: Mapping[str, datetime],
    ports: JobPorts,
    now: datetime,
    some: Collection[str] | None = None,
) -> list[JobTurn]:
    """Keep each job, or only `some`, in turn, within the time of one invocation.

    Reports are kept for all jobs first: a job of which that failed is `is_unnoted`. Those without a
    turn for lack of time are `is_late`.
    """
    names = sorted(ports.table.names()) if some is None or some else []
    names = [name for name in names if some is None or name in some]
    turns = {name: JobTurn(name=name) for name in names}
    for name in names if reports or warned else ():
        mine = [it for it in reports if it.job == name]
        try:
            # Also while another turn has the job.
            ports.table.change(name, partial(_noted, reports=mine, warned=warned))
        except Exception as error:  # noqa: BLE001 - one job's defect must not stop the others
            turns[name].error, turns[name].is_unnoted = _named(name, error), True
    first = int(now.timestamp() // 60 * GOLDEN % 1 * len(names))
    reported = {it.job for it in reports}
    for name in sorted((*names[first:], *names[:first]), key=lambda it: it not in reported):
        if (ports.clock() - now).total_seconds() > JOBS_S:
            turns[name].is_late = True
        elif turns[name].error is None:
            _keep_job(turns[name], ports, now)
    return list(turns.values())


def _noted(job: Job, reports: Sequence[Report], warned: Mapping[str, datetime]) -> Job:
    """Keep what concerns a job; `warned` may name others' instances."""
    mine = {i: at for i, at in warned.items() if i in (job.machine, job.successor)}
    job = replace(job, warned={**job.warned, **mine}) if mine else job
    for report in reports:
        job = merged(job, report)
    return job


def _keep_job(turn: JobTurn, ports: JobPorts, now: datetime) -> None:
    """Take the next steps of one job, under its lease."""
    try:
        kept = ports.table.acquire(turn.name, now)
    except Exception as error:  # noqa: BLE001 - one job's defect must not stop the others
        turn.error = _named(turn.name, error)
        return
    if kept is None:
        return
    try:
        for step in _steps(kept, ports, now, turn):
            turn.steps.append(step)
    except Overtaken:
        # A report or an operator changed the job: the next turn continues from there.
        turn.steps.append("overtaken")
    except Exception as error:  # noqa: BLE001 - one job's defect must not stop the others
        turn.error = _named(turn.name, error)
    lines = [*turn.steps, *([f"failed: {turn.error}"] if turn.error else [])]
    try:
        if lines:
            ports.table.record(turn.name, now, lines)
    except FleetError as error:
        turn.error = turn.error or error
    try:
        ports.table.release(kept)
    except FleetError as error:
        # The lease ends by itself.
        turn.error = turn.error or error


def _named(name: str, error: Exception) -> FleetError:
    """Return an error of a job's turn; one that was not foreseen says what it is."""
    return (
        error if isinstance(error, FleetError) else FleetError(f"a defect in job {name}: {error!r}")
    )


def _steps(kept: Kept, ports: JobPorts, now: datetime, turn: JobTurn) -> Iterator[str]:
    table, spec = ports.table, kept.spec
    before: Step | None = None
    for number in range(MOST_STEPS):
        at = ports.clock()
        if (at - now).total_seconds() > STEPS_S:
            return
        seen = ports.cloud.look(spec, kept.job, at)
        if not number:
            kept = table.save(kept, spent(kept.job, seen, ports.prices))
            turn.stuck_for = stuck(spec, kept.job, seen)
            turn.error = Unreadable(seen.unread) if seen.unread else None
        step = decide(spec, kept.job, seen)
        if step is None:
            if _is_over(kept.job, seen):
                table.close(kept)
            return
        yield f"{type(step).__name__}: {step.why}"
        known = kept.job.refused
        kept = _taken(kept, step, ports, at, is_first=isinstance(before, Write))
        for kind, refusal in kept.job.refused.items():
            if refusal != known.get(kind):
                yield f"AWS refused {kind}: {refusal.message}"
        before = step


def _taken(kept: Kept, step: Step, ports: JobPorts, at: datetime, *, is_first: bool) -> Kept:
    """Do a step and write down what AWS answered; `is_first` if it was never requested before."""
    spec, job, table, cloud = kept.spec, kept.job, ports.table, ports.cloud
    match step:
        case Write():
            return table.save(kept, step.job)
        case steps.Start() | steps.CreateVolume():
            what = step.launch if isinstance(step, steps.Start) else step.making
            try:
                job = answered(job, what, cloud.do(spec, job, step), at)
            except NotMade as error:
                final = is_first or not isinstance(error, Denied)
                job = refused(job, what, str(error), at, final=final)
            return table.save(kept, job)
        case steps.TakeSnapshot():
            # It takes no token: the request is remembered before it is made.
            kept = table.save(kept, replace(job, asked=step.key, asked_at=at))
            cloud.do(spec, job, step)
            return kept
    cloud.do(spec, job, step)
    if isinstance(step, steps.DeregisterImage):
        return table.save(kept, without_image(job, step.image))
    match step:
        case steps.Mail():
            return table.save(kept, replace(job, mailed=True))
        case steps.Remind():
            return table.save(kept, replace(job, reminded=job.machine_attempt))
    return kept


def _is_over(job: Job, seen: Seen) -> bool:
    """Say whether nothing of a job can appear any more; what is young may not be listed yet."""
    made = [it.at for kind in (job.machines, job.volumes, job.images) for it in kind.values()]
    is_open = job.launch or job.making or any(seen.now - at < YOUNG for at in made)
    is_left = any(not machine.is_gone for machine in seen.machines.values())
    if is_open or is_left or not job.mailed or not job.ended_at:
        return False
    return seen.now - job.ended_at >= WATCHED_AFTER


def stuck(spec: JobSpec, job: Job, seen: Seen) -> str:
    """Say why a job has not gone on for an hour; empty if it has."""
    live = [name for name, it in sorted(seen.machines.items()) if not it.is_gone]
    if job.outcome:
        is_late = seen.now - (job.ended_at or seen.now) >= STUCK
        if is_late and live:
            return f"{', '.join(live)} runs after its end"
        return "its end is not finished: no mail was sent" if is_late and not job.mailed else ""
    home = seen.volumes.get(job.home)
    is_sealed = any(it.volume == job.home for it in seen.snapshots.values())
    is_left = spec.keeps_root and not job.opened and not is_sealed
    if job.home and (spec.has_volume or is_left) and (home is None or home.state == "error"):
        own = job.volumes.get(job.home)
        if home is not None or own is None or seen.now - own.at >= YOUNG:
            return f"its volume {job.home} is gone: spotkeeper job recover {job.name}"
    if job.short_since and not job.is_at_work and seen.now - job.short_since >= STUCK:
        wrong = "; ".join(sorted({it.message for it in job.refused.values()}))
        return f"no machine for an hour: {wrong}"
    return ""


def spent(job: Job, seen: Seen, prices: Prices) -> Job:
    """Add the hours and USD of the job's machines since the last look.

    A price that cannot be read costs nothing here: `max_hours` still ends the job.
    """
    running = [machine for machine in seen.machines.values() if not machine.is_gone]
    pools = sorted({f"{machine.zone}/{machine.instance_type}" for machine in running})
    try:
        book = prices.now(pools, seen.now) if pools else PriceBook()
    except FleetError:
        book = PriceBook()
    hours = usd = 0.0
    for machine in running:
        since = max(filter(None, (machine.launched_at, job.looked_at)), default=seen.now)
        ran = max(0.0, (seen.now - since).total_seconds() / 3600)
        hours += ran
        series = book.spot.get(f"{machine.zone}/{machine.instance_type}")
        listed = book.on_demand.get(machine.instance_type)
        rate = series.usd[-1] if machine.market == SPOT and series and series.usd else listed
        usd += ran * (rate or 0.0)
    return replace(job, hours=job.hours + hours, usd=job.usd + usd, looked_at=seen.now)
