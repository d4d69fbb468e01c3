"""The one DynamoDB table: its items by key; what AWS raises becomes an error of the ports."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import batched
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import Conflict, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Sorts after every key that begins with what stands before it.
LAST = "\uffff"
# DynamoDB's limit of one batch.
ITEMS_A_CALL = 25

type Item = Mapping[str, Any]
type Value = str | int | bytes


class Items:
    """What each adapter of the table stands on; `doing` says in an error what failed."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def _get(self, doing: str, pk: str, sk: str, *, consistent: bool = False) -> Item | None:
        with aws_errors(doing):
            return self._dynamodb.get_item(
                TableName=self._table, Key=key(pk, sk), ConsistentRead=consistent
            ).get("Item")

    def _put(
        self, doing: str, pk: str, sk: str, only: Any = MappingProxyType({}), **attributes: Value
    ) -> None:
        """Write an item; raises `Conflict` where the condition of `only_if` does not hold."""
        item = key(pk, sk) | encoded(attributes)
        with aws_errors(doing):
            self._dynamodb.put_item(TableName=self._table, Item=item, **only)

    def _update(
        self,
        doing: str,
        pk: str,
        sk: str,
        update: str,
        condition: str = "",
        values: Mapping[str, Value] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Item | None:
        """Update an item and return it; None where the condition does not hold."""
        given: dict[str, Any] = {
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": encoded(
                {f":{name}": value for name, value in values.items()}
            ),
        }
        with suppress(Conflict), aws_errors(doing):
            return self._dynamodb.update_item(
                TableName=self._table,
                Key=key(pk, sk),
                UpdateExpression=update,
                ReturnValues="ALL_NEW",
                # AWS takes none that is empty.
                **{name: value for name, value in given.items() if value},
            )["Attributes"]
        return None

    def _delete(self, doing: str, pk: str, sk: str) -> None:
        with aws_errors(doing):
            self._dynamodb.delete_item(TableName=self._table, Key=key(pk, sk))

    def _write_some(self, doing: str, requests: Iterable[Any]) -> list[Any]:
        """Write or delete items, 25 a call; returns what DynamoDB leaves unprocessed."""
        left: list[Any] = []
        for some in batched(requests, ITEMS_A_CALL, strict=False):
            with aws_errors(doing):
                answer = self._dynamodb.batch_write_item(RequestItems={self._table: list(some)})
            left += answer["UnprocessedItems"].get(self._table, [])
        return left

    def _query(self, doing: str, pk: str, first: str, last: str, **options: Any) -> Iterator[Item]:
        """Read the items between two keys."""
        for page in self._pages(doing, pk, first, last, **options):
            yield from page["Items"]

    def _pages(self, doing: str, pk: str, first: str, last: str, **options: Any) -> Iterator[Any]:
        values = {":pk": {"S": pk}, ":first": {"S": first}, ":last": {"S": last}}
        with aws_errors(doing):
            yield from self._dynamodb.get_paginator("query").paginate(
                TableName=self._table,
                KeyConditionExpression="pk = :pk AND sk BETWEEN :first AND :last",
                ExpressionAttributeValues=values,
                **options,
            )


def only_if(condition: str, **values: Value) -> Mapping[str, Any]:
    """Make a write conditional; `:name` in the condition is the value of that name."""
    named = encoded({f":{name}": value for name, value in values.items()})
    return {"ConditionExpression": condition, "ExpressionAttributeValues": named}


def parsed[T](adapter: TypeAdapter[T], item: Item, name: str, fix: str = "delete it") -> T:
    """Read a value; raises `Unreadable` for one that no release of this format wrote."""
    try:
        return adapter.validate_json(item[name]["S"])
    except (KeyError, ValueError) as error:
        of = f"{item['pk']['S']}, {item['sk']['S']}"
        raise Unreadable(f"the item {of} cannot be read: {fix}") from error


def key(pk: str, sk: str) -> dict[str, Any]:
    """Name an item."""
    return encoded({"pk": pk, "sk": sk})


def encoded(attributes: Mapping[str, Value]) -> dict[str, Any]:
    """Write attributes as DynamoDB takes them."""
    return {
        name: {"N": str(value)}
        if isinstance(value, int)
        else {"B" if isinstance(value, bytes) else "S": value}
        for name, value in attributes.items()
    }


def epoch(at: datetime) -> int:
    """Return an instant as DynamoDB compares and expires it."""
    return int(at.timestamp())
