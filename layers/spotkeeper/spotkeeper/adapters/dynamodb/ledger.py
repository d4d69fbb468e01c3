"""The ledger in the table: an item while an instance runs, another one when it is over.

    pk ledger#FLEET  sk open#ID            runs
    pk ledger#FLEET  sk closed#UNTIL#ID    ended; gone after KEPT
    pk ledger#FLEET  sk gap#UNTIL          what is in no item, as nothing looked; gone after KEPT
    pk ledger#FLEET  sk looked             up to when all of it is here

The closed ones are in the order of their ends, so that the cost of a time is one range of keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.money.ledger import Gap, LedgerItem, each_life_once
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEPT = timedelta(days=400)
_ITEM, _GAP = TypeAdapter(LedgerItem), TypeAdapter(Gap)
_OPEN, _CLOSED, _GAPS, _LOOKED, _LAST = "open#", "closed#", "gap#", "looked", "\uffff"


class LedgerTable:
    """Keeps ledger items; closing one again changes nothing."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def open_items(self, fleet: str) -> tuple[LedgerItem, ...]:
        """Read what runs."""
        return self.opened(fleet)[0]

    def opened(self, fleet: str) -> tuple[tuple[LedgerItem, ...], datetime | None]:
        """Read what runs, and up to when the ledger is complete; None if nothing ever looked."""
        found = list(self._query(fleet, _LOOKED, _OPEN + _LAST))
        looked = [datetime.fromisoformat(one["at"]["S"]) for one in found if "at" in one]
        return _items(found), max(looked, default=None)

    def gaps(self, fleet: str, since: datetime) -> tuple[Gap, ...]:
        """Read the gaps that ended after an instant."""
        found = self._query(fleet, f"{_GAPS}{since.isoformat()}", _GAPS + _LAST)
        gaps = [_read(_GAP, one, "gap") for one in found]
        return tuple(gap for gap in gaps if gap.until > since)

    def ended(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what ended since an instant."""
        return _items(self._query(fleet, f"{_CLOSED}{since.isoformat()}", _CLOSED + _LAST))

    def since(self, fleet: str, since: datetime) -> tuple[LedgerItem, ...]:
        """Read what runs, and what ended since an instant, each life once."""
        return each_life_once((*self.ended(fleet, since), *self.open_items(fleet)))

    def put(self, items: Sequence[LedgerItem]) -> None:
        """Write items; an end is written before the open item goes, so that none is lost."""
        for item in items:
            with aws_errors(f"writing the ledger of {item.fleet}"):
                self._put(item)

    def looked(self, fleet: str, now: datetime) -> None:
        """Note that a fleet's ledger is complete up to now."""
        with aws_errors(f"writing the ledger of {fleet}"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item={
                    "pk": {"S": f"ledger#{fleet}"}, "sk": {"S": _LOOKED},
                    "at": {"S": now.isoformat()},
                },
            )  # fmt: skip

    def stood_still(self, fleet: str, gap: Gap) -> None:
        """Keep a gap."""
        with aws_errors(f"writing the ledger of {fleet}"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item={
                    "pk": {"S": f"ledger#{fleet}"},
                    "sk": {"S": f"{_GAPS}{gap.until.isoformat()}"},
                    "gap": {"S": _GAP.dump_json(gap).decode()},
                    "expires_at": {"N": str(int((gap.until + KEPT).timestamp()))},
                },
            )

    def complete_until(self, fleet: str) -> datetime | None:
        """Say up to when a fleet's ledger is complete; None if nothing ever looked."""
        key = {"pk": {"S": f"ledger#{fleet}"}, "sk": {"S": _LOOKED}}
        with aws_errors(f"reading the ledger of {fleet}"):
            found = self._dynamodb.get_item(TableName=self._table, Key=key).get("Item")
        return datetime.fromisoformat(found["at"]["S"]) if found else None

    def _put(self, item: LedgerItem) -> None:
        opened = f"{_OPEN}{item.instance_id}"
        if item.until is None:
            self._write(item, opened, {})
            return
        gone = {"expires_at": {"N": str(int((item.until + KEPT).timestamp()))}}
        self._write(item, f"{_CLOSED}{item.until.isoformat()}#{item.instance_id}", gone)
        self._dynamodb.delete_item(
            TableName=self._table,
            Key={"pk": {"S": f"ledger#{item.fleet}"}, "sk": {"S": opened}},
        )

    def _write(self, item: LedgerItem, key: str, more: Mapping[str, Any]) -> None:
        self._dynamodb.put_item(
            TableName=self._table,
            Item={
                "pk": {"S": f"ledger#{item.fleet}"},
                "sk": {"S": key},
                "item": {"S": _ITEM.dump_json(item).decode()},
                **more,
            },
        )

    def _query(self, fleet: str, first: str, last: str) -> Iterator[Mapping[str, Any]]:
        pages = self._dynamodb.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression="pk = :pk AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":pk": {"S": f"ledger#{fleet}"}, ":first": {"S": first}, ":last": {"S": last},
            },
        )  # fmt: skip
        with aws_errors(f"reading the ledger of {fleet}"):
            for page in pages:
                yield from page["Items"]


def _items(found: Iterable[Mapping[str, Any]]) -> tuple[LedgerItem, ...]:
    return tuple(_read(_ITEM, one, "item") for one in found if "item" in one)


def _read[T](adapter: TypeAdapter[T], stored: Mapping[str, Any], name: str) -> T:
    """Read a value; raises `Unreadable` for one that no release of this format wrote."""
    try:
        return adapter.validate_json(stored[name]["S"])
    except (KeyError, ValueError) as error:
        key = f"{stored['pk']['S']}, {stored['sk']['S']}"
        raise Unreadable(f"the ledger's item {key} cannot be read: delete it") from error
