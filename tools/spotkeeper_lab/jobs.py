"""A strict EC2, EBS and bucket of one job, in ticks of a minute.

States take time, volumes have zones and one attachment, detachments stick, listings lag, client
tokens answer for ever, and every call is refused as EC2 refuses it. Machines run an agent as the
real one does. The world notes each promise that is broken.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, median
from typing import Any

from spotkeeper.adapters.dynamodb.leases import LEASE_LIFETIME
from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.jobs import steps
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    Head,
    Job,
    JobResources,
    JobSpec,
    Machine,
    OnDone,
    Report,
    Volume,
    VolumeSnapshot,
)
from spotkeeper.domain.money.prices import PriceBook
from spotkeeper.job_ports import Denied, Kept, NotMade, Overtaken
from spotkeeper.ports import FleetError, TimedOut, Unavailable
from spotkeeper.turns.keep_jobs import JobPorts, keep_jobs
from spotkeeper_lab.traces.market import Market

BEGAN = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NAME = "resnet"
# Late effects of calls happen within these minutes after the end.
QUIET = 15
# An agent without a grant ends its machine after these minutes.
UNGRANTED = 15
# The share of calls without an answer that have their effect.
HAS_EFFECT = 0.7
# EBS makes this many snapshots of a volume at once.
MOST_PENDING = 5
# What the launch template names.
BASE_IMAGE = "ami-base"

# The promises of docs/jobs.md, and what breaks them.
NO_COPY, LOST = "no complete copy", "work lost: written again from an older copy"
UNFIT = "a volume of a snapshot that is not complete"
WRITERS = "two writers"
TOO_MANY, LEFT = "more exists than is allowed", "something is left at the end"
NEVER, NOT_DONE = "never ended", "ended as done and is not"
BACK, AGAIN = "work went back", "work is repeated"
PROMISES = {
    "there is always one complete copy of what was written": {NO_COPY, LOST, UNFIT},
    "there is one writer": {WRITERS},
    "no more exists than is allowed, and at the end only what on_done says": {TOO_MANY, LEFT},
    "the job ends once there is capacity": {NEVER, NOT_DONE},
    "no work is repeated, or with checkpoints less than an interval": {BACK, AGAIN},
}


class Killed(BaseException):
    """The function was killed."""


@dataclass(frozen=True)
class ADollar:
    """A price list on which each type costs a dollar an hour; a share of reads fails."""

    fails: Callable[[], bool]

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        if self.fails():
            raise Unavailable("pricing:GetProducts")
        return PriceBook(on_demand={pool.partition("/")[2]: 1.0 for pool in pools})


@dataclass
class Agent:
    """The state of a machine's agent, and the minute in which the machine `dies`."""

    useless: bool
    dies: int | None = None
    mounted: str = ""
    stopped: bool = False
    claimed: bool = False
    step: int = 0
    seq: int = 0


@dataclass
class JobWorld:
    """The job's world; `work` is in minutes. A `market` without capacity refuses launches.

    `failing` is the share of images that fail, and `unread` that of reads that do: of machines, of
    all but machines, and of prices. In minutes of `blind` each read does, and in those of `away`
    the table is away.
    """

    spec: JobSpec
    seed: int = 0
    work: int = 30
    interval: int = 4
    lag: int = 0
    notice: float = 0.5
    stuck: float = 0.0
    useless: float = 0.0
    lost_answers: float = 0.0
    refusals: float = 0.0
    forged: float = 0.0
    failing: float = 0.0
    unread: float = 0.0
    blind: range = range(0)
    away: range = range(0)
    snapshot: tuple[int, int] = (1, 5)
    late: int = 0
    kill_share: float = 0.0
    t: int = 0
    work_done: int = 0
    paid: int = 0
    paid_on_demand: int = 0
    top: int = 0
    top_root: int = 0
    most: Counter[str] = field(default_factory=Counter)
    broken: set[str] = field(default_factory=set)
    mails: list[Job] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.spec = replace(self.spec, types=self.spec.types or ("g5.xlarge",))
        # What exists, by its id, as a listing shows it.
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, Volume] = {}
        self.copies: dict[str, VolumeSnapshot] = {}
        self.images: dict[str, str] = {}
        # What it does not show: agents, the minute in which something is made or ready, the work
        # on a disk or copy, and of which copy an image is.
        self.agents: dict[str, Agent] = {}
        self.born: dict[str, int] = {}
        self.ready: dict[str, int] = {}
        self.data: dict[str, int] = {}
        self.copy_of: dict[str, str] = {}
        self.tokens: dict[object, str] = {}
        self.capacity = {(zone, SPOT): True for zone in self.spec.zones}
        self.capacity |= {(zone, ON_DEMAND): False for zone in self.spec.zones}
        self.head: tuple[str, Head] | None = None
        self.queue: list[tuple[int, Report]] = []
        self.pending: list[tuple[int, steps.Step]] = []
        self.item = Kept(spec=self.spec, job=Job(name=NAME, created_at=BEGAN), version=0)
        self.leased_until = BEGAN
        self.is_closed = False
        self.mailed_at = 0
        self.numbers = Counter[str]()

    # --- the ports

    @property
    def now(self) -> datetime:
        return BEGAN + self.t * MINUTE

    def names(self) -> Sequence[str]:
        if self.t in self.away:
            raise Unavailable("dynamodb:Query")
        return [] if self.is_closed else [NAME]

    def naming(self, ids: Set[str], now: datetime) -> Sequence[str]:
        return self.names() if ids & {*self.item.job.machines, *self.item.job.volumes} else []

    def change(self, name: str, change: Callable[[Job], Job]) -> Job | None:
        with self._call():
            changed = change(self.item.job)
            self.item = replace(self.item, job=changed, version=self.item.version + 1)
        return changed

    def acquire(self, name: str, now: datetime) -> Kept | None:
        if now < self.leased_until:
            return None
        self.leased_until = now + LEASE_LIFETIME
        return self.item

    def save(self, kept: Kept, job: Job) -> Kept:
        with self._call():
            if kept.version != self.item.version:
                raise Overtaken
            self.item = replace(kept, job=job, version=kept.version + 1)
        return self.item

    def record(self, record: DecisionRecord) -> None:
        self.story += [f"{self.t}: {outcome.text}" for outcome in record.outcomes]

    def release(self, kept: Kept) -> None:
        self.leased_until = self.now

    def close(self, kept: Kept) -> None:
        self.is_closed = True

    def look(self, spec: JobSpec, job: Job, now: datetime) -> JobResources:
        def listed[T](all_: dict[str, T], mine: Container[str]) -> dict[str, T]:
            old = self.t - self.lag
            return {
                name: each for name, each in all_.items() if name in mine and self.born[name] <= old
            }

        if self.is_unread():
            raise Unavailable("ec2:DescribeInstances")
        if self.is_unread():
            machines = listed(self.machines, job.machines)
            return JobResources(now=now, machines=machines, unread="ec2:DescribeVolumes")
        return JobResources(
            now=now,
            machines=listed(self.machines, job.machines),
            volumes=listed(self.disks, job.volumes),
            snapshots=listed(
                {name: each for name, each in self.copies.items() if each.volume in job.volumes},
                self.copies,
            ),
            images=listed(self.images, job.images),
            head=self.head[1] if self.head else None,
        )

    def is_unread(self) -> bool:
        """Whether this read fails."""
        is_unread = self.unread > 0 and self.random.random() < self.unread
        return is_unread or self.t in self.blind

    def do(self, spec: JobSpec, job: Job, step: steps.Step) -> str:
        with self._call(step):
            return self._do(step)

    @contextmanager
    def _call(self, step: steps.Step | None = None) -> Iterator[None]:
        """Make a call: the function may be killed before and after it, its answer lost."""
        if self._dies():
            raise Killed
        may_be_refused = isinstance(step, (steps.Start, steps.CreateVolume))
        if may_be_refused and self.random.random() < self.refusals:
            raise Denied("UnauthorizedOperation")
        if step and self.random.random() < self.lost_answers:
            # No answer: the call has its effect some ticks later, or never.
            if self.random.random() < HAS_EFFECT:
                self.pending.append((self.t + self.random.randint(0, self.late), step))
            raise TimedOut(type(step).__name__)
        yield
        if self._dies():
            raise Killed

    def _dies(self) -> bool:
        return self.random.random() < self.kill_share / 2

    # --- the calls, each refused as EC2 refuses it

    def _do(self, step: steps.Step) -> str:
        made = ""
        match step:
            case steps.Start():
                made = self._launch(step)
            case steps.CreateVolume():
                made = self._create(step)
            case steps.End():
                self._known(self.machines, step.instance_id)
                self._end(step.instance_id)
            case steps.Drain():
                self._change(
                    self.machines,
                    step.instance_id,
                    draining_since=self.now,
                    drains_at_checkpoint=step.at_checkpoint,
                )
            case steps.Limit():
                self._change(self.machines, step.instance_id, until=step.until)
            case steps.Point():
                self._change(self.machines, step.instance_id, volume=step.volume)
            case steps.Grant():
                self._change(self.machines, step.instance_id, grant=step.grant)
            case steps.Attach():
                disk = self._known(self.disks, step.volume)
                machine = self._known(self.machines, step.instance_id)
                self._need(machine.is_running, "IncorrectState: instance is not running")
                self._need(disk.is_free, "VolumeInUse")
                self._need(disk.zone == machine.zone, "InvalidVolume.ZoneMismatch")
                self._attach(step.volume, step.instance_id, "attaching")
            case steps.Detach():
                disk = self._known(self.disks, step.volume)
                self._need(disk.state == "in-use", "IncorrectState")
                is_busy = self.agents[disk.attached_to].mounted == step.volume
                self._attach(step.volume, disk.attached_to, "busy" if is_busy else "detaching")
            case steps.DeleteVolume():
                self._need(self._known(self.disks, step.volume).is_free, "VolumeInUse")
                del self.disks[step.volume]
            case steps.TakeSnapshot():
                disk = self._known(self.disks, step.volume)
                self._need(disk.state in ("available", "in-use"), "IncorrectState")
                pending = sum(copy.state == "pending" for copy in self.copies.values())
                self._need(pending < MOST_PENDING, "ConcurrentSnapshotLimitExceeded")
                name = self._name("snap", self.random.randint(*self.snapshot))
                self.data[name] = self.data[step.volume]
                self.copies[name] = VolumeSnapshot(
                    volume=step.volume,
                    state="pending",
                    generation=step.generation,
                    epoch=step.epoch,
                    seal=step.seal,
                    at=self.now,
                )
            case steps.KeepRoot():
                state = self._known(self.machines, step.instance_id).state
                self._need(state in ("pending", "running"), "IncorrectInstanceState")
                self._change(self.machines, step.instance_id, keeps_root=True)
            case steps.DeregisterImage():
                self._known(self.images, step.image)
                del self.images[step.image]
            case steps.DeleteSnapshot():
                self._known(self.copies, step.snapshot)
                used = {self.copy_of[name] for name in self.images}
                self._need(step.snapshot not in used, "InvalidSnapshot.InUse")
                del self.copies[step.snapshot]
            case steps.Mail():
                self.mails.append(self.item.job)
                self.mailed_at = self.t
            case _:
                raise AssertionError(step)
        self._check()
        return made

    def _launch(self, step: steps.Start) -> str:
        launch = step.launch
        if launch.attempt in self.tokens:
            if not self.tokens[launch.attempt]:
                raise NotMade("InsufficientInstanceCapacity")
            return self.tokens[launch.attempt]
        zones = [zone for zone in launch.zones if self.capacity[zone, launch.market]]
        if not zones or (launch.image and self.images.get(launch.image) != "available"):
            self.tokens[launch.attempt] = ""
            raise NotMade("InsufficientInstanceCapacity" if not zones else "InvalidAMIID.NotFound")
        name = self.tokens[launch.attempt] = self._name("i", 1)
        zone = self.random.choice(zones)
        self.agents[name] = Agent(useless=self.random.random() < self.useless)
        root = self._name("vol", 0) if self.spec.keeps_root else ""
        self.machines[name] = Machine(
            attempt=launch.attempt,
            zone=zone,
            market=launch.market,
            state="pending",
            instance_type=self.spec.types[0],
            launched_at=self.now,
            image=launch.image or BASE_IMAGE,
            root=root,
            root_device="/dev/sda1",
        )
        if root:
            self.data[root] = self.data[self.copy_of[launch.image]] if launch.image else 0
            disk = Volume(zone=zone, state="in-use", attached_to=name, attachment="attached")
            self.disks[root] = disk
        return name

    def _create(self, step: steps.CreateVolume) -> str:
        making = step.making
        if making.token in self.tokens:
            return self.tokens[making.token]
        copy = self.copies.get(making.snapshot)
        if making.snapshot and copy is None:
            raise NotMade("InvalidSnapshot.NotFound")
        if copy and copy.state != "completed":
            self.broken.add(UNFIT)
            raise NotMade("IncorrectState")
        if making.base:
            if making.base not in (BASE_IMAGE, *self.images):
                raise NotMade("InvalidAMIID.NotFound")
            name = self._name("ami", self.random.randint(0, 2))
            self.images[name], self.copy_of[name] = "pending", making.snapshot
        else:
            name = self._name("vol", 1)
            self.data[name] = self.data[making.snapshot] if making.snapshot else 0
            self.disks[name] = Volume(zone=making.zone, state="creating")
        self.tokens[making.token] = name
        return name

    def _need(self, is_so: bool, code: str) -> None:
        if not is_so:
            raise Unavailable(code)

    def _known[T](self, all_: dict[str, T], name: str) -> T:
        self._need(name in all_, f"{name} is not found")
        return all_[name]

    def _change[T: (Machine, Volume, VolumeSnapshot)](
        self, all_: dict[str, T], name: str, **more: Any
    ) -> None:
        all_[name] = replace(self._known(all_, name), **more)

    def _attach(self, volume: str, machine: str, attachment: str, within: int = 1) -> None:
        self._change(self.disks, volume, state="in-use", attached_to=machine, attachment=attachment)
        self.ready[volume] = self.t + within

    def _name(self, kind: str, within: int) -> str:
        """Name what is made now, and ready within this many minutes."""
        self.numbers[kind] += 1
        name = f"{kind}-{self.numbers[kind]}"
        self.born[name], self.ready[name] = self.t, self.t + within
        return name

    def _end(self, name: str) -> None:
        machine = self.machines[name]
        if machine.is_gone:
            return
        self._change(self.machines, name, state="gone")
        self.agents[name].mounted = ""
        if machine.root and not machine.keeps_root:
            del self.disks[machine.root]
        for volume, disk in self.disks.items():
            if disk.attached_to == name and disk.state == "in-use":
                sticks = self.random.random() < self.stuck
                within = self.random.randint(5, 12) if sticks else 1
                self._attach(volume, name, "detaching", within)

    # --- what happens without a call

    def interrupt(self, zone: str) -> None:
        """Take the spot instances of a zone, with or without a notice of two minutes."""
        for name, machine in self.machines.items():
            agent = self.agents[name]
            is_there = machine.zone == zone and not machine.is_gone and agent.dies is None
            if is_there and machine.market == SPOT:
                agent.dies = self.t
                if self.random.random() < self.notice:
                    agent.dies += 2
                    self._change(self.machines, name, ends_at=self.now + 2 * MINUTE)

    def tick(self) -> None:
        """Let a minute pass."""
        self.t += 1
        for name in self.machines:
            dies = self.agents[name].dies
            if dies is not None and self.t >= dies:
                self._end(name)
            if self.machines[name].state == "pending":
                self._change(self.machines, name, state="running")
        ready = {name for name, at in self.ready.items() if self.t >= at}
        for name, disk in self.disks.items():
            if name in ready and disk.state == "creating":
                self._change(self.disks, name, state="available")
            elif name in ready and disk.attachment == "attaching":
                self._change(self.disks, name, attachment="attached")
            elif name in ready and disk.attachment == "detaching":
                self._change(self.disks, name, state="available", attached_to="", attachment="")
        for name, copy in self.copies.items():
            if name in ready and copy.state == "pending":
                self._change(self.copies, name, state="completed")
        for name, state in self.images.items():
            if name in ready and state == "pending":
                failed = self.random.random() < self.failing
                self.images[name] = "failed" if failed else "available"
        for name in self.copies:
            if self.random.random() < self.forged:
                # The tags of a seal are copied.
                job = self.item.job
                tags: Any = {"generation": job.generation, "epoch": job.epoch, "seal": True}
                self._change(self.copies, name, **tags)
        for due, step in [each for each in self.pending if each[0] <= self.t]:
            self.pending.remove((due, step))
            with suppress(FleetError, NotMade):
                self._do(step)
        writers = [name for name in self.machines if self._works(name)]
        if len(writers) > 1 and self.spec.has_disk:
            self.broken.add(WRITERS)
        self.most |= self._exists()
        self._check()

    def _exists(self) -> Counter[str]:
        return Counter(
            volumes=len(self.disks),
            snapshots=len(self.copies),
            images=len(self.images),
            machines=sum(not machine.is_gone for machine in self.machines.values()),
        )

    def _works(self, name: str) -> bool:
        """Let a machine's agent work for a minute; say whether it wrote."""
        machine, agent = self.machines[name], self.agents[name]
        if not machine.is_running:
            return False
        self.paid += 1
        self.paid_on_demand += machine.market == ON_DEMAND
        if agent.useless:
            return False
        is_over = machine.until is not None and self.now >= machine.until
        if is_over or (not machine.grant and self.t - self.born[name] >= UNGRANTED):
            if not agent.stopped:
                self._leave(name)
            self._end(name)
            return False
        if agent.seq == 0:
            self._tell(name, "booted")
        mine = self.head is not None and self.head[0] == name
        self._tell(name, "running", step=self.head[1].step if self.head and mine else None)
        waits = machine.drains_at_checkpoint and agent.claimed
        if machine.ends_at or agent.stopped or (machine.draining_since and not waits):
            if not agent.stopped:
                self._leave(name)
            return False
        return self._on_volume(name) if self.spec.has_volume else self._in_s3(name)

    def _leave(self, name: str) -> None:
        self._commit(name)
        self.agents[name].stopped, self.agents[name].mounted = True, ""
        self._tell(name, "left")

    def _on_volume(self, name: str) -> bool:
        machine, volume = self.machines[name], self.machines[name].volume
        disk = self.disks.get(volume)
        if disk is None or disk.attached_to != name or disk.attachment not in ("attached", "busy"):
            return False
        self._tell(name, "proved", volume=volume)
        if machine.grant.split(" ")[-1] != volume:
            return False
        self.agents[name].mounted = volume
        if self.data[volume] >= self.work:
            self._tell(name, "exited", exit_code=0)
            self._end(name)
            return False
        self.top = self._written(volume, self.top)
        self.work_done += 1
        return True

    def _written(self, volume: str, top: int) -> int:
        """Write a minute's work on a disk that should have all of the work so far."""
        if self.data[volume] < top:
            self.broken.add(LOST)
        self.data[volume] += 1
        return max(top, self.data[volume])

    def _in_s3(self, name: str) -> bool:
        machine, agent = self.machines[name], self.agents[name]
        if not machine.grant:
            return False
        if not agent.claimed:
            generation = int(machine.grant)
            if self.head and self.head[1].generation >= generation:
                self._end(name)
                return False
            step = self.head[1].step if self.head else None
            self.head = (name, Head(generation=generation, step=step, done=False, exit_code=None))
            agent.claimed, agent.step = True, int(step or 0)
            if self.spec.deadline:
                self._tell(name, "running", step=str(agent.step), uncommitted_s=0.0)
        if machine.root:
            self.top_root = self._written(machine.root, self.top_root)
        agent.step += 1
        self.work_done += 1
        if agent.step % self.interval == 0 or agent.step >= self.work:
            self._commit(name)
            if machine.drains_at_checkpoint and agent.step < self.work:
                self._leave(name)
        if agent.step >= self.work and self.machines[name].is_running:
            self._tell(name, "exited", exit_code=0)
            self._end(name)
        return True

    def _commit(self, name: str) -> None:
        step = self.agents[name].step
        if self.spec.has_volume or not self.agents[name].claimed or self.head is None:
            return
        owner, head = self.head
        if owner != name:
            self._end(name)
            return
        if int(head.step or 0) > step:
            self.broken.add(BACK)
        is_done = step >= self.work
        code = 0 if is_done else None
        self.head = (name, replace(head, step=str(step), done=is_done, exit_code=code))
        self.top = max(self.top, step)
        if self.spec.deadline:
            self._tell(name, "committed", step=str(step), uncommitted_s=0.0)

    def _tell(self, name: str, event: str, **more: Any) -> None:
        machine, agent = self.machines[name], self.agents[name]
        report = Report(
            job=NAME,
            attempt=machine.attempt,
            instance_id=name,
            generation=int(machine.grant.split(" ")[0]) if machine.grant else 0,
            seq=agent.seq,
            event=event,
            at=self.now,
            **more,
        )
        agent.seq += 1
        # At least once, in any order, some late.
        for _ in range(self.random.choice((1, 1, 2))):
            self.queue.append((self.t + self.random.choice((0, 0, 0, 1, 3)), report))

    def _check(self) -> None:
        top = self.top if self.spec.has_volume else self.top_root
        if not self.spec.has_disk or not top or self.item.job.outcome:
            return
        whole = {name for name, copy in self.copies.items() if copy.state == "completed"}
        if max((self.data[name] for name in (*self.disks, *whole)), default=0) < top:
            self.broken.add(NO_COPY)

    # --- a life

    def turn(self) -> None:
        """Run the keeper's turn of this minute; it may be killed."""
        reports = [report for due, report in self.queue if due <= self.t]
        prices = ADollar(self.is_unread)
        ports = JobPorts(table=self, cloud=self, prices=prices, clock=lambda: self.now)
        try:
            turn = keep_jobs(reports, {}, ports, self.now)
        except (Killed, FleetError) as error:
            self.story.append(f"{self.t}: killed, or without the table: {error!r}")
            # The messages of an invocation that died are delivered again.
            return
        self.queue = [each for each in self.queue if each[0] > self.t]
        self.story += [f"{self.t}: {error!r}" for error in (*turn.errors, *turn.defects)]

    def follow(self, market: Market, start_s: float, times: int = 3) -> "JobWorld":
        """Live on a recorded market from a moment on; it begins again at its end."""
        ends = round(market.end_s / 60)
        start = round(start_s / 60)
        script = []
        for zone in self.spec.zones:
            self.capacity[zone, SPOT] = market.capacity(zone, start_s) > 0
            self.capacity[zone, ON_DEMAND] = self.spec.on_demand_after is not None
            steps = market.of(zone)
            for round_ in range(times):
                for at_s, capacity in zip(steps.times, steps.capacities, strict=True):
                    minute = round(at_s / 60) + round_ * ends - start
                    script.append((minute, "back" if capacity else "dry", zone))
        return self.live(script, limit=times * ends)

    def live(self, script: Sequence[tuple[int, str, str]] = (), limit: int = 900) -> "JobWorld":
        """Live until the job is closed: `script` has minute, what (dry, back, loss) and zone."""
        until, quiet_at = limit, 0
        due: dict[int, list[tuple[str, str]]] = {}
        for at, what, zone in script:
            due.setdefault(at, []).append((what, zone))
        while self.t < until and not self.is_closed:
            if self.mails:
                job = self.item.job
                quiet_at = self.t if job.launch or job.making else quiet_at or self.mailed_at
                until = min(limit, quiet_at + QUIET)
            for what, zone in due.get(self.t, ()):
                if what in ("dry", "loss"):
                    self.interrupt(zone)
                if what in ("dry", "back"):
                    self.capacity[zone, SPOT] = what == "back"
            self.turn()
            self.tick()
        left = {
            OnDone.SNAPSHOT: {"snapshots": 1},
            OnDone.KEEP: {"volumes": 1},
            OnDone.IMAGE: {"snapshots": 1, "images": 1},
            OnDone.DELETE: {},
        }[self.spec.on_done if self.spec.has_disk else OnDone.DELETE]
        machines = 1 if self.spec.has_disk else 2
        allowed = {"volumes": 3, "snapshots": 5, "images": 2, "machines": machines}
        if not self.mails:
            self.broken.add(NEVER)
        elif self.mails[0].outcome == "done" and self.top < self.work:
            self.broken.add(NOT_DONE)
        if self.mails and self._exists() != Counter(left):
            self.broken.add(LEFT)
        if not self.most <= Counter(allowed):
            self.broken.add(TOO_MANY)
        if self.spec.has_volume and self.work_done > self.work:
            self.broken.add(AGAIN)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A scenario of a job: what goes wrong, and how often or when."""

    about: str
    stuck: float = 0.0
    snapshot: tuple[int, int] = (1, 5)
    script: Sequence[tuple[int, str, str]] = ()

    def live(self) -> JobWorld:
        """Run it in virtual time, with a volume."""
        spec = JobSpec(name=NAME, zones=("a", "b", "c"), size_gib=100, on_demand_after=None)
        world = JobWorld(spec=spec, work=240, stuck=self.stuck, snapshot=self.snapshot)
        return world.live(self.script)


STORIES = {
    "job-stuck-detach": Story(
        about="a job whose volume stays attached for minutes after each loss of its machine",
        stuck=1.0,
        script=[(at, "loss", zone) for at in range(30, 400, 40) for zone in "abc"],
    ),
    "job-slow-snapshot": Story(
        about="a job that must change its zone while a snapshot takes 40 minutes",
        snapshot=(40, 40),
        script=[
            *((at, "dry", zone) for at, zone in ((30, "a"), (30, "b"), (31, "c"), (150, "c"))),
            (35, "back", "b"), (100, "back", "a"), (120, "dry", "b"), (300, "back", "b"),
            (200, "dry", "a"), (300, "back", "a"), (300, "back", "c"),
        ],
    ),
    "job-dry": Story(
        about="a job that finds no spot capacity in any zone for three hours",
        script=[
            *((60, "dry", zone) for zone in "abc"),
            *((240, "back", zone) for zone in "abc"),
        ],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of a way to run a job on a recorded market: hours, and cost over on-demand's.

    `late` is the share that ended after its deadline, where it has one.
    """

    name: str
    median_h: float
    p90_h: float
    cost: float
    broken: set[str]
    late: float = 0.0


# Of state kept so, in these zones (one at a time, or all), on demand after 10 minutes or never.
WAYS: dict[str, tuple[int | None, bool, bool]] = {
    "volume, in its home zone alone": (100, True, False),
    "volume that follows": (100, False, False),
    "checkpoints in S3": (None, False, False),
    "volume that follows, on demand after 10 minutes": (100, False, True),
    "checkpoints in S3, on demand after 10 minutes": (None, False, True),
}


def on_market(
    market: Market, *, starts: int, hours: float, price_ratio: float, deadline_h: float = 0.0
) -> Iterator[Row]:
    """Run a job in each way, from moments spread evenly over a market that begins again at its end.

    The pools are the zones of one region. A job needs one machine, and a snapshot takes 40 minutes.
    With a deadline, its rule is beside spot alone, on-demand alone, and the least that knows the
    market: spot in each minute in which there is some, and no restarts.
    """
    if deadline_h:
        yield from _by_deadline(market, starts, hours, price_ratio, deadline_h)
        return
    for name, (size_gib, alone, on_demand) in WAYS.items():
        lives = [
            _life(market, number / starts, hours, zones=zones, size_gib=size_gib,
                  on_demand_after=timedelta(minutes=10) if on_demand else None)
            for zones in ([(pool,) for pool in market.pools] if alone else [market.pools])
            for number in range(starts)
        ]  # fmt: skip
        yield _row(name, lives, price_ratio)


def _life(market: Market, share: float, hours: float, **spec: Any) -> JobWorld:
    """Run a job from a share of the market on."""
    limits = {"max_hours": 10_000, "max_restarts": 10_000}
    world = JobWorld(
        spec=JobSpec(**{"name": NAME, "zones": market.pools, **limits, **spec}),
        work=round(hours * 60), interval=15, notice=1, snapshot=(40, 40),
    )  # fmt: skip
    return world.follow(market, market.end_s * share)


def _row(name: str, lives: Sequence[JobWorld], ratio: float, deadline_h: float = 0.0) -> Row:
    took = sorted(life.mailed_at / 60 for life in lives)
    cost = [
        (life.paid_on_demand + (life.paid - life.paid_on_demand) * ratio) / life.work
        for life in lives
    ]
    return Row(
        name=name,
        median_h=median(took),
        p90_h=took[math.ceil(0.9 * len(took)) - 1],
        cost=fmean(cost),
        broken=set[str]().union(*(life.broken for life in lives)),
        late=sum(each > deadline_h > 0 for each in took) / len(took),
    )


def _by_deadline(
    market: Market, starts: int, hours: float, ratio: float, deadline_h: float
) -> Iterator[Row]:
    ways: dict[str, dict[str, Any]] = {
        "spot alone": {"on_demand_after": None},
        "on-demand alone": {"spot": False, "on_demand_after": timedelta(0)},
        "the deadline's rule": {
            "deadline": timedelta(hours=deadline_h), "work": timedelta(hours=hours),
        },
        "the same, which learns the pace": {
            "deadline": timedelta(hours=deadline_h), "work": timedelta(hours=1.3 * hours),
            "steps": round(60 * hours),
        },
    }  # fmt: skip
    for name, spec in ways.items():
        lives = [_life(market, number / starts, hours, **spec) for number in range(starts)]
        yield _row(name, lives, ratio, deadline_h)
    least = []
    for number in range(starts):
        first = round(market.end_s * number / starts / 60)
        minutes = range(first, first + round(60 * deadline_h))
        there = [
            any(market.capacity(pool, minute * 60.0 % market.end_s) for pool in market.pools)
            for minute in minutes
        ]
        on_spot = min(sum(there), round(60 * hours))
        least.append(1 - (1 - ratio) * on_spot / round(60 * hours))
    cost, none = fmean(least), set[str]()
    yield Row(name="optimum", median_h=hours, p90_h=deadline_h, cost=cost, broken=none)
