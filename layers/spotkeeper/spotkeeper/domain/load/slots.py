"""Digests added up by the slot in which they were sent: fewer, and the load is the same.

Whatever looks at digests cuts its window at slots and adds up whole numbers, so that those of one
slot can be added up beforehand. A sum is a digest itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.histogram import added_up, merged
from spotkeeper.domain.load.load import SLOT_MS, LoadDigest, WorkerDigest, milliseconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def slot_of(at: datetime) -> int:
    """The slot of an instant."""
    return milliseconds(at) // SLOT_MS


def slot_begins(slot: int) -> datetime:
    """The instant at which a slot begins."""
    return _EPOCH + timedelta(milliseconds=slot * SLOT_MS)


def merge(digests: Sequence[LoadDigest]) -> LoadDigest:
    """Add up digests of one fleet that were sent in one slot; at least one, their logs unequal."""
    sent_at = slot_begins(slot_of(digests[0].sent_at))
    begins = sent_iso(sent_at)
    starts = [(d.newest_start, d.newest_wait_ms) for d in digests if d.newest_start]
    newest_start, newest_wait_ms = max(starts, default=(None, 0))
    return LoadDigest(
        fleet=digests[0].fleet,
        # No hash of logs looks like that.
        key=f"{begins}#{begins}",
        sent_at=sent_at,
        count=sum(d.count for d in digests),
        late=sum(d.late for d in digests),
        skewed=sum(d.skewed for d in digests),
        workers=_workers(digests),
        arrivals=added_up(d.arrivals for d in digests),
        waits=merged(d.waits for d in digests),
        service=merged(d.service for d in digests),
        work_ms=added_up(d.work_ms for d in digests),
        newest_start=newest_start,
        newest_wait_ms=newest_wait_ms,
    )


def _workers(digests: Iterable[LoadDigest]) -> tuple[WorkerDigest, ...]:
    workers: dict[tuple[str, str], WorkerDigest] = {}
    for digest in digests:
        for worker in digest.workers:
            key = (worker.instance_id, worker.worker_id)
            known = workers.get(key)
            workers[key] = _both(known, worker) if known else worker
    return tuple(workers[key] for key in sorted(workers))


def _both(one: WorkerDigest, other: WorkerDigest) -> WorkerDigest:
    busy_ms: Mapping[int, int] = added_up((one.busy_ms, other.busy_ms))
    return WorkerDigest(
        worker_id=one.worker_id,
        cluster=one.cluster,
        instance_id=one.instance_id,
        ok=one.ok + other.ok,
        error=one.error + other.error,
        timeout=one.timeout + other.timeout,
        last_finished=max(one.last_finished, other.last_finished),
        busy_ms=busy_ms,
    )
