"""DynamoDB as the product uses it: strict about expressions, and quick.

moto has the whole of DynamoDB, at a millisecond a call. The contract tests of the states and of the
load table hold both to the same promises. What is not understood is refused: an expression that
uses more of DynamoDB, an unused name, a reserved word.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from moto.dynamodb.comparisons import get_filter_expression
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from spotkeeper_lab.aws.wire import Answer, Params, Respond
from spotkeeper_lab.cloud.values import CloudError

MOST_BYTES = 4096
"""Of an expression."""
MOST_ITEMS_A_BATCH = 25
_LAST = "\U0010ffff"
"""Sorts after every other character."""

type Item = dict[str, Any]


class NotUnderstood(Exception):
    """An expression that uses more of DynamoDB than is known here: teach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The expressions of a call, by AWS's names, and what they name."""

    ConditionExpression: str = ""
    KeyConditionExpression: str = ""
    ProjectionExpression: str = ""
    UpdateExpression: str = ""
    ExpressionAttributeNames: Mapping[str, str] = field(default_factory=dict)
    ExpressionAttributeValues: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expressions = [getattr(self, one.name) for one in fields(self)[:4]]
        for text in filter(None, expressions):
            _check(text)
        for name in (*self.ExpressionAttributeNames, *self.ExpressionAttributeValues):
            if name not in "".join(expressions):
                raise NotUnderstood(f"{name} is unused in {expressions}")

    def name(self, token: str) -> str:
        """The attribute that a token names."""
        return self.ExpressionAttributeNames.get(token, token)

    def term(self, item: Item, token: str) -> Any:
        """The value that a token gives, or that an item has by its name; None without one."""
        if token.startswith(":"):
            return self.ExpressionAttributeValues[token]
        return item.get(self.name(token))

    def demand(self, item: Item) -> None:
        """Refuse the call if an item does not meet its condition, as moto reads it."""
        if not self.ConditionExpression:
            return
        names, values = dict(self.ExpressionAttributeNames), dict(self.ExpressionAttributeValues)
        try:
            condition = get_filter_expression(self.ConditionExpression, names, values)
        except (KeyError, ValueError) as error:
            raise NotUnderstood(self.ConditionExpression) from error
        stored: Any = SimpleNamespace(attrs={key: DynamoType(value) for key, value in item.items()})
        if not condition.expr(stored):
            raise CloudError("ConditionalCheckFailedException", "The conditional request failed")

    def updated(self, item: Item) -> Item:
        """A new item; only the old one is read."""
        new = dict(item)
        for path, token in _update(self.UpdateExpression):
            if token:
                new[self.name(path)] = self.term(item, token)
            else:
                new.pop(self.name(path), None)
        return new


@cache
def _check(text: str) -> None:
    """Refuse an expression that is too long, as DynamoDB does it, or that has reserved words."""
    if (size := len(text.encode())) > MOST_BYTES:
        message = "Expression size has exceeded the maximum allowed size; expression size"
        raise CloudError("ValidationException", f"{message}: {size}")
    words = {word.upper() for word in re.findall(r"(?<![#:\w])\w+", text)}
    syntax = {"AND", "BETWEEN", "OR", "REMOVE", "SET"}
    if reserved := (words - syntax) & set(ReservedKeywords.get_reserved_keywords()):
        raise NotUnderstood(f"{text!r}: {reserved} is reserved")


@cache
def _update(text: str) -> list[tuple[str, str]]:
    """The attributes that an update sets, and to what; those that it removes have nothing."""
    before, *clauses = re.split(r"(SET|REMOVE) ", text)
    if before:
        raise NotUnderstood(text)
    changes = []
    for verb, clause in zip(clauses[::2], clauses[1::2], strict=True):
        form = r"(#?\w+) = ([#:]?\w+)" if verb == "SET" else r"(#?\w+)()"
        for one in clause.split(","):
            if not (match := re.fullmatch(form, one.strip())):
                raise NotUnderstood(text)
            changes.append((match[1], match[2]))
    return changes


# A partition, and where in it the keys begin if the condition says so.
_KEY_CONDITION = re.compile(
    r"pk = (?P<partition>:\w+)(?: AND (?:begins_with\(sk, (?P<beginning>:\w+)\)"
    r"|sk >= (?P<least>:\w+)|sk BETWEEN (?P<first>:\w+) AND (?P<last>:\w+)))?"
)


class Table:
    """One table; each public method is one operation, which answers as the client does."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[str]] = {}

    def put_item(self, *, Item: Item, **expressions: Any) -> Answer:
        """Put an item in the place of the one before, if its condition holds."""
        Asked(**expressions).demand(self._item(Item) or {})
        partition, key = Item["pk"]["S"], Item["sk"]["S"]
        if key not in self.partitions.setdefault(partition, {}):
            insort(self._order.setdefault(partition, []), key)
        self.partitions[partition][key] = Item
        return {}

    def get_item(self, *, Key: Item, ConsistentRead: bool = False) -> Answer:
        """Get an item; every read is consistent."""
        item = self._item(Key)
        return {} if item is None else {"Item": item}

    def delete_item(self, *, Key: Item) -> Answer:
        partition, key = Key["pk"]["S"], Key["sk"]["S"]
        if self.partitions.get(partition, {}).pop(key, None) is not None:
            self._order[partition].remove(key)
        return {}

    def update_item(self, *, Key: Item, ReturnValues: str = "NONE", **expressions: Any) -> Answer:
        """Update an item if its condition holds; return the whole new item on request."""
        expression, item = Asked(**expressions), self._item(Key) or {}
        expression.demand(item)
        new = {**expression.updated(item), **Key}
        self.put_item(Item=new)
        return {"Attributes": new} if ReturnValues == "ALL_NEW" else {}

    def query(
        self,
        *,
        ScanIndexForward: bool = True,
        ConsistentRead: bool = False,
        Limit: int | None = None,
        ExclusiveStartKey: Item | None = None,
        Select: str = "",
        **expressions: Any,
    ) -> Answer:
        """Query one page of one partition by its sort key."""
        expression = Asked(**expressions)
        items = self._matching(expression)[:: 1 if ScanIndexForward else -1]
        keys = [{"pk": item["pk"], "sk": item["sk"]} for item in items]
        first = keys.index(ExclusiveStartKey) + 1 if ExclusiveStartKey else 0
        stop = first + Limit if Limit else len(items)
        more = {"LastEvaluatedKey": keys[stop - 1]} if Limit and stop <= len(items) else {}
        items = items[first:stop]
        if Select == "COUNT":
            return {"Count": len(items), **more}
        if projection := expression.ProjectionExpression:
            shown = [expression.name(token.strip()) for token in projection.split(",")]
            items = [{name: item[name] for name in shown if name in item} for item in items]
        return {"Count": len(items), "Items": items, **more}

    def scan(self) -> Answer:
        return {"Items": [item for items in self.partitions.values() for item in items.values()]}

    def _matching(self, expression: Asked) -> list[Item]:
        """The items of a partition that match a key condition, in the order of their keys."""
        read = _KEY_CONDITION.fullmatch(expression.KeyConditionExpression)
        if read is None:
            raise NotUnderstood(expression.KeyConditionExpression)
        values = expression.ExpressionAttributeValues
        limits = {name: values[key]["S"] for name, key in read.groupdict().items() if key}
        items = self.partitions.get(limits["partition"], {})
        order, stop = self._order.get(limits["partition"], []), None
        start = bisect_left(order, limits.get("first") or limits.get("least") or "")
        if "last" in limits:
            stop = bisect_right(order, limits["last"])
        if beginning := limits.get("beginning"):
            start, stop = bisect_left(order, beginning), bisect_left(order, beginning + _LAST)
        return [items[key] for key in order[start:stop]]

    def _item(self, key: Item) -> Item | None:
        return self.partitions.get(key["pk"]["S"], {}).get(key["sk"]["S"])


class Tables(dict[str, Table]):
    """The tables of the account by name; all have the keys of the product's table."""

    def answers(self) -> dict[str, Respond]:
        """The operations that they answer, by their names."""
        one = ("put_item", "get_item", "delete_item", "update_item", "query", "scan")
        named: dict[str, Respond] = {
            operation: partial(self._of_one, operation) for operation in one
        }
        return {**named, "create_table": self._create, "batch_write_item": self._write}

    def create(self, name: str) -> Table:
        """Make a table in the place of the one before."""
        self[name] = Table()
        return self[name]

    def _create(self, params: Params) -> Answer:
        self.create(params["TableName"])
        return {}

    def _of_one(self, operation: str, params: Params) -> Answer:
        arguments = dict(params)
        answer: Answer = getattr(self._named(arguments.pop("TableName")), operation)(**arguments)
        return answer

    def _write(self, params: Params) -> Answer:
        for name, requests in params["RequestItems"].items():
            if len(requests) > MOST_ITEMS_A_BATCH:
                raise CloudError("ValidationException", "Too many items requested")
            for request in requests:
                if "DeleteRequest" in request:
                    self._named(name).delete_item(**request["DeleteRequest"])
                else:
                    self._named(name).put_item(**request["PutRequest"])
        return {"UnprocessedItems": {}}

    def _named(self, name: str) -> Table:
        if name not in self:
            raise CloudError("ResourceNotFoundException", "Requested resource not found")
        return self[name]
