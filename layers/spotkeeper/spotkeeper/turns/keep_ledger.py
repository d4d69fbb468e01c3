"""The ledger keeper: what ran for each fleet, when and at what price; it changes no group.

It runs every few minutes, beside the turns. An instance's times are EC2's, not those of the look.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.money.ledger import Gap, LedgerItem, Life, entries, over_and_not_open
from spotkeeper.domain.money.prices import priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper.ports import FleetError, GroupReader, Prices, TimedOut, Unavailable
from spotkeeper.turns.turn import Budget, rotated

# EC2 lists a terminated instance for about an hour, and its type with it.
READ_BACK = timedelta(hours=1)
# After a longer time without a look, EC2 may have forgotten what ran meanwhile.
STOOD_STILL = timedelta(minutes=45)
# Beyond this many fleets, the activities of a fleet that lost no instance are read at one look in
# six: they only name what began and ended between two looks.
FEW_FLEETS, EVERY_LOOKS = 5, 6
# After this time no fleet is read and no ledger is written: the function has 30 s.
LOOK_UNTIL_S, KEEP_UNTIL_S = 12.0, 22.0
ACTIVITIES = "the log of scaling activities"


class Ledger(Protocol):
    """Keeps ledger items."""

    def opened(self, fleet: str) -> tuple[tuple[LedgerItem, ...], datetime | None]:
        """Read what runs, and up to when the ledger is complete; None if nothing ever looked."""
        ...

    def ended(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what ended since an instant."""
        ...

    def put(self, items: Sequence[LedgerItem]) -> None:
        """Write items, idempotently."""
        ...

    def stood_still(self, fleet: str, gap: Gap) -> None:
        """Keep a gap."""
        ...

    def looked(self, fleet: str, now: datetime, began: datetime | None = None) -> None:
        """Note that a fleet's ledger is complete up to now; and since when, where it is new."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPorts:
    """All that the ledger keeper needs of the world."""

    groups: GroupReader
    ledger: Ledger
    lives: Lives
    prices: Prices
    activities: Activities
    clock: Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """What each fleet spent and saved since the last look, and what could not be kept.

    One fleet's error stops no other's ledger.
    """

    spent: Mapping[str, Savings] = field(default_factory=dict)
    errors: tuple[FleetError, ...] = ()


def keep_ledger(
    fleets: Sequence[Fleet], ports: LedgerPorts, now: datetime, every: timedelta
) -> LedgerReport:
    """Bring every fleet's ledger up to now and price the time since the last look.

    Groups, instances and prices are read for all fleets together. Another fleet is first each time.
    """
    errors: list[FleetError] = []
    budget = Budget(began=now, clock=ports.clock)
    look = int(now.timestamp() // every.total_seconds())
    looks: dict[str, _Look] = {}
    items: dict[str, Sequence[LedgerItem]] = {}
    try:
        groups = ports.groups.describe(
            [n for f in fleets for n in (f.spot_group, f.on_demand_group)]
        )
        for done, (number, fleet) in enumerate(rotated([*enumerate(fleets)], now, every)):
            with _isolated(fleet.name, errors):
                _in_time(budget, LOOK_UNTIL_S)
                budget.begin(len(fleets) - done)
                due = len(fleets) <= FEW_FLEETS or (number + look) % EVERY_LOOKS == 0
                looks[fleet.name] = _look(fleet, groups, ports, now, budget, due=due)
        ids = sorted({i for reading in looks.values() for i in reading.ids})
        ends = {i: ended for reading in looks.values() for i, ended in reading.ends.items()}
        lives = ports.lives.of(ids, now, ends) if ids else {}
        for name, reading in looks.items():
            with _isolated(name, errors):
                _in_time(budget, KEEP_UNTIL_S)
                items[name] = _keep(name, reading, lives, ports, now)
                if reading.unread:
                    raise Unavailable(
                        f"what began and ended meanwhile may be missing: {reading.unread}"
                    )
        pools = sorted({item.pool for some in items.values() for item in some})
        book = ports.prices.now(pools, now)
    except FleetError as error:
        # What all fleets need together.
        names = ", ".join(fleet.name for fleet in fleets)
        return LedgerReport(errors=(*errors, type(error)(f"fleets {names}: {error}")))
    since = now - every
    spent = {
        name: savings(priced(some, book, since, now), since, now) for name, some in items.items()
    }
    return LedgerReport(spent=spent, errors=tuple(errors))


@contextmanager
def _isolated(fleet: str, errors: list[FleetError]) -> Iterator[None]:
    """Let an error stop the ledger of its own fleet only."""
    try:
        yield
    except FleetError as error:
        errors.append(type(error)(f"fleet {fleet}: {error}"))


def _in_time(budget: Budget, until_s: float) -> None:
    if (spent := budget.spent_s()) >= until_s:
        raise TimedOut(f"not read: other fleets took {spent:.0f} s")


@dataclass(frozen=True, slots=True)
class _Look:
    """The open items of a fleet's ledger, its instances, and the ends that its groups report.

    `unread` says why the activities could not be read. `began` is since when all is known, at the
    first look. After a long time without a look, since `stood`, `ids` has all instances that ran
    meanwhile.
    """

    opened: Sequence[LedgerItem]
    began: datetime | None
    stood: datetime | None
    ids: frozenset[str]
    ends: Mapping[str, datetime]
    unread: str


def _look(
    fleet: Fleet,
    groups: Mapping[str, Group],
    ports: LedgerPorts,
    now: datetime,
    budget: Budget,
    *,
    due: bool,
) -> _Look:
    """Look at one fleet, and at its activities if they are due or an instance has left."""
    mine = [groups[n] for n in (fleet.spot_group, fleet.on_demand_group) if n in groups]
    (opened, last), unread = ports.ledger.opened(fleet.name), list[str]()
    stood = last if last and now - last > STOOD_STILL else None
    names, since = [group.name for group in mine], min(stood or now, now - READ_BACK)
    members = {i.instance_id for group in mine for i in group.instances}
    listed: Mapping[str, datetime | None] = {}
    gone = not {item.instance_id for item in opened} <= members
    if due or stood or gone:
        listed = budget.optional(
            unread, ACTIVITIES, listed, lambda: ports.activities.ends(names, since), api=ACTIVITIES
        )
    return _Look(
        opened=opened,
        began=None if last else now - READ_BACK,
        stood=stood,
        ids=frozenset((*members, *(item.instance_id for item in opened), *listed)),
        ends={instance_id: ended for instance_id, ended in listed.items() if ended},
        unread="; ".join(unread),
    )


def _keep(
    fleet: str, look: _Look, lives: Mapping[str, Life], ports: LedgerPorts, now: datetime
) -> Sequence[LedgerItem]:
    """Write what changed, and what EC2 has forgotten; return what runs or has just ended."""
    ledger, lives = ports.ledger, {i: lives[i] for i in sorted(look.ids) if i in lives}
    opened = look.opened
    if look.unread:
        # When the others ended is known once the activities can be read again.
        opened = tuple(item for item in opened if item.instance_id in lives)
    over = over_and_not_open(opened, lives)
    # A life is closed after it began, so that all that ended since then holds it.
    closed = ledger.ended(fleet, min(life.since for life in over)) if over else ()
    changed = entries(fleet, opened, lives, now, closed, look.ends)
    ledger.put(changed)
    if not look.unread:
        if look.stood:
            known = {item.instance_id for item in look.opened}
            booked = {item.instance_id for item in ledger.ended(fleet, look.stood - READ_BACK)}
            # Nobody knows the type of these, or when and why they ended.
            lost = tuple(sorted(look.ids - lives.keys() - booked - known))
            ended = tuple(sorted(known - lives.keys()))
            if lost or ended:
                gap = Gap(since=look.stood, until=now, instances=lost, ended=ended)
                ledger.stood_still(fleet, gap)
        ledger.looked(fleet, now, look.began)
    newest = {item.instance_id: item for item in (*look.opened, *changed)}
    over_now = [item for item in changed if item.until is not None]
    gone = {item.instance_id for item in over_now}
    return [*(item for i, item in newest.items() if i not in gone), *over_now]
