"""Prices of a demo's day: on demand 1 USD an hour, spot a share of it, no list asked.

The rest of the ledger keeper is as deployed: groups, instances' times and the table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from unittest.mock import patch

from spotkeeper import wiring
from spotkeeper.domain.money.prices import PriceBook, PriceSeries

ON_DEMAND_USD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPrices:
    """The same prices at all times."""

    ratio: float
    since: datetime

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Prices of pools (zone/type)."""
        del now
        spot = PriceSeries(at=(self.since,), usd=(self.ratio * ON_DEMAND_USD,))
        types = {pool.partition("/")[2] for pool in pools}
        return PriceBook(
            spot=dict.fromkeys(pools, spot), on_demand=dict.fromkeys(types, ON_DEMAND_USD)
        )


@contextmanager
def at_prices(ratio: float, since: datetime) -> Iterator[None]:
    """Let the ledger keeper find these prices from `since` on."""
    wired = wiring.ledger_ports
    prices = FixedPrices(ratio=ratio, since=since)
    with patch.object(wiring, "ledger_ports", lambda: replace(wired(), prices=prices)):
        yield
