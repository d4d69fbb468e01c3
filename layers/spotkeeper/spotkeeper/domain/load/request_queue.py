"""The request queue as the turns saw it: what waits in it, and for how long it has been quiet.

Its counts are approximate and settle about a minute after the last message, so a single look proves
nothing. The queue is quiet after several empty looks, with no request logged since the first.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

LOOKS = 5  # fewer are no evidence; turns run once a minute
# Looks further apart do not tell what happened between them.
LONGEST_GAP = timedelta(seconds=180)
# Busy workers keep as many messages in flight as the load has erlangs. A queue that shows none of
# this many (chance: exp(-20)) is not theirs, or its messages are deleted before they are done.
UNSEEN_LOAD = 20.0
LARGEST_LOOK = 4.0  # what one look is worth at most: load may have ended just before it
FRESH = timedelta(seconds=30)
# Queues of one's own broker, whose length an agent reports: VHOST/QUEUE or DATABASE/QUEUE follows.
RABBITMQ, REDIS = "rabbitmq://", "redis://"
# A fleet at zero that cannot read its queue for this long would miss waiting requests.
BLIND = timedelta(seconds=300)
MISPLACED = (
    "it shows nothing while workers are busy: is it theirs, and are messages deleted when done?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLength:
    """The number of messages that wait, that workers have received, and that are delayed.

    `seen_at` is when an agent looked; several turns may read the same look.
    """

    waiting: int
    in_flight: int
    seen_at: datetime | None = None
    delayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMemory:
    """What past looks show; `length` is this turn's, None if the queue could not be read.

    `trouble` says why the queue is not known, or not believed. The last `empty_looks` looks, since
    `empty_since`, found nothing, and no request was logged since then. Requests waited at each look
    since `waiting_since`. At each of the last `untouched_looks`, since `untouched_since`, requests
    waited, none was taken, and none in flight ended. `unseen` is the load that looks should have
    found and did not.
    """

    length: QueueLength | None = None
    trouble: str = ""
    read_at: datetime | None = None
    empty_since: datetime | None = None
    empty_looks: int = 0
    unseen: float = 0.0
    unread_since: datetime | None = None
    waiting_since: datetime | None = None
    untouched_since: datetime | None = None
    untouched_looks: int = 0


def watch_queue(
    before: QueueMemory | None,
    answer: QueueLength | str,
    newest: datetime | None,
    offered: float,
    now: datetime,
) -> QueueMemory:
    """Add a look, or why there is none, at a load in erlangs whose newest log is of `newest`."""
    before = before or QueueMemory()
    if isinstance(answer, str):
        since = before.unread_since or now
        return replace(before, length=None, trouble=answer, unread_since=since)
    if answer.seen_at is not None and answer == before.length:
        # It proves nothing new, but a request logged since ends the quiet.
        if before.empty_since is None or newest is None:
            return before
        return replace(before, empty_since=max(before.empty_since, newest))
    if before.read_at is None or now - before.read_at > LONGEST_GAP:
        before = QueueMemory(length=before.length, unseen=before.unseen)
    if answer.waiting or answer.in_flight or answer.delayed:
        untouched, looks = _untouched(before, answer, newest, now)
        return QueueMemory(
            length=answer,
            read_at=now,
            waiting_since=(before.waiting_since or now) if answer.waiting else None,
            untouched_since=untouched,
            untouched_looks=looks,
        )
    busy = newest is not None and now - newest <= FRESH
    unseen = before.unseen + (min(offered, LARGEST_LOOK) if busy else 0.0)
    if unseen >= UNSEEN_LOAD:
        return QueueMemory(length=answer, trouble=MISPLACED, read_at=now, unseen=UNSEEN_LOAD)
    since = before.empty_since or now
    return QueueMemory(
        length=answer,
        read_at=now,
        empty_since=max(since, newest) if newest else since,
        empty_looks=before.empty_looks + 1,
        unseen=unseen,
    )


def _untouched(
    before: QueueMemory, answer: QueueLength, newest: datetime | None, now: datetime
) -> tuple[datetime | None, int]:
    """Since when and at how many looks no fewer waited than before, and as many were in flight.

    A log of a request that ended since then ends it, where any are in flight.
    """
    if not answer.waiting:
        return None, 0
    last, since = before.length, before.untouched_since
    fewer = last is None or answer.waiting < last.waiting or answer.in_flight != last.in_flight
    if since is None or fewer or (answer.in_flight and newest and newest > since):
        return now, 1
    return since, before.untouched_looks + 1


def known_length(memory: QueueMemory | None) -> QueueLength | None:
    """Return the queue's length; None if it is not known, or cannot be right."""
    return None if memory is None or memory.trouble else memory.length


def known_waiting(memory: QueueMemory | None) -> int | None:
    """Return how many requests wait; None if not known."""
    length = known_length(memory)
    return length.waiting if length else None


def expects_logs(
    memory: QueueMemory | None, serving: int, newest: datetime | None, stale_after_s: float
) -> bool:
    """Return whether silence means missing logs: not if nothing is queued, or no worker serves.

    One empty look does not end it where requests were seen this long after the newest log.
    """
    length = known_length(memory)
    if memory is None or length is None or not serving:
        return length is None
    since, few = memory.empty_since, memory.empty_looks < LOOKS
    unlogged = few and newest and since and (since - newest).total_seconds() > stale_after_s
    return bool(length.waiting or length.in_flight or unlogged)


def queue_text(memory: QueueMemory | None) -> str:
    """Describe the queue in a reason about missing logs; empty for a fleet without one."""
    if memory is None:
        return ""
    if memory.trouble or memory.length is None:
        return f", the length of the request queue is not known ({memory.trouble})"
    return f", {memory.length.waiting} requests wait, {memory.length.in_flight} are in flight"


def quiet_s(memory: QueueMemory | None, now: datetime, least_s: float = 0.0) -> float:
    """Return the seconds without a request; 0 if not known, or fewer than `least_s`."""
    if known_length(memory) is None or memory is None or memory.empty_since is None:
        return 0.0
    seconds = (now - memory.empty_since).total_seconds()
    return seconds if memory.empty_looks >= LOOKS and seconds >= least_s else 0.0


def untouched_s(memory: QueueMemory | None, now: datetime, *, held: bool = False) -> float:
    """Return the seconds for which requests waited and none was taken; 0 if not known.

    None may be in flight, but where workers may have `held` them for as long.
    """
    length = known_length(memory)
    if length is None or memory is None or memory.untouched_since is None:
        return 0.0
    if length.in_flight and not held:
        return 0.0
    waited_s = (now - memory.untouched_since).total_seconds()
    return waited_s if memory.untouched_looks >= LOOKS else 0.0


def is_blind(memory: QueueMemory | None, now: datetime) -> bool:
    """Return whether the queue has been unread for `BLIND`: requests may wait unseen."""
    since = memory.unread_since if memory else None
    return since is not None and now - since >= BLIND
