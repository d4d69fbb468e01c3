"""What a fleet's load was in the last day, by minute, and how its shadow fleets did on it.

Minutes are added in steps of five once a step has settled: when the logs of almost all requests
that arrived in it are in. While requests wait for long, their logs come minutes later, so a step
is counted again as long as a turn sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from spotkeeper.domain.load.arrivals import (
    ArrivalWindow,
    Sharing,
    learned,
    slower_when_full,
)
from spotkeeper.domain.load.load import SLOT_MS, milliseconds
from spotkeeper.domain.load.summary import MINUTE_SLOTS, ArrivalLog, LoadSummary, spread

STEP_SLOTS = 30
STEP_MINUTES = STEP_SLOTS // MINUTE_SLOTS
SETTLED_SLOTS = 6
DAY_STEPS = 288
DAY_MINUTES = DAY_STEPS * STEP_MINUTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the shadow fleets of a family kept and cost, each hour counting less than the next.

    They are of a promise (`wait_s`, `share`) and of every step before `next_step`, and lately of
    workers that take `start_up_s` to start, beside `onprem` ones. `steps` and
    `requests` are how many count; `late`, `squares` (of the late requests of a step) and `hours`
    (worker-hours) have one entry for each member. `followed` is the member that the fleet follows.
    Of the requests of the same time `own_late` were late in the fleet itself, where `own_expected`
    were expected: as large a share as its shadow had when the rule was followed.
    """

    family: str = ""
    wait_s: float = 0.0
    share: float = 0.0
    next_step: int = 0
    steps: float = 0.0
    requests: float = 0.0
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
    by what was learned of `sharing`.
    """

    next_step: int = 0
    work_ms: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    scores: Scores = field(default_factory=Scores)


def as_if_full(
    history: LoadHistory, seen: ArrivalWindow, slots: int, late: Mapping[int, float]
) -> tuple[LoadHistory, ArrivalWindow]:
    """Learn how sharing slows requests, and give the window the work of workers that are full.

    A request waits only where every slot is taken, so what it takes then is what counts. `late` is
    the share of late requests by step.
    """
    if slots == 1:
        return history, seen
    sharing = history.sharing
    for step in range(max(history.next_step, -(-seen.first_slot // STEP_SLOTS)), _settled(seen)):
        begin = step * STEP_SLOTS - seen.first_slot
        known = slice(begin, begin + STEP_SLOTS)
        work_s = [work / 1000 for work in seen.work_ms[known]]
        shared, late_then = seen.shared[known], late.get(step, 0.0)
        sharing = learned(sharing, seen.requests[known], work_s, shared, late_then, slots)
    slower = slower_when_full(sharing, seen.shared, sharing.at_once(slots))
    work_ms = [round(work * each) for work, each in zip(seen.work_ms, slower, strict=True)]
    mean = sum(work_ms) / max(1, sum(seen.work_ms))
    return replace(history, sharing=sharing), replace(
        seen,
        work_ms=tuple(work_ms),
        service_mean_s=seen.service_mean_s * mean,
        service_second_moment_s2=seen.service_second_moment_s2 * mean**2,
    )


def _settled(seen: ArrivalWindow) -> int:
    return (seen.first_slot + len(seen.requests) - SETTLED_SLOTS) // STEP_SLOTS


def extended(history: LoadHistory, seen: ArrivalWindow) -> LoadHistory:
    """Add the steps that have settled since; the same history when there are none.

    A step that no turn saw counts as quiet. A new history begins with the first whole step in
    which there were requests.
    """
    stop = _settled(seen)
    oldest = -(-seen.first_slot // STEP_SLOTS)
    known = bool(history.work_ms)
    first = history.next_step if known else max(oldest, -(-_first(seen) // STEP_SLOTS))
    if max(oldest, first) >= stop:
        return history
    begun = history.next_step - len(history.work_ms) // STEP_MINUTES if known else first
    start = max(oldest, begun)
    missed = max(0, min(start - history.next_step, DAY_STEPS)) * STEP_MINUTES if known else 0
    minutes = range(start * STEP_SLOTS - seen.first_slot, stop * STEP_SLOTS - seen.first_slot, 6)

    def joined(before: Sequence[int], slots: Sequence[int]) -> tuple[int, ...]:
        kept = before[: max(0, start - begun) * STEP_MINUTES]
        found = (digits(sum(slots[at : at + MINUTE_SLOTS])) for at in minutes)
        return (*kept, *[0] * missed, *found)[-DAY_MINUTES:]

    return replace(
        history,
        next_step=stop,
        work_ms=joined(history.work_ms, seen.work_ms),
        requests=joined(history.requests, seen.requests),
    )


def digits(value: int) -> int:
    """Return a whole number to three digits: those beyond are most of what is stored."""
    return int(float(f"{value:.3g}"))


def _first(seen: ArrivalWindow) -> int:
    """Return the first slot with a request, or the one after the last."""
    quiet = next((at for at, count in enumerate(seen.requests) if count), len(seen.requests))
    return seen.first_slot + quiet


def arrival_log(history: LoadHistory, seen: ArrivalWindow) -> ArrivalLog:
    """Put the minutes of the history and the slots of the window together.

    What came before a fleet's first log is not known to be quiet, and left out.
    """
    first = (history.next_step * STEP_MINUTES - len(history.work_ms)) * MINUTE_SLOTS
    minutes = max(0, -(-(seen.first_slot - first) // MINUTE_SLOTS)) if history.work_ms else 0
    if not minutes:
        first = min(_first(seen), first) if history.work_ms else _first(seen)
        cut = max(0, first - seen.first_slot)
        work_s = [work / 1000 for work in seen.work_ms[cut:]]
        return ArrivalLog(max(first, seen.first_slot), seen.requests[cut:], work_s)
    requests, spread_s = spread(zip(history.requests[:minutes], history.work_ms, strict=False))
    gap = max(0, seen.first_slot - first - len(requests))
    overlap = seen.first_slot - first
    return ArrivalLog(
        first,
        [*requests[:overlap], *[0] * gap, *seen.requests],
        [*spread_s[:overlap], *[0.0] * gap, *(work / 1000 for work in seen.work_ms)],
    )


def load_summary(
    seen: ArrivalWindow,
    history: LoadHistory,
    newest: datetime | None,
    now: datetime,
    known_since: datetime | None = None,
) -> LoadSummary:
    """Put together what the sizing rule is given; `newest` is when the last request finished.

    A silence that ended `known_since` is a gap in the logs, and not known to be quiet: left out.
    """
    log = arrival_log(history, seen)
    if known_since is not None:
        log = _without_gap(log, milliseconds(known_since) // SLOT_MS - log.first)
    return LoadSummary(
        log=log,
        service_mean_s=seen.service_mean_s,
        newest_start_age_s=_age_s(seen.newest_start, now),
        newest_wait_s=seen.newest_wait_s,
        newest_log_age_s=_age_s(newest, now),
    )


def _without_gap(log: ArrivalLog, end: int) -> ArrivalLog:
    """Leave out the silence that ended about an index: what is served first came before that."""
    end = max(0, min(end, len(log)))
    for _ in range(SETTLED_SLOTS):
        end -= end > 0 and log.requests[end - 1] > 0
    begin = end
    while begin > 0 and not log.requests[begin - 1]:
        begin -= 1
    if begin == end:
        return log
    requests = [*log.requests[:begin], *log.requests[end:]]
    return ArrivalLog(log.first + end - begin, requests, [*log.work_s[:begin], *log.work_s[end:]])


def _age_s(at: datetime | None, now: datetime) -> float:
    """Return the seconds since an instant; 0 for one that a skewed clock put into the future."""
    return float("inf") if at is None else max(0.0, (now - at).total_seconds())
