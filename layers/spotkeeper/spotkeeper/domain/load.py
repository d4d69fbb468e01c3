"""What search logs add up to: how busy the workers are and how much work arrives.

Search logs reach this module as digests, one for each queue message and fleet. Time is cut into
slots of 10 s counted from the Unix epoch; sums are whole milliseconds, so that the order of
digests, and how logs were spread over messages, changes nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

SLOT_MS = 10_000
# Time scales, in seconds, over which the burstiness of arrivals is told.
SCALES_S = (10, 60, 300)
# Workers ship logs every few seconds; within this a worker without new logs is not yet idle.
_SHIPPING_MS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SUB_BITS = 4
_SUB_BUCKETS = 1 << _SUB_BITS


class Cluster(StrEnum):
    """Where a worker runs."""

    AWS = "aws"
    ONPREM = "onprem"


def milliseconds(at: datetime) -> int:
    """Whole milliseconds from the Unix epoch to an aware datetime."""
    return (at - _EPOCH) // _MILLISECOND


def bucket(value_ms: int) -> int:
    """Bucket of a duration: exact below 32 ms, then 16 buckets for each doubling.

    The layout is HdrHistogram's (Tene, hdrhistogram.org), in integers. A bucket's middle is within
    3.2 % of everything in it.
    """
    shift = max(value_ms.bit_length() - _SUB_BITS - 1, 0)
    return (shift << _SUB_BITS) + (value_ms >> shift)


def middle_ms(index: int) -> float:
    """Middle of a bucket, in milliseconds."""
    shift = max((index >> _SUB_BITS) - 1, 0)
    return ((index - (shift << _SUB_BITS)) << shift) + ((1 << shift) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Durations: how many in each bucket, their sum in ms and the sum of their squares in ms²."""

    counts: Mapping[int, int] = field(default_factory=dict)
    total_ms: int = 0
    squares: int = 0

    @property
    def count(self) -> int:
        """How many durations."""
        return sum(self.counts.values())

    @property
    def mean_s(self) -> float:
        """Mean in seconds; 0 of nothing."""
        return self.total_ms / self.count / 1000 if self.counts else 0.0

    @property
    def squared_variation(self) -> float:
        """Variance over squared mean: 0 for constant durations, 1 for exponential ones."""
        if not self.total_ms:
            return 0.0
        return (self.squares * self.count - self.total_ms**2) / self.total_ms**2

    def quantile_s(self, share: float) -> float:
        """The duration in seconds that `share` of all do not exceed, within 3.2 %; 0 of nothing."""
        rank = max(math.ceil(share * self.count), 1)
        for index in sorted(self.counts):
            rank -= self.counts[index]
            if rank <= 0:
                return middle_ms(index) / 1000
        return 0.0

    def share_within(self, seconds: float) -> float:
        """Share of the durations that are at most so long, to the bucket; 1 of nothing."""
        last = bucket(int(seconds * 1000))
        within = sum(count for index, count in self.counts.items() if index <= last)
        return within / self.count if self.counts else 1.0


def histogram(durations_ms: Sequence[int]) -> Histogram:
    """Count durations of at least 0 ms."""
    return Histogram(
        counts=Counter(map(bucket, durations_ms)),
        total_ms=sum(durations_ms),
        squares=sum(value * value for value in durations_ms),
    )


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Add histograms up."""
    counts: Counter[int] = Counter()
    total = squares = 0
    for each in histograms:
        counts.update(each.counts)
        total += each.total_ms
        squares += each.squares
    return Histogram(counts=counts, total_ms=total, squares=squares)


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
    sent. `arrivals` counts requests by the slot in which they were enqueued. `count` logs are
    summed up here; `late` ones were too old to matter and are only counted; of `skewed` logs, the
    times were shifted back because they lay in the future.
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
    """A worker's digests added up."""

    last_finished: datetime
    finished: int = 0
    failed: int = 0
    busy_ms: Counter[int] = field(default_factory=Counter)

    def add(self, digest: WorkerDigest) -> None:
        failed = digest.error + digest.timeout
        self.finished += digest.ok + failed
        self.failed += failed
        self.last_finished = max(self.last_finished, digest.last_finished)
        self.busy_ms.update(digest.busy_ms)


type _WorkerKey = tuple[Cluster, str, str]


def _tallies(digests: Iterable[LoadDigest]) -> Mapping[_WorkerKey, _Tally]:
    """Add workers up; an id that two instances use is two workers."""
    tallies: dict[_WorkerKey, _Tally] = {}
    for digest in digests:
        for worker in digest.workers:
            key = (worker.cluster, worker.instance_id, worker.worker_id)
            if key not in tallies:
                tallies[key] = _Tally(worker.last_finished)
            tallies[key].add(worker)
    return tallies


def _worker_load(
    key: _WorkerKey, tally: _Tally, start_ms: int, end_ms: int, idle_after_ms: float
) -> WorkerLoad:
    """Sum a worker up over the window.

    Its capacity begins with its first busy slot. A request that still runs has no log yet, so what
    follows the last log counts as idle capacity only once it is longer than most requests.
    """
    busy = {slot: ms for slot, ms in tally.busy_ms.items() if slot * SLOT_MS >= start_ms}
    begin = max(start_ms, min(busy, default=0) * SLOT_MS)
    last = milliseconds(tally.last_finished)
    capacity = max((end_ms if end_ms - last > idle_after_ms else last) - begin, 0)
    once = min(sum(min(ms, SLOT_MS) for ms in busy.values()), capacity)
    cluster, instance_id, worker_id = key
    return WorkerLoad(
        worker_id=worker_id,
        cluster=cluster,
        instance_id=instance_id,
        busy_s=once / 1000,
        capacity_s=capacity / 1000,
        overlapped_s=(sum(busy.values()) - once) / 1000,
        finished=tally.finished,
        failed=tally.failed,
        last_finished=tally.last_finished,
    )


def _unique(digests: Iterable[LoadDigest]) -> tuple[LoadDigest, ...]:
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
    start = now + timedelta(milliseconds=start_slot * SLOT_MS - end_ms)
    received = [digest for digest in _unique(digests) if digest.sent_at >= start]
    waits = merged(digest.waits for digest in received)
    service = merged(digest.service for digest in received)
    idle_after_ms = service.quantile_s(0.95) * 1000 + _SHIPPING_MS
    workers = tuple(
        _worker_load(key, tally, start_slot * SLOT_MS, end_ms, idle_after_ms)
        for key, tally in sorted(_tallies(received).items())
    )
    counts: Counter[int] = Counter()
    for digest in received:
        counts.update(digest.arrivals)
    arrived = sum(number for slot, number in counts.items() if slot >= start_slot)
    rate = _arrival_rate(
        arrived, end_ms - start_slot * SLOT_MS, waits.total_ms + service.total_ms, service.count
    )
    arrivals = tuple(counts[slot] for slot in range(start_slot, end_ms // SLOT_MS))
    dispersion = {s: index_of_dispersion(arrivals, s * 1000 // SLOT_MS) for s in SCALES_S}
    return Load(
        at=now,
        window_s=window_s,
        workers=workers,
        newest=max((worker.last_finished for worker in workers), default=None),
        load_rate={
            cluster: load_rate(worker for worker in workers if worker.cluster is cluster)
            for cluster in Cluster
            if any(worker.cluster is cluster for worker in workers)
        },
        offered=rate * service.mean_s,
        arrival_rate=rate,
        arrivals=arrivals,
        dispersion={scale: index for scale, index in dispersion.items() if index is not None},
        waits=waits,
        service=service,
        finished=sum(digest.count for digest in received),
        late=sum(digest.late for digest in received),
        skewed=sum(digest.skewed for digest in received),
    )
