"""A window of search logs summed up: how busy the workers are and how much work arrives."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.load.histogram import Histogram, added_up, merged
from spotkeeper.domain.load.load import (
    SLOT_MS,
    Cluster,
    Load,
    LoadDigest,
    WorkerDigest,
    WorkerLoad,
    load_rate,
    milliseconds,
    unique,
)

# A rate over less is chance.
SHORTEST_WINDOW_MS = 60_000
# Workers ship logs every few seconds; within this a worker without new logs is not yet idle.
_SHIPPING_MS = 10_000


@dataclass(slots=True)
class _Tally:
    """A worker's digests added up; `of` is one of them."""

    of: WorkerDigest
    last_finished: datetime
    finished: int = 0
    failed: int = 0
    busy_ms: dict[int, int] = field(default_factory=dict)

    def add(self, digest: WorkerDigest) -> None:
        failed = digest.error + digest.timeout
        self.finished += digest.ok + failed
        self.failed += failed
        self.last_finished = max(self.last_finished, digest.last_finished)
        busy = self.busy_ms
        for slot, ms in digest.busy_ms.items():
            busy[slot] = busy.get(slot, 0) + ms


def _tallies(digests: Iterable[LoadDigest]) -> Collection[_Tally]:
    """Add workers up; an id that two instances use is two workers."""
    tallies: dict[tuple[str, str], _Tally] = {}
    for digest in digests:
        for worker in digest.workers:
            key = (worker.instance_id, worker.worker_id)
            tally = tallies.get(key)
            if tally is None:
                tally = tallies[key] = _Tally(worker, worker.last_finished)
            tally.add(worker)
    return tallies.values()


def _worker_load(
    tally: _Tally, start_ms: int, end_ms: int, idle_after_ms: float, slots: int
) -> WorkerLoad:
    """Sum a worker up over the window.

    Its capacity begins with its first busy slot. A request that still runs has no log yet, so what
    follows the last log counts as idle capacity only once it is longer than most requests. A
    worker that serves `slots` requests at once is busy with as many at most.
    """
    start_slot = start_ms // SLOT_MS
    once = first = 0
    for slot, ms in tally.busy_ms.items():
        if slot >= start_slot:
            once += min(ms, slots * SLOT_MS)
            first = slot if not first or slot < first else first
    last = milliseconds(tally.last_finished)
    begin = max(start_ms, first * SLOT_MS)
    capacity = max((end_ms if end_ms - last > idle_after_ms else last) - begin, 0)
    capacity *= slots
    once = min(once, capacity)
    return WorkerLoad(
        worker_id=tally.of.worker_id,
        cluster=tally.of.cluster,
        instance_id=tally.of.instance_id,
        busy_s=once / 1000,
        capacity_s=capacity / 1000,
        served_s=sum(tally.busy_ms.values()) / 1000,
        finished=tally.finished,
        failed=tally.failed,
        last_finished=tally.last_finished,
        began=tally.last_finished - timedelta(milliseconds=max(0, last - begin)),
    )


def _arrival_rate(arrived: int, window_ms: int, responses_ms: float, responses: int) -> float:
    """Arrivals per second, those counted that have no log yet because they wait or run.

    Of Poisson arrivals at rate r in a window W, r (W - mean response time) have finished on average
    when the window ends; a response time above half the window is not trusted.
    """
    mean = responses_ms / responses if responses else 0.0
    return arrived * 1000 / (window_ms - min(mean, window_ms / 2))


def summarise(
    digests: Iterable[LoadDigest],
    now: datetime,
    window_s: int,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    slots: int = 1,
) -> Load:
    """Sum up one fleet's digests over the last `window_s` seconds (at least one slot of 10 s).

    Busy time and arrivals are cut at the window's start, to the slot. Counts, waits and service
    times are those of all logs that came in since then. The window ends at `until` where the logs
    of what came later are on their way, and begins `since` they are known, a minute before its end
    at the latest: nothing else is known to be quiet. A worker serves `slots` requests at once.
    """
    end_ms = milliseconds(until or now)
    start_slot = (end_ms - max(window_s * 1000, SLOT_MS)) // SLOT_MS
    if since is not None:
        known_slot = min(milliseconds(since), end_ms - SHORTEST_WINDOW_MS) // SLOT_MS
        start_slot = max(start_slot, known_slot)
    start_ms = start_slot * SLOT_MS
    received = [one for one in unique(digests) if milliseconds(one.sent_at) >= start_ms]
    waits = merged(digest.waits for digest in received)
    service = merged(digest.service for digest in received)
    tallies = _tallies(received)
    workers = _workers(tallies, service, start_ms, end_ms, slots)
    counts = _arrivals(received, start_slot)
    mean_work_s = _mean_work_s(tallies, end_ms - start_ms, service)
    responses_ms = waits.total_ms + 1000 * mean_work_s * service.count
    rate = _arrival_rate(counts.total(), end_ms - start_ms, responses_ms, service.count)
    arrivals = tuple(counts[slot] for slot in range(start_slot, end_ms // SLOT_MS))
    return Load(
        at=now,
        window_s=window_s,
        workers=workers,
        newest=max((worker.last_finished for worker in workers), default=None),
        load_rate=_cluster_rates(workers),
        offered=rate * mean_work_s,
        arrival_rate=rate,
        arrivals=arrivals,
        dispersion=dispersion(arrivals, SLOT_MS / 1000),
        waits=waits,
        service=service,
        finished=sum(digest.count for digest in received),
        late=sum(digest.late for digest in received),
        skewed=sum(digest.skewed for digest in received),
    )


def _mean_work_s(tallies: Iterable[_Tally], window_ms: int, service: Histogram) -> float:
    """Return the mean service time in seconds, as far as the workers can have served it.

    A worker that serves `at_once` requests has no more time than the window and what began before:
    one log of a day by mistake is not a day of load.
    """
    work_ms = finished = 0.0
    for tally in tallies:
        served_ms, slots_ms = sum(tally.busy_ms.values()), len(tally.busy_ms) * SLOT_MS
        at_once = max(1.0, served_ms / max(1, slots_ms))
        begun_before_ms = 3 * served_ms / max(1, tally.finished)
        work_ms += min(served_ms, at_once * (window_ms + begun_before_ms))
        finished += tally.finished
    return min(service.mean_s, work_ms / 1000 / finished) if finished else service.mean_s


def _workers(
    tallies: Iterable[_Tally], service: Histogram, start_ms: int, end_ms: int, slots: int
) -> tuple[WorkerLoad, ...]:
    idle_after_ms = service.quantile_s(0.95) * 1000 + _SHIPPING_MS
    workers = (_worker_load(tally, start_ms, end_ms, idle_after_ms, slots) for tally in tallies)
    return tuple(sorted(workers, key=lambda w: (w.cluster, w.instance_id, w.worker_id)))


def _arrivals(digests: Iterable[LoadDigest], start_slot: int) -> Counter[int]:
    counts = added_up(digest.arrivals for digest in digests)
    return Counter({slot: number for slot, number in counts.items() if slot >= start_slot})


def _cluster_rates(workers: Sequence[WorkerLoad]) -> dict[Cluster, float]:
    seen = {worker.cluster for worker in workers}
    return {
        cluster: load_rate(worker for worker in workers if worker.cluster is cluster)
        for cluster in Cluster
        if cluster in seen
    }


# Time scales in seconds.
SCALES_S = (10, 60, 300)


def dispersion(arrivals: Sequence[int], slot_s: float) -> dict[int, float]:
    """Tell the index of dispersion of arrivals by slot, by time scale, where it is known."""
    indices = {scale: index_of_dispersion(arrivals, round(scale / slot_s)) for scale in SCALES_S}
    return {scale: index for scale, index in indices.items() if index is not None}


def index_of_dispersion(arrivals: Sequence[int], slots: int) -> float | None:
    """Variance over mean of the number of arrivals in spans of so many slots; None when unknown.

    Spans are counted back from the newest slot. 1 is Poisson traffic; Cox & Lewis, The Statistical
    Analysis of Series of Events (1966), chapter 4.
    """
    spans = len(arrivals) // slots
    newest_first = arrivals[::-1]
    sums = [sum(newest_first[at * slots : (at + 1) * slots]) for at in range(spans)]
    total = sum(sums)
    if spans < 2 or not total:  # noqa: PLR2004
        return None
    return (spans * sum(value * value for value in sums) - total**2) / ((spans - 1) * total)
