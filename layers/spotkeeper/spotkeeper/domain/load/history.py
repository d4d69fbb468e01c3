"""What a fleet's load was: steps of five minutes, the last day in full and 14 days of load.

A step is added once it has settled: when the logs of almost all requests that arrived in it are in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from spotkeeper.domain.load.arrivals import ArrivalWindow
from spotkeeper.domain.load.load import SLOT_MS, LoadDigest, milliseconds, unique
from spotkeeper.domain.load.summary import LoadSummary

STEP_SLOTS = 30
MINUTE_SLOTS = 6
STEP_MINUTES = STEP_SLOTS // MINUTE_SLOTS
STEP_S = STEP_SLOTS * SLOT_MS / 1000
SETTLED_SLOTS = 6
DAY_STEPS = 288
# Two weeks, and the steps before that tell what the load rose from.
KEPT_STEPS = 14 * DAY_STEPS + 12
LARGEST_PEAKEDNESS = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHistory:
    """Values of each step before `next_step` (counted from the Unix epoch), oldest first.

    `work_ms` is the service time of what arrived, over up to 14 days. For the last day only:
    `requests` whose logs came in, those `late` by the objective, and `roughness`, the sum of the
    squared differences between the work of each slot and the one before, in ms²,
    `minute_work_ms`, the work of each minute, and `squares`, the sum of the squared service times
    of those requests, in ms².
    """

    next_step: int = 0
    work_ms: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    roughness: tuple[int, ...] = ()
    minute_work_ms: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()


def extended(
    history: LoadHistory,
    digests: Sequence[LoadDigest],
    seen: ArrivalWindow,
    wait_s: float,
) -> LoadHistory:
    """Add the steps that have settled since; the same history when there are none.

    A step that no turn saw counts as quiet, which says nothing. A new history begins with the
    first whole step in which there were requests.
    """
    stop = (seen.first_slot + len(seen.requests) - SETTLED_SLOTS) // STEP_SLOTS
    oldest = -(-seen.first_slot // STEP_SLOTS)
    first = max(oldest, history.next_step if history.work_ms else -(-_first(seen) // STEP_SLOTS))
    if first >= stop:
        return history
    missed = min(first - history.next_step, KEPT_STEPS) if history.work_ms else 0
    found = [_step(step, digests, seen, wait_s) for step in range(first, stop)]
    columns = zip(*[(0, 0, 0, 0, 0)] * missed, *found, strict=True)
    work_ms, requests, late, roughness, squares = columns
    return LoadHistory(
        next_step=stop,
        work_ms=(*history.work_ms, *work_ms)[-KEPT_STEPS:],
        requests=(*history.requests, *requests)[-DAY_STEPS:],
        late=(*history.late, *late)[-DAY_STEPS:],
        roughness=(*history.roughness, *roughness)[-DAY_STEPS:],
        minute_work_ms=_minutes(history, oldest, stop, seen),
        squares=(*history.squares, *squares)[-DAY_STEPS:],
    )


def _minutes(history: LoadHistory, oldest: int, stop: int, seen: ArrivalWindow) -> tuple[int, ...]:
    """The work of each minute before the step `stop`, from `oldest` on as it is seen now.

    In an overload the logs of what arrived in a minute come in minutes later.
    """
    begun = history.next_step - len(history.minute_work_ms) // STEP_MINUTES
    begun = begun if history.minute_work_ms else max(oldest, -(-_first(seen) // STEP_SLOTS))
    known = history.minute_work_ms[: max(0, oldest - begun) * STEP_MINUTES]
    missed = max(0, min(oldest - history.next_step, DAY_STEPS)) if history.minute_work_ms else 0
    start = max(oldest, begun) * STEP_SLOTS - seen.first_slot
    end = stop * STEP_SLOTS - seen.first_slot
    found = (sum(seen.work_ms[at : at + MINUTE_SLOTS]) for at in range(start, end, MINUTE_SLOTS))
    return (*known, *[0] * (missed * STEP_MINUTES), *found)[-DAY_STEPS * STEP_MINUTES :]


def _first(seen: ArrivalWindow) -> int:
    """The first slot with a request, or the one after the last."""
    quiet = next((at for at, count in enumerate(seen.requests) if count), len(seen.requests))
    return seen.first_slot + quiet


def _step(
    step: int, digests: Sequence[LoadDigest], seen: ArrivalWindow, wait_s: float
) -> tuple[int, int, int, int, int]:
    """Work, requests, late ones, roughness and squares of one step."""
    at = step * STEP_SLOTS - seen.first_slot
    work_ms = seen.work_ms[at : at + STEP_SLOTS]
    mine = (one for one in digests if milliseconds(one.sent_at) // SLOT_MS // STEP_SLOTS == step)
    logs = unique(mine)
    requests = sum(one.waits.count for one in logs)
    late = requests - sum(one.waits.within(wait_s) for one in logs)
    with_before = seen.work_ms[max(0, at - 1) : at + STEP_SLOTS]
    roughness = sum((b - a) ** 2 for a, b in pairwise(with_before))
    return sum(work_ms), requests, late, roughness, sum(one.service.squares for one in logs)


def load_summary(
    seen: ArrivalWindow,
    history: LoadHistory,
    newest: datetime | None,
    now: datetime,
    known_since: datetime | None = None,
) -> LoadSummary:
    """Put together what the sizing rule is given; `newest` is when the last request finished.

    What came before a fleet's first log, or before the last gap in its logs, is not known to be
    quiet, and left out.
    """
    began = (history.next_step - len(history.work_ms)) * STEP_SLOTS if history.work_ms else None
    first = _first(seen) if began is None else min(began, _first(seen))
    if known_since is not None:
        first = max(first, milliseconds(known_since) // SLOT_MS)
    known = max(0, first - seen.first_slot)
    return LoadSummary(
        arrivals=seen.requests[known:],
        work_s=tuple(work / 1000 for work in seen.work_ms[known:]),
        service_mean_s=seen.service_mean_s,
        service_second_moment_s2=seen.service_second_moment_s2,
        newest_start_age_s=_age_s(seen.newest_start, now),
        newest_wait_s=seen.newest_wait_s,
        newest_log_age_s=_age_s(newest, now),
        peakedness=_peakedness(history, seen),
        requests_last_day=sum(history.requests),
        late_last_day=sum(history.late),
        late_error=math.sqrt(sum(late * late for late in history.late)),
        running_last_day_s=_running_s(history),
        past_loads=tuple(work / 1000 / STEP_S for work in history.work_ms),
        past_step_s=STEP_S,
        recent_loads=tuple(work / 60_000 for work in history.minute_work_ms),
        recent_step_s=60.0,
        slot_s=SLOT_MS / 1000,
    )


def _age_s(at: datetime | None, now: datetime) -> float:
    """Seconds since an instant; 0 for one that a skewed clock put into the future."""
    return float("inf") if at is None else max(0.0, (now - at).total_seconds())


def _running_s(history: LoadHistory) -> float:
    """Return E[S^2]/E[S] of the last day's service times, in seconds; 0 without any."""
    work_ms = sum(history.work_ms[-len(history.squares) :]) if history.squares else 0
    return sum(history.squares) / work_ms / 1000 if work_ms else 0.0


def _peakedness(history: LoadHistory, seen: ArrivalWindow) -> float:
    """Return how much burstier than Poisson the last day's work was; 1 without any.

    From successive differences, which a trend does not inflate (von Neumann 1941): the index of
    dispersion of the work over that of Poisson arrivals with the same service times.
    """
    slots, work_ms = len(history.roughness) * STEP_SLOTS, sum(history.work_ms[-DAY_STEPS:])
    if not work_ms or not slots or not seen.service_mean_s:
        return 1.0
    running_s = _running_s(history) or seen.service_second_moment_s2 / seen.service_mean_s
    variance_s2 = sum(history.roughness) / 1_000_000 / slots / 2
    poisson_s2 = work_ms / 1000 / slots * running_s
    return min(max(variance_s2 / poisson_s2, 1.0), LARGEST_PEAKEDNESS)
