"""Reads what fleets cost: ledger and prices."""

from dataclasses import dataclass
from datetime import datetime

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.ec2.prices import PRICE_LIST_REGION, on_demand_prices, spot_prices
from spotkeeper.domain.money.ledger import LedgerItem
from spotkeeper.domain.money.prices import PriceBook, Priced, priced
from spotkeeper_operator.aws import CONFIG, Aws, chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What ran in a time, and its prices; `missing` names those that AWS does not have."""

    items: tuple[LedgerItem, ...]
    book: PriceBook
    since: datetime
    until: datetime
    missing: tuple[str, ...]

    @property
    def begins(self) -> datetime:
        """The first instant that the ledger knows of; a fixed fleet is compared from there on."""
        return max([self.since, *sorted(item.since for item in self.items)[:1]])

    def within(self, since: datetime, until: datetime) -> tuple[Priced, ...]:
        """Price the part of it that lies within a time."""
        return priced(self.items, self.book, since, until)

    @property
    def found(self) -> tuple[Priced, ...]:
        """All of it, priced."""
        return self.within(self.since, self.until)


def read_cost(
    aws: Aws, stack_name: str, fleet: str | None, since: datetime, until: datetime
) -> Cost:
    """Read and price the ledger of a time; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    ledger = LedgerTable(aws.dynamodb, stack.table)
    items: list[LedgerItem] = []
    for each in chosen(aws.documents(stack).fleets, fleet):
        items += ledger.since(each.name, since)
    pools = {item.pool for item in items if item.option == "spot"}
    types = {item.instance_type for item in items}
    pricing = aws.session.client("pricing", region_name=PRICE_LIST_REGION, config=CONFIG)
    book = PriceBook(
        spot=spot_prices(aws.ec2, pools, since, until),
        on_demand=on_demand_prices(pricing, types, aws.region),
    )
    missing = [f"spot {pool}" for pool in sorted(pools - book.spot.keys())]
    missing += [f"on-demand {kind}" for kind in sorted(types - book.on_demand.keys())]
    return Cost(items=tuple(items), book=book, since=since, until=until, missing=tuple(missing))
