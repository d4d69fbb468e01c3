"""The load table: one DynamoDB item for each queue message and fleet.

    pk load#FLEET  sk SENT_ISO_MS#HASH  digest <packed>  expires_at <epoch s>

Nothing is read to write, and writing a digest again changes nothing. Cost at public prices
(us-east-1, 2025: SQS 0.40 USD per million requests; Lambda arm64 0.0000133334 USD/GB-s and 0.20
per million calls; DynamoDB on demand 0.625 USD per million writes of up to 1 KB): 500 logs of a
worker pack into one write, so that a million logs cost 0.00125 USD in the table, whatever the rate
of requests; sent one at a time they cost 0.625. `python -m bench.collect` prints the whole sum.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched, pairwise
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.errors import translated
from spotkeeper.domain.digest import sent_iso
from spotkeeper.domain.histogram import Histogram
from spotkeeper.domain.load import Cluster, LoadDigest, WorkerDigest, milliseconds

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# The longest window is 15 minutes; the rest is for looking back by hand.
DIGEST_LIFETIME = timedelta(hours=2)
# DynamoDB writes at most so many items in a call.
_BATCH = 25
# Seconds between tries to write what DynamoDB left unprocessed.
_PAUSES_S = (0.05, 0.1, 0.2)

type _Item = Mapping[str, Any]


class LoadDigestTable:
    """The load port on a DynamoDB table."""

    def __init__(
        self, dynamodb: "DynamoDBClient", table: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table
        self._sleep = sleep

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests, idempotently by key; answers the keys that could not be stored."""
        unstored: list[str] = []
        once = {(digest.fleet, digest.key): digest for digest in digests}
        for batch in batched(once.values(), _BATCH, strict=False):
            unstored += (_text(item, "sk") for item in self._write([*map(pack, batch)]))
        return unstored

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests that were sent since an instant, oldest first."""
        return tuple(unpack(item) for item in self._items(fleet, since))

    def _write(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """Write up to 25 items; answers those that DynamoDB leaves unprocessed, however asked."""
        for pause_s in (0.0, *_PAUSES_S):
            if pause_s:
                self._sleep(pause_s)
            with translated("writing to the load table"):
                answer = self._dynamodb.batch_write_item(
                    RequestItems={self._table: [{"PutRequest": {"Item": item}} for item in items]}
                )
            left = answer["UnprocessedItems"].get(self._table, [])
            items = [request["PutRequest"]["Item"] for request in left if "PutRequest" in request]
            if not items:
                break
        return items

    def _items(self, fleet: str, since: datetime) -> Iterator[_Item]:
        pages = self._dynamodb.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression="pk = :pk AND sk >= :since",
            ExpressionAttributeValues={":pk": {"S": _pk(fleet)}, ":since": {"S": sent_iso(since)}},
        )
        with translated(f"reading the load of fleet {fleet}"):
            for page in pages:
                yield from page["Items"]


def pack(digest: LoadDigest) -> _Item:
    """Make a digest's item; 500 logs of one worker stay below 1 KB, the unit of writing."""
    values = [
        digest.count,
        digest.late,
        digest.skewed,
        _flat(digest.arrivals),
        _flat_histogram(digest.waits),
        _flat_histogram(digest.service),
        [_flat_worker(worker) for worker in digest.workers],
        # In the order of `arrivals`, which has the same slots.
        [digest.work_ms[slot] for slot in sorted(digest.work_ms)],
        None if digest.newest_start is None else milliseconds(digest.newest_start),
        digest.newest_wait_ms,
    ]
    expires_at = digest.sent_at + DIGEST_LIFETIME
    return {
        "pk": {"S": _pk(digest.fleet)},
        "sk": {"S": digest.key},
        "digest": {"B": zlib.compress(json.dumps(values, separators=(",", ":")).encode())},
        "expires_at": {"N": str(int(expires_at.timestamp()))},
    }


def unpack(item: _Item) -> LoadDigest:
    """Read a digest from its item."""
    key = _text(item, "sk")
    count, late, skewed, arrivals, waits, service, workers, *newer = json.loads(
        zlib.decompress(bytes(item["digest"]["B"]))
    )
    # What was stored before a release that added these lives on for two hours.
    work_ms, newest_start, newest_wait_ms = newer or ((), None, 0)
    counts = _mapping(arrivals)
    return LoadDigest(
        fleet=_text(item, "pk").removeprefix("load#"),
        key=key,
        sent_at=datetime.fromisoformat(key.partition("#")[0]),
        count=count,
        late=late,
        skewed=skewed,
        arrivals=counts,
        waits=_histogram(waits),
        service=_histogram(service),
        workers=tuple(_worker(*worker) for worker in workers),
        work_ms=dict(zip(counts, work_ms, strict=False)),
        newest_start=None if newest_start is None else _instant(newest_start),
        newest_wait_ms=newest_wait_ms,
    )


def _pk(fleet: str) -> str:
    return f"load#{fleet}"


def _text(item: _Item, name: str) -> str:
    return str(item[name]["S"])


def _flat(counts: Mapping[int, int]) -> list[int]:
    """Keys as steps from one to the next, each followed by its value: small numbers pack well."""
    keys = sorted(counts)
    steps = [after - before for before, after in pairwise([0, *keys])]
    return [number for step, key in zip(steps, keys, strict=True) for number in (step, counts[key])]


def _mapping(flat: Sequence[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    key = 0
    for step, value in batched(flat, 2, strict=True):
        key += step
        counts[key] = value
    return counts


def _flat_histogram(histogram: Histogram) -> list[Any]:
    return [histogram.total_ms, histogram.squares, _flat(histogram.counts)]


def _histogram(values: Sequence[Any]) -> Histogram:
    total_ms, squares, counts = values
    return Histogram(counts=_mapping(counts), total_ms=total_ms, squares=squares)


def _flat_worker(worker: WorkerDigest) -> list[Any]:
    last_ms = milliseconds(worker.last_finished)
    ended = [worker.ok, worker.error, worker.timeout]
    return [worker.worker_id, worker.instance_id, *ended, last_ms, _flat(worker.busy_ms)]


def _worker(
    worker_id: str,
    instance_id: str,
    ok: int,
    error: int,
    timeout: int,
    last_ms: int,
    busy_ms: Sequence[int],
) -> WorkerDigest:
    return WorkerDigest(
        worker_id=worker_id,
        cluster=Cluster.AWS if instance_id else Cluster.ONPREM,
        instance_id=instance_id,
        ok=ok,
        error=error,
        timeout=timeout,
        last_finished=_instant(last_ms),
        busy_ms=_mapping(busy_ms),
    )


def _instant(since_epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(since_epoch_ms // 1000, UTC) + timedelta(
        milliseconds=since_epoch_ms % 1000
    )
