"""The turn of a job: read what exists, decide one step, do it, and record AWS's answer."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.decision import (
    Action,
    Alarm,
    Answer,
    Controller,
    DecisionRecord,
    Failure,
    Outcome,
    Request,
    RequestKind,
)
from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.decide import YOUNG, answered, decide, limit_of, refused, without_image
from spotkeeper.domain.jobs.job import SPOT, Job, JobResources, JobSpec, Report, merged
from spotkeeper.domain.jobs.steps import Step, Write
from spotkeeper.domain.money.prices import PriceBook
from spotkeeper.job_ports import Denied, JobCloud, JobTable, Kept, NotMade, Overtaken
from spotkeeper.ports import FleetError, Prices, TimedOut, Unreadable
from spotkeeper.turns.turn import ASK_UNTIL_S, Budget, TurnReport, Turns, failure_of

# A turn takes this many steps at most; the next minute's turn continues.
MOST_STEPS = 12
# The function has 60 s (template.yaml). No job begins later than this after the invocation, ...
JOBS_S = 30.0
# ... and no step: the slowest call takes 20 s. Nor is a step taken later than `ASK_UNTIL_S` after
# the job's lease: it would end after that.
STEPS_S = 35.0
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
class JobTurns(Turns):
    """The turns of jobs."""

    ports: JobPorts

    def keep(self, record: DecisionRecord) -> None:
        """Store a record."""
        self.ports.table.record(record)


def keep_jobs(
    reports: Sequence[Report],
    warned: Mapping[str, datetime],
    ports: JobPorts,
    now: datetime,
    some: Collection[str] | None = None,
) -> TurnReport:
    """Keep each job, or only `some`, in turn, within the time of one invocation.

    Reports are kept for all jobs first. A job of which that failed is `unnoted`, and has no turn.
    """
    names = sorted(ports.table.names()) if some is None or some else []
    names = [name for name in names if some is None or name in some]
    budget = Budget(began=now, clock=ports.clock, turns_s=JOBS_S)
    turns = JobTurns(controller=Controller.JOBS, noun="job", now=now, budget=budget, ports=ports)

    def note(name: str) -> None:
        # Also while another turn has the job.
        ports.table.change(name, lambda job: _noted(job, reports, warned))

    if reports or warned:
        noted = turns.run_each(names, note)
        for name in noted.late:
            turns.fail(name, TimedOut("its reports were not kept: no time was left"))
        noted.unnoted, noted.late = noted.failed, []
    left = [name for name in names if name not in turns.report.unnoted]
    return turns.run_each(left, lambda name: _turn(name, turns), {report.job for report in reports})


def _noted(job: Job, reports: Sequence[Report], warned: Mapping[str, datetime]) -> Job:
    """Keep what concerns a job; `warned` may name others' instances."""
    mine = {i: at for i, at in warned.items() if i in (job.machine, job.successor)}
    job = replace(job, warned={**job.warned, **mine}) if mine else job
    for report in reports:
        job = merged(job, report) if report.job == job.name else job
    return job


def _turn(name: str, turns: JobTurns) -> None:
    """Take the next steps of one job, under its lease, and record them."""
    ports, began_s = turns.ports, turns.budget.spent_s()
    at = turns.now + timedelta(seconds=began_s)
    kept = ports.table.acquire(name, at)
    if kept is None:
        return
    stuck_for, outcomes = "", list[Outcome]()
    error: FleetError | None = None
    try:
        # A report or an operator may change the job: the next turn continues from there.
        with suppress(Overtaken):
            try:
                aws = ports.cloud.look(kept.spec, kept.job, at)
            except FleetError:
                outcomes += _blindly(kept, ports, at)
                raise
            stuck_for = stuck(kept.spec, kept.job, aws)
            paid = spent(kept.spec, kept.job, aws, ports.prices)
            kept = ports.table.save(kept, replace(paid, stuck=stuck_for))
            error = Unreadable(aws.unread) if aws.unread else None
            for outcome in _steps(kept, aws, turns, min(STEPS_S, began_s + ASK_UNTIL_S)):
                outcomes.append(outcome)
    except FleetError as wrong:
        error = wrong
    finally:
        # A lease that cannot be released ends by itself.
        with suppress(FleetError):
            ports.table.release(kept)
    record = DecisionRecord(
        fleet=name,
        controller=Controller.JOBS,
        at=turns.now,
        action=Action.STEP if outcomes else Action.HOLD,
        rule=Alarm.JOB_STUCK if stuck_for else "steps",
        reason=stuck_for,
        outcomes=tuple(outcomes),
        alarms=(Alarm.JOB_STUCK,) if stuck_for else (),
    )
    if error:
        turns.fail(name, error, record)
    elif outcomes or stuck_for:
        turns.report.records.append(record)
        if outcomes:
            turns.keep(record)


def _steps(kept: Kept, aws: JobResources, turns: JobTurns, until_s: float) -> Iterator[Outcome]:
    """Take the steps that are due, while there is time; yield what AWS answered to each."""
    ports, before = turns.ports, None
    for _ in range(MOST_STEPS):
        step = decide(kept.spec, kept.job, aws)
        if step is None:
            if _is_over(kept.job, aws):
                ports.table.close(kept)
            return
        try:
            is_first = isinstance(before, Write)
            kept, refusal = _taken(kept, step, ports, aws.now, is_first=is_first)
        except (FleetError, Overtaken) as error:
            yield _outcome(step, failure_of(error))
            if not isinstance(step, steps.Limit):
                raise
            aws = replace(aws, limit_refused=True)
            continue
        yield _outcome(step, Failure(kind="", text=refusal) if refusal else None)
        if (spent_s := turns.budget.spent_s()) > until_s:
            return
        at = turns.now + timedelta(seconds=spent_s)
        look = ports.cloud.look(kept.spec, kept.job, at)
        before, aws = step, replace(look, limit_refused=aws.limit_refused)


def _blindly(kept: Kept, ports: JobPorts, at: datetime) -> Iterator[Outcome]:
    """Do what needs no look: learn what was launched, and end what runs beyond a limit."""
    if kept.job.launch:
        step = steps.Start("its answer is not known", kept.job.launch)
        try:
            kept, refusal = _taken(kept, step, ports, at, is_first=False)
            yield _outcome(step, Failure(kind="", text=refusal) if refusal else None)
        except FleetError as error:
            yield _outcome(step, failure_of(error))
    spec, job = kept.spec, kept.job
    running = {name: own for name, own in job.machines.items() if not own.is_paid}
    ran = {
        name: (at - (own.paid_until or own.at)).total_seconds() / 3600
        for name, own in running.items()
    }
    usd = sum(hours * running[name].rate for name, hours in ran.items())
    if not limit_of(spec, replace(job, hours=job.hours + sum(ran.values()), usd=job.usd + usd)):
        return
    for name in running:
        end = steps.End("a limit is reached, and the machines cannot be read", name)
        try:
            ports.cloud.do(spec, job, end)
            yield _outcome(end, None)
        except FleetError as error:
            yield _outcome(end, failure_of(error))


def _outcome(step: Step, failure: Failure | None) -> Outcome:
    request = Request(kind=RequestKind.JOB_STEP, step=type(step).__name__, why=step.why)
    answer = Answer.REFUSED if failure else Answer.DONE
    return Outcome(request=request, answer=answer, error=failure)


def _taken(
    kept: Kept, step: Step, ports: JobPorts, at: datetime, *, is_first: bool
) -> tuple[Kept, str]:
    """Do a step and write down what AWS answered; return why AWS refused it, if it did.

    `is_first` if it was never requested before.
    """
    spec, job, table, cloud = kept.spec, kept.job, ports.table, ports.cloud
    refusal = ""
    match step:
        case Write():
            job = step.job
        case steps.Start() | steps.CreateVolume():
            what = step.launch if isinstance(step, steps.Start) else step.making
            try:
                job = answered(job, what, cloud.do(spec, job, step), at)
            except NotMade as error:
                final, refusal = is_first or not isinstance(error, Denied), str(error)
                job = refused(job, what, refusal, at, final=final)
        case steps.TakeSnapshot():
            # It takes no token: the request is remembered before it is made.
            kept = table.save(kept, replace(job, requested=step.key, requested_at=at))
            job = kept.job
            cloud.do(spec, job, step)
        case _:
            cloud.do(spec, job, step)
            match step:
                case steps.DeregisterImage():
                    job = without_image(job, step.image)
                case steps.Mail():
                    job = replace(job, mailed=True)
                case steps.Remind():
                    job = replace(job, reminded=job.machine_attempt)
    return (kept if job is kept.job else table.save(kept, job)), refusal


def _is_over(job: Job, aws: JobResources) -> bool:
    """Say whether nothing of a job can appear any more; what is young may not be listed yet."""
    made = [own.at for kind in (job.machines, job.volumes, job.images) for own in kind.values()]
    is_open = job.launch or job.making or any(aws.now - at < YOUNG for at in made)
    is_left = any(not machine.is_gone for machine in aws.machines.values())
    if is_open or is_left or not job.mailed or not job.ended_at:
        return False
    return aws.now - job.ended_at >= WATCHED_AFTER


def stuck(spec: JobSpec, job: Job, aws: JobResources) -> str:
    """Say why a job has not gone on for an hour; empty if it has."""
    live = [name for name, each in sorted(aws.machines.items()) if not each.is_gone]
    if job.outcome:
        is_late = aws.now - (job.ended_at or aws.now) >= STUCK
        if is_late and live:
            return f"{', '.join(live)} runs after its end"
        return "its end is not finished: no mail was sent" if is_late and not job.mailed else ""
    home = aws.volumes.get(job.home)
    is_sealed = any(each.volume == job.home for each in aws.snapshots.values())
    is_left = spec.keeps_root and not job.opened and not is_sealed
    is_needed = job.home and (spec.has_volume or is_left) and not aws.unread
    if is_needed and (home is None or home.state == "error"):
        own = job.volumes.get(job.home)
        if home is not None or own is None or aws.now - own.at >= YOUNG:
            return f"its volume {job.home} is gone: spotkeeper job recover {job.name}"
    if job.short_since and not job.is_at_work and aws.now - job.short_since >= STUCK:
        wrong = "; ".join(sorted({each.message for each in job.refused.values()}))
        return f"no machine for an hour: {wrong}"
    return ""


def spent(spec: JobSpec, job: Job, aws: JobResources, prices: Prices) -> Job:
    """Add the hours and USD of each of the job's machines since it was seen last.

    A price that cannot be read is what it was last, or the highest that was read for the job; where
    none was, hours wait for the first. One that is gone ran until now: its end is not known.
    """
    unpaid = {
        name: machine for name, machine in aws.machines.items() if not job.machines[name].is_paid
    }
    pools = {f"{machine.zone}/{machine.instance_type}" for machine in unpaid.values()}
    if spec.max_usd is not None and not job.rate:
        pools |= {f"{zone}/{kind}" for zone in spec.zones for kind in spec.types}
    try:
        book = prices.now(sorted(pools), aws.now) if pools else PriceBook()
    except FleetError:
        book = PriceBook()
    hours, on_demand, usd, unpriced = job.hours, job.on_demand_hours, job.usd, job.unpriced_h
    spot = [series.usd[-1] for series in book.spot.values() if series.usd]
    owns, highest = dict(job.machines), max([job.rate, *book.on_demand.values(), *spot])
    for name, machine in unpaid.items():
        own = owns[name]
        since = own.paid_until or machine.launched_at or own.at
        ran = max(0.0, (aws.now - since).total_seconds() / 3600)
        series = book.spot.get(f"{machine.zone}/{machine.instance_type}")
        listed = book.on_demand.get(machine.instance_type)
        price = series.usd[-1] if machine.market == SPOT and series and series.usd else listed
        rate = price or own.rate or highest
        owns[name] = replace(own, paid_until=aws.now, is_paid=machine.is_gone, rate=rate)
        hours += ran
        on_demand += ran if machine.market != SPOT else 0.0
        usd += ran * rate
        unpriced += 0.0 if rate else ran
    return replace(
        job,
        machines=owns,
        hours=hours,
        on_demand_hours=on_demand,
        rate=highest,
        usd=usd + unpriced * highest,
        unpriced_h=0.0 if highest else unpriced,
        looked_at=aws.now,
    )
