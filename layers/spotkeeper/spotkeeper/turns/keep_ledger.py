"""The ledger keeper: what ran for each fleet, when and at what price; it asks nothing of a group.

Every few minutes, beside the turns: an instance's times are EC2's own, not those of this look.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """Bring every fleet's ledger up to now and price the time since the last look.

    Groups, instances and prices are read for all fleets together.
    """
    errors: list[FleetError] = []
    looks: dict[str, _Look] = {}
    items: dict[str, Sequence[LedgerItem]] = {}
    try:
        groups = ports.groups.describe(
            [n for f in fleets for n in (f.spot_group, f.on_demand_group)]
        )
        for fleet in fleets:
            with _isolated(fleet.name, errors):
                looks[fleet.name] = _look(fleet, groups, ports, now)
        ids = sorted({i for look in looks.values() for i in look.ids})
        ends = {i: ended for look in looks.values() for i, ended in look.ends.items()}
        lives = ports.lives.of(ids, now, ends) if ids else {}
        for name, look in looks.items():
            with _isolated(name, errors):
                items[name] = _keep(name, look, lives, ports, now)
        pools = sorted({item.pool for some in items.values() for item in some})
        book = ports.prices.now(pools, now)
    except FleetError as error:
        # What all fleets need together.
        names = ", ".join(fleet.name for fleet in fleets)
        return LedgerReport(errors=(*errors, type(error)(f"fleets {names}: {error}")))
    spent = [_spending(name, priced(some, book, now - every, now)) for name, some in items.items()]
    return LedgerReport(spent=tuple(spent), errors=tuple(errors))


@contextmanager
def _isolated(fleet: str, errors: list[FleetError]) -> Iterator[None]:
    """Let an error stop the ledger of its own fleet only."""
    try:
        yield
    except FleetError as error:
        errors.append(type(error)(f"fleet {fleet}: {error}"))


@dataclass(frozen=True, slots=True)
class _Look:
    """What a fleet's ledger has open, its instances, and the ends that its groups tell."""

    opened: Sequence[LedgerItem]
    ids: frozenset[str]
    ends: Mapping[str, datetime]


def _look(fleet: Fleet, groups: Mapping[str, Group], ports: LedgerPorts, now: datetime) -> _Look:
    mine = [groups[n] for n in (fleet.spot_group, fleet.on_demand_group) if n in groups]
    opened = ports.ledger.open_items(fleet.name)
    names, since = [group.name for group in mine], now - READ_BACK
    told = ports.activities.ends(names, since) if ports.activities else {}
    members = [i.instance_id for group in mine for i in group.instances]
    return _Look(
        opened=opened,
        ids=frozenset((*members, *(item.instance_id for item in opened), *told)),
        ends={instance_id: ended for instance_id, ended in told.items() if ended},
    )


def _keep(
    fleet: str, look: _Look, lives: Mapping[str, Life], ports: LedgerPorts, now: datetime
) -> Sequence[LedgerItem]:
    """Write what changed; return the items that run or have just ended."""
    lives, opened = {i: lives[i] for i in sorted(look.ids) if i in lives}, look.opened
    over = over_and_not_open(opened, lives)
    # A life is closed after it began, so that all that ended since then holds it.
    closed = ports.ledger.ended(fleet, min(life.since for life in over)) if over else ()
    changed = entries(fleet, opened, lives, now, closed, look.ends)
    ports.ledger.put(changed)
    ports.ledger.looked(fleet, now)
    running = {item.instance_id: item for item in (*opened, *changed) if item.until is None}
    ended = [item for item in changed if item.until is not None]
    gone = {item.instance_id for item in ended}
    return [*(item for item in running.values() if item.instance_id not in gone), *ended]


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
