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


class HomeQueue:
    """Sends digests to the queue of their fleets' home."""

    def __init__(self, sqs: "SQSClient", url: str, region: str) -> None:
        """Take a typed client of the home's region, its queue, and the region of this stack."""
        self._sqs, self._url, self._region = sqs, url, region

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Send digests; raises where the home's queue does not take one."""
        for some in by_item(digests, WORKERS_A_MESSAGE):
            item, fleet = pack(*some), f"{some[0].fleet}@{self._region}"
            name, packed = next((n, v["B"]) for n, v in item.items() if "B" in v)
            body = json.dumps([fleet, item["sk"]["S"], name, b64encode(packed).decode()])
            with aws_errors("forwarding search logs to the home"):
                self._sqs.send_message(QueueUrl=self._url, MessageBody=body)
        return ()


def unpacked(body: str) -> Sequence[LoadDigest]:
    """Read a message's digests; raises `Unreadable` for what no release of this format sent."""
    try:
        fleet, key, name, packed = json.loads(body)
        digests = unpack(str(fleet), {"sk": {"S": key}, name: {"B": b64decode(packed)}})
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Unreadable(f"not what a region's collector forwards: {error}") from error
    return digests
