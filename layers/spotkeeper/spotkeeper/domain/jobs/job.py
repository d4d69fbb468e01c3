"""A job: what its document asks for, what is remembered of it, and what is seen of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

SPOT, ON_DEMAND = "spot", "on-demand"


class OnDone(StrEnum):
    """What becomes of a job's volume, or of its kept root, at its end; an image is of a root."""

    KEEP = "keep"
    SNAPSHOT = "snapshot"
    IMAGE = "image"
    DELETE = "delete"


class Outcome(StrEnum):
    """Why a job ended."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    HOURS = "max_hours"
    USD = "max_usd"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The part of a job document that its steps depend on.

    `size_gib` is None where the state is a checkpoint folder kept in S3. `on_demand_after` is None
    where the job never runs on demand; zero together with `spot` False where it always does.
    `zones` are those of the stack's subnets. With `keeps_root` each machine starts from an image of
    the root that the machine before it left; the first starts from `image`, or the template's.
    A `deadline` is an instant, or a time after the start; `work` is how long one machine takes for
    all, as its user expects, and `steps` the number of the last checkpoint.
    """

    name: str
    zones: tuple[str, ...]
    types: tuple[str, ...] = ()
    size_gib: int | None = None
    initialization_rate: int = 0
    spot: bool = True
    on_demand_after: timedelta | None = timedelta(minutes=10)
    return_to_spot: bool = True
    snapshot_every: timedelta = timedelta(minutes=15)
    commits_within: timedelta = timedelta(hours=1)
    max_restarts: int = 3
    max_hours: float = 48.0
    max_usd: float | None = None
    on_done: OnDone = OnDone.SNAPSHOT
    keeps_root: bool = False
    image: str = ""
    deadline: datetime | timedelta | None = None
    work: timedelta = timedelta(0)
    steps: int | None = None

    @property
    def has_volume(self) -> bool:
        """Say whether the state is a volume."""
        return self.size_gib is not None

    @property
    def has_disk(self) -> bool:
        """Say whether a disk outlives each machine: then one machine runs at a time."""
        return self.has_volume or self.keeps_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A decided launch. Its attempt is its client token: AWS makes one machine of it at most."""

    attempt: int
    market: str
    zones: tuple[str, ...]
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A decided volume, with its client token: AWS makes one volume of it at most.

    With `base` it is an image like that one. The token is its name, which AWS takes once.
    """

    zone: str
    snapshot: str
    generation: int
    move: int
    token: str
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """A machine that AWS answered to one of the job's launches, and when.

    It is paid for until `paid_until`, and to its end where `is_paid`; `rate` is its USD an hour, as
    last known.
    """

    attempt: int
    at: datetime
    paid_until: datetime | None = None
    is_paid: bool = False
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVolume:
    """A volume that AWS answered to one of the job's requests, and when."""

    generation: int
    move: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image that AWS answered to one of the job's requests, its snapshot, and when."""

    snapshot: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that AWS refused: how often in a row, and until when it is not repeated."""

    until: datetime
    times: int
    message: str


# What a shell, or the kernel, means by an exit code.
_CODES = {
    126: "the program may not be executed",
    127: "the program was not found",
    130: "interrupted by SIGINT",
    134: "aborted by SIGABRT",
    137: "killed by SIGKILL: mostly, memory ran out",
    139: "a segmentation fault, SIGSEGV",
    143: "ended by SIGTERM",
}


def explained(code: int) -> str:
    """Return an exit code with its meaning; above 128 it is a signal's (POSIX shell, 2.8.2)."""
    return f"exit code {code}" + (f" ({_CODES[code]})" if code in _CODES else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """What the machine of an attempt has reported; reports arrive repeatedly and in any order.

    `ignored` names entries of its checkpoint folder that are not committed, and `uncommitted_s` is
    how long ago the last commit, or the begin of the command, was. The command ran for `ran_s`
    before it failed. A `final` failure is no matter of the machine: no other one will do better.
    Since `worked_since` it works on what is not committed yet.
    """

    seq: int = -1
    at: datetime | None = None
    generation: int = 0
    step: str | None = None
    proved: tuple[str, ...] = ()
    left: bool = False
    exit_code: int | None = None
    idle: bool = False
    failed: str = ""
    ignored: str = ""
    uncommitted_s: float | None = None
    ran_s: float | None = None
    final: bool = False
    doing: str = ""
    worked_since: datetime | None = None

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""
        return self.failed or (explained(self.exit_code) if self.exit_code else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is remembered of a job: one item of the table, written by conditional writes alone.

    Only the machines and volumes that this item remembers are ever ended or deleted. Tags prove
    nothing: others may write them. So each request is written down before it is made (`launch`,
    `making`), and repeated with its token until AWS has answered with an id, or has refused it.

    generation  of the state; raised for each machine (checkpoints) or each move (volume)
    home, zone  the one volume that may be written, and its zone
    epoch       raised before each attachment of the home: seals of an older epoch are void
    attempt     the last launch; a client token is never used again for another machine
    machines    the instances that were launched; old ones are dropped once they are gone
    machine     the one instance that may be granted; `successor` follows it (checkpoints only)
    volumes     the volumes that were created; dropped once they are gone
    granted     the attempt that `generation` is granted to
    opened      the machine for which the epoch was raised
    move, moves the zone that a candidate is made for, and the number of the newest volume
    seal        the snapshot from which the candidate is made, or the home was made
    image       what machines start from, where the root is kept: then the home is the root of the
                machine, or of the last one until there is an image of it
    images      the images that were registered; dropped once they are gone
    base        the image from which the home's machine started
    warned      the machines that AWS takes back, and when
    failed_soon the error with which the last machine failed soon after its command began
    reminded    the last attempt of which a mail reported that it commits nothing
    worked_h    for how long machines had worked at the last commit: what was lost is left out
    commit_h    the longest time from one commit to the next; at first, what is assumed
    paced       how many steps were committed in how many hours, where both ends are known
    rate        the highest USD an hour that was read for it; unpriced_h waits for the first
    kept        whether a checkpoint was committed, at its end; None for a volume, and if not known
    stuck       why it cannot go on, at the last look; empty if it can
    requested   the last snapshot that was requested, and when: CreateSnapshot takes no token, and
                one whose answer was lost may be listed late
    """

    name: str
    created_at: datetime
    generation: int = 0
    home: str = ""
    zone: str = ""
    epoch: int = 0
    attempt: int = 0
    launch: Launch | None = None
    making: Making | None = None
    machines: Mapping[str, OwnMachine] = field(default_factory=dict)
    volumes: Mapping[str, OwnVolume] = field(default_factory=dict)
    machine: str = ""
    successor: str = ""
    granted: int = 0
    opened: str = ""
    move: str = ""
    moves: int = 0
    seal: str = ""
    image: str = ""
    images: Mapping[str, OwnImage] = field(default_factory=dict)
    base: str = ""
    requested: str = ""
    requested_at: datetime | None = None
    reports: Mapping[int, AttemptReport] = field(default_factory=dict)
    warned: Mapping[str, datetime] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    short_since: datetime | None = None
    errors_until: int = 0
    restarts: int = 0
    failed_soon: str = ""
    interruptions: int = 0
    ending: Outcome | None = None
    stop_now: bool = False
    outcome: Outcome | None = None
    exit_code: int | None = None
    ended_at: datetime | None = None
    mailed: bool = False
    reminded: int = 0
    kept: bool | None = None
    stuck: str = ""
    hours: float = 0.0
    on_demand_hours: float = 0.0
    worked_h: float = 0.0
    commit_h: float = 0.25
    paced: tuple[int, float] = (0, 0.0)
    usd: float = 0.0
    rate: float = 0.0
    unpriced_h: float = 0.0
    looked_at: datetime | None = None

    @property
    def machine_attempt(self) -> int:
        """Return the attempt of its machine; 0 if it has none."""
        return self.machines[self.machine].attempt if self.machine else 0

    @property
    def failure(self) -> str:
        """Return why its last machine that failed did: what it reported, or its exit code."""
        for _, report in sorted(self.reports.items(), reverse=True):
            if report.error:
                return report.error
        return ""

    @property
    def step(self) -> str | None:
        """Return the newest step that any of its machines reported."""
        newest_first = sorted(self.reports.items(), reverse=True)
        return next((report.step for _, report in newest_first if report.step), None)

    @property
    def story(self) -> str:
        """What its machines were: hours by market, money, interruptions and restarts."""
        spot = self.hours - self.on_demand_hours
        return (
            f"{spot:.1f} h on spot, {self.on_demand_hours:.1f} h on demand, {self.usd:.2f} USD;"
            f" interruptions: {self.interruptions}; restarts after errors: {self.restarts}"
        )

    @property
    def advice(self) -> str:
        """Return what a person can do once it has ended: commands to type, or nothing."""
        if self.outcome is Outcome.FAILED and self.failure:
            again = f"spotkeeper job recover {self.name} --from {self.step}"
            mended = again if self.step else "start it again"
            return f"spotkeeper job logs {self.name}; when it is mended, {mended}"
        return "" if self.kept is False else f"spotkeeper job fetch {self.name} DIRECTORY"

    @property
    def is_at_work(self) -> bool:
        """Say whether its machine may write."""
        return bool(self.machine) and self.granted == self.machine_attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An instance of the job; only `gone` (EC2's `terminated`) proves that it writes no more.

    If it `drains_at_checkpoint`, its agent lets the command run until its next commit. It leaves
    `until` then by itself, where nobody drains it before.
    Its `root` volume stays after its end if it `keeps_root`.
    """

    attempt: int
    zone: str
    market: str
    state: str
    instance_type: str = ""
    launched_at: datetime | None = None
    grant: str = ""
    volume: str = ""
    draining_since: datetime | None = None
    drains_at_checkpoint: bool = False
    until: datetime | None = None
    ends_at: datetime | None = None
    image: str = ""
    root: str = ""
    root_device: str = ""
    keeps_root: bool = False

    @property
    def is_gone(self) -> bool:
        """Say whether EC2 has terminated it."""
        return self.state == "gone"

    @property
    def is_running(self) -> bool:
        """Say whether it runs, and AWS has not announced its end."""
        return self.state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """An EBS volume of the job; `attached_to` is empty and `attachment` too where it is free."""

    zone: str
    state: str
    attached_to: str = ""
    attachment: str = ""

    @property
    def is_free(self) -> bool:
        """Say whether it can be attached, sealed or deleted."""
        return self.state == "available"

    def is_attached_to(self, machine: str) -> bool:
        """Say whether a machine has it, for certain."""
        return (self.attached_to, self.attachment) == (machine, "attached")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshot:
    """A snapshot of a volume of the job, as it was tagged in the call that made it."""

    volume: str
    state: str
    generation: int
    epoch: int
    seal: bool = True
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the job's `head.json` in S3 says."""

    generation: int
    step: str | None
    done: bool
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResources:
    """The resources of the job that exist in AWS; `images` with their states.

    Only the machines are always read; `unread` says what else could not be, and why.
    """

    now: datetime
    machines: Mapping[str, Machine] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    snapshots: Mapping[str, VolumeSnapshot] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    head: Head | None = None
    unread: str = ""
    limit_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a machine's agent: they arrive at least once each, and in any order."""

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
    ignored: str = ""
    uncommitted_s: float | None = None
    ran_s: float | None = None
    final: bool = False
    doing: str = ""


# As the agent reads a name: `.weights.h5` at its end has no number, and 0.23 is a loss.
_ENDING = re.compile(r"(?<=.)(\.[A-Za-z][A-Za-z0-9_]*)+$")
_NUMBER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+")


def step_number(step: str | None) -> int:
    """Return the last whole number in a checkpoint's name; 0 if it has none."""
    numbers = [each for each in _NUMBER.findall(_ENDING.sub("", step or "")) if "." not in each]
    return int(numbers[-1]) if numbers else 0


def _committed(job: Job, steps: int, since_commit_h: float) -> Job:
    """Add the work of one machine up to a commit."""
    longest_h = max(job.commit_h, since_commit_h)
    paced_steps, paced_h = job.paced
    return replace(
        job,
        worked_h=job.worked_h + since_commit_h,
        commit_h=longest_h,
        paced=(paced_steps + steps, paced_h + since_commit_h) if steps > 0 else job.paced,
    )


def merged(job: Job, report: Report) -> Job:
    """Add a report to the job's memory; an older one adds events, but no time and no step."""
    machine = job.machines.get(report.instance_id)
    if machine is None or machine.attempt != report.attempt:
        # This item did not launch the machine: another or a lost item did.
        return job
    before = job.reports.get(report.attempt, AttemptReport())
    after = replace(
        before,
        generation=max(before.generation, report.generation),
        left=before.left or report.event == "left",
        idle=before.idle or report.event == "idle",
        final=before.final or report.final,
    )
    if report.event == "proved" and report.volume and report.volume not in before.proved:
        after = replace(after, proved=(*before.proved, report.volume))
    if report.event == "exited" and before.exit_code is None:
        after = replace(after, exit_code=report.exit_code, ran_s=report.ran_s)
    if report.event == "failed":
        why = report.reason or "the machine reported a failure"
        after = replace(after, failed=why, ran_s=report.ran_s)
    if report.seq > before.seq:
        after = replace(
            after,
            seq=report.seq,
            at=report.at,
            step=report.step or before.step,
            ignored=report.ignored,
            doing=report.doing,
            uncommitted_s=report.uncommitted_s,
        )
        if report.uncommitted_s is not None:
            since = before.worked_since or report.at - timedelta(seconds=report.uncommitted_s)
            if report.event == "committed":
                hours = max(timedelta(0), report.at - since) / timedelta(hours=1)
                known = step_number(report.step) - step_number(before.step)
                steps = known if before.worked_since else 0
                job, since = _committed(job, steps, hours), report.at
            after = replace(after, worked_since=since)
    return replace(job, reports={**job.reports, report.attempt: after}) if after != before else job
