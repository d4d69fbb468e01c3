"""Asks AWS for what a plan wants: together what can be, one by one where that fails.

A batch is all or nothing at AWS: one id that it does not know must not keep the others back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    Drain,
    EndBackfill,
    EndSpare,
    OfInstance,
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

_OF_GROUP = (WakeUp, Backfill, CancelBackfill, RequestSpot, SuspendAzRebalance, ResumeLaunch)

type Batch = Sequence[AvailabilityAction]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, with the answer to each action, and the outcomes for the record."""

    actions: list[AvailabilityAction] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def note(self, batch: Batch, answer: Answer, error: str = "", *, would: bool = False) -> None:
        """Note one answer to a batch."""
        self.actions.extend(batch)
        self.answers.extend(answer for _ in batch)
        if answer is not Answer.SKIPPED:
            self.outcomes.append(Outcome(asked=text_of(batch), error=error, would=would))

    def done(self) -> list[AvailabilityAction]:
        """Give what AWS accepted."""
        pairs = zip(self.actions, self.answers, strict=True)
        return [action for action, answer in pairs if answer is Answer.DONE]


def act(
    actions: Batch, ports: Ports, fleet: str, budget: Budget, *, marked: Sequence[str] = ()
) -> Asked:
    """Ask for each action in order; `marked` are the instances that are marked already.

    What would be asked too late to be kept in the table is not asked; the next turn does it.
    """
    asked = Asked()
    for _, group in groupby(actions, _batch_key):
        batch = tuple(group)
        ready = tuple(a for a in batch if _may_be_asked(a, asked, marked))
        if ready and (spent := budget.spent_s()) >= ASK_UNTIL_S:
            late = f"TimedOut: not asked, as {spent:.0f} s had passed"
            asked.note(ready, Answer.REFUSED, late)
        elif ready:
            _ask(ready, ports, fleet, asked)
        if skipped := tuple(a for a in batch if a not in ready):
            asked.note(skipped, Answer.SKIPPED)
    return asked


def _batch_key(action: AvailabilityAction) -> object:
    """Give what actions must share to be asked for together."""
    match action:
        case Drain(group=group, gone_at=gone_at):
            return Drain, group, gone_at
        case Unmark():
            return Unmark
        case ReplaceEarly(group=group):
            return ReplaceEarly, group
        case _:
            return action


def _may_be_asked(action: AvailabilityAction, asked: Asked, marked: Sequence[str]) -> bool:
    """Hold a replacement back without a mark: nobody may end what AWS then leaves running."""
    if not isinstance(action, ReplaceEarly) or action.taken:
        return True
    now = {done.instance_id for done in asked.done() if isinstance(done, Drain)}
    return action.instance_id in now.union(marked)


def _ask(batch: Batch, ports: Ports, fleet: str, asked: Asked) -> None:
    try:
        _call(batch, ports, fleet)()
    except Observed:
        asked.note(batch, Answer.REFUSED, would=True)
    except FleetError as error:
        if len(batch) > 1 and not isinstance(error, Throttled | TimedOut):
            for action in batch:
                _ask((action,), ports, fleet, asked)
            return
        answer = Answer.LOST if _may_have_been_done(batch, error) else Answer.REFUSED
        asked.note(batch, answer, f"{type(error).__name__}: {error}")
    else:
        asked.note(batch, Answer.DONE)


def _may_have_been_done(batch: Batch, error: FleetError) -> bool:
    """Say whether an action may have had its effect; who is in no group may have been detached."""
    return isinstance(error, Unavailable) or (
        isinstance(error, Gone) and isinstance(batch[0], ReplaceEarly)
    )


def _call(batch: Batch, ports: Ports, fleet: str) -> Callable[[], None]:
    """Give the call of a port that a batch is."""
    writer = ports.writer
    match batch[0]:
        case WakeUp(at=at, now=now, woken=woken):
            return lambda: ports.wake_ups.at(fleet, at, now, woken)
        case Backfill() | CancelBackfill() | RequestSpot() as size:
            return lambda: writer.set_desired(size.group, size.desired)
        case SuspendAzRebalance(group=group):
            return lambda: writer.suspend_az_rebalance(group)
        case ResumeLaunch(group=group):
            return lambda: writer.resume_launch(group)
        case of_instance:
            return _call_for(of_instance, _ids(batch), ports)


def _call_for(action: OfInstance, ids: Sequence[str], ports: Ports) -> Callable[[], None]:
    """Give the call of a port for instances that share an action."""
    instances, writer = ports.instances, ports.writer
    match action:
        case EndBackfill(instance_id=instance_id) | EndSpare(instance_id=instance_id):
            return lambda: writer.end(instance_id)
        case Drain(group=group, gone_at=gone_at):
            return lambda: instances.drain(ids, gone_at, group)
        case Unmark():
            return lambda: instances.unmark(ids)
        case ReplaceEarly(group=group):
            return lambda: writer.detach(group, ids)
        case Terminate():
            return lambda: instances.terminate(ids)


def _ids(batch: Batch) -> tuple[str, ...]:
    """Give the instances that a batch is about; none where it is about a group."""
    return tuple(action.instance_id for action in batch if not isinstance(action, _OF_GROUP))


def text_of(batch: Batch) -> str:
    """Tell what a batch asks for, as records say it."""
    first = batch[0]
    if isinstance(first, _OF_GROUP):
        return first.asked
    return f"{first.verb} {', '.join(_ids(batch))}"
