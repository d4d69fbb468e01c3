"""What is remembered of each action, by what became of it (rule 11)."""

from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.actions import (
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    Drain,
    EndBackfill,
    EndSpare,
    ReplaceEarly,
    RequestSpot,
    ResumeLaunch,
    Terminate,
    Unmark,
    WakeUp,
)
from spotkeeper.domain.availability.memory import AvailabilityMemory, Unsure
from spotkeeper.domain.decision import Answer

BACKOFF_FIRST_S = 60
BACKOFF_LONGEST_S = 900


def remember_answer(
    memory: AvailabilityMemory,
    action: AvailabilityAction,
    answer: Answer,
    at: datetime,
) -> AvailabilityMemory:
    """Remember one action; what may have been done is remembered where nobody would look it up."""
    if answer is Answer.REFUSED or answer is Answer.SKIPPED:
        return memory
    match action:
        case EndBackfill() | EndSpare() | CancelBackfill() if answer is Answer.DONE:
            return memory
        case Backfill() | CancelBackfill() | EndBackfill() if answer is Answer.LOST:
            return replace(memory, unsure=memory.unsure or Unsure(at=at, before=action.before))
        case ReplaceEarly(instance_id=gone, taken=False):
            return replace(memory, detached={**memory.detached, gone: at})
        case RequestSpot(requests=requests):
            return replace(memory, capacity_requests=requests)
        case _:
            return _done(memory, action, at) if answer is Answer.DONE else memory


def _done(
    memory: AvailabilityMemory, action: AvailabilityAction, at: datetime
) -> AvailabilityMemory:
    match action:
        case Backfill():
            return refused_again(memory, at)
        case Drain(instance_id=marked):
            return replace(memory, drained=tuple(sorted({*memory.drained, marked})))
        case Unmark(instance_id=spared):
            return replace(memory, drained=tuple(i for i in memory.drained if i != spared))
        case Terminate(instance_id=ended):
            left = {i: since for i, since in memory.detached.items() if i != ended}
            return replace(memory, detached=left)
        case ResumeLaunch(group=group):
            return replace(memory, resumed={**memory.resumed, group: at})
        case WakeUp(at=asked):
            return replace(memory, wake_ups=(*memory.wake_ups, asked))
        case _:
            return memory


def refused_again(memory: AvailabilityMemory, at: datetime) -> AvailabilityMemory:
    """Wait twice as long after another try while both groups are short: 1, 2, 4 ... 15 minutes."""
    if memory.retry_at is None:
        return memory
    backoff_s = min(BACKOFF_LONGEST_S, 2 * memory.backoff_s)
    return replace(memory, backoff_s=backoff_s, retry_at=at + timedelta(seconds=backoff_s))
