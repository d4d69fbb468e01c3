"""The next step of a job: a pure function of what is remembered and what AWS has.

A turn looks, decides one step, does it, writes down what AWS answered, and looks again. It may die
before or after any call. The decision depends on state, never on the history of events. Only what
the job remembers is ended or deleted: tags are hints to the machines, and never proof.

Five promises: there is always one complete copy of what was written; there is one writer; at most
three volumes, five snapshots and one machine exist (two after a warning); the job ends once there
is capacity; with a volume no work is repeated, with checkpoints less than one interval.

A root that is kept is a home, too: sealed when its machine is gone, and then made into an image,
from which the next machine starts.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.deadline import TO_RETURN, is_urgent
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    AttemptReport,
    Job,
    JobResources,
    JobSpec,
    Launch,
    Machine,
    Making,
    OnDone,
    Outcome,
    OwnImage,
    OwnMachine,
    OwnVolume,
    Refusal,
)
from spotkeeper.domain.jobs.steps import Step, TakeSnapshot, Write

# A machine that reports nothing is of no use. Its agent shuts it down after a quarter of an hour
# without AWS; this is later, for a machine without a working agent.
SILENT = timedelta(minutes=20)
NEVER_REPORTED = (
    "its agent never reported: does its user data name SPOTKEEPER_JOBS_PARAMETER, does it reach"
    " AWS? See the machine's console output"
)
# A drained machine has two minutes to commit and leave.
DRAIN = timedelta(minutes=3)
# At a limit a machine leaves in this time, although a look or two fail.
LEAVES = DRAIN + timedelta(minutes=2)
# With the job's volume or a deadline, a machine on demand runs this long before spot is tried.
RETURN = timedelta(hours=1)
# What AWS refused is requested again after 1, 2, 4 ... minutes.
RETRY, LONGEST_RETRY = timedelta(minutes=1), timedelta(minutes=15)
# AWS lists a new snapshot within this time.
LISTED = timedelta(minutes=5)
# An id that EC2 does not list proves nothing while it is young (EC2 API, "Eventual consistency").
YOUNG = timedelta(minutes=10)
# A machine has the time of a limit in a tag once it is nearer than this.
LIMIT_WITHIN_H = 1_000
# The clocks of AWS and of the function differ by less.
SKEW = timedelta(minutes=1)
# New seals wait while this number of snapshots is pending.
MOST_PENDING = 2
# Reports of this many machines are kept: the end of a command may be reported late.
KEPT = 5
# Two machines in a row whose command fails alike within this time: a third will fail as well.
SOON_S = 60.0
NOTHING = AttemptReport()


def decide(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Return the next step, or None to wait."""
    # First repeat requests with an unknown effect, also after the end: AWS answers their tokens.
    if job.launch and not _is_refused(job, _kind(job.launch), aws):
        return steps.Start(f"attempt {job.launch.attempt}", job.launch)
    if job.making and not _is_refused(job, _kind(job.making), aws):
        if job.making.base:
            return steps.RegisterImage(f"number {job.making.move}", job.making)
        return steps.CreateVolume(f"number {job.making.move} in {job.making.zone}", job.making)
    # Machines that EC2 no longer lists are gone, unless they are young.
    gone = {
        name: Machine(attempt=own.attempt, zone="", market="", state="gone")
        for name, own in job.machines.items()
        if name not in aws.machines and aws.now - own.at >= YOUNG
    }
    aws = replace(aws, machines={**gone, **aws.machines})
    if aws.unread and spec.has_disk:
        # Limits hold; what to do with disks is not known.
        ends = _end_of_job(spec, job, aws) or _end_machines(spec, job, aws)
        return ends or _limit(spec, job, aws)
    return (
        _end_of_job(spec, job, aws)
        or _end_machines(spec, job, aws)
        or _limit(spec, job, aws)
        or (_tidy(spec, job, aws) if spec.has_disk else None)
        or (_after_the_end(spec, job, aws) if job.outcome else _go_on(spec, job, aws))
        or _reminder(spec, job)
    )


# --- what AWS answers


def refused(job: Job, what: Launch | Making, message: str, now: datetime, *, final: bool) -> Job:
    """Remember that AWS refused a launch, a volume or an image, and back off.

    Unless the refusal is final, an earlier request with the token may have had its effect: it is
    repeated until AWS answers.
    """
    job = _back_off(job, _kind(what), message, now)
    if not final:
        return job
    return replace(job, launch=None) if isinstance(what, Launch) else replace(job, making=None)


def answered(job: Job, what: Launch | Making, name: str, now: datetime) -> Job:
    """Remember the machine, volume or image that AWS answered to a request."""
    job = replace(
        job, refused={k: refusal for k, refusal in job.refused.items() if k != _kind(what)}
    )
    if isinstance(what, Launch):
        machine = OwnMachine(attempt=what.attempt, at=now, rate=job.rate)
        machines = {**job.machines, name: machine}
        job = replace(job, launch=None, machines=machines)
        return replace(job, successor=name) if job.machine else replace(job, machine=name)
    job = replace(job, making=None)
    if what.base:
        return replace(job, images={**job.images, name: OwnImage(snapshot=what.snapshot, at=now)})
    own = OwnVolume(generation=what.generation, move=what.move, at=now)
    return replace(job, volumes={**job.volumes, name: own})


def without_image(job: Job, name: str) -> Job:
    """Forget an image that is deregistered."""
    others = {other: own for other, own in job.images.items() if other != name}
    return replace(job, images=others, image="" if job.image == name else job.image)


def _kind(what: Launch | Making) -> str:
    """Return under which name a refusal is remembered."""
    if isinstance(what, Launch):
        return f"{what.market} {' '.join(what.zones)}"
    return _volume_in(what.zone)


def _volume_in(zone: str) -> str:
    return f"volume {zone}" if zone else "image"


def _back_off(job: Job, kind: str, message: str, now: datetime) -> Job:
    times = job.refused[kind].times + 1 if kind in job.refused else 1
    until = now + min(RETRY * 2 ** min(times - 1, 9), LONGEST_RETRY)
    refusal = Refusal(until=until, times=times, message=message)
    since = job.short_since or now
    return replace(job, refused={**job.refused, kind: refusal}, short_since=since)


def _is_refused(job: Job, kind: str, aws: JobResources) -> bool:
    """Say whether AWS refused such a launch or volume a short time ago."""
    return kind in job.refused and job.refused[kind].until > aws.now


# --- the end of a job


def _end_of_job(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    def over(job: Job, outcome: Outcome, exit_code: int | None = None) -> Step:
        unknown = spec.has_volume or aws.unread
        kept = None if unknown else bool(aws.head and aws.head.step)
        ended = replace(job, outcome=outcome, exit_code=exit_code, ended_at=aws.now, kept=kept)
        return Write(f"the job ended: {outcome}", ended)

    if job.outcome:
        return None
    if aws.head and aws.head.done:
        return over(job, Outcome.DONE, aws.head.exit_code or 0)
    if job.stop_now:
        return over(job, Outcome.STOPPED)
    if any(report.exit_code == 0 and report.generation for report in job.reports.values()):
        return over(job, Outcome.DONE, 0)
    report, machine = job.reports.get(job.machine_attempt, NOTHING), aws.machines.get(job.machine)
    error = report.error
    last = report.at or (machine.launched_at if machine else None)
    if not error and machine and machine.is_running and last and aws.now - last >= SILENT:
        error = f"no report for {SILENT.total_seconds() / 60:.0f} minutes"
        error += "" if report.at else f"; {NEVER_REPORTED}"
        unheard = {job.machine_attempt: replace(report, failed=error)}
        job = replace(job, reports={**job.reports, **unheard})
    if error and job.machine_attempt > job.errors_until:
        soon = error if report.ran_s is not None and report.ran_s < SOON_S else ""
        again = report.final or (soon and soon == job.failed_soon)
        erred = replace(job, errors_until=job.machine_attempt, failed_soon=soon)
        if again or job.restarts >= spec.max_restarts:
            return over(erred, Outcome.FAILED, report.exit_code)
        restarts = job.restarts + 1
        why = f"{error}: restart {restarts} of {spec.max_restarts}"
        return Write(why, replace(erred, restarts=restarts))
    ending = job.ending or (Outcome.IDLE if report.idle else None) or limit_of(spec, job)
    if ending is None:
        return None
    if not job.machine or (machine and (machine.is_gone or _is_done_with(job, machine, aws))):
        return over(job, ending)
    return Write(f"ending: {ending}", replace(job, ending=ending)) if not job.ending else None


def limit_of(spec: JobSpec, job: Job) -> Outcome | None:
    """Return which of its limits a job reaches while its machines, or the next one, leave."""
    rates = [own.rate for own in job.machines.values() if not own.is_paid]
    if job.launch or not rates:
        rates.append(job.rate)
    leaves_h = LEAVES.total_seconds() / 3600
    if job.hours + len(rates) * leaves_h >= spec.max_hours:
        return Outcome.HOURS
    usd = job.usd + sum(rates) * leaves_h
    return Outcome.USD if spec.max_usd is not None and usd >= spec.max_usd else None


def limit_at(spec: JobSpec, job: Job, now: datetime) -> datetime | None:
    """Return when a job reaches a limit with the machines of now; None if not for weeks."""
    rates = [own.rate for own in job.machines.values() if not own.is_paid]
    left_h = (spec.max_hours - job.hours) / max(1, len(rates))
    if spec.max_usd is not None and sum(rates) > 0:
        left_h = min(left_h, (spec.max_usd - job.usd) / sum(rates))
    return now + timedelta(hours=left_h) if left_h < LIMIT_WITHIN_H else None


def _limit(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Write the time of a limit; where AWS refuses the tag, the job goes on without it."""
    until = None if aws.limit_refused else limit_at(spec, job, aws.now)
    for name, machine in sorted(aws.machines.items()):
        if machine.is_running and until and abs(until - (machine.until or aws.now)) > SKEW:
            return steps.Limit("its agent keeps to it without the table", name, until)
    return None


def _after_the_end(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    if any(not machine.is_gone for machine in aws.machines.values()):
        return None
    if job.move:
        return Write("no candidate is needed any more", replace(job, move=""))
    home = aws.volumes.get(job.home)
    if home is not None and spec.on_done is OnDone.IMAGE:
        return _image_of_root(job, aws)
    if home is not None and spec.on_done is OnDone.SNAPSHOT:
        if not _whole_seals(job, aws) or len(aws.snapshots) > 1 or len(aws.volumes) > 1:
            return None
        return steps.DeleteVolume("sealed", job.home) if home.is_free else None
    if home is not None and spec.on_done is OnDone.DELETE:
        return steps.DeleteVolume("on_done = delete", job.home) if home.is_free else None
    is_spare = spec.on_done is OnDone.DELETE or (spec.on_done is OnDone.KEEP and job.home)
    if is_spare and aws.snapshots:
        return steps.DeleteSnapshot(f"on_done = {spec.on_done}", min(aws.snapshots))
    return None if job.mailed else steps.Mail("the job ended")


def _reminder(spec: JobSpec, job: Job) -> Step | None:
    """Remind once of each machine that works and commits nothing."""
    since_s = job.reports.get(job.machine_attempt, NOTHING).uncommitted_s or 0
    if job.outcome or not job.is_at_work or job.reminded >= job.machine_attempt:
        return None
    if since_s < spec.commits_within.total_seconds():
        return None
    return steps.Remind(f"no checkpoint was committed for {since_s / 60:.0f} minutes")


# --- machines


def _end_machines(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """End machines that are not the job's or have no more work; forget those that are gone."""
    for instance_id, instance in sorted(aws.machines.items()):
        # A job that ends needs no successor any more.
        mine = instance_id in (job.machine, None if job.ending else job.successor)
        if instance.state in ("pending", "running") and (not mine or job.outcome):
            return steps.End("not the job's machine" if not mine else "the job ended", instance_id)
        if instance.state == "stopped":
            return steps.End("it was stopped", instance_id)
    machine, successor = (aws.machines.get(i) for i in (job.machine, job.successor))
    if successor and successor.is_gone:
        return Write("the successor is gone", replace(job, successor=""))
    if machine is None:
        return None
    is_done = _is_done_with(job, machine, aws)
    if machine.is_gone or (successor is not None and is_done):
        why = "the machine is gone" if machine.is_gone else "handed over"
        return Write(why, _succeeded(spec, job, aws))
    if not machine.is_running:
        return None
    if job.machine_attempt <= job.errors_until:
        return steps.End("it failed", job.machine)
    if is_done:
        return steps.End("it has left", job.machine)
    waits = not spec.has_volume and job.ending in (None, Outcome.STOPPED)
    waits = waits and job.is_at_work and not limit_of(spec, job)
    if machine.draining_since and machine.drains_at_checkpoint:
        # What stops for good waits for no checkpoint, nor does a machine that commits none.
        if waits and aws.now - machine.draining_since < spec.commits_within:
            return None
        return steps.Drain("to stop without a checkpoint", job.machine)
    if machine.draining_since:
        is_late = aws.now - machine.draining_since >= DRAIN
        return steps.End("it did not leave in time", job.machine) if is_late else None
    returns = machine.market == ON_DEMAND and machine.ends_at is None and spec.spot
    if spec.has_disk:
        # One machine at a time: it leaves, and spot is tried first.
        is_due = aws.now - job.machines[job.machine].at >= RETURN
        returns = returns and spec.return_to_spot and is_due and job.is_at_work
    elif successor is None or successor.attempt not in job.reports:
        returns = False
    elif successor.market == ON_DEMAND:
        # It was launched because the deadline allows no more restart.
        returns = machine.market == SPOT and machine.ends_at is None
    if not (job.ending or returns):
        return None
    why = "to stop at its next checkpoint" if waits else "to stop"
    return steps.Drain(why, job.machine, at_checkpoint=waits)


def _succeeded(spec: JobSpec, job: Job, aws: JobResources) -> Job:
    if spec.keeps_root and not job.is_at_work:
        # It never ran the command: its root is of no use.
        job = replace(job, home="", zone="")
    machine = aws.machines.get(job.machine)
    lost = job.machine in job.warned or (
        machine is not None and machine.market == SPOT and not machine.draining_since
    )
    lost = lost and job.is_at_work and not job.outcome and job.machine_attempt > job.errors_until
    since = job.attempt - KEPT
    gone = {name for name, each in aws.machines.items() if each.is_gone}
    return replace(
        job,
        machine=job.successor,
        successor="",
        interruptions=job.interruptions + lost,
        granted=0,
        opened="",
        machines={
            n: each for n, each in job.machines.items() if each.attempt > since or n not in gone
        },
        reports=dict(sorted(job.reports.items())[-KEPT:]),
    )


def _is_done_with(job: Job, machine: Machine, aws: JobResources) -> bool:
    """Say whether a machine writes no more, by its own report or as its notice has passed."""
    report = job.reports.get(machine.attempt, NOTHING)
    return report.left or (machine.ends_at is not None and aws.now >= machine.ends_at)


def _next_machine(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Launch a machine where one is needed: one launch at a time, the best kind first."""
    machine = aws.machines.get(job.machine)
    if job.ending or job.successor or job.launch:
        return None
    if job.machine and not (machine and _needs_successor(spec, job, machine, aws)):
        return None
    places = [tuple(zone for zone in spec.zones if not _is_refused(job, _volume_in(zone), aws))]
    if spec.has_volume and job.home:
        away = tuple(zone for zone in places[0] if zone != job.zone)
        # Elsewhere the job needs a copy: only a complete seal is one.
        places = [(job.zone,), *([away] if _whole_seals(job, aws) else [])]
    markets = [SPOT] if spec.spot else []
    wait, short = spec.on_demand_after, job.short_since
    returning = machine is not None and machine.market == ON_DEMAND and not machine.ends_at
    is_due = wait is not None and (not spec.spot or (short and aws.now - short >= wait))
    if spec.deadline is not None and spec.spot:
        is_due = is_urgent(spec, job, aws.now)
        # Spot is better than nothing, and no better than the spot that it would follow.
        markets = [ON_DEMAND, *([] if job.machine else [SPOT])] if is_due else markets
    elif is_due and not returning:
        markets.append(ON_DEMAND)
    attempt, image = job.attempt + 1, job.image or spec.image
    for market in markets:
        for zones in filter(None, places):
            launch = Launch(attempt=attempt, market=market, zones=zones, image=image)
            if _is_refused(job, _kind(launch), aws):
                continue
            if spec.max_usd is not None and not job.rate:
                why = "no price can be read, and max_usd needs one"
                return Write(why, _back_off(job, _kind(launch), why, aws.now))
            decided = replace(job, launch=launch, attempt=attempt)
            return Write(f"{market} in {', '.join(zones)}", decided)
    return None


def _needs_successor(spec: JobSpec, job: Job, machine: Machine, aws: JobResources) -> bool:
    """Say whether the next machine is launched while this one is still there: in S3 it may wait."""
    if spec.has_disk:
        return False
    report = job.reports.get(machine.attempt, NOTHING)
    if machine.state == "leaving" or machine.ends_at or report.left:
        return True
    if not spec.spot or job.granted != machine.attempt:
        return False
    if machine.market == SPOT:
        return is_urgent(spec, job, aws.now)
    # Each change of the machine costs minutes.
    rested = spec.deadline is None or aws.now - job.machines[job.machine].at >= RETURN
    may_wait = rested and not is_urgent(spec, job, aws.now, TO_RETURN)
    return bool(spec.return_to_spot and report.step and may_wait)


# --- state


def _go_on(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    if spec.has_volume and not job.home:
        return _first_volume(spec, job, aws)
    if spec.has_volume and job.home not in aws.volumes:
        # Only an operator goes back to an older copy: `spotkeeper job recover`.
        return None
    if spec.keeps_root and job.home and not job.opened:
        return _image_of_root(job, aws)
    if step := _next_machine(spec, job, aws):
        return step
    machine = aws.machines.get(job.machine)
    if machine is None or not machine.is_running or _is_done_with(job, machine, aws):
        return None
    if spec.has_volume:
        return _with_volume(job, machine, aws, spec)
    if spec.keeps_root and not (machine.keeps_root and job.opened == job.machine):
        return _keep_root(job, machine, aws) if machine.root else None
    # The bucket's conditional writes fence the machine before.
    if job.granted != machine.attempt:
        generation = job.generation + 1
        granted = replace(job, generation=generation, granted=machine.attempt, short_since=None)
        return Write(f"generation {generation}", granted)
    grant = str(job.generation)
    if machine.grant == grant:
        return None
    return steps.Grant(f"generation {grant}", job.machine, grant)


def _keep_root(job: Job, machine: Machine, aws: JobResources) -> Step:
    """Remember the root of a machine, and have it stay, before anything of use is written to it."""
    if job.opened == job.machine:
        return steps.KeepRoot("it stays after the machine", job.machine, machine.root_device)
    own = OwnVolume(generation=job.generation, move=job.moves, at=aws.now)
    opened = replace(
        job,
        home=machine.root,
        zone=machine.zone,
        opened=job.machine,
        epoch=job.epoch + 1,
        base=machine.image,
        volumes={**job.volumes, machine.root: own},
    )
    return Write(f"the home is its root {machine.root}", opened)


def _image_of_root(job: Job, aws: JobResources) -> Step | None:
    """Make an image of the seal of a root that its machine has left."""
    seals = _whole_seals(job, aws)
    if not seals or job.making:
        return None
    name = next((name for name, own in job.images.items() if own.snapshot == seals[0]), "")
    if not name and not _is_refused(job, _volume_in(""), aws):
        return _make(job, "an image of the root", "", seals[0], job.generation, job.base)
    if aws.images.get(name) != "available":
        return None
    ready = replace(job, image=name, seal=seals[0], home="", zone="")
    return Write(f"machines start from {name}", ready)


def _make(job: Job, why: str, zone: str, snapshot: str, generation: int, base: str = "") -> Step:
    """Decide on a volume or an image."""
    move = job.moves + 1
    making = Making(
        zone=zone,
        snapshot=snapshot,
        generation=generation,
        move=move,
        token=f"{job.name}-{int(job.created_at.timestamp())}-{generation}-{move}",
        base=base,
    )
    return Write(why, replace(job, making=making, moves=move))


def _first_volume(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Make the first volume in the zone of the first machine that AWS launches.

    It is empty, or made from the snapshot that an operator goes back to.
    """
    name = _newest_volume(job)
    machine = aws.machines.get(job.machine)
    if name and name in aws.volumes and aws.volumes[name].is_free:
        first = replace(job, home=name, zone=aws.volumes[name].zone, generation=job.generation + 1)
        return Write(f"the home is {name}", first)
    if machine is None or machine.is_gone:
        return _next_machine(spec, job, aws)
    return _volume_for(job, machine, aws) if machine.is_running and not name else None


def _newest_volume(job: Job) -> str:
    """Return the volume that is made for the next generation; empty if none is."""
    wanted = (job.generation + 1, job.moves)
    return next((n for n, own in job.volumes.items() if (own.generation, own.move) == wanted), "")


def _volume_for(job: Job, machine: Machine, aws: JobResources) -> Step:
    """Decide on a volume of the job's seal, or an empty one, where a machine runs."""
    if job.making or _is_refused(job, _volume_in(machine.zone), aws):
        # Without a volume a machine only costs money.
        return steps.End("AWS refuses its volume", job.machine)
    why = f"a volume in {machine.zone}"
    return _make(job, why, machine.zone, job.seal, job.generation + 1)


def _with_volume(job: Job, machine: Machine, aws: JobResources, spec: JobSpec) -> Step | None:
    home = aws.volumes[job.home]
    report = job.reports.get(machine.attempt, NOTHING)
    if machine.zone != job.zone:
        return _move(job, machine, report, aws)
    if job.move:
        # A candidate is given up before the home is opened.
        return Write("home again", replace(job, move=""))
    if home.is_free and not report.left:
        if job.opened != job.machine:
            opened = replace(job, opened=job.machine, epoch=job.epoch + 1)
            return Write(f"epoch {opened.epoch}: older seals are void", opened)
        return _attach("home", job, machine, job.home)
    if not home.is_attached_to(job.machine) or job.home not in report.proved:
        return None
    if job.granted != machine.attempt:
        return Write("proved", replace(job, granted=machine.attempt, short_since=None))
    grant = f"{job.generation} {job.home}"
    if machine.grant != grant:
        return steps.Grant(f"generation {job.generation}", job.machine, grant)
    # Take a snapshot of a volume in use, against the loss of the volume itself.
    taken = [each for each in aws.snapshots.values() if each.volume == job.home and each.at]
    newest = max((each.at for each in taken if each.at), default=None)
    is_due = newest is None or aws.now - newest >= spec.snapshot_every
    if not is_due or any(each.state == "pending" for each in taken):
        return None
    backup = TakeSnapshot("a regular backup", job.home, job.generation, job.epoch, False)
    return _unless_requested(job, backup, aws)


def _attach(what: str, job: Job, machine: Machine, volume: str) -> Step:
    """Attach a volume to the job's machine, which knows of it before."""
    if machine.volume != volume:
        return steps.Point(what, job.machine, volume)
    return steps.Attach(what, volume, job.machine)


def _move(job: Job, machine: Machine, report: AttemptReport, aws: JobResources) -> Step | None:
    """Fence the home, make a candidate of its seal, have it proved, and commit by one write."""
    if job.move != machine.zone:
        seals = _whole_seals(job, aws)
        if not seals:
            return steps.End("away from home, and there is no complete seal", job.machine)
        moved = replace(job, move=machine.zone, seal=seals[0], moves=job.moves + 1)
        return Write(f"move to {machine.zone}", moved)
    name = _newest_volume(job)
    if not name:
        return _volume_for(job, machine, aws)
    candidate = aws.volumes.get(name)
    if candidate is None:
        return None
    if candidate.is_free:
        return None if report.left else _attach("candidate", job, machine, name)
    if not candidate.is_attached_to(job.machine) or name not in report.proved:
        return None
    committed = replace(
        job,
        generation=job.generation + 1,
        home=name,
        zone=job.move,
        epoch=job.epoch + 1,
        opened=job.machine,
        move="",
    )
    return Write(f"commit: the home is {name}", committed)


def _whole_seals(job: Job, aws: JobResources) -> list[str]:
    """List the complete copies of the home as it is now; none while it may be written."""
    seals = [] if job.opened else _seals(job, aws)
    return [name for name in seals if aws.snapshots[name].state == "completed"]


def _seals(job: Job, aws: JobResources) -> list[str]:
    mine = (job.home, job.generation, job.epoch)
    key = TakeSnapshot("", *mine, seal=True).key
    if job.requested != key or job.requested_at is None:
        return []
    # The tags of an older snapshot may have been changed: its time cannot be.
    since = job.requested_at - SKEW
    return sorted(
        name
        for name, each in aws.snapshots.items()
        if (each.volume, each.generation, each.epoch) == mine and each.seal
        if each.state != "error" and each.at and each.at > since
    )


def _unless_requested(job: Job, step: TakeSnapshot, aws: JobResources) -> Step | None:
    is_requested = (
        job.requested == step.key and job.requested_at and aws.now - job.requested_at < LISTED
    )
    return None if is_requested else step


# --- tidying


def _tidy(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Delete paid resources that have no more use, and seal a home that no machine has attached."""
    machine = aws.machines.get(job.machine)
    kept = {each.volume for each in aws.snapshots.values()} | {job.home, *aws.volumes}
    for name, own in sorted(job.volumes.items()):
        if name not in kept and aws.now - own.at >= YOUNG:
            others = {other: each for other, each in job.volumes.items() if other != name}
            return Write(f"{name} is gone", replace(job, volumes=others))
    for name, volume in sorted(aws.volumes.items()):
        is_newest = job.volumes[name].move == job.moves
        is_candidate = bool(job.move) and is_newest
        is_first = spec.has_volume and not job.home and not job.outcome
        if volume.state == "error" and is_newest and (is_candidate or is_first):
            kind, why = _volume_in(volume.zone), f"{name} has the state error"
            failed = _back_off(job, kind, why, aws.now)
            return Write(why, replace(failed, moves=job.moves + 1))
        if name == job.home or is_candidate or is_first:
            continue
        if volume.is_free or volume.state == "error":
            return steps.DeleteVolume("neither home nor candidate", name)
        is_used = machine and machine.grant.endswith(f" {name}")
        if spec.has_volume and volume.attachment == "attached" and not is_used:
            return steps.Detach("neither home nor candidate", name)
    if step := _spare_image(spec, job, aws) or _spare_snapshot(job, aws):
        return step
    home = aws.volumes.get(job.home)
    if home is None or not home.is_free or job.move or _seals(job, aws):
        return None
    if job.machine or (job.outcome and spec.on_done in (OnDone.KEEP, OnDone.DELETE)):
        return None
    if sum(each.state == "pending" for each in aws.snapshots.values()) >= MOST_PENDING:
        return None
    seal = TakeSnapshot("the seal", job.home, job.generation, job.epoch, True)
    return _unless_requested(job, seal, aws)


def _spare_image(spec: JobSpec, job: Job, aws: JobResources) -> Step | None:
    """Deregister an image from which no machine will start."""
    seals = _whole_seals(job, aws)
    for name, own in sorted(job.images.items()):
        state = aws.images.get(name)
        if state is None:
            # While the job runs, the image that it needs is remembered: a launch names it.
            if (name != job.image or job.outcome) and aws.now - own.at >= YOUNG:
                return Write(f"{name} is gone", without_image(job, name))
            continue
        is_wanted = name == job.image or own.snapshot in seals
        if job.outcome:
            # At the end the image is that of the last root.
            last = name == job.base or own.snapshot in seals if job.home else name == job.image
            is_wanted = last and spec.on_done is OnDone.IMAGE
        if not is_wanted or state in ("failed", "error", "invalid"):
            return steps.DeregisterImage("no machine starts from it", name)
    return None


def _spare_snapshot(job: Job, aws: JobResources) -> Step | None:
    """Delete a copy that a newer one replaces: only once a seal, or a newer backup, is complete."""
    for name, each in sorted(aws.snapshots.items()):
        if each.state == "error":
            return steps.DeleteSnapshot("it failed", name)
    whole = _whole_seals(job, aws)
    done = {name: each for name, each in sorted(aws.snapshots.items()) if each.state == "completed"}
    keep = {own.snapshot for own in job.images.values()} | ({job.seal} if job.move else set())
    if whole:
        keep.add(whole[0])
    else:
        # The newest of each kind: a seal is clean, and a backup may be newer.
        for is_seal in (True, False):
            made = sorted(
                (each.at, n) for n, each in done.items() if each.seal is is_seal and each.at
            )
            keep |= {made[-1][1]} if made else set()
    spare = next((name for name in done if name not in keep), None)
    return steps.DeleteSnapshot("a newer copy is complete", spare) if spare else None
