"""The ledger in the table: an item while an instance runs, another one when it is over.

    pk ledger#FLEET  sk open#ID            runs
    pk ledger#FLEET  sk closed#UNTIL#ID    ended; gone after KEPT
    pk ledger#FLEET  sk gap#UNTIL          what is in no item, as nothing looked; gone after KEPT
    pk ledger#FLEET  sk looked             up to when all of it is here
    pk ledger#FLEET  sk began              since when
    pk ledger#       sk FLEET              there is one: of a fleet that was removed, too

The closed ones are in the order of their ends, so that the cost of a time is one range of keys.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pydantic import TypeAdapter

from spotkeeper.adapters.table import LAST, Item, Items, epoch, parsed
from spotkeeper.domain.money.ledger import Gap, LedgerItem, each_life_once

KEPT = timedelta(days=400)
_ITEM, _GAP = TypeAdapter(LedgerItem), TypeAdapter(Gap)
_OPEN, _CLOSED, _GAPS, _LOOKED, _BEGAN = "open#", "closed#", "gap#", "looked", "began"


class LedgerTable(Items):
    """Keeps ledger items; closing one again changes nothing."""

    def fleets(self) -> frozenset[str]:
        """Name the fleets that have a ledger, those that were removed, too."""
        return frozenset(one["sk"]["S"] for one in self._range("", " ", LAST))

    def opened(self, fleet: str) -> tuple[tuple[LedgerItem, ...], datetime | None]:
        """Read what runs, and up to when the ledger is complete; None if nothing ever looked."""
        rows = self._range(fleet, _LOOKED, _OPEN + LAST)
        looked = [datetime.fromisoformat(one["at"]["S"]) for one in rows if "at" in one]
        return _items(rows), max(looked, default=None)

    def gaps(self, fleet: str, since: datetime) -> tuple[Gap, ...]:
        """Read the gaps that ended after an instant."""
        rows = self._range(fleet, f"{_GAPS}{since.isoformat()}", _GAPS + LAST)
        return tuple(parsed(_GAP, one, "gap") for one in rows)

    def ended(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what ended since an instant."""
        return _items(self._range(fleet, f"{_CLOSED}{since.isoformat()}", _CLOSED + LAST))

    def since(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what runs, and what ended since an instant, each life once."""
        return each_life_once((*self.ended(fleet, since), *self.opened(fleet)[0]))

    def complete_since(self, fleet: str) -> datetime | None:
        """Say since when a fleet's ledger is complete; None for one of an earlier release."""
        row = self._get(f"reading the ledger of {fleet}", f"ledger#{fleet}", _BEGAN)
        return datetime.fromisoformat(row["at"]["S"]) if row else None

    def put(self, items: Sequence[LedgerItem]) -> None:
        """Write items; an end is written before the open item goes, so that none is lost."""
        for item in items:
            at = (f"writing the ledger of {item.fleet}", f"ledger#{item.fleet}")
            opened, text = f"{_OPEN}{item.instance_id}", _ITEM.dump_json(item).decode()
            if item.until is None:
                self._put(*at, opened, item=text)
            else:
                closed = f"{_CLOSED}{item.until.isoformat()}#{item.instance_id}"
                self._put(*at, closed, item=text, expires_at=epoch(item.until + KEPT))
                self._delete(*at, opened)

    def looked(self, fleet: str, now: datetime, began: datetime | None = None) -> None:
        """Note that a fleet's ledger is complete up to now; and since when, where it is new."""
        for of, name, at in ((fleet, _BEGAN, began), (fleet, _LOOKED, now), ("", fleet, now)):
            if at:
                doing = f"writing the ledger of {fleet}"
                self._put(doing, f"ledger#{of}", name, at=at.isoformat())

    def stood_still(self, fleet: str, gap: Gap) -> None:
        """Keep a gap."""
        self._put(
            f"writing the ledger of {fleet}",
            f"ledger#{fleet}",
            f"{_GAPS}{gap.until.isoformat()}",
            gap=_GAP.dump_json(gap).decode(),
            expires_at=epoch(gap.until + KEPT),
        )

    def _range(self, fleet: str, first: str, last: str) -> list[Item]:
        return [*self._query(f"reading the ledger of {fleet}", f"ledger#{fleet}", first, last)]


def _items(rows: Iterable[Item]) -> tuple[LedgerItem, ...]:
    return tuple(parsed(_ITEM, one, "item") for one in rows if "item" in one)
