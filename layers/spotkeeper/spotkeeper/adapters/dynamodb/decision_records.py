"""Decision records out of the table, newest first.

pk fleet#NAME or job#NAME  sk decision#TIME#CONTROLLER#x
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words
from spotkeeper.adapters.dynamodb.leases import home_of
from spotkeeper.adapters.table import LAST, Items
from spotkeeper.domain.decision import Controller, DecisionRecord

_RECORD = TypeAdapter(DecisionRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Decision records; `unreadable` were written by another release."""

    records: tuple[DecisionRecord, ...]
    unreadable: int = 0

    def of(self, controller: Controller) -> tuple[DecisionRecord, ...]:
        """Those of one controller."""
        return tuple(record for record in self.records if record.controller is controller)


def read_record(text: str) -> DecisionRecord:
    """Read a record, also of an earlier release; raises ValueError for what is none."""
    try:
        return _RECORD.validate_python(record_in_todays_words(json.loads(text)), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from error


class DecisionRecords(Items):
    """Reads the records of fleets and jobs."""

    def newest(self, fleet: str, limit: int) -> Records:
        """Read a fleet's newest records, the newest first, at most `limit`, by one call."""
        return self._read(home_of(fleet), "", LAST, limit=limit)

    def any_before(self, fleet: str, at: datetime) -> bool:
        """Say whether a fleet has a record of before an instant."""
        records = self._read(home_of(fleet), "", at.astimezone(UTC).isoformat(), limit=1)
        return bool(records.records or records.unreadable)

    def between(
        self, fleet: str, since: datetime, until: datetime, of: Controller | None = None
    ) -> Records:
        """Read a fleet's records (with JOBS, a job's) from an instant to another, oldest first."""
        # Keys are in the order of UTC's texts.
        first, last = (at.astimezone(UTC).isoformat() for at in (since, until))
        return self._read(home_of(fleet, of), first, last + LAST)

    def _read(self, home: str, first: str, last: str, limit: int | None = None) -> Records:
        records: list[DecisionRecord] = []
        unreadable = 0
        for item in self._query(
            f"reading the decisions of {home}",
            home,
            f"decision#{first}",
            f"decision#{last}",
            ScanIndexForward=limit is None,
            PaginationConfig={"MaxItems": limit, "PageSize": limit},
        ):
            try:
                records.append(read_record(item["record"]["S"]))
            except ValueError:
                unreadable += 1
        return Records(records=tuple(records), unreadable=unreadable)
