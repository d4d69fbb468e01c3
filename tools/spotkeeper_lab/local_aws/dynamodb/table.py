"""A table with the keys pk and sk, as DynamoDB's client asks for it.

What is not understood is refused: a parameter that no method names, an expression that uses more
of DynamoDB, a name or value that none uses, a reserved word.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.dynamodb.expressions import Item, condition, update
from spotkeeper_lab.local_aws.dynamodb.tokens import NotUnderstood, names_of
from spotkeeper_lab.local_aws.wire import Answer

# A partition, and where in it the keys begin if the condition says so.
_KEY_CONDITION = re.compile(
    r"pk = (?P<partition>:\w+)(?: AND sk (?:>=|BETWEEN) (?P<first>:\w+).*| AND .*)?"
)

type Names = Mapping[str, str]
type Values = Mapping[str, Any]
type Call = Callable[..., Answer]


class Table:
    """One table; each method is one operation, which answers as the client does."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[str]] = {}

    def operations(self) -> Mapping[str, Call]:
        """The operations by their names."""
        return {
            "put_item": self.put_item,
            "get_item": self.get_item,
            "delete_item": self.delete_item,
            "update_item": self.update_item,
            "query": self.query,
            "scan": self.scan,
        }

    def put_item(
        self,
        *,
        Item: Item,
        ConditionExpression: str = "",
        ExpressionAttributeNames: Names | None = None,
        ExpressionAttributeValues: Values | None = None,
    ) -> Answer:
        """Put an item in the place of the one before, if its condition holds."""
        names, values = ExpressionAttributeNames or {}, ExpressionAttributeValues or {}
        _all_used({**names, **values}, ConditionExpression)
        partition, key = Item["pk"]["S"], Item["sk"]["S"]
        items = self.partitions.setdefault(partition, {})
        _held(ConditionExpression, items.get(key, {}), names, values)
        if key not in items:
            insort(self._order.setdefault(partition, []), key)
        items[key] = Item
        return {}

    def get_item(self, *, Key: Item, ConsistentRead: bool = False) -> Answer:
        """Get an item; every read is consistent."""
        del ConsistentRead
        item = self._item(Key)
        return {} if item is None else {"Item": item}

    def delete_item(self, *, Key: Item) -> Answer:
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
        ExpressionAttributeNames: Names | None = None,
        ExpressionAttributeValues: Values | None = None,
        ReturnValues: str = "NONE",
    ) -> Answer:
        """Update an item if its condition holds; answers all of the new one if asked for it."""
        item, names = self._item(Key) or {}, ExpressionAttributeNames or {}
        values = ExpressionAttributeValues or {}
        _all_used({**names, **values}, UpdateExpression + ConditionExpression)
        _held(ConditionExpression, item, names, values)
        new = {**update(UpdateExpression)(item, names, values), **Key}
        self.put_item(Item=new)
        return {"Attributes": new} if ReturnValues == "ALL_NEW" else {}

    def query(
        self,
        *,
        KeyConditionExpression: str,
        ExpressionAttributeValues: Values,
        ScanIndexForward: bool = True,
        **page: Any,
    ) -> Answer:
        """Query one partition by its sort key; `page` says what is shown of what is found."""
        _all_used(ExpressionAttributeValues, KeyConditionExpression)
        found = self._matching(KeyConditionExpression, ExpressionAttributeValues)
        return _page(found if ScanIndexForward else found[::-1], **page)

    def scan(self) -> Answer:
        """Give all items."""
        return {"Items": [item for items in self.partitions.values() for item in items.values()]}

    def take(self, partition: str, first: str, stop: str) -> list[Item]:
        """Take the items of a range of keys out of a partition, in their order."""
        order = self._order.get(partition, [])
        keys = slice(bisect_left(order, first), bisect_left(order, stop))
        taken = [self.partitions[partition].pop(key) for key in order[keys]]
        del order[keys]
        return taken

    def _matching(self, expression: str, values: Values) -> list[Item]:
        """The items of a partition that meet a key condition, in the order of their keys."""
        read = _KEY_CONDITION.fullmatch(expression)
        if read is None:
            raise NotUnderstood(expression)
        partition = values[read["partition"]]["S"]
        items, order = self.partitions.get(partition, {}), self._order.get(partition, [])
        first = values[read["first"]]["S"] if read["first"] else ""
        test = condition(expression)
        keys = order[bisect_left(order, first) :]
        return [items[key] for key in keys if test(items[key], {}, values)]

    def _item(self, key: Item) -> Item | None:
        return self.partitions.get(key["pk"]["S"], {}).get(key["sk"]["S"])


def _page(
    found: list[Item],
    *,
    Limit: int | None = None,
    ExclusiveStartKey: Item | None = None,
    ProjectionExpression: str = "",
    ExpressionAttributeNames: Names | None = None,
    Select: str = "",
) -> Answer:
    names = ExpressionAttributeNames or {}
    _all_used(names, ProjectionExpression)
    keys = [{"pk": item["pk"], "sk": item["sk"]} for item in found]
    first = keys.index(ExclusiveStartKey) + 1 if ExclusiveStartKey else 0
    stop = first + Limit if Limit else len(found)
    more = {"LastEvaluatedKey": keys[stop - 1]} if Limit and stop <= len(found) else {}
    found = found[first:stop]
    if Select == "COUNT":
        return {"Count": len(found), **more}
    if ProjectionExpression:
        shown = [names.get(name, name) for name in names_of(ProjectionExpression)]
        found = [{name: item[name] for name in shown if name in item} for item in found]
    return {"Count": len(found), "Items": found, **more}


def _held(text: str, item: Item, names: Names, values: Values) -> None:
    """Refuse what has a condition that an item does not meet."""
    if text and not condition(text)(item, names, values):
        raise CloudError("ConditionalCheckFailedException", "The conditional request failed")


def _all_used(named: Iterable[str], text: str) -> None:
    """Refuse names and values that no expression uses, as DynamoDB does."""
    for name in named:
        if name not in text:
            raise NotUnderstood(f"{name} is unused in {text!r}")
