"""What arrived, slot by slot: how much the requests cost by when they were enqueued.

Sizing to an objective looks at these slots, since they come before the workers' answer to them.
Workers that serve several requests at once take longer the more they share: how much longer is
learned here, from what each slot's requests took.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from spotkeeper.domain.load.histogram import added_up, merged
from spotkeeper.domain.load.load import SLOT_MS, LoadDigest, milliseconds, unique


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """Finished requests of a window by slots of 10 s from `first_slot` on, oldest first.

    The current slot is left out. `work_ms` is their service time. The moments of the service time
    are those of all logs that came in, 0 without any; `newest_start` is when the last request
    started, after it waited for `newest_wait_s`. Where workers serve several requests at once,
    `shared` is how many shared a worker, as a request found it, by slot.
    """

    first_slot: int
    requests: tuple[int, ...]
    work_ms: tuple[int, ...]
    service_mean_s: float = 0.0
    service_second_moment_s2: float = 0.0
    newest_start: datetime | None = None
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
    count = sum(one.count for one in received) or 1
    newest, waited_ms = max(
        ((one.newest_start, one.newest_wait_ms) for one in received if one.newest_start),
        default=(None, 0),
    )
    waited_ms = min(waited_ms, _usual_ms(received, newest))
    return ArrivalWindow(
        first_slot=first_slot,
        requests=tuple(requests.get(slot, 0) for slot in slots),
        work_ms=tuple(work_ms.get(slot, 0) for slot in slots),
        service_mean_s=sum(one.service.total_ms for one in received) / count / 1000,
        service_second_moment_s2=sum(one.service.squares for one in received) / count / 1_000_000,
        newest_start=newest,
        newest_wait_s=waited_ms / 1000,
        shared=_shared(received, slots) if at_once > 1 else (),
    )


def _shared(received: Iterable[LoadDigest], slots: range) -> tuple[float, ...]:
    workers: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for one in received:
        for worker in one.workers:
            workers[worker.instance_id, worker.worker_id].update(worker.busy_ms)
    found = shared_by(workers.values())
    return tuple(found.get(slot, 1.0) for slot in slots)


def shared_by(busy_ms: Iterable[Mapping[int, int]]) -> dict[int, float]:
    """Return how many requests share a worker in each slot, as a request finds it; at least 1.

    Given is the service time of each worker by slot: four requests for the whole slot are 40 s.
    """
    total: Counter[int] = Counter()
    squares: Counter[int] = Counter()
    for worker in busy_ms:
        for slot, ms in worker.items():
            total[slot] += ms
            squares[slot] += ms * ms
    return {slot: max(1.0, squares[slot] / ms / SLOT_MS) for slot, ms in total.items() if ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What is known of requests that share a worker.

    Each of `rows` has steps, their requests, with how many these shared a worker (in sum), and
    their service time in seconds; and 1.4 times the requests at once of the row before it. `full`
    is how many share a worker when requests wait, while it should be `slots`; 0 if not known.
    """

    rows: tuple[tuple[float, float, float, float], ...] = ()
    slots: int = 0
    full: float = 0.0

    def at_once(self, slots: int) -> int:
        """Return how many requests a worker serves at once, of `slots` that it should."""
        known = self.full if self.slots == slots else 0.0
        return min(slots, math.ceil(known)) if known else slots


# A step weighs this share of the next one, so that the weights of all add up to a day.
FADE = math.exp(-1 / 288)
# Requests that share a worker are taken to be no slower until about three steps (a quarter of an
# hour) show it: the service time of fewer requests at once counts as this many steps of more.
SHARING_PRIOR = 3.0
# Late requests of a step from which on its workers are known to have been full.
MOST_ARE_LATE = 0.5
MOST_SHARED = 1_000.0


def learned(
    sharing: Sharing,
    requests: Sequence[int],
    work_s: Sequence[float],
    shared: Sequence[float],
    late: float,
    slots: int,
) -> Sharing:
    """Add a step to what is known of sharing; the steps of the last day count.

    The step counts as a whole: in a slot of few requests the long ones make a worker full, and
    would look as if that had made them long. Where most requests of the step were `late`, its
    workers were full, whatever number of slots they should have.
    """
    sums = [[FADE * one for one in row] for row in sharing.rows]
    full = sharing.full if sharing.slots == slots else 0.0
    if count := sum(requests):
        many = sum(each * at_once for each, at_once in zip(requests, shared, strict=True)) / count
        at = round(2 * math.log2(min(many, MOST_SHARED)))
        sums += [[0.0] * 4 for _ in range(at + 1 - len(sums))]
        for column, value in enumerate((1, count, count * many, sum(work_s))):
            sums[at][column] += value
        full = many if late > MOST_ARE_LATE else max(full, many) if full else 0.0
    rows = tuple((_short(a), _short(b), _short(c), _short(d)) for a, b, c, d in sums)
    return Sharing(rows=rows, slots=slots, full=_short(full))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def service_times(sharing: Sharing) -> list[tuple[float, float]]:
    """Return the mean service time by how many share a worker: rising, as sharing never helps."""
    pools: list[tuple[float, float, float]] = []
    for steps, requests, shared, work_s in sharing.rows:
        if not requests:
            continue
        many, weight, total_s = shared / requests, requests, work_s
        if pools:
            prior = SHARING_PRIOR * requests / steps
            weight, total_s = weight + prior, total_s + prior * pools[-1][2] / pools[-1][0]
        pool = (weight, many * weight, total_s)
        while pools and pool[2] * pools[-1][0] < pools[-1][2] * pool[0]:
            before = pools.pop()
            pool = (pool[0] + before[0], pool[1] + before[1], pool[2] + before[2])
        pools.append(pool)
    return [(shared / weight, total_s / weight) for weight, shared, total_s in pools]


def slower_when_full(sharing: Sharing, shared: Iterable[float], slots: int) -> list[float]:
    """Return how many times as long requests would have taken in workers with every slot taken.

    1 where nothing is known: beyond what was seen, requests are taken to be no slower.
    """
    times = service_times(sharing)
    full_s = _at(times, slots)
    return [max(1.0, full_s / _at(times, many)) if times else 1.0 for many in shared]


def _at(times: Sequence[tuple[float, float]], shared: float) -> float:
    if not times or shared <= times[0][0]:
        return times[0][1] if times else 1.0
    for (low, low_s), (high, high_s) in pairwise(times):
        if shared < high:
            return low_s + (high_s - low_s) * (shared - low) / (high - low)
    return times[-1][1]


def _usual_ms(received: Iterable[LoadDigest], newest: datetime | None) -> int:
    """Return the median wait of what was sent in the same slots as the newest start.

    One request may wait for long by itself: delivered again, or enqueued by a clock that is behind.
    Where there is a queue all wait.
    """
    slots = {_sent_slot(one) for one in received if one.newest_start == newest}
    waits = merged(one.waits for one in received if _sent_slot(one) in slots)
    return round(1000 * waits.quantile_s(0.5))


def _sent_slot(one: LoadDigest) -> int:
    return milliseconds(one.sent_at) // SLOT_MS
