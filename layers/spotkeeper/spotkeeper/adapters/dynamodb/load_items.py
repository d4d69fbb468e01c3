"""An item of the load table: the digests of one message, or of several of one slot, packed."""

import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

from pydantic_core import from_json

from spotkeeper.adapters.table import Item, encoded, epoch, key
from spotkeeper.domain.load.digest import sent_at, sent_iso
from spotkeeper.domain.load.load import Cluster, Histogram, LoadDigest, WorkerDigest, milliseconds

# The longest window is 15 minutes; the rest is for looking back by hand.
DIGEST_LIFETIME = timedelta(hours=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pack(*digests: LoadDigest) -> Item:
    """Make the item of digests of one fleet and slot, in the order of their keys; at least one.

    500 logs of one worker stay below 1 KB, the unit of writing, as do 20 logs of each of ten.
    """
    first = digests[0]
    name, sk, values = "digest", first.key, _flat_digest(first)
    if len(digests) > 1:
        keys = "\0".join(digest.key for digest in digests)
        sk = f"{sent_iso(first.sent_at)}*{sha256(keys.encode()).hexdigest()[:16]}"
        name, values = "digests", [[digest.key, *_flat_digest(digest)] for digest in digests]
    packed = zlib.compress(json.dumps(values, separators=(",", ":")).encode())
    expires_at = epoch(max(digest.sent_at for digest in digests) + DIGEST_LIFETIME)
    return key(f"load#{first.fleet}", sk) | encoded({name: packed, "expires_at": expires_at})


def _flat_digest(digest: LoadDigest) -> list[Any]:
    waits, service = (
        [histogram.total_ms, histogram.squares, _flat(histogram.counts)]
        for histogram in (digest.waits, digest.service)
    )
    workers = [
        [
            worker.worker_id,
            worker.instance_id,
            worker.ok,
            worker.error,
            worker.timeout,
            milliseconds(worker.last_finished),
            _flat(worker.busy_ms),
        ]
        for worker in digest.workers
    ]
    # In the order of `arrivals`, which has the same slots.
    work_ms = [digest.work_ms[slot] for slot in sorted(digest.work_ms)]
    start = None if digest.newest_start is None else milliseconds(digest.newest_start)
    sums = [digest.count, digest.late, digest.skewed, _flat(digest.arrivals), waits, service]
    return [*sums, workers, work_ms, start, digest.newest_wait_ms]


def unpack(fleet: str, item: Item) -> Sequence[LoadDigest]:
    """Read a fleet's digests from their item."""
    if "digests" in item:
        several = from_json(zlib.decompress(item["digests"]["B"]))
        return [_digest(fleet, key, values) for key, *values in several]
    return [_digest(fleet, item["sk"]["S"], from_json(zlib.decompress(item["digest"]["B"])))]


def _digest(fleet: str, key: str, values: Sequence[Any]) -> LoadDigest:
    count, late, skewed, arrivals, waits, service, workers, *newer = values
    # What was stored before a release that added these lives on for two hours.
    work_ms, newest_start, newest_wait_ms = newer or ((), None, 0)
    counts = _mapping(arrivals)
    return LoadDigest(
        fleet=fleet,
        key=key,
        sent_at=sent_at(key),
        count=count,
        late=late,
        skewed=skewed,
        arrivals=counts,
        waits=_histogram(*waits),
        service=_histogram(*service),
        workers=tuple(
            WorkerDigest(
                worker_id=worker_id,
                cluster=Cluster.AWS if instance_id else Cluster.ONPREM,
                instance_id=instance_id,
                ok=ok,
                error=error,
                timeout=timeout,
                last_finished=_instant(last_ms),
                busy_ms=_mapping(busy_ms),
            )
            for worker_id, instance_id, ok, error, timeout, last_ms, busy_ms in workers
        ),
        work_ms=dict(zip(counts, work_ms, strict=False)),
        newest_start=None if newest_start is None else _instant(newest_start),
        newest_wait_ms=newest_wait_ms,
    )


def _flat(counts: Mapping[int, int]) -> list[int]:
    """Keys as steps from one to the next, each followed by its value: small numbers pack well."""
    keys = sorted(counts)
    steps = [after - before for before, after in pairwise([0, *keys])]
    return [number for step, key in zip(steps, keys, strict=True) for number in (step, counts[key])]


def _mapping(flat: Sequence[int]) -> dict[int, int]:
    return dict(zip(accumulate(flat[::2]), flat[1::2], strict=True))


def _histogram(total_ms: int, squares: int, counts: Sequence[int]) -> Histogram:
    return Histogram(counts=_mapping(counts), total_ms=total_ms, squares=squares)


def _instant(since_epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=since_epoch_ms)
