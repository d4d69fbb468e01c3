"""The two items of a fleet in each region's table: its share, and its report.

pk region#NAME  sk share    what the home says; conditional on the term that it replaces
pk region#NAME  sk report   what the region says
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.table import LAST, Items, epoch, only_if
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.spread import Report, Share
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient

_SHARE: TypeAdapter[Share | None] = TypeAdapter(Share | None)
_REPORT: TypeAdapter[Report | None] = TypeAdapter(Report | None)
# What is kept of a region or a home that is gone.
LIFETIME = timedelta(days=7)


class RegionTables:
    """The port of regions on DynamoDB tables, one in each region."""

    def __init__(self, here: str, table: str, client: "Callable[[str], DynamoDBClient]") -> None:
        """Take this stack's region and table, and what makes a client of a region."""
        self.here, self._table, self._client = here, table, client

    def of(self, fleet: Fleet, region: str) -> tuple[Share | None, Report | None]:
        """Read both items of a fleet; raises `Unreadable` for what no release wrote."""
        doing, pk = f"reading the share of {fleet.name} in {region}", f"region#{fleet.name}"
        table = self._items(region, fleet.elsewhere.get(region, self._table))
        items = table._query(doing, pk, "report", f"share{LAST}", ConsistentRead=True)
        try:
            said = {item["sk"]["S"]: item["said"]["S"] for item in items}
            share = _SHARE.validate_json(said.get("share", "null"))
            report = _REPORT.validate_json(said.get("report", "null"))
        except (KeyError, ValidationError) as error:
            raise Unreadable(f"{doing}: an item of {pk} cannot be read: delete it") from error
        return share, report

    def give(self, fleet: Fleet, region: str, share: Share, seen: int) -> None:
        """Write a share in the place of the one of term `seen`; raises `Conflict` if it is not."""
        self._items(region, fleet.elsewhere.get(region, self._table))._put(
            f"writing the share of {fleet.name} in {region}",
            f"region#{fleet.name}",
            "share",
            only_if("attribute_not_exists(term) OR term = :seen", seen=seen),
            said=_SHARE.dump_json(share).decode(),
            term=share.term,
            expires_at=epoch(share.written + LIFETIME),
        )

    def report(self, fleet: str, report: Report) -> None:
        """Write what this region says."""
        self._items(self.here, self._table)._put(
            f"reporting {fleet} to its home",
            f"region#{fleet}",
            "report",
            said=_REPORT.dump_json(report).decode(),
            expires_at=epoch(report.at + LIFETIME),
        )

    def _items(self, region: str, table: str) -> Items:
        return Items(self._client(region), table)
