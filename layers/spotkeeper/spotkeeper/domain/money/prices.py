"""Prices over time, and what an instance cost by them; a missing price is listed, never guessed."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.money.ledger import EndedBy, LedgerItem
from spotkeeper.domain.purchase import PurchaseOption

_HOUR = timedelta(hours=1)
# EC2 user guide, "Billing for interrupted Spot Instances" (Linux, but SUSE): no charge when EC2
# interrupts in the first hour. EC2 pricing, "Per-second billing": a minute at least.
FREE_WITHIN = timedelta(hours=1)
LEAST_BILLED = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSeries:
    """A pool's spot price: USD an hour from each instant on, in the order of time."""

    at: tuple[datetime, ...]
    usd: tuple[float, ...]

    def cost(self, since: datetime, until: datetime) -> tuple[float, float]:
        """Return what a time cost, USD, and the hours of it for which there is no price."""
        if not self.at or self.at[0] >= until:
            return 0.0, max(0.0, (until - since) / _HOUR)
        unknown = max(0.0, (self.at[0] - since) / _HOUR)
        edges = [max(since, self.at[0])]
        first = bisect_right(self.at, edges[0])
        edges += [at for at in self.at[first:] if at < until] + [until]
        prices = self.usd[first - 1 :]
        spent = sum(
            (end - start) / _HOUR * usd
            for start, end, usd in zip(edges, edges[1:], prices, strict=False)
        )
        return spent, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Spot prices by pool, on-demand prices by instance type; USD an hour."""

    spot: Mapping[str, PriceSeries] = field(default_factory=dict)
    on_demand: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One item within a time: hours, what was paid, the same on demand; hours without a price.

    Nothing is saved in those; nor in those of a capacity reservation, which are not paid for here.
    """

    item: LedgerItem
    since: datetime
    until: datetime
    paid: float
    on_demand: float
    unpriced_h: float

    @property
    def hours(self) -> float:
        """How long it ran."""
        return (self.until - self.since) / _HOUR

    @property
    def saved(self) -> float:
        """What the hours with both prices would have cost more on demand, USD."""
        return self.on_demand - self.paid if self.unpriced_h < self.hours else 0.0


def priced(
    items: Sequence[LedgerItem], book: PriceBook, since: datetime, until: datetime
) -> tuple[Priced, ...]:
    """Price the part of each item that lies within a time; those outside are left out."""
    lives = []
    for item in items:
        first, last = max(item.since, since), min(item.until or until, until)
        if first < last:
            lives.append(_priced(item, book, first, last))
    return tuple(lives)


def is_free(item: LedgerItem) -> bool:
    """Say whether AWS charges nothing: EC2 took a spot instance within its first hour."""
    interrupted = item.option is PurchaseOption.SPOT and item.ended_by is EndedBy.AWS
    return interrupted and item.until is not None and item.until - item.since < FREE_WITHIN


def _priced(item: LedgerItem, book: PriceBook, since: datetime, until: datetime) -> Priced:
    hours = (until - since) / _HOUR
    if until == item.until:
        until = max(until, item.since + LEAST_BILLED)
    billed = (until - since) / _HOUR
    usd = book.on_demand.get(item.instance_type)
    if item.reservation:
        usd, paid, unpriced = 0.0, 0.0, 0.0
    elif item.option is PurchaseOption.ON_DEMAND:
        paid, unpriced = (0.0, hours) if usd is None else (billed * usd, 0.0)
    elif is_free(item):
        paid, unpriced = 0.0, 0.0
    else:
        series = book.spot.get(item.pool, PriceSeries(at=(), usd=()))
        paid, unpriced = series.cost(since, until)
        unpriced = min(unpriced, hours)
    return Priced(
        item=item,
        since=since,
        until=since + hours * _HOUR,
        paid=paid,
        on_demand=(hours - unpriced) * usd if usd is not None else 0.0,
        unpriced_h=unpriced if usd is not None else hours,
    )
