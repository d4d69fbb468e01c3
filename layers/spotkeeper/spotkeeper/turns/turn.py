"""What every turn shares: one writer per controller, errors and delays that stop only their fleet.

An invocation has `TURNS_S` for its fleets, of which each gets an equal share. Optional reads are
skipped after that share, and if their API did not answer before. Another fleet or job is first each
minute.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import batched, count
from typing import NoReturn

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import (
    FAILED,
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
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.ports import (
    OWNER_TAG,
    AtRiskNote,
    FleetError,
    Gone,
    Lease,
    Observed,
    Owned,
    Ports,
    Throttled,
    TimedOut,
    TurnQueue,
    Unavailable,
)

# A function has 30 s. No fleet's turn begins, and nothing optional is read, later than this: a call
# of each API may still hang after that.
TURNS_S = 12.0
# An invocation runs the turns of this many fleets, and hands on the others.
FLEETS_AN_INVOCATION = 5
# No request is sent to AWS later than this: at the worst it hangs, and the table must still keep
# what was requested.
ASK_UNTIL_S = 18.0
# The name of the table among the APIs that may hang.
TABLE = "the table"
# A fault may be of one fleet's items alone: only this many count as an API that hangs.
FAULTS_A_HANG = 2
MINUTE = timedelta(minutes=1)
# Steps of this part of a circle are spread evenly over it, however many there are.
GOLDEN = (5**0.5 - 1) / 2
# While notes arrive, a turn has this many rounds, and more within its fleet's share of the time;
# the next turn takes the notes that are left. A storm of warnings lasts for seconds.
ROUNDS = 3


class NoState(FleetError):
    """The control or the memory of a fleet cannot be read: see `cause`."""

    def __init__(self, cause: FleetError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True, kw_only=True)
class TurnReport:
    """What the turns of an invocation did; `busy` names fleets that another turn held.

    `defects` are unforeseen errors. `unrecorded` names the fleets whose failed turn left no record,
    as the table refused it. `late` names the jobs that had no turn for lack of time, and `unnoted`
    those of which a report was not kept.
    """

    records: list[DecisionRecord] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    errors: list[FleetError] = field(default_factory=list)
    defects: list[Exception] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    unnoted: frozenset[str] = frozenset()

    @property
    def failed(self) -> frozenset[str]:
        """The fleets whose turn failed, or of which AWS refused a request."""
        return frozenset([*[r.fleet for r in self.records if r.failed], *self.unrecorded])


class Unread(str):
    """Why something optional could not be read."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class Budget:
    """The time of one invocation, measured from `began`; without a clock none passes.

    No turn begins after `turns_s`.
    """

    began: datetime
    clock: Callable[[], datetime] | None
    turns_s: float = TURNS_S
    _optional_until_s: float = TURNS_S
    _hung: Counter[str] = field(default_factory=Counter)

    def spent_s(self) -> float:
        """Return how long the invocation has run."""
        return (self.clock() - self.began).total_seconds() if self.clock else 0.0

    def begin(self, fleets_left: int) -> None:
        """Begin the next of the fleets that are left: it gets an equal share of the time left."""
        spent = self.spent_s()
        self._optional_until_s = spent + (self.turns_s - spent) / fleets_left

    def is_shared_out(self) -> bool:
        """Say whether the present fleet has had its share of the time."""
        return self.spent_s() >= self._optional_until_s

    def hung(self, api: str) -> bool:
        """Say whether an API did not answer in time before, or answered with a fault twice."""
        return self._hung[api] >= FAULTS_A_HANG

    @contextmanager
    def state(self) -> Iterator[None]:
        """Read the state of a fleet; where the table throttles or is away, raise `NoState`.

        A table that did not answer, or had a fault for two fleets, is not read again in the
        invocation.
        """
        try:
            if self.hung(TABLE):
                raise TimedOut(f"not read, because {TABLE} did not answer before")
            yield
        except (Throttled, Unavailable) as error:
            if isinstance(error, Unavailable):
                self._hung[TABLE] += FAULTS_A_HANG if isinstance(error, TimedOut) else 1
            raise NoState(error) from error

    @contextmanager
    def watched(self, api: str) -> Iterator[None]:
        """Remember an API that does not answer in time."""
        try:
            yield
        except TimedOut:
            self._hung[api] += FAULTS_A_HANG
            raise

    def attempt[T](self, read: Callable[[], T], *, api: str) -> T | Unread:
        """Read something optional, if there is time and its API has answered."""
        if self.hung(api):
            return Unread(f"skipped, because {api} did not answer before")
        if self.is_shared_out():
            return Unread("skipped, because no time was left")
        try:
            with self.watched(api):
                return read()
        except FleetError as error:
            return Unread(f"{type(error).__name__}: {error}")

    def optional[T](
        self, unread: list[str], what: str, without: T, read: Callable[[], T], *, api: str
    ) -> T:
        """Read something optional; if that fails, return `without` and note why in `unread`."""
        answer = self.attempt(read, api=api)
        if isinstance(answer, Unread):
            unread.append(f"{what}: {answer}")
            return without
        return answer


class _Observer:
    """Changes nothing; every method raises `Observed`."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Observed("a turn that only observes requests nothing")

    set_desired = end = detach = set_process = claim = drain = unmark = terminate = _refuse


@dataclass(slots=True, kw_only=True)
class Round:
    """One round of a fleet's turn as the only writer, under `lease`.

    A fleet that observes, or is paused, has rounds too. Their `ports` refuse each change, which is
    handled like any refusal: the change has not happened. `taken` are the groups of all fleets,
    `woken` counts the wake-ups one after the other that led here.
    `outcomes` are those of the requests so far, `unread` is what could not be read, and `alarms`
    are those of a fleet in several regions. `record` is that of a round whose memory was written.
    """

    fleet: Fleet
    ports: Ports
    budget: Budget
    now: datetime
    lease: Lease
    control: Control = field(default_factory=Control)
    permission: Permission = Permission.ACT
    number: int = 0
    woken: int = 0
    taken: frozenset[str] = frozenset()
    outcomes: list[Outcome] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    alarms: set[Alarm] = field(default_factory=set)
    record: DecisionRecord | None = None

    def optional[T](self, what: str, without: T, read: Callable[[], T], *, api: str) -> T:
        """Read something optional; if that fails, return `without` and note why."""
        return self.budget.optional(self.unread, what, without, read, api=api)

    def answered(self, request: Request, error: FleetError | None = None) -> Answer:
        """Record a request and its outcome; return whether it was done, refused or lost."""
        answer, failure = Answer.DONE, None
        if isinstance(error, Observed):
            answer = Answer.OBSERVED
        elif error is not None:
            answer = Answer.LOST if isinstance(error, Unavailable) else Answer.REFUSED
            failure = failure_of(error)
        self.outcomes.append(Outcome(request=request, answer=answer, error=failure))
        return answer


def failure_of(error: Exception) -> Failure:
    """Return what records keep of an error."""
    return Failure(kind=type(error).__name__, text=str(error))


type Memory = AvailabilityMemory | HealthMemory


@dataclass(slots=True, kw_only=True)
class Turns:
    """The turns of one controller in an invocation, each fleet or job on its own."""

    controller: Controller
    now: datetime
    budget: Budget
    report: TurnReport = field(default_factory=TurnReport)
    noun: str = "fleet"
    _round: Round | None = None

    def run_each(
        self, names: Sequence[str], turn: Callable[[str], None], first: Set[str] = frozenset()
    ) -> TurnReport:
        """Run the turn of each name while there is time, those `first` before the others.

        An error stops its own fleet or job only. It is recorded, and reported at the end.
        """
        ordered = rotated(names, self.now)
        ordered = [
            *[each for each in ordered if each in first],
            *[each for each in ordered if each not in first],
        ]
        for number, name in enumerate(ordered):
            self._round = None
            if self.budget.spent_s() >= self.budget.turns_s:
                self._has_no_time(name)
                continue
            self.budget.begin(len(names) - number)
            try:
                turn(name)
            except FleetError as error:
                self.fail(name, error)
            except Exception as error:  # noqa: BLE001 - one fleet's defect must not stop the others
                error.add_note(f"in the turn of {self.noun} {name}")
                self.report.defects.append(error)
                self._record_failure(name, error)
        return self.report

    def keep(self, record: DecisionRecord) -> None:
        """Store a record."""
        raise NotImplementedError

    def _has_no_time(self, name: str) -> None:
        self.report.late.append(name)

    def fail(self, name: str, error: FleetError, done: DecisionRecord | None = None) -> None:
        """Report a turn that failed; `done` records what it did nevertheless."""
        if isinstance(error, NoState):
            error = error.cause
        self.report.errors.append(type(error)(f"{self.noun} {name}: {error}"))
        self._record_failure(name, error, done)

    def _record_failure(
        self, name: str, error: Exception, done: DecisionRecord | None = None
    ) -> None:
        """Leave a record of a turn that failed; where the table refuses it, it is counted."""
        failure, this = failure_of(error), self._round
        done = done or (this.record if this else None)
        record = done or DecisionRecord(
            fleet=name,
            controller=self.controller,
            at=self.now,
            action=Action.HOLD,
            rule=FAILED,
            reason=f"the turn failed: {failure}",
            outcomes=tuple(this.outcomes) if this else (),
        )
        record = replace(record, error=failure)
        self.report.records.append(record)
        if not self.budget.hung(TABLE):
            with suppress(FleetError), self.budget.watched(TABLE):
                self.keep(record)
                return
        self.report.unrecorded.append(name)


@dataclass(slots=True, kw_only=True)
class FleetTurns(Turns):
    """The turns of fleets; each takes its rounds under the fleet's lease."""

    ports: Ports
    woken: int = 0
    taken: frozenset[str] = frozenset()

    def run(self, fleets: Sequence[Fleet], turn: Callable[[Fleet], None]) -> TurnReport:
        """Run the turn of each fleet; what AWS refused to do is reported as an error, too."""
        by_name = {fleet.name: fleet for fleet in fleets}
        self.run_each([*by_name], lambda name: turn(by_name[name]))
        self.report.errors += [
            FleetError(f"fleet {record.fleet}: {outcome.text}")
            for record in self.report.records
            for outcome in record.refused
        ]
        return self.report

    def keep(self, record: DecisionRecord) -> None:
        """Store a record."""
        self.ports.states.record(record)

    def _has_no_time(self, name: str) -> None:
        self.fail(name, TimedOut(f"no turn: other fleets took {self.budget.spent_s():.0f} s"))

    def rounds(
        self,
        fleet: Fleet,
        note: AtRiskNote | None,
        take: Callable[[Round], tuple[Memory, DecisionRecord]],
    ) -> None:
        """Take rounds as the only writer while notes arrive; none if another turn has the lease.

        A turn that may only look has a memory of its own: one that acts must not remember requests
        that were never made. An error releases the lease, and its notes stay for the next turn.
        """
        with self.budget.state():
            control = self.ports.controls.of(fleet.name)
        ports, states, name = self.ports, self.ports.states, fleet.name
        permission = control.permission(fleet.mode, self.now)
        if permission is not Permission.ACT:
            ports, name = replace(ports, writer=_Observer(), owner=""), f"{name}/observed"
        if self.controller is Controller.AVAILABILITY:
            ports.last.permit(fleet.name, self.now, acts=permission is Permission.ACT)
        for number in count():
            # Other fleets had their turns before: the lease begins now, not with the invocation.
            at = self.now + timedelta(seconds=self.budget.spent_s())
            with self.budget.state():
                lease = states.acquire(name, self.controller, at, None if number else note)
            if lease is None:
                if not number:
                    self.report.busy.append(fleet.name)
                return
            if lease.unreadable:
                self.report.records.append(_begun_afresh(lease, self.now))
                states.record(self.report.records[-1])
            self._round = this = Round(
                fleet=fleet, ports=ports, budget=self.budget, now=self.now, lease=lease,
                control=control, permission=permission, number=number, woken=self.woken,
                taken=self.taken,
            )  # fmt: skip
            try:
                memory, record = take(this)
                is_last = states.commit(lease, memory, self.now)
                paused = control.pause if permission is Permission.PAUSED else None
                since = paused.at if paused else None
                this.record = replace(record, permission=permission, paused_since=since)
                states.record(this.record)
            except Exception:
                # What the table answers to this must not hide what went wrong.
                with suppress(FleetError), self.budget.watched(TABLE):
                    states.release(lease)
                raise
            self._round = None
            self.report.records.append(this.record)
            if is_last or (number + 1 >= ROUNDS and self.budget.is_shared_out()):
                return


def own_share(
    fleets: Sequence[Fleet], queue: Callable[[], TurnQueue], now: datetime
) -> tuple[Sequence[Fleet], Sequence[FleetError]]:
    """Hand on all fleets but a share of them, another share each minute; return that share.

    If the others cannot be handed on, this invocation runs all turns that it has time for.
    """
    every = rotated([*batched(fleets, FLEETS_AN_INVOCATION, strict=False)], now)
    if len(every) <= 1:
        return fleets, ()
    own, *shares = every
    try:
        queue().hand_on([[fleet.name for fleet in share] for share in shares], now)
    except FleetError as error:
        return fleets, (error,)
    return own, ()


def rotated[T](items: Sequence[T], now: datetime, every: timedelta = MINUTE) -> list[T]:
    """Return items in order, beginning with another one in each span of `every`.

    The time may be too short for the last ones: each is among the first every few times.
    """
    first = int(now.timestamp() // every.total_seconds() * GOLDEN % 1 * len(items))
    return [*items[first:], *items[:first]]


@dataclass(slots=True)
class Once[T]:
    """Reads at the first call; every call returns what was read, or raises the same error.

    It `is_fresh` until then.
    """

    read: Callable[[], T]
    is_fresh: bool = field(default=True, init=False)
    _results: list[T | FleetError] = field(default_factory=list, init=False)

    def __call__(self) -> T:
        """Return what was read."""
        if self.is_fresh:
            try:
                self._results.append(self.read())
            except FleetError as error:
                self._results.append(error)
            self.is_fresh = False
        (result,) = self._results
        if isinstance(result, FleetError):
            raise result
        return result


def _begun_afresh(lease: Lease, now: datetime) -> DecisionRecord:
    """Record that a part of a fleet's memory could not be read and is forgotten."""
    wrong = "; ".join(lease.unreadable)
    return DecisionRecord(
        fleet=lease.fleet,
        controller=lease.controller,
        at=now,
        action=Action.HOLD,
        rule="afresh",
        reason=f"started with an empty memory, because the old one cannot be read: {wrong}",
        outcomes=(
            Outcome(
                request=Request(kind=RequestKind.READ_MEMORY),
                answer=Answer.REFUSED,
                error=Failure(kind="", text=wrong),
            ),
        ),
    )


def fleet_in_force(this: Round, groups: Mapping[str, Group]) -> Fleet:
    """Return a fleet with groups that exist: those of its document, or those that it had before.

    A document may misspell a group, or name it before it is made. That is reported, and changes
    nothing while both groups of before exist.
    """
    fleet, before = this.fleet, this.lease.availability.groups
    missing = [name for name in fleet.groups if name not in groups]
    if not missing or before in ((), fleet.groups):
        return fleet
    if len(this.ports.groups.describe(before)) < len(before):
        return fleet
    why = f"{' and '.join(missing)} does not exist: create it, or correct the fleet document"
    change = Request(kind=RequestKind.CHANGE_GROUPS)
    this.answered(change, Gone(f"{why}; {' and '.join(before)} go on"))
    spot, on_demand = before
    return replace(fleet, spot_group=spot, on_demand_group=on_demand)


def groups_of(
    fleet: Fleet, groups: Mapping[str, Group], owner: str, missing_spot: Group | None = None
) -> tuple[Group, Group]:
    """Return both groups of a fleet; an on-demand group that does not exist has no capacity.

    `owner` is the stack whose turn may act on them; empty for one that only observes. Raises `Gone`
    when the spot group does not exist, unless `missing_spot` replaces it, and `Owned` when one is
    another stack's.
    """
    spot = groups.get(fleet.spot_group, missing_spot)
    if spot is None:
        raise Gone(
            f"group {fleet.spot_group} does not exist: correct the fleet document or create the "
            "group"
        )
    nothing = Group(name=fleet.on_demand_group, desired=0, minimum=0, maximum=0, exists=False)
    both = (spot, groups.get(fleet.on_demand_group, nothing))
    if others := [group for group in both if owner and group.owner not in ("", owner)]:
        tags = " ".join(
            shlex.quote(f"ResourceId={group.name},ResourceType=auto-scaling-group,Key={OWNER_TAG}")
            for group in others
        )
        raise Owned(
            f"group {' and '.join(group.name for group in others)} belongs to the stack with the "
            f"id {others[0].owner}, and two stacks must not act on one group: take the group out "
            "of this stack's documents, or run `spotkeeper stop` for the other stack. If that one "
            "was deleted without it, take the group over: "
            f"aws autoscaling delete-tags --tags {tags}"
        )
    return both
