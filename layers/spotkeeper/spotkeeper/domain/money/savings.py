"""What a time cost, beside the same hours on demand and beside a fixed fleet for the peak.

Two separate savings: sizing's (a fleet that follows the load instead of one as large as the
peak, both on demand) and spot's (the hours that ran, at spot prices).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.money.ledger import EndedBy
from spotkeeper.domain.money.prices import Priced
from spotkeeper.domain.purchase import PurchaseOption

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """USD, hours and counts of a time.

    `unpriced_h` and `reserved_h` are compared with nothing; the fixed fleet has as many hours less.
    """

    spot_h: float
    on_demand_h: float
    spent_spot_usd: float
    spent_on_demand_usd: float
    same_on_demand_usd: float
    saved_by_spot_usd: float
    peak: int | None
    fixed_fleet_usd: float | None
    interruptions: int
    unpriced_h: float
    reserved_h: float

    @property
    def paid(self) -> float:
        """All that was paid for instances."""
        return self.spent_spot_usd + self.spent_on_demand_usd

    @property
    def saved_by_sizing(self) -> float | None:
        """What a fixed fleet for the peak, on demand, would have cost more than those hours."""
        return (
            None if self.fixed_fleet_usd is None else self.fixed_fleet_usd - self.same_on_demand_usd
        )


def savings(
    lives: Sequence[Priced], since: datetime, until: datetime, peak: int | None = None
) -> Savings:
    """Sum a time up; the fixed fleet has the `peak` that was needed, at the instances' mean price.

    More instances run than are needed while one takes another's place, so the peak is not counted
    from them. It is None where it is not known.
    """
    spot = [p for p in lives if p.item.option is PurchaseOption.SPOT]
    others = [p for p in lives if p.item.option is PurchaseOption.ON_DEMAND]
    on_demand = [p for p in others if not p.item.reservation]
    same = sum(p.on_demand for p in lives)
    unpriced_h = sum(p.unpriced_h for p in lives)
    reserved_h = sum(p.hours for p in lives if p.item.reservation)
    left_out_h = unpriced_h + reserved_h
    priced_h = sum(p.hours for p in lives) - left_out_h
    mean = same / priced_h if priced_h > 0 else 0.0
    fixed_h = None if peak is None else max(0.0, peak * ((until - since) / _HOUR) - left_out_h)
    return Savings(
        spot_h=sum(p.hours for p in spot),
        on_demand_h=sum(p.hours for p in on_demand),
        spent_spot_usd=sum(p.paid for p in spot),
        spent_on_demand_usd=sum(p.paid for p in on_demand),
        same_on_demand_usd=same,
        saved_by_spot_usd=sum(p.saved for p in lives),
        peak=peak,
        fixed_fleet_usd=None if fixed_h is None else mean * fixed_h,
        interruptions=sum(
            p.item.ended_by is EndedBy.AWS and p.item.until == p.until for p in lives
        ),
        unpriced_h=unpriced_h,
        reserved_h=reserved_h,
    )
