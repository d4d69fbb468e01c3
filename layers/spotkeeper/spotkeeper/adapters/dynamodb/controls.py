"""What operators set for a fleet: one item each; a change must know its last version.

pk fleet#NAME  sk control
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.permission import Control
from spotkeeper.ports import Conflict, Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_CONTROL = TypeAdapter(Control)


class ControlTable:
    """Reads and changes controls."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def of(self, fleet: str) -> Control:
        """Read a fleet's control; an empty one if operators set nothing.

        Raises `Unreadable` for an item that no release of this format wrote: whether turns may act
        is not guessed.
        """
        with aws_errors(f"reading the control of {fleet}"):
            item = self._dynamodb.get_item(
                TableName=self._table, Key=_key(fleet), ConsistentRead=True
            ).get("Item")
        if item is None:
            return Control()
        try:
            return _CONTROL.validate_json(item["control"]["S"])
        except (KeyError, ValidationError) as error:
            message = f"item control of fleet#{fleet} cannot be read: delete it, and set it again"
            raise Unreadable(message) from error

    def change(self, fleet: str, seen: Control, wanted: Control) -> Control:
        """Put a control in the place of the one that was seen; raises `Conflict` if it is not."""
        changed = replace(wanted, version=seen.version + 1)
        try:
            with aws_errors(f"changing the control of {fleet}"):
                self._dynamodb.put_item(
                    TableName=self._table,
                    Item={
                        **_key(fleet),
                        "control": {"S": _CONTROL.dump_json(changed).decode()},
                        "version": {"N": str(changed.version)},
                    },
                    ConditionExpression="attribute_not_exists(version) OR version = :seen",
                    ExpressionAttributeValues={":seen": {"N": str(seen.version)}},
                )
        except Conflict as error:
            message = f"another operator has just changed {fleet}: look at status, then try again"
            raise Conflict(message) from error
        return changed


def _key(fleet: str) -> dict[str, dict[str, str]]:
    return {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": "control"}}
