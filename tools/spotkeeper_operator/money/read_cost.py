"""Reads what fleets cost: ledger and prices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.money.ledger import Gap, LedgerItem
from spotkeeper.domain.money.prices import PriceBook, Priced, priced
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.money.actual import REGION as CE_REGION
from spotkeeper_operator.money.actual import Actual, first_day, read_actual
from spotkeeper_operator.money.idle import read_idle, read_peak
from spotkeeper_operator.money.users import MOST_SPANS, Noticed, noticed, spans_of

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack
    from spotkeeper.domain.decision import DecisionRecord

# The ledger is kept every five minutes.
LATE = timedelta(minutes=15)
GAPS_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What ran in a time, and its prices; `missing` names those that AWS does not have.

    `peak` is how many instances were needed at most, `unknown` names what is in no sum because it
    was never read. `noticed` is what users noticed of interruptions, `idle` the share of the live
    workers' time without a request, `actual` what AWS billed; None where it is not known or was not
    asked for.
    `troubles` says what could not be read.
    """

    items: tuple[LedgerItem, ...]
    book: PriceBook
    since: datetime
    until: datetime
    missing: tuple[str, ...]
    peak: int | None = None
    unknown: tuple[str, ...] = ()
    noticed: Noticed | None = None
    idle: float | None = None
    actual: Actual | None = None
    troubles: tuple[str, ...] = ()

    @property
    def begins(self) -> datetime:
        """The first instant that the ledger knows of; a fixed fleet is compared from there on."""
        return max([self.since, *sorted(item.since for item in self.items)[:1]])

    def within(self, since: datetime, until: datetime) -> tuple[Priced, ...]:
        """Price the part of it that lies within a time."""
        return priced(self.items, self.book, since, until)

    @property
    def found(self) -> tuple[Priced, ...]:
        return self.within(self.since, self.until)


def read_cost(
    aws: Aws,
    stack_name: str,
    fleet: str | None,
    since: datetime,
    until: datetime,
    *,
    billed: bool = False,
) -> Cost:
    """Read and price the ledger of a time; with `billed` ask AWS what it billed, too.

    Raises `Gone` and `OperatorError`; what is beside the ledger and not allowed is a trouble.
    """
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    fleets = chosen(documents, fleet)
    ledger = LedgerTable(aws.dynamodb, stack.table)
    # What was billed is compared with the ledger of the same days.
    first = first_day(since) if billed else since
    items = tuple(item for each in fleets for item in ledger.since(each.name, first))
    pools = {item.pool for item in items if item.option == "spot"}
    types = {item.instance_type for item in items}
    book = aws.prices(pools, types, first, until)
    missing = [f"spot {pool}" for pool in sorted(pools - book.spot.keys())]
    missing += [f"on-demand {kind}" for kind in sorted(types - book.on_demand.keys())]
    beside = _Beside()
    names = [each.name for each in fleets]
    groups = [name for each in fleets for name in (each.spot_group, each.on_demand_group)]
    return Cost(
        items=items,
        book=book,
        since=since,
        until=until,
        missing=tuple(missing),
        peak=beside.ask(lambda: read_peak(aws.cloudwatch, stack.name, names, since, until)),
        unknown=(
            *(f"{error}: its cost is in no sum" for error in documents.errors),
            *unread(ledger, names, items, since, until),
        ),
        noticed=beside.ask(lambda: _noticed(aws, stack, items, since, until)),
        idle=beside.ask(lambda: read_idle(aws.cloudwatch, stack.name, names, since, until)),
        actual=beside.ask(lambda: read_actual(aws.client("ce", CE_REGION), groups, since, until))
        if billed
        else None,
        troubles=tuple(dict.fromkeys(beside.troubles)),
    )


def unread(
    ledger: LedgerTable,
    fleets: Sequence[str],
    items: Sequence[LedgerItem],
    since: datetime,
    until: datetime,
) -> Iterator[str]:
    """Say of which fleets the ledger is missing, or ends too early."""
    for name in fleets:
        at = ledger.complete_until(name)
        if at is None and not any(item.fleet == name for item in items):
            yield f"fleet {name}: its instances were never read; what it cost is not known"
        for gap in ledger.gaps(name, since):
            if gap.since < until:
                yield f"fleet {name}: {_gap(gap)}"
        if at is not None and until - at > LATE:
            yield f"fleet {name}: last read at {at:%Y-%m-%d %H:%M} UTC; later costs are not known"


def _gap(gap: Gap) -> str:
    parts = [f"not read from {gap.since:%Y-%m-%d %H:%M} to {gap.until:%Y-%m-%d %H:%M} UTC"]
    if gap.instances:
        one, ids = len(gap.instances) == 1, _named(gap.instances)
        ran = "1 instance that ran" if one else f"{len(gap.instances)} instances that ran"
        parts.append(f"{ran} meanwhile {'is' if one else 'are'} in no sum: {ids}")
    if gap.ended:
        parts.append(f"why, or when, these ended is not known: {_named(gap.ended)}")
    return "; ".join(parts)


def _named(instances: Sequence[str]) -> str:
    return ", ".join(instances[:GAPS_NAMED]) + (", ..." if len(instances) > GAPS_NAMED else "")


def _noticed(
    aws: Aws, stack: "Stack", items: Sequence[LedgerItem], since: datetime, until: datetime
) -> Noticed:
    """Read the records around interruptions, fleet by fleet."""
    found: list[Sequence[DecisionRecord]] = []
    unread = 0
    for name in sorted({item.fleet for item in items}):
        spans = spans_of((item for item in items if item.fleet == name), since, until)
        unread += len(spans[MOST_SPANS:])
        found += [
            aws.records(stack).between(name, first, last).records
            for first, last in spans[:MOST_SPANS]
        ]
    return noticed(found, unread)


class _Beside:
    """Asks for what a cost can be told without."""

    def __init__(self) -> None:
        self.troubles: list[str] = []

    def ask[T](self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FleetError as error:
            self.troubles.append(str(error))
            return None
