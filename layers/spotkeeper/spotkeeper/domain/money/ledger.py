"""Which instances ran for a fleet, from when to when, and what ended them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from spotkeeper.domain.purchase import PurchaseOption


class EndedBy(StrEnum):
    """What ended an instance, as far as EC2 reports it."""

    NOBODY = ""
    AWS = "aws"
    US = "us"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """An instance as EC2 reports it: since when it is paid for, and until when if it has ended.

    `pool` is zone/type. `reservation` is the capacity reservation that it began in: it is paid for
    whether an instance uses it or not.
    """

    instance_id: str
    pool: str
    option: PurchaseOption
    since: datetime
    until: datetime | None = None
    ended_by: EndedBy = EndedBy.NOBODY
    reservation: str = ""

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.pool.partition("/")[0]

    @property
    def instance_type(self) -> str:
        """Its type."""
        return self.pool.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerItem(Life):
    """One instance's paid time for one fleet.

    A warm instance that stops and starts again has an item for each time.
    """

    fleet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which nothing was read, and the instances that ran then and are in no item.

    EC2 has forgotten those of `ended`: when they ended is known at best from their group's
    activities, and whether AWS ended them, which makes their first hour free, is not.
    """

    since: datetime
    until: datetime
    instances: tuple[str, ...]
    ended: tuple[str, ...] = ()


def each_life_once(items: Iterable[LedgerItem]) -> tuple[LedgerItem, ...]:
    """Keep one item of each life: the one that runs, else the one that ended first.

    Earlier releases closed a life at every look if EC2 does not report its end. An end by an
    unknown cause, as after a missed look, counts only where no item has another.
    """
    kept: dict[tuple[str, datetime], LedgerItem] = {}
    unknown = EndedBy.UNKNOWN
    for item in sorted(
        items, key=lambda one: (one.until is None, one.ended_by is unknown, one.until or one.since)
    ):
        life = item.instance_id, item.since
        if item.until is None or life not in kept:
            kept[life] = item
    return tuple(kept.values())


def over_and_not_open(opened: Iterable[LedgerItem], lives: Mapping[str, Life]) -> tuple[Life, ...]:
    """Name what started and ended between two looks, or was closed before and is still listed."""
    known = {item.instance_id for item in opened}
    return tuple(
        life for life in lives.values() if life.until is not None and life.instance_id not in known
    )


def entries(
    fleet: str,
    opened: Iterable[LedgerItem],
    lives: Mapping[str, Life],
    now: datetime,
    closed: Iterable[LedgerItem] = (),
    ends: Mapping[str, datetime] = MappingProxyType({}),
) -> tuple[LedgerItem, ...]:
    """Return the items that are new or changed: what runs is opened, what is over is closed.

    An open item of which EC2 knows nothing any more ended when the group's activities say, now at
    the latest. A life that is `closed` stays so: where EC2 has no end, each look would end it anew.
    """
    before = {item.instance_id: item for item in opened}
    done = {(item.instance_id, item.since) for item in closed}
    changed = list[LedgerItem]()
    for item_id, item in before.items():
        if item_id not in lives:
            end = ends.get(item_id, now)
            until = end if item.since <= end <= now else now
            changed.append(replace(item, until=until, ended_by=EndedBy.UNKNOWN))
    for life in lives.values():
        known = before.get(life.instance_id)
        if known is not None and known.since != life.since:
            # It was stopped and started between two readings; the time is not known.
            until = min(life.since, now)
            changed.append(replace(known, until=until, ended_by=EndedBy.UNKNOWN))
            known = None
        if known is None and life.until and (life.instance_id, life.since) in done:
            continue
        if known is None or life.until is not None:
            item = LedgerItem(fleet=fleet, **asdict(life))
            changed.append(replace(item, reservation=known.reservation) if known else item)
    return tuple(changed)
