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

_SUB_BITS = 4


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

    def within(self, seconds: float) -> int:
        """Count the durations of at most `seconds`, to the bucket."""
        last = bucket(int(seconds * 1000))
        return sum(count for index, count in self.counts.items() if index <= last)


def histogram(durations_ms: Sequence[int]) -> Histogram:
    """Count durations of at least 0 ms."""
    return Histogram(
        counts=Counter(map(bucket, durations_ms)),
        total_ms=sum(durations_ms),
        squares=sum(value * value for value in durations_ms),
    )


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Add histograms up."""
    each = tuple(histograms)
    return Histogram(
        counts=added_up(one.counts for one in each),
        total_ms=sum(one.total_ms for one in each),
        squares=sum(one.squares for one in each),
    )


def added_up(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add counts up, key by key; three times as fast as a Counter, which matters here."""
    total: dict[int, int] = {}
    for each in counts:
        for key, value in each.items():
            total[key] = total.get(key, 0) + value
    return total


SLOT_MS = 10_000
# A request counts whole if it arrived at most this long before its log was sent.
LONGEST_S = 7_200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Cluster(StrEnum):
    """Where a worker runs."""

    AWS = "aws"
    ONPREM = "onprem"


def milliseconds(at: datetime) -> int:
    """Whole milliseconds from the Unix epoch to an aware datetime."""
    return (at - _EPOCH) // _MILLISECOND


def slot_of(at: datetime) -> int:
    """The slot of an instant."""
    return milliseconds(at) // SLOT_MS


def instant(since_epoch_ms: int) -> datetime:
    """The aware datetime of milliseconds from the Unix epoch."""
    return _EPOCH + timedelta(milliseconds=since_epoch_ms)


def slot_begins(slot: int) -> datetime:
    """The instant at which a slot begins."""
    return instant(slot * SLOT_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDigest:
    """What one message says of one worker; `busy_ms` is by slot, `instance_id` "" on-premises.

    `ok` requests succeeded, `failed` ended in error or timeout.
    """

    worker_id: str
    cluster: Cluster
    instance_id: str
    ok: int
    failed: int
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

    `finished` counts its requests whose logs arrived within the window, `failed` those of them that
    ended in error or timeout, and `served_s` is their service time. `busy_s` is cut at the window,
    and counts what overlaps once, or as often as the worker has slots; `capacity_s` counts every
    slot. `began` is when it was first busy in the window, to the slot.
    """

    worker_id: str
    cluster: Cluster
    instance_id: str
    busy_s: float = 0.0
    capacity_s: float = 0.0
    served_s: float = 0.0
    finished: int = 0
    failed: int = 0
    last_finished: datetime
    began: datetime | None = None

    @property
    def load_rate(self) -> float:
        """Busy time over capacity time, 0 to 1."""
        return load_rate((self,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a fleet in the `window_s` seconds before `at`.

    Rates are per second, `offered` is in erlangs, `load_rate` is that of the busier cluster.
    `dispersion` is the variance over the mean of the number of arrivals, by time scale in seconds;
    a scale with fewer than two spans in the window is left out. `newest` is when the last logged
    request finished; None without logs.
    """

    at: datetime
    window_s: int
    workers: tuple[WorkerLoad, ...] = ()
    newest: datetime | None = None
    load_rate: float = 0.0
    offered: float = 0.0
    arrival_rate: float = 0.0
    dispersion: Mapping[int, float] = field(default_factory=dict)
    waits: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)
    finished: int = 0
    late: int = 0


def load_rate(workers: Iterable[WorkerLoad]) -> float:
    """Busy time over capacity time of workers taken together; 0 of nothing."""
    busy = capacity = 0.0
    for worker in workers:
        busy += worker.busy_s
        capacity += worker.capacity_s
    return busy / capacity if capacity else 0.0


def unique(digests: Iterable[LoadDigest]) -> tuple[LoadDigest, ...]:
    """Keep the first sent of digests with equal logs."""
    first: dict[tuple[str, str], LoadDigest] = {}
    for digest in sorted(digests, key=lambda each: each.key):
        first.setdefault((digest.fleet, digest.content), digest)
    return tuple(first.values())
