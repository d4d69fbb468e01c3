"""The product's table as its client answers: strict about expressions, and quick."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

from spotkeeper_lab.chaos.stand_ins.expressions import Item, condition, update
from spotkeeper_lab.chaos.stand_ins.tokens import NotUnderstood
from spotkeeper_lab.cloud.values import CloudError

MOST_ITEMS_A_BATCH = 25


class Table:
    """One table with the keys pk and sk; each method is one operation of DynamoDB's client."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[str]] = {}

    def put_item(self, *, Item: Item, **_: Any) -> Mapping[str, object]:
        """Put an item in the place of the one before."""
        partition, key = Item["pk"]["S"], Item["sk"]["S"]
        items = self.partitions.setdefault(partition, {})
        if key not in items:
            insort(self._order.setdefault(partition, []), key)
        items[key] = Item
        return {}

    def get_item(self, *, Key: Item, **_: Any) -> Mapping[str, object]:
        """Get an item."""
        item = self._item(Key)
        return {} if item is None else {"Item": item}

    def delete_item(self, *, Key: Item, **_: Any) -> Mapping[str, object]:
        """Delete an item, if it is there."""
        partition, key = Key["pk"]["S"], Key["sk"]["S"]
        if self.partitions.get(partition, {}).pop(key, None) is not None:
            self._order[partition].remove(key)
        return {}

    def update_item(
        self,
        *,
        Key: Item,
        UpdateExpression: str,
        ConditionExpression: str = "",
        ExpressionAttributeNames: Mapping[str, str] | None = None,
        ExpressionAttributeValues: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Mapping[str, object]:
        """Update an item if its condition holds; answers all of the new one."""
        item, names = self._item(Key) or {}, ExpressionAttributeNames or {}
        values = ExpressionAttributeValues or {}
        _all_used({**names, **values}, UpdateExpression + ConditionExpression)
        if ConditionExpression and not condition(ConditionExpression)(item, names, values):
            message = "The conditional request failed"
            raise CloudError("ConditionalCheckFailedException", message)
        new = {**update(UpdateExpression)(item, names, values), **Key}
        self.put_item(Item=new)
        return {"Attributes": new}

    def batch_write_item(
        self, *, RequestItems: Mapping[str, list[dict[str, Any]]], **_: Any
    ) -> Mapping[str, object]:
        """Put up to 25 items."""
        for requests in RequestItems.values():
            if len(requests) > MOST_ITEMS_A_BATCH:
                raise CloudError("ValidationException", "Too many items requested")
            for request in requests:
                self.put_item(Item=request["PutRequest"]["Item"])
        return {"UnprocessedItems": {}}

    def query(
        self,
        *,
        KeyConditionExpression: str,
        ExpressionAttributeValues: Mapping[str, Any],
        Select: str = "",
        ScanIndexForward: bool = True,
        Limit: int | None = None,
        **_: Any,
    ) -> Mapping[str, object]:
        """Query one partition by its sort key."""
        values = ExpressionAttributeValues
        partition = values[":pk"]["S"]
        order = self._order.get(partition, [])
        first = values.get(":first", {"S": ""})["S"]
        test, items = condition(KeyConditionExpression), self.partitions.get(partition, {})
        found = [
            items[key] for key in order[bisect_left(order, first) :] if test(items[key], {}, values)
        ]
        found = (found if ScanIndexForward else found[::-1])[:Limit]
        return {"Count": len(found), **({} if Select == "COUNT" else {"Items": found})}

    def _item(self, key: Item) -> Item | None:
        return self.partitions.get(key["pk"]["S"], {}).get(key["sk"]["S"])


def _all_used(named: Mapping[str, object], text: str) -> None:
    """Refuse names and values that no expression uses, as DynamoDB does."""
    for name in named:
        if name not in text:
            raise NotUnderstood(f"{name} is unused in {text!r}")
