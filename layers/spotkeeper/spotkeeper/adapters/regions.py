"""What the regions of a fleet say to each other: two items of each one's table, and digests.

pk region#NAME  sk share    what the home says; conditional on the term that it replaces
pk region#NAME  sk report   what the region says

Digests go to the home in messages of a queue there, each with what an item of the load table has:
fleet and region, key, and packed digests.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from pydantic_core import to_json

from spotkeeper.adapters.dynamodb.load_table import by_item, pack, unpack
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.table import LAST, Items, epoch, only_if, parsed
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.spread import Report, Share
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient

_SHARE, _REPORT = TypeAdapter(Share), TypeAdapter(Report)
# What is kept of a region or a home that is gone.
LIFETIME = timedelta(days=7)
# A worker's logs of a message, packed and as text, take 3 KB at most, and a message 256 KB.
WORKERS_A_MESSAGE = 75


class RegionTables:
    """The port of regions on DynamoDB tables, one in each region."""

    def __init__(self, here: str, table: str, client: "Callable[[str], DynamoDBClient]") -> None:
        """Take this stack's region and table, and what makes a client of a region."""
        self.here, self._table, self._client = here, table, client

    def of(self, fleet: Fleet, region: str) -> tuple[Share | None, Report | None]:
        """Read both items of a fleet; raises `Unreadable` for what no release wrote."""
        doing, of = f"reading the share of {fleet.name} in {region}", f"region#{fleet.name}"
        keys = (of, "report", f"share{LAST}")
        items = self._items(fleet, region)._query(doing, *keys, ConsistentRead=True)
        said = {item["sk"]["S"]: item for item in items}
        share = parsed(_SHARE, said["share"], "said") if "share" in said else None
        return share, parsed(_REPORT, said["report"], "said") if "report" in said else None

    def write(self, fleet: Fleet, region: str, said: Share | Report, seen: int = 0) -> bool:
        """Write one of both; raises `Conflict` if the share in its place is not of term `seen`."""
        match said:
            case Share(written=at):
                sk, only = "share", "attribute_not_exists(term) OR term = :seen"
            case Report(at=at):
                sk, only = "report", ""
        self._items(fleet, region)._put(
            f"writing the {sk} of {fleet.name} in {region}",
            f"region#{fleet.name}",
            sk,
            only_if(only, seen=seen) if only else {},
            said=to_json(said).decode(),
            term=said.term,
            expires_at=epoch(at + LIFETIME),
        )
        return True

    def _items(self, fleet: Fleet, region: str) -> Items:
        return Items(self._client(region), fleet.elsewhere.get(region, self._table))


def forward(
    sqs: "SQSClient", url: str, region: str, digests: Sequence[LoadDigest]
) -> Sequence[str]:
    """Send a region's digests to its home's queue; raises where that does not take one."""
    for some in by_item(digests, WORKERS_A_MESSAGE):
        item, fleet = pack(*some), f"{some[0].fleet}@{region}"
        name, packed = next((n, v["B"]) for n, v in item.items() if "B" in v)
        body = json.dumps([fleet, item["sk"]["S"], name, b64encode(packed).decode()])
        with aws_errors("forwarding search logs to the home"):
            sqs.send_message(QueueUrl=url, MessageBody=body)
    return ()


def unpacked(body: str) -> Sequence[LoadDigest]:
    """Read a message's digests; raises `Unreadable` for what no release of this format sent."""
    try:
        fleet, key, name, packed = json.loads(body)
        return unpack(str(fleet), {"sk": {"S": key}, name: {"B": b64decode(packed)}})
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Unreadable(f"not what a region's collector forwards: {error}") from error
