"""What a turn has in the table, of a fleet or of a job: its lease and its decision record.

pk fleet#NAME or job#NAME  sk decision#TIME#CONTROLLER#x   one decision record
"""

from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import TypeAdapter

from spotkeeper.adapters.table import Items, Value, epoch
from spotkeeper.domain.decision import Controller, DecisionRecord

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Longer than a turn may take, so that no living turn loses its lease: a fleet's function has 30 s
# (template.yaml), and a job's turn takes no step so late that its answer would arrive after this.
LEASE_LIFETIME = timedelta(seconds=45)
# The clocks of two functions differ by less than this.
SKEW = timedelta(seconds=1)

TAKE = "SET #holder = :holder, #until = :until"
# It is this turn's already where the first answer was lost and botocore retried. One that ends
# later than any lease taken now is of a clock that was ahead.
IS_FREE = "attribute_not_exists(#until) OR #until < :now OR #until > :ahead OR #holder = :holder"
IS_MINE = "#holder = :holder"
RELEASE = "REMOVE #holder, #until"
_RECORD = TypeAdapter(DecisionRecord)


def lease_of(holder: str, now: datetime) -> dict[str, Value]:
    """Return the values of `TAKE` and `IS_FREE`."""
    return {
        "holder": holder,
        "until": epoch(now + LEASE_LIFETIME),
        "now": epoch(now),
        "ahead": epoch(now + LEASE_LIFETIME + SKEW),
    }


def home_of(name: str, controller: Controller | None = None) -> str:
    """Return the partition of a fleet, or of a job."""
    return f"{'job' if controller is Controller.JOBS else 'fleet'}#{name}"


class LeasedItems(Items):
    """What turns keep in the table."""

    def __init__(
        self,
        dynamodb: "DynamoDBClient",
        table: str,
        record_lifetime: timedelta = timedelta(days=30),
    ) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        super().__init__(dynamodb, table)
        self._record_lifetime = record_lifetime
        # Orders what is written at one instant: a turn may leave several records.
        self._written = count()

    def record(self, record: DecisionRecord) -> None:
        """Store a decision record for its lifetime."""
        self._put(
            f"recording a decision of {record.fleet}",
            home_of(record.fleet, record.controller),
            f"decision#{record.at.isoformat()}#{record.controller}#{self._unique()}",
            record=_RECORD.dump_json(record).decode(),
            expires_at=epoch(record.at + self._record_lifetime),
        )

    def _unique(self) -> str:
        return f"{next(self._written):06}-{uuid4().hex[:6]}"
