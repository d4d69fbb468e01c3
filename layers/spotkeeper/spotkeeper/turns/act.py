"""Sends a plan's requests to AWS in batches, and a batch that fails in halves.

AWS accepts or refuses a whole batch: one unknown id must not hold the others back.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import batched

from spotkeeper.domain.decision import Answer, Request, RequestKind
from spotkeeper.ports import FleetError, Gone, Observed, Throttled, TimedOut
from spotkeeper.turns.turn import ASK_UNTIL_S, Round

# AWS's own limit of one DetachInstances call.
DETACHED_A_CALL = 20
# Two bad ids among 200 take 31 calls; if more are bad, the next turn continues.
CALLS_A_BATCH = 40

type Answered = list[tuple[Request, Answer]]


def act(requests: Sequence[Request], this: Round, *, marked: Collection[str] = ()) -> Answered:
    """Send each request in order; `marked` are the instances that carry their mark, or are gone.

    Another one is not replaced early: the role may not end it if AWS leaves it running.
    """
    answers: Answered = []
    for request in requests:
        parts = [request]
        if request.kind is RequestKind.REPLACE_EARLY:
            ready = [i for i in request.instances if i in marked]
            some = batched(ready, DETACHED_A_CALL, strict=False)
            parts = [replace(request, instances=each) for each in some]
        for part in parts:
            answers += _send(part, this)
    return answers


def _send(request: Request, this: Round) -> Iterator[tuple[Request, Answer]]:
    """Send a request; one that is refused is sent in halves, until the bad id is alone.

    A request that would be too late for the table to keep is not sent; the next turn sends it.
    """
    waiting, calls = [request], 0
    while waiting:
        some, calls = waiting.pop(), calls + 1
        spent, replaces = this.budget.spent_s(), some.kind is RequestKind.REPLACE_EARLY
        late = spent >= ASK_UNTIL_S
        if some.kind is RequestKind.END and (late or this.budget.is_shared_out()):
            # One more instance for a minute does no harm; another fleet may need its turn.
            answer = Answer.SKIPPED
        elif late:
            this.answered(some, TimedOut(f"not requested, because {spent:.0f} s had passed"))
            # A first attempt at the whole batch, whose answer was lost, may have detached it.
            answer = Answer.LOST if calls > 1 and replaces else Answer.REFUSED
        else:
            try:
                _call(some, this)
            except FleetError as error:
                ids = some.instances
                whole = len(ids) > 1 and calls < CALLS_A_BATCH
                if whole and not isinstance(error, Observed | Throttled | TimedOut):
                    halves = ids[len(ids) // 2 :], ids[: len(ids) // 2]
                    waiting += [replace(some, instances=half) for half in halves]
                    continue
                answer = this.answered(some, error)
                # An instance that is in no group may have been detached.
                answer = Answer.LOST if replaces and isinstance(error, Gone) else answer
            else:
                answer = this.answered(some)
        yield some, answer


def _call(request: Request, this: Round) -> None:
    """Make the port's call for a request."""
    writer, group, ids, at = this.ports.writer, request.group, request.instances, request.at
    match request.kind:
        case RequestKind.LOOK_AGAIN if at:
            this.ports.wake_ups.at(this.fleet.name, at, this.now, this.woken + 1)
        case RequestKind.CLAIM:
            writer.claim(group)
        case RequestKind.RESUME_LAUNCH:
            writer.set_process(group, "Launch", runs=True)
        case RequestKind.SUSPEND_AZ_REBALANCE:
            writer.set_process(group, "AZRebalance", runs=False)
        case RequestKind.END:
            writer.end(*ids)
        case RequestKind.REPLACE_WORKER:
            writer.end(*ids, replaced=True)
        case RequestKind.DRAIN if at:
            writer.drain(ids, at, group)
        case RequestKind.STOP_DRAINING:
            writer.unmark(ids)
        case RequestKind.REPLACE_EARLY:
            writer.detach(group, ids)
        case RequestKind.TERMINATE:
            writer.terminate(ids)
        case _ if request.desired is not None:
            writer.set_desired(group, request.desired)
        case kind:
            raise ValueError(f"no call for a request of kind {kind}")
