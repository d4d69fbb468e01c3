"""Decision records out of the table, newest first.

pk fleet#NAME or job#NAME  sk decision#TIME#CONTROLLER#x
pk job#NAME                sk turn#TIME   lines, of an earlier release
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words, record_of_lines
from spotkeeper.adapters.dynamodb.leases import home_of
from spotkeeper.adapters.table import LAST, Items
from spotkeeper.domain.decision import Controller, DecisionRecord

_RECORD = TypeAdapter(DecisionRecord)
_DECISION, _LINES = "decision#", "turn#"


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
    try:
        return _RECORD.validate_python(record_in_todays_words(json.loads(text)), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from error


class DecisionRecords(Items):
    """Reads the records of fleets and jobs."""

    def newest(self, fleet: str, limit: int) -> Records:
        """Read a fleet's newest records, at most `limit`, by one call."""
        return self._read(home_of(fleet), "", LAST, limit=limit)

    def any_before(self, fleet: str, at: datetime) -> bool:
        """Say whether a fleet has a record of before an instant."""
        found = self._read(home_of(fleet), "", at.astimezone(UTC).isoformat(), limit=1)
        return bool(found.records or found.unreadable)

    def between(
        self, fleet: str, since: datetime, until: datetime, of: Controller | None = None
    ) -> Records:
        """Read the records of a time, both ends included, of a fleet or with JOBS of a job."""
        # Keys are in the order of UTC's texts.
        first, last = (at.astimezone(UTC).isoformat() for at in (since, until))
        kinds = (_DECISION, _LINES) if of is Controller.JOBS else (_DECISION,)
        return self._read(home_of(fleet, of), first, last + LAST, kinds)

    def _read(
        self,
        home: str,
        first: str,
        last: str,
        kinds: Sequence[str] = (_DECISION,),
        limit: int | None = None,
    ) -> Records:
        records: list[DecisionRecord] = []
        unreadable = 0
        for kind in kinds:
            for item in self._query(
                f"reading the decisions of {home}",
                home,
                kind + first,
                kind + last,
                ScanIndexForward=False,
                PaginationConfig={"MaxItems": limit, "PageSize": limit},
            ):
                try:
                    text = item["record"]["S"] if kind == _DECISION else record_of_lines(item)
                    records.append(read_record(text))
                except ValueError:
                    unreadable += 1
        return Records(records=tuple(records), unreadable=unreadable)
