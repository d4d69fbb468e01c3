"""The ledger keeper: what ran for each fleet, when and at what price; it asks nothing of a group.

Every few minutes, beside the turns: an instance's times are EC2's own, not those of this look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.money.ledger import LedgerItem, Life, entries, over_and_not_open
from spotkeeper.domain.money.prices import PriceBook, Priced, priced
from spotkeeper.ports import FleetError, GroupReader

# EC2 lists a terminated instance for about an hour, and its type with it.
READ_BACK = timedelta(hours=1)


class Ledger(Protocol):
    """Keeps ledger items."""

    def open_items(self, fleet: str) -> tuple[LedgerItem, ...]:
        """Read what runs."""
        ...

    def ended(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what ended since an instant."""
        ...

    def put(self, items: Sequence[LedgerItem]) -> None:
        """Write items, idempotently."""
        ...

    def looked(self, fleet: str, now: datetime) -> None:
        """Note that a fleet's ledger is complete up to now."""
        ...


class Lives(Protocol):
    """Knows instances' paid times."""

    def of(
        self, instance_ids: Sequence[str], now: datetime, ends: Mapping[str, datetime]
    ) -> Mapping[str, Life]:
        """Read instances by id, `ends` where EC2 does not say when; unknown ones are left out."""
        ...


class Activities(Protocol):
    """Knows when groups launched and terminated instances."""

    def ends(self, groups: Sequence[str], since: datetime) -> Mapping[str, datetime | None]:
        """Read which instances groups launched or terminated since an instant, and their ends."""
        ...


class Prices(Protocol):
    """Knows what instances cost."""

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Read the prices of pools (zone/type) in force; missing ones are left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPorts:
    """All that the ledger keeper needs of the world."""

    groups: GroupReader
    ledger: Ledger
    lives: Lives
    prices: Prices
    activities: Activities | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one fleet ran and spent since the last look, USD."""

    fleet: str
    spot: float
    on_demand: float
    saved: float
    unpriced_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """What was spent, and what could not be kept; one fleet's error stops no other's ledger."""

    spent: tuple[Spending, ...] = ()
    errors: tuple[FleetError, ...] = ()


def keep_ledger(
    fleets: Sequence[Fleet], ports: LedgerPorts, now: datetime, every: timedelta
) -> LedgerReport:
    """Bring every fleet's ledger up to now and price the time since the last look."""
    spent: list[Spending] = []
    errors: list[FleetError] = []
    for fleet in fleets:
        try:
            groups = ports.groups.describe([fleet.spot_group, fleet.on_demand_group])
            spent.append(_keep(fleet, groups, ports, now, every))
        except FleetError as error:
            errors.append(type(error)(f"fleet {fleet.name}: {error}"))
    return LedgerReport(spent=tuple(spent), errors=tuple(errors))


def _keep(
    fleet: Fleet, groups: Mapping[str, Group], ports: LedgerPorts, now: datetime, every: timedelta
) -> Spending:
    opened = ports.ledger.open_items(fleet.name)
    members = [i.instance_id for group in groups.values() for i in group.instances]
    told = ports.activities.ends(list(groups), now - READ_BACK) if ports.activities else {}
    ids = sorted({*members, *(item.instance_id for item in opened), *told})
    ends = {instance_id: ended for instance_id, ended in told.items() if ended}
    lives = ports.lives.of(ids, now, ends) if ids else {}
    over = over_and_not_open(opened, lives)
    # A life is closed after it began, so that all that ended since then holds it.
    closed = ports.ledger.ended(fleet.name, min(life.since for life in over)) if over else ()
    changed = entries(fleet.name, opened, lives, now, closed, ends)
    ports.ledger.put(changed)
    ports.ledger.looked(fleet.name, now)
    running = {item.instance_id: item for item in (*opened, *changed) if item.until is None}
    ended = [item for item in changed if item.until is not None]
    items = [
        *(i for i in running.values() if i.instance_id not in {e.instance_id for e in ended}),
        *ended,
    ]
    book = ports.prices.now(sorted({item.pool for item in items}), now)
    return _spending(fleet.name, priced(items, book, now - every, now))


def _spending(fleet: str, found: Sequence[Priced]) -> Spending:
    paid = {option: 0.0 for option in ("spot", "on-demand")}
    for each in found:
        paid[each.item.option] += each.paid
    # Hours without a price of their own are in no sum, on neither side.
    known = [each for each in found if not each.unpriced_h]
    return Spending(
        fleet=fleet,
        spot=paid["spot"],
        on_demand=paid["on-demand"],
        saved=sum(each.on_demand - each.paid for each in known),
        unpriced_h=sum(each.unpriced_h for each in found),
    )
