"""Sends a plan's actions to AWS in batches, and a batch that fails in halves.

AWS accepts or refuses a whole batch: one unknown id must not hold the others back.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import batched, groupby

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    ChangeGroup,
    Drain,
    EndBackfill,
    ReplaceEarly,
    RestoreSpot,
    Terminate,
    Unmark,
    WakeUp,
)
from spotkeeper.domain.decision import Answer, Request, RequestKind
from spotkeeper.ports import FleetError, Gone, Observed, Throttled, TimedOut
from spotkeeper.turns.turn import ASK_UNTIL_S, Round

_OF_GROUP = (WakeUp, Backfill, CancelBackfill, RestoreSpot, ChangeGroup)

# AWS's own limit of one DetachInstances call.
DETACHED_A_CALL = 20
# Two bad ids among 200 take 31 calls; if more are bad, the next turn continues.
CALLS_A_BATCH = 40

type Batch = Sequence[AvailabilityAction]
type Asked = list[tuple[AvailabilityAction, Answer]]


def act(actions: Batch, this: Round, *, marked: Collection[str] = ()) -> Asked:
    """Request each action in order; `marked` are the instances that carry their mark.

    An unmarked instance is not replaced: the role may not end it if AWS leaves it running.
    """
    requested: Asked = []
    for key, group in groupby(actions, _batch_key):
        ready: list[AvailabilityAction] = []
        for action in group:
            if isinstance(action, ReplaceEarly) and not (
                action.taken or action.instance_id in marked
            ):
                requested.append((action, Answer.SKIPPED))
            else:
                ready.append(action)
        size = DETACHED_A_CALL if isinstance(key, ReplaceEarly) else len(ready)
        for batch in batched(ready, size or 1, strict=False):
            requested += _ask(batch, this)
    return requested


def _batch_key(action: AvailabilityAction) -> AvailabilityAction:
    """Return what the actions of one batch share."""
    if isinstance(action, Drain | Unmark):
        return replace(action, instance_id="")
    if isinstance(action, ReplaceEarly):
        return replace(action, instance_id="", taken=False)
    return action


def _ask(batch: Batch, this: Round) -> Asked:
    """Request a batch; one that is refused is requested in halves, until the bad id is alone.

    A request that would be too late for the table to keep is not sent; the next turn sends it.
    """
    requested: Asked = []
    waiting, calls = [batch], 0
    while waiting:
        some, calls = waiting.pop(), calls + 1
        replaces = isinstance(some[0], ReplaceEarly)
        if isinstance(some[0], EndBackfill) and this.budget.is_shared_out():
            # One more instance for a minute does no harm; another fleet may need its turn.
            answer = Answer.SKIPPED
        elif (spent := this.budget.spent_s()) >= ASK_UNTIL_S:
            late = TimedOut(f"not requested, because {spent:.0f} s had passed")
            this.answered(_request_of(some), late)
            # A first attempt at the whole batch, whose answer was lost, may have detached it.
            answer = Answer.LOST if calls > 1 and replaces else Answer.REFUSED
        else:
            try:
                _call(some, this)
            except FleetError as error:
                whole = len(some) > 1 and calls < CALLS_A_BATCH
                if whole and not isinstance(error, Observed | Throttled | TimedOut):
                    half = len(some) // 2
                    waiting += [some[half:], some[:half]]
                    continue
                answer = this.answered(_request_of(some), error)
                # An instance that is in no group may have been detached.
                answer = Answer.LOST if replaces and isinstance(error, Gone) else answer
            else:
                answer = this.answered(_request_of(some))
        requested += [(action, answer) for action in some]
    return requested


def _call(batch: Batch, this: Round) -> None:
    """Make the port's call for a batch."""
    writer, ids = this.ports.writer, _ids(batch)
    match batch[0]:
        case WakeUp(at=at, now=now, woken=woken):
            this.ports.wake_ups.at(this.fleet.name, at, now, woken)
        case Backfill() | CancelBackfill() | RestoreSpot() as size:
            writer.set_desired(size.group, size.desired)
        case ChangeGroup(kind=RequestKind.CLAIM, group=group):
            writer.claim(group)
        case ChangeGroup(kind=RequestKind.RESUME_LAUNCH, group=group):
            writer.resume_launch(group)
        case ChangeGroup(group=group):
            writer.suspend_az_rebalance(group)
        case EndBackfill(instance_id=instance_id):
            writer.end(instance_id)
        case Drain(group=group, gone_at=gone_at):
            writer.drain(ids, gone_at, group)
        case Unmark():
            writer.unmark(ids)
        case ReplaceEarly(group=group):
            writer.detach(group, ids)
        case Terminate():
            writer.terminate(ids)


def _ids(batch: Batch) -> tuple[str, ...]:
    """Return the instances that a batch is about; none where it is about a group."""
    return tuple([action.instance_id for action in batch if not isinstance(action, _OF_GROUP)])


def _request_of(batch: Batch) -> Request:
    """Return what records keep of a batch."""
    match batch[0]:
        case WakeUp(at=at):
            return Request(kind=RequestKind.LOOK_AGAIN, at=at)
        case Backfill() | CancelBackfill() as action:
            return Request(
                kind=action.kind, group=action.group, desired=action.desired, count=action.count
            )
        case RestoreSpot(group=group, desired=desired):
            return Request(kind=RequestKind.RESTORE_SPOT, group=group, desired=desired)
        case ChangeGroup() as action:
            return Request(kind=action.kind, group=action.group)
        case first:
            return Request(kind=first.kind, instances=_ids(batch))
