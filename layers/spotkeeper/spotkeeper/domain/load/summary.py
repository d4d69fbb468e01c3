"""What the search logs of a fleet say, as sizing to an objective looks at it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

SLOT_S = 10.0
MINUTE_SLOTS = 6
# A mean service time is taken from a quarter of an hour, or from a day while requests are few.
MEAN_SLOTS, DAY_SLOTS, ENOUGH = 90, 8_640, 20


@dataclass(frozen=True, slots=True)
class ArrivalLog:
    """Requests and their service times by the slot of 10 s in which they arrived, oldest first.

    The slot at index 0 is `first`, counted from the Unix epoch.
    """

    first: int
    requests: Sequence[int]
    work_s: Sequence[float]
    request_sums: Sequence[int] = field(init=False, repr=False, compare=False)
    work_sums: Sequence[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Add up, so that any window costs the same."""
        object.__setattr__(self, "request_sums", list(accumulate(self.requests, initial=0)))
        object.__setattr__(self, "work_sums", list(accumulate(self.work_s, initial=0.0)))

    def __len__(self) -> int:
        return len(self.requests)

    def load(self, end: int, slots: int) -> float:
        """Return the offered load of a window in erlangs, as far as it is known."""
        end = max(0, min(end, len(self)))
        begin = max(0, end - slots)
        work_s = self.work_sums[end] - self.work_sums[begin]
        return max(0.0, work_s) / (SLOT_S * max(1, end - begin))

    def service_mean_s(self, end: int) -> float:
        """Return the mean service time of what arrived before an index; 0 of nothing."""
        end = max(0, min(end, len(self)))
        for slots in (MEAN_SLOTS, DAY_SLOTS):
            begin = max(0, end - slots)
            count = self.request_sums[end] - self.request_sums[begin]
            if count >= ENOUGH or (count and slots == DAY_SLOTS):
                return (self.work_sums[end] - self.work_sums[begin]) / count
        return 0.0


def spread(minutes: Iterable[tuple[int, int]]) -> tuple[list[int], list[float]]:
    """Spread requests and their work in ms, known by minute, evenly over slots."""
    requests: list[int] = []
    work_s: list[float] = []
    for count, work_ms in minutes:
        each = [
            count * (at + 1) // MINUTE_SLOTS - count * at // MINUTE_SLOTS
            for at in range(MINUTE_SLOTS)
        ]
        requests += each
        mean_s = work_ms / 1000 / (count or MINUTE_SLOTS)
        work_s += [mean_s * (one if count else 1) for one in each]
    return requests, work_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What the search logs say, all of it from finished requests.

    The last slot of `log` ends now. The newest start is the log with the latest `started_at`.
    `logs_missing` says that no log came for longer than chance explains.
    Not from logs: `queued` requests wait in the request queue, None when that is not known, and for
    `quiet_s` the queue was empty and no request was logged, 0 when that is not known either.
    """

    log: ArrivalLog
    service_mean_s: float
    newest_start_age_s: float
    newest_wait_s: float
    newest_log_age_s: float
    logs_missing: bool = False
    queued: int | None = None
    quiet_s: float = 0.0
