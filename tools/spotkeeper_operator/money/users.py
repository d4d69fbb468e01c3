"""What interruptions cost the users, and how much of the paid time was idle."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.money.ledger import EndedBy, LedgerItem

# A warning comes two minutes before the end; the load's window shows requests for a while after.
BEFORE, AFTER = timedelta(minutes=3), timedelta(minutes=15)
# Further ones are named, not read: each is a question of its own.
MOST_SPANS = 50
LONGEST_STEP = timedelta(minutes=2)
_MINUTE = timedelta(minutes=1)

type Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Requests late and failed around interruptions; None where the records do not say.

    `spans` are the times looked at, `unread` those of which there were too many.
    """

    late: float | None
    failed: float | None
    spans: int
    unread: int


def spans_of(items: Iterable[LedgerItem], since: datetime, until: datetime) -> list[Span]:
    """Cut out the times around instances that AWS took, those that touch as one; newest first."""
    ends = sorted(
        item.until
        for item in items
        if item.until and item.ended_by is EndedBy.AWS and since <= item.until <= until
    )
    spans: list[Span] = []
    for end in ends:
        first, last = end - BEFORE, min(end + AFTER, until)
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
    return spans[::-1]


def noticed(per_span: Sequence[Sequence[DecisionRecord]], unread: int) -> Noticed:
    """Add up what health turns saw of requests, a record for the time until the next."""
    late = [_sum(records, "RequestsLate") for records in per_span]
    failed = [_sum(records, "RequestsFailed") for records in per_span]
    return Noticed(late=_known(late), failed=_known(failed), spans=len(per_span), unread=unread)


def _sum(records: Sequence[DecisionRecord], name: str) -> float | None:
    health = sorted((r for r in records if r.controller is Controller.HEALTH), key=lambda r: r.at)
    found = [
        (before.seen[name], min(after.at - before.at, LONGEST_STEP) / _MINUTE)
        for before, after in pairwise(health)
        if name in before.seen
    ]
    return sum(rate * minutes for rate, minutes in found) if found else None


def _known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
