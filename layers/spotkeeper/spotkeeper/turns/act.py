"""Sends a plan's actions to AWS in batches, and a batch that fails in halves.

AWS accepts or refuses a whole batch: one unknown id must not hold the others back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    ClaimGroup,
    Drain,
    EndBackfill,
    EndSpare,
    ReplaceEarly,
    RequestSpot,
    ResumeLaunch,
    SuspendAzRebalance,
    Terminate,
    Unmark,
    WakeUp,
)
from spotkeeper.domain.decision import Answer, Outcome
from spotkeeper.ports import FleetError, Gone, Observed, Ports, Throttled, TimedOut, Unavailable
from spotkeeper.turns.turn import ASK_UNTIL_S, Budget

_OF_GROUP = (
    WakeUp, Backfill, CancelBackfill, RequestSpot, SuspendAzRebalance, ResumeLaunch, ClaimGroup,
)  # fmt: skip

# AWS's own limit of one DetachInstances call.
DETACHED_A_CALL = 20
# Two bad ids among 200 take 31 calls; where more is wrong, the next turn goes on.
CALLS_A_BATCH = 40

type Batch = Sequence[AvailabilityAction]


@dataclass(frozen=True, slots=True)
class Asked:
    """The actions of a plan with the answer to each, and the outcomes for the record."""

    actions: list[AvailabilityAction] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def note(self, batch: Batch, answer: Answer, error: str = "", *, would: bool = False) -> None:
        """Note the answer to a batch."""
        self.actions.extend(batch)
        self.answers.extend([answer] * len(batch))
        if answer is not Answer.SKIPPED:
            self.outcomes.append(Outcome(asked=text_of(batch), error=error, would=would))

    def __add__(self, other: "Asked") -> "Asked":
        """Return both, in order."""
        return Asked(
            actions=self.actions + other.actions,
            answers=self.answers + other.answers,
            outcomes=self.outcomes + other.outcomes,
        )

    def done(self) -> list[AvailabilityAction]:
        """Return what AWS accepted."""
        pairs = zip(self.actions, self.answers, strict=True)
        return [action for action, answer in pairs if answer is Answer.DONE]


def act(
    actions: Batch, ports: Ports, fleet: str, budget: Budget, *, marked: Collection[str] = ()
) -> Asked:
    """Request each action in order; `marked` are the instances that carry their mark.

    An unmarked instance is not replaced: the role may not end it if AWS leaves it running. A
    request that would be too late for the table to keep is not sent; the next turn sends it.
    """
    asked = Asked()
    for _, group in groupby(actions, _batch_key):
        ready: list[AvailabilityAction] = []
        for action in group:
            if (
                isinstance(action, ReplaceEarly)
                and not action.taken
                and action.instance_id not in marked
            ):
                asked.note([action], Answer.SKIPPED)
            else:
                ready.append(action)
        size = DETACHED_A_CALL if ready and isinstance(ready[0], ReplaceEarly) else len(ready)
        for start in range(0, len(ready), size or 1):
            _ask(ready[start : start + size], ports, fleet, budget, asked)
    return asked


def _batch_key(action: AvailabilityAction) -> object:
    """Return the key that the actions of one batch share."""
    match action:
        case Drain(group=group, gone_at=gone_at):
            return Drain, group, gone_at
        case Unmark():
            return Unmark
        case ReplaceEarly(group=group):
            return ReplaceEarly, group
        case _:
            return action


def _ask(batch: Batch, ports: Ports, fleet: str, budget: Budget, asked: Asked) -> None:
    """Request a batch; one that is refused is requested in halves, until the bad id is alone."""
    waiting, calls = [batch], 0
    while waiting:
        some, calls = waiting.pop(), calls + 1
        if isinstance(some[0], EndBackfill | EndSpare) and budget.is_shared_out():
            # One more instance for a minute does no harm; another fleet may need its turn.
            asked.note(some, Answer.SKIPPED)
            continue
        if (spent := budget.spent_s()) >= ASK_UNTIL_S:
            late = f"TimedOut: not requested, because {spent:.0f} s had passed"
            # A first attempt at the whole batch, whose answer was lost, may have detached it.
            unknown = calls > 1 and isinstance(some[0], ReplaceEarly)
            asked.note(some, Answer.LOST if unknown else Answer.REFUSED, late)
            continue
        try:
            _call(some, ports, fleet)
        except Observed:
            asked.note(some, Answer.REFUSED, would=True)
        except FleetError as error:
            alone = len(some) == 1 or calls >= CALLS_A_BATCH
            if not alone and not isinstance(error, Throttled | TimedOut):
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
                continue
            # An instance that is in no group may have been detached.
            gone = isinstance(error, Gone) and isinstance(some[0], ReplaceEarly)
            answer = Answer.LOST if gone or isinstance(error, Unavailable) else Answer.REFUSED
            asked.note(some, answer, f"{type(error).__name__}: {error}")
        else:
            asked.note(some, Answer.DONE)


def _call(batch: Batch, ports: Ports, fleet: str) -> None:
    """Make the port's call for a batch."""
    writer = ports.writer
    match batch[0]:
        case WakeUp(at=at, now=now, woken=woken):
            ports.wake_ups.at(fleet, at, now, woken)
        case Backfill() | CancelBackfill() | RequestSpot() as size:
            writer.set_desired(size.group, size.desired)
        case SuspendAzRebalance(group=group):
            writer.suspend_az_rebalance(group)
        case ClaimGroup(group=group):
            writer.claim(group)
        case ResumeLaunch(group=group):
            writer.resume_launch(group)
        case EndBackfill(instance_id=instance_id) | EndSpare(instance_id=instance_id):
            writer.end(instance_id)
        case Drain(group=group, gone_at=gone_at):
            writer.drain(_ids(batch), gone_at, group)
        case Unmark():
            writer.unmark(_ids(batch))
        case ReplaceEarly(group=group):
            writer.detach(group, _ids(batch))
        case Terminate():
            writer.terminate(_ids(batch))


def _ids(batch: Batch) -> tuple[str, ...]:
    """Return the instances that a batch is about; none where it is about a group."""
    return tuple([action.instance_id for action in batch if not isinstance(action, _OF_GROUP)])


def text_of(batch: Batch) -> str:
    """Describe a batch as records do."""
    first = batch[0]
    if isinstance(first, _OF_GROUP):
        return first.asked
    return f"{first.verb} {', '.join(_ids(batch))}"
