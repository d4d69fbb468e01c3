"""A region's digests on their way to its fleets' home: messages of a queue there.

A message has what an item of the load table has: fleet and region, key, and packed digests.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.load_table import by_item, pack, unpack
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

# A worker's logs of a message, packed and as text, take 3 KB at most, and a message 256 KB.
WORKERS_A_MESSAGE = 75


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
        digests = unpack(str(fleet), {"sk": {"S": key}, name: {"B": b64decode(packed)}})
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Unreadable(f"not what a region's collector forwards: {error}") from error
    return digests
