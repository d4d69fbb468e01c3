"""A window of search logs summed up: how busy the workers are and how much work arrives."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from statistics import fmean, variance

from spotkeeper.domain.load.digest import merge
from spotkeeper.domain.load.flow import UNHEARD
from spotkeeper.domain.load.load import (
    SLOT_MS,
    Cluster,
    Histogram,
    Load,
    LoadDigest,
    WorkerDigest,
    WorkerLoad,
    load_rate,
    milliseconds,
    unique,
)

# A rate over a shorter window is chance.
SHORTEST_WINDOW_MS = 60_000
# Workers ship logs every few seconds; within this a worker without new logs is not yet idle.
_SHIPPING_MS = 10_000


def _worker_load(
    worker: WorkerDigest, start_ms: int, end_ms: int, idle_after_ms: float, slots: int
) -> WorkerLoad:
    """Sum a worker up over the window.

    Its capacity begins with its first busy slot. A request that still runs has no log yet, so what
    follows the last log counts as idle capacity only once it is longer than most requests. A
    worker that serves `slots` requests at once is busy with as many at most.
    """
    busy = {slot: ms for slot, ms in worker.busy_ms.items() if slot >= start_ms // SLOT_MS}
    last = milliseconds(worker.last_finished)
    begin = max(start_ms, min(busy, default=0) * SLOT_MS)
    end = end_ms if end_ms - last > idle_after_ms else last
    capacity = slots * max(0, end - begin)
    return WorkerLoad(
        worker_id=worker.worker_id,
        cluster=worker.cluster,
        instance_id=worker.instance_id,
        busy_s=min(capacity, sum(min(ms, slots * SLOT_MS) for ms in busy.values())) / 1000,
        capacity_s=capacity / 1000,
        served_s=sum(worker.busy_ms.values()) / 1000,
        finished=worker.ok + worker.failed,
        failed=worker.failed,
        last_finished=worker.last_finished,
        began=worker.last_finished - timedelta(milliseconds=max(0, last - begin)),
    )


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
    times are of all logs sent since then. The window ends at `until` if later logs are still on
    their way. It begins at `since` if logs are only known from then on, and at least a minute
    before its end. A worker serves `slots` requests at once.
    """
    end_ms = milliseconds(until or now)
    start_slot = (end_ms - max(window_s * 1000, SLOT_MS)) // SLOT_MS
    if since is not None:
        known_slot = min(milliseconds(since), end_ms - SHORTEST_WINDOW_MS) // SLOT_MS
        start_slot = max(start_slot, known_slot)
    start_ms = start_slot * SLOT_MS
    received = [one for one in unique(digests) if milliseconds(one.sent_at) >= start_ms]
    if not received:
        return Load(at=now, window_s=window_s)
    whole = merge(received)
    waits, service = whole.waits, whole.service
    idle_after_ms = service.quantile_s(0.95) * 1000 + _SHIPPING_MS
    loads = [_worker_load(each, start_ms, end_ms, idle_after_ms, slots) for each in whole.workers]
    workers = tuple(sorted(loads, key=lambda w: (w.cluster, w.instance_id, w.worker_id)))
    arrived = sum(number for slot, number in whole.arrivals.items() if slot >= start_slot)
    mean_work_s = _mean_work_s(whole.workers, end_ms - start_ms, service)
    # Of Poisson arrivals at rate r in a window W, r (W - mean response time) have finished when the
    # window ends: the others wait or run. A response time above half the window is not trusted.
    response_ms = 1000 * mean_work_s + (waits.total_ms / service.count if service.count else 0.0)
    window_ms = end_ms - start_ms
    rate = arrived * 1000 / (window_ms - min(response_ms, window_ms / 2))
    arrivals = [whole.arrivals.get(slot, 0) for slot in range(start_slot, end_ms // SLOT_MS)]
    return Load(
        at=now,
        window_s=window_s,
        workers=workers,
        newest=max((worker.last_finished for worker in workers), default=None),
        load_rate=max(load_rate(w for w in workers if w.cluster is one) for one in Cluster),
        offered=rate * mean_work_s,
        arrival_rate=rate,
        dispersion=dispersion(arrivals, SLOT_MS / 1000),
        waits=waits,
        service=service,
        finished=whole.count,
        late=whole.late,
    )


def _mean_work_s(workers: Iterable[WorkerDigest], window_ms: int, service: Histogram) -> float:
    """Return the mean service time in seconds, as far as the workers can have served it.

    A worker that serves `at_once` requests has no more time than the window and what began before:
    one log of a day by mistake is not a day of load.
    """
    work_ms = finished = 0.0
    for worker in workers:
        served_ms, count = sum(worker.busy_ms.values()), worker.ok + worker.failed
        at_once = max(1.0, served_ms / max(1, len(worker.busy_ms) * SLOT_MS))
        begun_before_ms = 3 * served_ms / max(1, count)
        work_ms += min(served_ms, at_once * (window_ms + begun_before_ms))
        finished += count
    return min(service.mean_s, work_ms / 1000 / finished) if finished else service.mean_s


# Time scales in seconds.
SCALES_S = (10, 60, 300)


def dispersion(arrivals: Sequence[int], slot_s: float) -> dict[int, float]:
    """Return variance over mean of the number of arrivals, by time scale, where it is known.

    Spans are counted back from the newest slot. 1 is Poisson traffic; Cox & Lewis, The Statistical
    Analysis of Series of Events (1966), chapter 4.
    """
    ratios = {}
    for scale in SCALES_S:
        slots = round(scale / slot_s)
        ends = range(len(arrivals), slots - 1, -slots)
        sums = [sum(arrivals[end - slots : end]) for end in ends]
        if len(sums) > 1 and any(sums):
            ratios[scale] = variance(sums) / fmean(sums)
    return ratios


def onprem_at_once(load: Load) -> int:
    """Count the most workers on premises that ran at one time of the window.

    A restart may give each a new id: of 20 processes the window then has 40 ids, and 20 that ran at
    once. A worker counts from its first request to its last, and then while it may be idle by
    chance, for `UNHEARD` requests of its share: where requests are rare, each id counts.
    """
    workers = on_premises(load)
    finished = sum(worker.finished for worker in workers)
    if not finished:
        return len(workers)
    gap_s = load.window_s * _most_at_once(workers, timedelta(0)) / finished
    return _most_at_once(workers, timedelta(seconds=UNHEARD * gap_s))


def on_premises(load: Load) -> list[WorkerLoad]:
    """Return the workers of the window that run on premises, by id."""
    return [worker for worker in load.workers if worker.cluster is Cluster.ONPREM]


def _most_at_once(workers: Sequence[WorkerLoad], idle: timedelta) -> int:
    # Of one instant, a begin counts before an end.
    begins = [(worker.began or worker.last_finished, 0) for worker in workers]
    ends = [(worker.last_finished + idle, 1) for worker in workers]
    return max(accumulate(1 - 2 * ended for _, ended in sorted([*begins, *ends])))
