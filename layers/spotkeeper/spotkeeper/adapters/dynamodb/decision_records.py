"""Decision records out of the table, newest first.

pk fleet#NAME  sk decision#TIME#CONTROLLER#x
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import Controller, DecisionRecord

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_RECORD = TypeAdapter(DecisionRecord)
_DECISION = "decision#"
# Sorts after every key that begins with what stands before it.
_LAST = "\uffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Decision records, newest first; `unreadable` were written by another release."""

    records: tuple[DecisionRecord, ...]
    unreadable: int = 0

    def of(self, controller: Controller) -> tuple[DecisionRecord, ...]:
        """Those of one controller."""
        return tuple(record for record in self.records if record.controller is controller)


def read_record(text: str) -> DecisionRecord:
    """Read a record, also of an earlier release; raises ValueError for what is none."""
    return _RECORD.validate_python(record_in_todays_words(json.loads(text)), strict=False)


class DecisionRecords:
    """Reads the records of fleets."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def newest(self, fleet: str, limit: int) -> Records:
        """Read a fleet's newest records, at most `limit`, by one call."""
        return self._read(fleet, _DECISION, _DECISION + _LAST, limit)

    def any_before(self, fleet: str, at: datetime) -> bool:
        """Say whether a fleet has a record of before an instant."""
        last = f"{_DECISION}{at.astimezone(UTC).isoformat()}"
        return next(self._items(fleet, _DECISION, last, 1), None) is not None

    def between(self, fleet: str, since: datetime, until: datetime) -> Records:
        """Read the records of a time, both ends included."""
        # Keys are in the order of UTC's texts.
        first, last = (at.astimezone(UTC).isoformat() for at in (since, until))
        return self._read(fleet, f"{_DECISION}{first}", f"{_DECISION}{last}{_LAST}")

    def _read(self, fleet: str, first: str, last: str, limit: int | None = None) -> Records:
        records: list[DecisionRecord] = []
        unreadable = 0
        with aws_errors(f"reading the decisions of {fleet}"):
            for item in self._items(fleet, first, last, limit):
                try:
                    records.append(read_record(item["record"]["S"]))
                except ValueError:
                    unreadable += 1
        return Records(records=tuple(records), unreadable=unreadable)

    def _items(
        self, fleet: str, first: str, last: str, limit: int | None
    ) -> Iterator[Mapping[str, Any]]:
        pages = self._dynamodb.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression="pk = :fleet AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":fleet": {"S": f"fleet#{fleet}"},
                ":first": {"S": first},
                ":last": {"S": last},
            },
            ProjectionExpression="#record",
            ExpressionAttributeNames={"#record": "record"},
            ScanIndexForward=False,
            PaginationConfig={"MaxItems": limit, "PageSize": limit} if limit else {},
        )
        for page in pages:
            yield from page["Items"]
