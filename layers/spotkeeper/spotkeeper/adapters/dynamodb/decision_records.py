"""Decision records out of the table, newest first.

pk fleet#NAME  sk decision#TIME#CONTROLLER#x
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words
from spotkeeper.adapters.table import LAST, Items
from spotkeeper.domain.decision import Controller, DecisionRecord

_RECORD = TypeAdapter(DecisionRecord)
_DECISION = "decision#"


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


class DecisionRecords(Items):
    """Reads the records of fleets."""

    def newest(self, fleet: str, limit: int) -> Records:
        """Read a fleet's newest records, at most `limit`, by one call."""
        return self._read(fleet, "", LAST, limit)

    def any_before(self, fleet: str, at: datetime) -> bool:
        """Say whether a fleet has a record of before an instant."""
        found = self._read(fleet, "", at.astimezone(UTC).isoformat(), 1)
        return bool(found.records or found.unreadable)

    def between(self, fleet: str, since: datetime, until: datetime) -> Records:
        """Read the records of a time, both ends included."""
        # Keys are in the order of UTC's texts.
        first, last = (at.astimezone(UTC).isoformat() for at in (since, until))
        return self._read(fleet, first, last + LAST)

    def _read(self, fleet: str, first: str, last: str, limit: int | None = None) -> Records:
        records: list[DecisionRecord] = []
        unreadable = 0
        for item in self._query(
            f"reading the decisions of {fleet}",
            f"fleet#{fleet}",
            _DECISION + first,
            _DECISION + last,
            ProjectionExpression="#record",
            ExpressionAttributeNames={"#record": "record"},
            ScanIndexForward=False,
            PaginationConfig={"MaxItems": limit, "PageSize": limit},
        ):
            try:
                records.append(read_record(item["record"]["S"]))
            except ValueError:
                unreadable += 1
        return Records(records=tuple(records), unreadable=unreadable)
