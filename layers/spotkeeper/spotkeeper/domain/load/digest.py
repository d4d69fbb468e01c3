"""From search logs to digests: one for each message and fleet, of a bounded size.

Digests of one slot can be added up (`merge`): whatever looks at digests cuts its window at slots
and adds up whole numbers, so the load stays the same. A sum is a digest itself.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from spotkeeper.domain.load.load import (
    LONGEST_S,
    SLOT_MS,
    Cluster,
    LoadDigest,
    WorkerDigest,
    added_up,
    histogram,
    instant,
    merged,
    milliseconds,
    slot_begins,
    slot_of,
)

# Beyond this, the worker's clock is wrong, and not the one that stamped the arrival.
OWN_SKEW_S = 300
# A clock may be hours ahead, as where local time is written as UTC. Beyond a day it is no clock.
MAX_SKEW_S = 86_400
# One clock stamps the arrival of a request and another its service: they may differ by this much.
MAX_INVERSION_S = 5
# Logs of requests that finished longer before they were sent say nothing of the load now.
LATE_AFTER_S = 900
# Keeps a digest well below the 400 KB that a table item may have.
MAX_WORKERS = 200


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLog:
    """The record of one served request; `instance_id` "" on-premises, `fleet` "" when not named.

    Times are aware, and in order but for `MAX_INVERSION_S`.
    """

    request_id: str
    worker_id: str
    cluster: Cluster
    instance_id: str = ""
    enqueued_at: datetime
    started_at: datetime
    finished_at: datetime
    status: Status
    fleet: str = ""


class NotDigestible(ValueError):
    """Logs that read well and cannot be right; names the field."""


class _Span(NamedTuple):
    """A log in milliseconds from the epoch, in order; `skewed` where that took a correction."""

    log: SearchLog
    enqueued: int
    started: int
    finished: int
    skewed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBatch:
    """A message's logs of one fleet, each once, by their identity; `content` is their hash."""

    fleet: str
    sent_at: datetime
    content: str
    spans: Mapping[str, _Span]


def fleet_batches(
    logs: Sequence[SearchLog], sent_at: datetime, default_fleet: str
) -> list[FleetBatch]:
    """Sort out a message's logs by the fleets that they name, for `build_digest`.

    A log that is in the message twice counts once. `sent_at` is the queue's clock, which is
    trusted: a worker's logs from its future are shifted back together, up to `MAX_SKEW_S`. Raises
    NotDigestible beyond that, and for more than `MAX_WORKERS` workers.
    """
    ahead_ms = _ahead_ms(logs, sent_at)
    fleets: defaultdict[str, dict[str, _Span]] = defaultdict(dict)
    for log in logs:
        started, finished = milliseconds(log.started_at), milliseconds(log.finished_at)
        enqueued = milliseconds(log.enqueued_at)
        # What makes a log itself, whenever and however it was sent.
        identity = (
            f"{log.request_id}\n{log.worker_id}\n{log.instance_id}\n{log.status}\n"
            f"{enqueued} {started} {finished}"
        )
        skew_ms = ahead_ms.get((log.instance_id, log.worker_id), 0)
        own = skew_ms > OWN_SKEW_S * 1000 and enqueued <= started - skew_ms
        enqueued, started = enqueued - (0 if own else skew_ms), started - skew_ms
        # In order: a request that seems to start before its arrival did not wait.
        began = min(started, finished - skew_ms)
        arrived = min(enqueued, began)
        skewed = skew_ms > 0 or (arrived, began) != (enqueued, started)
        span = _Span(log, arrived, began, finished - skew_ms, skewed)
        fleets[log.fleet or default_fleet][identity] = span
    batches: list[FleetBatch] = []
    for fleet, spans in sorted(fleets.items()):
        workers = {(span.log.instance_id, span.log.worker_id) for span in spans.values()}
        if len(workers) > MAX_WORKERS:
            raise NotDigestible(
                f"worker_id: {len(workers)} different workers in one message; "
                f"send the logs of at most {MAX_WORKERS} together"
            )
        content = _hash(fleet, spans)
        batches.append(FleetBatch(fleet=fleet, sent_at=sent_at, content=content, spans=spans))
    return batches


def _ahead_ms(logs: Iterable[SearchLog], sent_at: datetime) -> dict[tuple[str, str], int]:
    """Return by how much the clocks of workers are ahead, those that are."""
    newest: dict[tuple[str, str], datetime] = {}
    for log in logs:
        worker = log.instance_id, log.worker_id
        newest[worker] = max(log.finished_at, newest.get(worker, sent_at))
    ahead_ms = {worker: milliseconds(at) - milliseconds(sent_at) for worker, at in newest.items()}
    for worker, ms in ahead_ms.items():
        if ms > MAX_SKEW_S * 1000:
            raise NotDigestible(
                f"finished_at: {newest[worker].isoformat()} is {ms / 1000:.0f} s after the message "
                f"was sent; at most {MAX_SKEW_S} s are corrected: set the clock of {worker[1]}"
            )
    return ahead_ms


def build_digest(batch: FleetBatch, counted: Set[str] = frozenset()) -> LoadDigest:
    """Sum up a batch without the logs that are `counted` already, in another of its digests."""
    left = {identity: span for identity, span in batch.spans.items() if identity not in counted}
    oldest = milliseconds(batch.sent_at) - LATE_AFTER_S * 1000
    timely = [span for span in left.values() if span.finished >= oldest]
    workers: defaultdict[tuple[str, str], list[_Span]] = defaultdict(list)
    for span in timely:
        workers[span.log.instance_id, span.log.worker_id].append(span)
    sent = milliseconds(batch.sent_at)
    arrived = [s for s in timely if s.enqueued >= sent - LONGEST_S * 1000]
    # Of many workers, only the last minutes fit.
    busy_s = min(LONGEST_S, LATE_AFTER_S * MAX_WORKERS // max(1, len(workers)))
    first_slot = sent // SLOT_MS - busy_s * 1000 // SLOT_MS
    started, waited = max(((s.started, s.started - s.enqueued) for s in timely), default=(None, 0))
    return LoadDigest(
        fleet=batch.fleet,
        key=_key(batch, left),
        sent_at=batch.sent_at,
        count=len(timely),
        late=len(left) - len(timely),
        skewed=sum(span.skewed for span in left.values()),
        workers=tuple(_worker(workers[key], first_slot) for key in sorted(workers)),
        arrivals=Counter(s.enqueued // SLOT_MS for s in arrived),
        waits=histogram([span.started - span.enqueued for span in timely]),
        service=histogram([span.finished - span.started for span in timely]),
        work_ms=added_up({s.enqueued // SLOT_MS: s.finished - s.started} for s in arrived),
        newest_start=None if started is None else instant(started),
        newest_wait_ms=waited,
    )


def _key(batch: FleetBatch, left: Mapping[str, _Span]) -> str:
    """Return the same key for the same logs of a message, which makes storing idempotent.

    A message that was stored without some logs, and again with all of them, has two keys of one
    content. The key of the first sorts before the other, and its digest counts.
    """
    without = "" if len(left) == len(batch.spans) else f"!{_hash(batch.fleet, left)}"
    return f"{sent_iso(batch.sent_at)}{without}#{batch.content}"


def _hash(fleet: str, identities: Iterable[str]) -> str:
    content = "\0".join((fleet, *sorted(identities)))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sent_at(key: str) -> datetime:
    """When the message of a digest's key was sent."""
    return datetime.fromisoformat(key[: len("2026-11-20T12:00:00.000Z")])


def sent_iso(at: datetime) -> str:
    """The instant as keys begin with it: UTC, to the millisecond, sortable as text."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _worker(spans: Sequence[_Span], first_slot: int) -> WorkerDigest:
    log = spans[0].log
    ok = sum(span.log.status is Status.OK for span in spans)
    return WorkerDigest(
        worker_id=log.worker_id,
        cluster=log.cluster,
        instance_id=log.instance_id,
        ok=ok,
        failed=len(spans) - ok,
        last_finished=instant(max(span.finished for span in spans)),
        busy_ms=_busy_ms(spans, first_slot),
    )


def _busy_ms(spans: Iterable[_Span], first_slot: int) -> dict[int, int]:
    """Split each span's service time over the slots that it touches, from `first_slot` on."""
    busy: defaultdict[int, int] = defaultdict(int)
    for span in spans:
        at = max(span.started, first_slot * SLOT_MS)
        while at < span.finished:
            slot = at // SLOT_MS
            until = min((slot + 1) * SLOT_MS, span.finished)
            busy[slot] += until - at
            at = until
    return dict(busy)


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
        workers=workers_of(digests),
        arrivals=added_up(d.arrivals for d in digests),
        waits=merged(d.waits for d in digests),
        service=merged(d.service for d in digests),
        work_ms=added_up(d.work_ms for d in digests),
        newest_start=newest_start,
        newest_wait_ms=newest_wait_ms,
    )


def workers_of(digests: Iterable[LoadDigest]) -> tuple[WorkerDigest, ...]:
    """Add up what digests say of each worker; an id that two instances use is two workers."""
    parts: defaultdict[tuple[str, str], list[WorkerDigest]] = defaultdict(list)
    for digest in digests:
        for worker in digest.workers:
            parts[worker.instance_id, worker.worker_id].append(worker)
    return tuple(_added_up(parts[key]) for key in sorted(parts))


def _added_up(each: Sequence[WorkerDigest]) -> WorkerDigest:
    if len(each) == 1:
        return each[0]
    return replace(
        each[0],
        ok=sum(one.ok for one in each),
        failed=sum(one.failed for one in each),
        last_finished=max(one.last_finished for one in each),
        busy_ms=added_up(one.busy_ms for one in each),
    )
