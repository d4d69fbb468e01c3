"""What a time cost, beside the same hours on demand and beside a fixed fleet for the peak.

Two savings, told apart: sizing's (a fleet that follows the load instead of one as large as the
peak, both on demand) and spot's (the hours that ran, at spot prices).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.money.ledger import EndedBy
from spotkeeper.domain.money.prices import Priced
from spotkeeper.domain.purchase import PurchaseOption

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """USD, hours and counts of a time; the `unpriced_h` are in no sum of USD."""

    spot_h: float
    on_demand_h: float
    spent_spot: float
    spent_on_demand: float
    same_on_demand: float
    peak: int
    fixed_fleet: float
    interruptions: int
    unpriced_h: float

    @property
    def paid(self) -> float:
        """All that was paid for instances."""
        return self.spent_spot + self.spent_on_demand

    @property
    def saved_by_spot(self) -> float:
        """What the same hours would have cost more on demand."""
        return self.same_on_demand - self.paid

    @property
    def saved_by_sizing(self) -> float:
        """What a fixed fleet for the peak, on demand, would have cost more than those hours."""
        return self.fixed_fleet - self.same_on_demand


def savings(found: Sequence[Priced], since: datetime, until: datetime) -> Savings:
    """Sum a time up; the fixed fleet is as large as most instances at once, at their mean price."""
    hours = {option: _hours(p for p in found if _is(p, option)) for option in PurchaseOption}
    paid = {option: sum(p.paid for p in found if _is(p, option)) for option in PurchaseOption}
    same = sum(p.on_demand for p in found)
    priced_h = sum(p.hours for p in found if p.on_demand)
    peak = most_at_once(found)
    mean = same / priced_h if priced_h else 0.0
    return Savings(
        spot_h=hours[PurchaseOption.SPOT],
        on_demand_h=hours[PurchaseOption.ON_DEMAND],
        spent_spot=paid[PurchaseOption.SPOT],
        spent_on_demand=paid[PurchaseOption.ON_DEMAND],
        same_on_demand=same,
        peak=peak,
        fixed_fleet=peak * mean * ((until - since) / _HOUR),
        interruptions=sum(
            p.item.ended_by is EndedBy.AWS and p.item.until == p.until for p in found
        ),
        unpriced_h=sum(p.unpriced_h for p in found),
    )


def most_at_once(found: Iterable[Priced]) -> int:
    """Count the most instances that ran at one instant; one that ends makes room first."""
    edges = sorted(edge for p in found for edge in ((p.since, 1), (p.until, -1)))
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


def _hours(found: Iterable[Priced]) -> float:
    return sum(p.hours for p in found)


def _is(found: Priced, option: PurchaseOption) -> bool:
    return found.item.option is option
