"""The history of a fleet's load: one DynamoDB item a fleet, packed.

    pk fleet#NAME  sk history  history <packed>  expires_at <epoch s>

Two weeks pack into about 20 KB. It is written once in five minutes and read once a turn: at
public prices (us-east-1, 2025) about 0.11 USD and 0.03 USD a month for a busy fleet.
"""

import json
import zlib
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

LIFETIME = timedelta(days=15)


class LoadHistoryTable:
    """The histories port on a DynamoDB table."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none.

        Raises `Unreadable` for one that no release of this format wrote.
        """
        with aws_errors(f"reading the load history of fleet {fleet}"):
            answer = self._dynamodb.get_item(TableName=self._table, Key=_key(fleet))
        try:
            return _unpack(answer["Item"]) if "Item" in answer else LoadHistory()
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            message = f"the load history of fleet {fleet} (sk history) cannot be read: {error!r}"
            raise Unreadable(message) from error

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history for `LIFETIME`, instead of what was kept before."""
        text = json.dumps(astuple(history), separators=(",", ":"))
        item: dict[str, Any] = _key(fleet) | {
            "history": {"B": zlib.compress(text.encode())},
            "expires_at": {"N": str(int((now + LIFETIME).timestamp()))},
        }
        with aws_errors(f"writing the load history of fleet {fleet}"):
            self._dynamodb.put_item(TableName=self._table, Item=item)


def _key(fleet: str) -> dict[str, Any]:
    return {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": "history"}}


def _unpack(item: "Mapping[str, Any]") -> LoadHistory:
    next_step, *values = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    # What was stored before a release that added the minutes, or the squares, has none.
    work_ms, requests, late, roughness, *added = map(tuple, values)
    minute_work_ms, squares = (*added, (), ())[:2]
    return LoadHistory(
        next_step=next_step,
        work_ms=work_ms,
        requests=requests,
        late=late,
        roughness=roughness,
        minute_work_ms=minute_work_ms,
        squares=squares,
    )
