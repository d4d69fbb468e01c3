"""DynamoDB as the product uses it: strict about expressions, and quick.

moto has the whole of DynamoDB, at a millisecond and more a call. The contract tests of the states
and of the load table hold both to the same promises. What is not understood is refused: a parameter
that no method names, an expression that uses more of DynamoDB, an unused name, a reserved word.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from spotkeeper_lab.aws.wire import Answer, Respond
from spotkeeper_lab.cloud.values import CloudError

MOST_BYTES = 4096
"""Of an expression."""
_TOKEN = re.compile(r"\s*(<=|>=|<>|[=<>(),+\-]|[#:]?\w+)")


class NotUnderstood(Exception):
    """An expression that uses more of DynamoDB than is known here: teach it."""


@dataclass(slots=True)
class Tokens:
    """An expression's words, and how far they are read."""

    text: str
    tokens: list[str]
    at: int = 0

    def peek(self) -> str:
        """Give the next word; nothing at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """Read the next word; raises NotUnderstood for another than those expected."""
        token = self.peek()
        if not token or (expected and token.upper() not in expected):
            raise NotUnderstood(f"{self.text!r} at {token!r}")
        self.at += 1
        return token

    def name(self) -> str:
        """Read an attribute's name; raises NotUnderstood for a word that DynamoDB reserves."""
        token = self.take()
        if token.upper() in ReservedKeywords.get_reserved_keywords():
            raise NotUnderstood(f"{self.text!r}: {token} is reserved")
        return token

    def skip(self, token: str) -> bool:
        """Read the next word if it is this one."""
        if self.peek().upper() != token:
            return False
        self.at += 1
        return True


def tokens_of(text: str) -> Tokens:
    """Split an expression; raises NotUnderstood for characters that mean nothing here.

    One that is too long is refused as DynamoDB does it.
    """
    if (size := len(text.encode())) > MOST_BYTES:
        told = "Expression size has exceeded the maximum allowed size; expression size"
        raise CloudError("ValidationException", f"{told}: {size}")
    found = _TOKEN.findall(text)
    if "".join(found) != re.sub(r"\s", "", text):
        raise NotUnderstood(text)
    return Tokens(text, found)


def names_of(text: str) -> Sequence[str]:
    tokens = tokens_of(text)
    names = _list(tokens, Tokens.name)
    if tokens.peek():
        raise NotUnderstood(text)
    return names


type Value = Any
type Item = dict[str, Value]
type Names = Mapping[str, str]
type Values = Mapping[str, Value]
type _Term = Callable[[Item, Names, Values], Value]
type _Test = Callable[[Item, Names, Values], bool]

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def number_or_text(value: Value) -> Value:
    if isinstance(value, dict) and "N" in value:
        return float(value["N"])
    if isinstance(value, dict) and "S" in value:
        return value["S"]
    return value


@cache
def condition(text: str) -> _Test:
    tokens = tokens_of(text)
    test = _either(tokens)
    if tokens.peek():
        raise NotUnderstood(text)
    return test


def _either(tokens: Tokens) -> _Test:
    tests = _list(tokens, _both, "OR")
    return lambda item, names, values: any(test(item, names, values) for test in tests)


def _both(tokens: Tokens) -> _Test:
    tests = _list(tokens, _single, "AND")
    return lambda item, names, values: all(test(item, names, values) for test in tests)


def _single(tokens: Tokens) -> _Test:
    if tokens.skip("("):
        inner = _either(tokens)
        tokens.take(")")
        return inner
    word = tokens.peek().lower()
    if word in ("attribute_exists", "attribute_not_exists"):
        tokens.take()
        tokens.take("(")
        path = tokens.name()
        tokens.take(")")
        there = word == "attribute_exists"
        return lambda item, names, _: (names.get(path, path) in item) is there
    left = _operand(tokens)
    compare = _COMPARED[tokens.take(*_COMPARED)]
    right = _operand(tokens)

    def test(item: Item, names: Names, values: Values) -> bool:
        a, b = left(item, names, values), right(item, names, values)
        return a is not None and b is not None and compare(a, b)

    return test


def _operand(tokens: Tokens) -> _Term:
    term = _term(tokens)
    return lambda item, names, values: number_or_text(term(item, names, values))


def _term(tokens: Tokens) -> _Term:
    if tokens.peek().startswith(":"):
        value = tokens.take()
        return lambda _, __, values: values[value]
    name = tokens.name()
    return lambda item, names, _: item.get(names.get(name, name))


@cache
def update(text: str) -> Callable[[Item, Names, Values], Item]:
    """Compile an update; it answers a new item and reads only the old one."""
    tokens = tokens_of(text)
    sets: list[tuple[str, _Term]] = []
    removed: list[str] = []
    while tokens.peek():
        if tokens.take("SET", "REMOVE").upper() == "SET":
            sets += _list(tokens, _assignment)
        else:
            removed += _list(tokens, Tokens.name)

    def changed(item: Item, names: Names, values: Values) -> Item:
        new = dict(item)
        for path, term in sets:
            new[names.get(path, path)] = term(item, names, values)
        for path in removed:
            new.pop(names.get(path, path), None)
        return new

    return changed


def _list[T](tokens: Tokens, read: Callable[[Tokens], T], between: str = ",") -> list[T]:
    found = [read(tokens)]
    while tokens.skip(between):
        found.append(read(tokens))
    return found


def _assignment(tokens: Tokens) -> tuple[str, _Term]:
    path = tokens.name()
    tokens.take("=")
    return path, _term(tokens)


# A partition, and where in it the keys begin if the condition says so.
_KEY_CONDITION = re.compile(
    r"pk = (?P<partition>:\w+)(?: AND (?:begins_with\(sk, (?P<beginning>:\w+)\)"
    r"|sk >= (?P<least>:\w+)|sk BETWEEN (?P<first>:\w+) AND (?P<last>:\w+)))?"
)

_LAST = "\U0010ffff"
"""Sorts after every other character."""

OPERATIONS = ("put_item", "get_item", "delete_item", "update_item", "query", "scan")


class Table:
    """One table; each method is one operation, which answers as the client does."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[str]] = {}

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
        """Update an item if its condition holds; return the whole new item on request."""
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
        ConsistentRead: bool = False,
        **page: Any,
    ) -> Answer:
        """Query one partition by its sort key; `page` says what is shown of what is found."""
        del ConsistentRead
        _all_used(ExpressionAttributeValues, KeyConditionExpression)
        found = self._matching(KeyConditionExpression, ExpressionAttributeValues)
        return _page(found if ScanIndexForward else found[::-1], **page)

    def scan(self) -> Answer:
        return {"Items": [item for items in self.partitions.values() for item in items.values()]}

    def _matching(self, expression: str, values: Values) -> list[Item]:
        """The items of a partition that match a key condition, in the order of their keys."""
        read = _KEY_CONDITION.fullmatch(expression)
        if read is None:
            raise NotUnderstood(expression)
        told = {name: values[key]["S"] for name, key in read.groupdict().items() if key}
        items = self.partitions.get(told["partition"], {})
        order, stop = self._order.get(told["partition"], []), None
        start = bisect_left(order, told.get("first") or told.get("least") or "")
        if "last" in told:
            stop = bisect_right(order, told["last"])
        if beginning := told.get("beginning"):
            start, stop = bisect_left(order, beginning), bisect_left(order, beginning + _LAST)
        return [items[key] for key in order[start:stop]]

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


MOST_ITEMS_A_BATCH = 25


class Tables(dict[str, Table]):
    """The tables of the account by name; all have the keys of the product's table."""

    def answers(self) -> dict[str, Respond]:
        """The operations that they answer, by their names."""
        named = {name: self._of_one(name) for name in OPERATIONS}
        return {**named, "create_table": self._create, "batch_write_item": self._write}

    def create(self, name: str) -> Table:
        """Make a table in the place of the one before."""
        self[name] = Table()
        return self[name]

    def _create(self, params: Mapping[str, Any]) -> Answer:
        self.create(params["TableName"])
        return {}

    def _of_one(self, operation: str) -> Respond:
        def respond(params: Mapping[str, Any]) -> Answer:
            asked = dict(params)
            answer: Answer = getattr(self.named(asked.pop("TableName")), operation)(**asked)
            return answer

        return respond

    def _write(self, params: Mapping[str, Any]) -> Answer:
        for name, requests in params["RequestItems"].items():
            if len(requests) > MOST_ITEMS_A_BATCH:
                raise CloudError("ValidationException", "Too many items requested")
            for request in requests:
                if "DeleteRequest" in request:
                    self.named(name).delete_item(**request["DeleteRequest"])
                else:
                    self.named(name).put_item(**request["PutRequest"])
        return {"UnprocessedItems": {}}

    def named(self, name: str) -> Table:
        if name not in self:
            raise CloudError("ResourceNotFoundException", "Requested resource not found")
        return self[name]
