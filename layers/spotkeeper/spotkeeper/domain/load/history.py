"""What a fleet's load was in the last day, by minute, and how its shadow fleets did on it.

Minutes are added in steps of five once a step has settled: when almost all requests that arrived in
it have logs. Requests that wait for long log minutes later, so each turn counts the steps in its
window again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, pairwise

from spotkeeper.domain.load.digest import workers_of
from spotkeeper.domain.load.load import (
    LONGEST_S,
    SLOT_MS,
    LoadDigest,
    added_up,
    merged,
    milliseconds,
    slot_of,
    unique,
)

SLOT_S = 10.0
MINUTE_SLOTS = 6
# A mean service time is taken from a quarter of an hour, or from a day while requests are few.
MEAN_SLOTS, DAY_SLOTS, ENOUGH = 90, 8_640, 20


class ArrivalLog:
    """Requests and their service times by the slot of 10 s in which they arrived, oldest first.

    The slot at index 0 is `first`, counted from the Unix epoch. The slots may follow the first
    `kept` ones of another log.
    """

    def __init__(
        self,
        first: int,
        requests: Sequence[int],
        work_s: Sequence[float],
        before: "ArrivalLog | None" = None,
        kept: int = 0,
    ) -> None:
        """Add up, so that any window costs the same."""
        self.first = first
        self._work_s: list[float] = before._work_s[:kept] if before else []
        self._counts: list[int] = before._counts[: kept + 1] if before else [0]
        self._works: list[float] = before._works[: kept + 1] if before else [0.0]
        self._work_s += work_s
        self._counts += accumulate(requests, initial=self._counts.pop())
        self._works += accumulate(work_s, initial=self._works.pop())

    def __len__(self) -> int:
        return len(self._work_s)

    def slots(self, begin: int = 0, end: int | None = None) -> tuple[list[int], list[float]]:
        """Return the requests and the service times of slots."""
        counts = self._counts[begin : None if end is None else end + 1]
        return [until - before for before, until in pairwise(counts)], self._work_s[begin:end]

    def at_speed(self, speed: float) -> "ArrivalLog":
        """Return the same requests as workers of a speed would serve them."""
        requests, work_s = self.slots()
        return ArrivalLog(self.first, requests, [each / speed for each in work_s])

    def load(self, end: int, slots: int) -> float:
        """Return the offered load of a window in erlangs, as far as it is known."""
        end = max(0, min(end, len(self._work_s)))
        begin = max(0, end - slots)
        return max(0.0, self._works[end] - self._works[begin]) / (SLOT_S * max(1, end - begin))

    def count(self, begin: int, end: int) -> int:
        """Return the requests of the slots from one index to before another, as far as known."""
        last = len(self._work_s)
        return self._counts[max(0, min(end, last))] - self._counts[max(0, min(begin, last))]

    def service_mean_s(self, end: int) -> float:
        """Return the mean service time of what arrived before an index; 0 of nothing."""
        end = max(0, min(end, len(self._work_s)))
        few = self.count(end - MEAN_SLOTS, end) < ENOUGH
        begin = max(0, end - (DAY_SLOTS if few else MEAN_SLOTS))
        count = self._counts[end] - self._counts[begin]
        return (self._works[end] - self._works[begin]) / count if count else 0.0


# The minutes of a day are spread over slots again and again.
@lru_cache(maxsize=4 * 1_440)
def _in_slots(count: int, work_ms: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    sums = [count * at // MINUTE_SLOTS for at in range(MINUTE_SLOTS + 1)]
    each = tuple([until - before for before, until in pairwise(sums)])
    mean_s = work_ms / 1000 / (count or MINUTE_SLOTS)
    return each, tuple([mean_s * (one if count else 1) for one in each])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """Finished requests of a window by slots of 10 s from `first_slot` on, oldest first.

    The current slot is left out. `work_ms` is service time; its mean and squared variation are of
    all logs. The last request started `newest_start_age_s` ago, after it waited for
    `newest_wait_s`. Where workers serve several requests at once, `shared` is how many shared a
    worker, by slot.
    """

    first_slot: int
    requests: tuple[int, ...]
    work_ms: tuple[int, ...]
    service_mean_s: float = 0.0
    service_variation: float = 1.0
    newest_start_age_s: float = math.inf
    newest_wait_s: float = 0.0
    shared: tuple[float, ...] = ()


def arrival_window(
    digests: Iterable[LoadDigest], now: datetime, window_s: int, at_once: int = 1
) -> ArrivalWindow:
    """Sum up what arrived in the last `window_s` seconds (to the slot).

    A worker serves up to `at_once` requests at once.
    """
    end_ms = milliseconds(now)
    first_slot = (end_ms - window_s * 1000) // SLOT_MS
    received = [one for one in unique(digests) if milliseconds(one.sent_at) >= first_slot * SLOT_MS]
    requests = added_up(one.arrivals for one in received)
    work_ms = added_up(one.work_ms for one in received)
    slots = range(first_slot, end_ms // SLOT_MS)
    service = merged(one.service for one in received)
    newest, waited_ms = max(
        ((one.newest_start, one.newest_wait_ms) for one in received if one.newest_start),
        default=(None, 0),
    )
    # One request may wait for long by itself: delivered again, or enqueued by a slow clock. Where
    # there is a queue all wait: the median of what was sent in the same slots counts.
    sent = {slot_of(one.sent_at) for one in received if one.newest_start == newest}
    usual = merged(one.waits for one in received if slot_of(one.sent_at) in sent).quantile_s(0.5)
    workers = workers_of(received) if at_once > 1 else ()
    shared = shared_by(worker.busy_ms for worker in workers)
    return ArrivalWindow(
        first_slot=first_slot,
        requests=tuple(requests.get(slot, 0) for slot in slots),
        work_ms=tuple(work_ms.get(slot, 0) for slot in slots),
        service_mean_s=service.mean_s,
        service_variation=service.squared_variation if service.counts else 1.0,
        newest_start_age_s=max(0.0, (now - newest).total_seconds()) if newest else math.inf,
        newest_wait_s=min(waited_ms, round(1000 * usual)) / 1000,
        shared=tuple(shared.get(slot, 1.0) for slot in slots) if at_once > 1 else (),
    )


def shared_by(busy_ms: Iterable[Mapping[int, int]]) -> dict[int, float]:
    """Return how many requests share a worker in each slot, as a request finds it; at least 1.

    `busy_ms` is the service time of each worker by slot: four requests for a whole slot are 40 s.
    """
    each = tuple(busy_ms)
    total = added_up(each)
    squares = added_up({slot: ms * ms for slot, ms in one.items()} for one in each)
    return {slot: max(1.0, squares[slot] / ms / SLOT_MS) for slot, ms in total.items() if ms}


type Sharing = tuple[float, float, float, float, float]
"""What is known of requests that share a worker: sums over steps, of 1, x, y, x * x and x * y.

x is the logarithm of how many share a worker, and y that of the service time in seconds.
"""

# A step weighs this share of the next one, so that the weights of all add up to a day.
FADE = math.exp(-1 / 288)
# Requests that share a worker count as no slower until some steps show that they are: this many
# (15 min) in which sharing was half or twice the usual count as much as that prior.
SHARING_PRIOR = 3.0


def learned(
    sharing: Sharing, requests: Sequence[int], work_s: Sequence[float], shared: Sequence[float]
) -> Sharing:
    """Add a step to what is known of sharing; the steps of the last day count.

    The step counts as a whole: in a slot of few requests the long ones fill a worker, and would
    seem long because of that.
    """
    count, took_s = sum(requests), sum(work_s)
    if not (count and took_s):
        return sharing
    many = sum(each * at_once for each, at_once in zip(requests, shared, strict=True)) / count
    x, y = math.log(many), math.log(took_s / count)
    step = (1.0, x, y, x * x, x * y)
    n, a, b, c, d = (round(FADE * old + new, 4) for old, new in zip(sharing, step, strict=True))
    return n, a, b, c, d


def slower_when_full(sharing: Sharing, shared: Iterable[float], slots: int) -> list[float]:
    """Return how many times as long requests would have taken on full workers.

    Service times are a power of how many share a worker, by least squares: sharing never helps, and
    never costs more than its share.
    """
    steps, x, y, xx, xy = sharing
    rises, varies = xy - x * y / max(1.0, steps), xx - x * x / max(1.0, steps)
    power = max(0.0, min(1.0, rises / (varies + SHARING_PRIOR * math.log(2) ** 2)))
    return [max(1.0, slots / many) ** power for many in shared]


STEP_SLOTS = 30
STEP_MINUTES = STEP_SLOTS // MINUTE_SLOTS
SETTLED_SLOTS = 6
# An objective's rule counts arrivals again for this long; earlier minutes are in the history.
OBJECTIVE_WINDOW_S = 900
DAY_STEPS = 288
# A day, and what a window of yesterday needs before it.
DAY_MINUTES = (DAY_STEPS + 7) * STEP_MINUTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the shadow fleets of a family kept and cost, each hour counting less than the next.

    They are of a promise (`wait_s`, `share`), of all steps before `next_step`, and lately of a
    start-up of `start_up_s` beside `onprem` workers. `steps` and `requests` are how many count.
    `late`, `squares` (of the late requests of a step) and `hours` (worker-hours) have one entry for
    each member. The fleet follows the member `followed`. In the fleet itself `own_late` of
    `own_requests` were late, where `own_expected` were expected by the share of their shadows.
    """

    family: str = ""
    wait_s: float = 0.0
    share: float = 0.0
    next_step: int = 0
    steps: float = 0.0
    requests: float = 0.0
    own_requests: float = 0.0
    own_late: float = 0.0
    own_expected: float = 0.0
    followed: int = -1
    start_up_s: float = 0.0
    onprem: int = 0
    late: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    hours: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHistory:
    """Each minute of up to a day before `next_step` (counted from the Unix epoch), oldest first.

    `work_ms` is the service time of what arrived, to three digits, `requests` how many arrived.
    Where workers serve several requests at once, it is the time that full workers would have taken,
    by what was learned of sharing.
    """

    next_step: int = 0
    work_ms: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    sharing_sums: Sharing = (0.0, 0.0, 0.0, 0.0, 0.0)
    scores: Scores = field(default_factory=Scores)


def own_starts(digests: Sequence[LoadDigest], wait_s: float) -> dict[int, tuple[int, int]]:
    """Count the requests whose logs were sent in each step, and those that started late."""
    starts: dict[int, tuple[int, int]] = {}
    for one in unique(digests):
        step, started = slot_of(one.sent_at) // STEP_SLOTS, one.waits.count
        count, late = starts.get(step, (0, 0))
        starts[step] = count + started, late + started - one.waits.within(wait_s)
    return starts


def as_if_full(
    history: LoadHistory, window: ArrivalWindow, slots: int
) -> tuple[LoadHistory, ArrivalWindow]:
    """Learn how sharing slows requests, and give the window the work of workers that are full.

    A request waits only where every slot is taken, so the service time on full workers counts.
    """
    if slots == 1:
        return history, window
    sharing = history.sharing_sums
    for step in range(max(history.next_step, -(-window.first_slot // STEP_SLOTS)), settled(window)):
        begin = step * STEP_SLOTS - window.first_slot
        known = slice(begin, begin + STEP_SLOTS)
        work_s = [work / 1000 for work in window.work_ms[known]]
        sharing = learned(sharing, window.requests[known], work_s, window.shared[known])
    slower = slower_when_full(sharing, window.shared, slots)
    work_ms = [round(work * each) for work, each in zip(window.work_ms, slower, strict=True)]
    mean = sum(work_ms) / max(1, sum(window.work_ms))
    return replace(history, sharing_sums=sharing), replace(
        window, work_ms=tuple(work_ms), service_mean_s=window.service_mean_s * mean
    )


def long_steps(service_mean_s: float) -> int:
    """Return how many more steps pass until a step's requests, which take long, have ended."""
    return math.ceil(max(0.0, min(2 * service_mean_s, LONGEST_S) / SLOT_S / STEP_SLOTS - 1))


def objective_window_s(service_mean_s: float) -> int:
    """Return for how many seconds arrivals are counted again: until their requests have ended."""
    return OBJECTIVE_WINDOW_S + round(long_steps(service_mean_s) * STEP_SLOTS * SLOT_S)


def settled(window: ArrivalWindow) -> int:
    """Return the first step that has not settled yet."""
    return (window.first_slot + len(window.requests) - SETTLED_SLOTS) // STEP_SLOTS


def extended(history: LoadHistory, window: ArrivalWindow) -> LoadHistory:
    """Add the steps that have settled since; the same history when there are none.

    A step that no turn saw counts as quiet. A new history begins with the first whole step in
    which there were requests.
    """
    stop, oldest = settled(window), -(-window.first_slot // STEP_SLOTS)
    first = max(oldest, -(-_first(window) // STEP_SLOTS))
    first = history.next_step if history.work_ms else first
    if max(oldest, first) >= stop:
        return history
    begun = first - len(history.work_ms) // STEP_MINUTES
    start = max(oldest, begun)
    missed = min(max(0, start - first) * STEP_MINUTES, DAY_MINUTES)
    minutes = range(
        start * STEP_SLOTS - window.first_slot, stop * STEP_SLOTS - window.first_slot, 6
    )

    def joined(before: Sequence[int], slots: Sequence[int]) -> tuple[int, ...]:
        kept = before[: (start - begun) * STEP_MINUTES]
        sums = (digits(sum(slots[at : at + MINUTE_SLOTS])) for at in minutes)
        return (*kept, *[0] * missed, *sums)[-DAY_MINUTES:]

    return replace(
        history,
        next_step=stop,
        work_ms=joined(history.work_ms, window.work_ms),
        requests=joined(history.requests, window.requests),
    )


def digits(value: int) -> int:
    """Return a whole number to three digits: those beyond are most of what is stored."""
    return int(float(f"{value:.3g}"))


def _first(window: ArrivalWindow) -> int:
    """Return the first slot with a request, or the one after the last."""
    quiet = next((at for at, count in enumerate(window.requests) if count), len(window.requests))
    return window.first_slot + quiet


def arrival_log(history: LoadHistory, window: ArrivalWindow) -> ArrivalLog:
    """Put the minutes of the history and the slots of the window together.

    The time before a fleet's first log is not known to be quiet, and is left out.
    """
    first = _first(window)
    if history.work_ms:
        first = min(first, (history.next_step * STEP_MINUTES - len(history.work_ms)) * MINUTE_SLOTS)
    before, cut = max(0, window.first_slot - first), max(0, first - window.first_slot)
    known = spread(first, history.requests, history.work_ms)
    kept = min(before, len(known))
    requests = [*[0] * (before - kept), *window.requests[cut:]]
    work_s = [*[0.0] * (before - kept), *(work / 1000 for work in window.work_ms[cut:])]
    return ArrivalLog(first, requests, work_s, known, kept)


# The history changes once in five turns.
@lru_cache(32)
def spread(first: int, requests: tuple[int, ...], work_ms: tuple[int, ...]) -> ArrivalLog:
    """Spread requests and their work in ms, known by minute, evenly over slots."""
    counts: list[int] = []
    works: list[float] = []
    for each, work_s in map(_in_slots, requests, work_ms):
        counts += each
        works += work_s
    return ArrivalLog(first, counts, works)
