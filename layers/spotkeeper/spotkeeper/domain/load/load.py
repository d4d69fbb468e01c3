"""What search logs add up to: how busy the workers are and how much work arrives.

Search logs reach this module as digests, one for each queue message and fleet. Time is cut into
slots of 10 s counted from the Unix epoch; sums are whole milliseconds, so that the order of
digests, and how logs were spread over messages, changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spotkeeper.domain.load.histogram import Histogram, added_up, merged

SLOT_MS = 10_000
# Time scales, in seconds, over which the burstiness of arrivals is told.
SCALES_S = (10, 60, 300)
# Workers ship logs every few seconds; within this a worker without new logs is not yet idle.
_SHIPPING_MS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Cluster(StrEnum):
    """Where a worker runs."""

    AWS = "aws"
    ONPREM = "onprem"


def milliseconds(at: datetime) -> int:
    """Whole milliseconds from the Unix epoch to an aware datetime."""
    return (at - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDigest:
    """What one message says of one worker; `busy_ms` is by slot, `instance_id` "" on-premises.

    `ok`, `error` and `timeout` count requests by how they ended.
    """

    worker_id: str
    cluster: Cluster
    instance_id: str
    ok: int
    error: int
    timeout: int
    last_finished: datetime
    busy_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDigest:
    """What one message says of one fleet.

    `key` is `<sent time>#<hash of the logs>`: equal logs have an equal hash, whenever they were
    sent. Where logs were left out, the time is followed by `!<hash of the others>`. `arrivals`
    counts requests by the slot in which they were enqueued and `work_ms` sums up their service
    times; `newest_start` is when the last one started, after it waited for `newest_wait_ms`.
    `count` logs are summed up here; `late` ones were too old to matter and are only counted; of
    `skewed` logs, the times were shifted back because they lay in the future.
    """

    fleet: str
    key: str
    sent_at: datetime
    count: int
    late: int
    skewed: int
    workers: tuple[WorkerDigest, ...]
    arrivals: Mapping[int, int]
    waits: Histogram
    service: Histogram
    work_ms: Mapping[int, int] = field(default_factory=dict)
    newest_start: datetime | None = None
    newest_wait_ms: int = 0

    @property
    def content(self) -> str:
        """The hash of the logs."""
        return self.key.rpartition("#")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker within the window.

    `finished` counts all its requests whose logs came in within the window and `failed` those that
    ended in error or timeout. `overlapped_s` is time in which it claims to have served
    more than one request at once: such time counts once in `busy_s`.
    """

    worker_id: str
    cluster: Cluster
    instance_id: str
    busy_s: float = 0.0
    capacity_s: float = 0.0
    overlapped_s: float = 0.0
    finished: int = 0
    failed: int = 0
    last_finished: datetime

    @property
    def load_rate(self) -> float:
        """Busy time over capacity time, 0 to 1."""
        return load_rate((self,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a fleet in the `window_s` seconds before `at`.

    Rates are per second, `offered` is in erlangs. `arrivals` counts requests by slot of 10 s,
    oldest first, the current slot left out. `dispersion` is the variance over the mean of the
    number of arrivals, by time scale in seconds; a scale with fewer than two spans in the window
    is left out. `newest` is when the last logged request finished; None without logs.
    """

    at: datetime
    window_s: int
    workers: tuple[WorkerLoad, ...] = ()
    newest: datetime | None = None
    load_rate: Mapping[Cluster, float] = field(default_factory=dict)
    offered: float = 0.0
    arrival_rate: float = 0.0
    arrivals: tuple[int, ...] = ()
    dispersion: Mapping[int, float] = field(default_factory=dict)
    waits: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)
    finished: int = 0
    late: int = 0
    skewed: int = 0

    @property
    def wait_p50_s(self) -> float:
        """Median wait for a worker."""
        return self.waits.quantile_s(0.5)

    @property
    def wait_p95_s(self) -> float:
        """The wait that 95 % of requests did not exceed."""
        return self.waits.quantile_s(0.95)

    @property
    def service_mean_s(self) -> float:
        """Mean time that a request keeps a worker busy."""
        return self.service.mean_s


def load_rate(workers: Iterable[WorkerLoad]) -> float:
    """Busy time over capacity time of workers taken together; 0 of nothing."""
    busy = capacity = 0.0
    for worker in workers:
        busy += worker.busy_s
        capacity += worker.capacity_s
    return busy / capacity if capacity else 0.0


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


def _tallies(digests: Iterable[LoadDigest]) -> Iterable[_Tally]:
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


def _worker_load(tally: _Tally, start_ms: int, end_ms: int, idle_after_ms: float) -> WorkerLoad:
    """Sum a worker up over the window.

    Its capacity begins with its first busy slot. A request that still runs has no log yet, so what
    follows the last log counts as idle capacity only once it is longer than most requests.
    """
    start_slot = start_ms // SLOT_MS
    once = busy = first = 0
    for slot, ms in tally.busy_ms.items():
        if slot >= start_slot:
            busy += ms
            once += ms if ms < SLOT_MS else SLOT_MS
            first = slot if not first or slot < first else first
    begin = max(start_ms, first * SLOT_MS)
    last = milliseconds(tally.last_finished)
    capacity = max((end_ms if end_ms - last > idle_after_ms else last) - begin, 0)
    once = min(once, capacity)
    return WorkerLoad(
        worker_id=tally.of.worker_id,
        cluster=tally.of.cluster,
        instance_id=tally.of.instance_id,
        busy_s=once / 1000,
        capacity_s=capacity / 1000,
        overlapped_s=(busy - once) / 1000,
        finished=tally.finished,
        failed=tally.failed,
        last_finished=tally.last_finished,
    )


def unique(digests: Iterable[LoadDigest]) -> tuple[LoadDigest, ...]:
    """Keep the first sent of digests with equal logs."""
    first: dict[tuple[str, str], LoadDigest] = {}
    for digest in sorted(digests, key=lambda each: each.key):
        first.setdefault((digest.fleet, digest.content), digest)
    return tuple(first.values())


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


def _arrival_rate(arrived: int, window_ms: int, responses_ms: int, responses: int) -> float:
    """Arrivals per second, those counted that have no log yet because they wait or run.

    Of Poisson arrivals at rate r in a window W, r (W - mean response time) have finished on average
    when the window ends; a response time above half the window is not trusted.
    """
    mean = responses_ms / responses if responses else 0.0
    return arrived * 1000 / (window_ms - min(mean, window_ms / 2))


def summarise(digests: Iterable[LoadDigest], now: datetime, window_s: int) -> Load:
    """Sum up one fleet's digests over the last `window_s` seconds (at least one slot of 10 s).

    Busy time and arrivals are cut at the window's start, to the slot. Counts, waits and service
    times are those of all logs that came in since then.
    """
    end_ms = milliseconds(now)
    start_slot = (end_ms - max(window_s * 1000, SLOT_MS)) // SLOT_MS
    start_ms = start_slot * SLOT_MS
    received = [one for one in unique(digests) if milliseconds(one.sent_at) >= start_ms]
    waits = merged(digest.waits for digest in received)
    service = merged(digest.service for digest in received)
    workers = _workers(received, service, start_ms, end_ms)
    counts = _arrivals(received, start_slot)
    responses_ms = waits.total_ms + service.total_ms
    rate = _arrival_rate(counts.total(), end_ms - start_ms, responses_ms, service.count)
    arrivals = tuple(counts[slot] for slot in range(start_slot, end_ms // SLOT_MS))
    return Load(
        at=now,
        window_s=window_s,
        workers=workers,
        newest=max((worker.last_finished for worker in workers), default=None),
        load_rate=_cluster_rates(workers),
        offered=rate * service.mean_s,
        arrival_rate=rate,
        arrivals=arrivals,
        dispersion=_dispersion(arrivals),
        waits=waits,
        service=service,
        finished=sum(digest.count for digest in received),
        late=sum(digest.late for digest in received),
        skewed=sum(digest.skewed for digest in received),
    )


def _workers(
    digests: Iterable[LoadDigest], service: Histogram, start_ms: int, end_ms: int
) -> tuple[WorkerLoad, ...]:
    idle_after_ms = service.quantile_s(0.95) * 1000 + _SHIPPING_MS
    workers = (_worker_load(tally, start_ms, end_ms, idle_after_ms) for tally in _tallies(digests))
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


def _dispersion(arrivals: Sequence[int]) -> dict[int, float]:
    indices = {scale: index_of_dispersion(arrivals, scale * 1000 // SLOT_MS) for scale in SCALES_S}
    return {scale: index for scale, index in indices.items() if index is not None}
