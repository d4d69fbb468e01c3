"""Workers for a promise about waiting: "`share` of requests start within `wait_s`".

The fewest workers that will keep the promise when a worker that is asked for now can serve:

1. *Level*: offered load from the service times of the requests that arrived, corrected for the
   requests that still run. Newer, shorter windows count as far as they are significant.
2. *Error*: the load at the time a new worker serves is the level times an error that the fleet
   has made before: its own forecast errors, one per past step, and a prior while there are few
   (staffing under an uncertain arrival rate: Whitt 2006; Hong et al., arXiv 2311.11279).
3. *Waiting*: the chance of a late start for each of these loads from the Halfin-Whitt delay
   probability (1981) with peakedness (Hayward) and the heavy-traffic law of the wait (Kingman
   1962); the workers are the fewest whose mean chance is within the allowance.
4. *Allowance*: 1 - share, more while the last day's error budget is unspent, less once it is
   overspent (adaptive conformal inference: Gibbs and Candes 2021).
5. *Backlog*: what waits now, and what gathers until a new worker serves, is drained in time.

Every step is monotone: more load never gives fewer workers, a looser promise never more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NORMAL = NormalDist()

# Windows of the level in seconds; the quick ones count only while requests wait.
WINDOWS_S = (900.0, 300.0, 120.0, 60.0)
QUICK_WINDOWS_S = (30.0, 10.0)
TRUSTED_WINDOW_S = 300.0
SIGNIFICANCE = 3.0  # standard errors by which a shorter window must exceed the long one
COUNT_DISPERSION = 2.0  # variance to mean of request counts, for these standard errors
LOG_DELAY_S = 3.5  # from the end of a request to its log, with batches of five seconds
QUEUE_WAIT_S = 1.0  # a newest wait above this is a queue, not a hand-over

PRIOR_SPREAD = 0.05  # relative standard deviation of the load over a start-up, before any history
PRIOR_STEPS = 12
MEMORY_STEPS = 288
LARGEST_ERROR = 4.0
LOUD_SHARE = 0.25  # steps below this share of the mean load say nothing about errors
NODES = 40

BUDGET_PRIOR_REQUESTS = 2_000
BUDGET_GAIN = 16.0
BUDGET_AIM = 0.75
LARGEST_ALLOWANCE = 0.4
SMALLEST_ALLOWANCE = 0.005

DAY_S = 86_400.0
CYCLE_DAYS = (1, 2, 7, 14)
CYCLE_RISE = 1.1
LARGEST_CYCLE_RISE = 3.0
LARGEST_SERVICE_CV2 = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What the search logs say, all of it from finished requests.

    `arrivals` and `work_s` (their service times) are per slot of `slot_s` by `enqueued_at`, oldest
    first; the last slot ends now, fewer slots than the longest window means a young fleet.
    The newest start is the log with the latest `started_at`. `past_loads` are mean offered loads
    in erlangs per `past_step_s`, oldest first, up to the last full step.
    """

    arrivals: tuple[int, ...]
    work_s: tuple[float, ...]
    service_mean_s: float
    service_second_moment_s2: float
    newest_start_age_s: float
    newest_wait_s: float
    newest_log_age_s: float
    peakedness: float = 1.0
    queued: int | None = None
    requests_last_day: int = 0
    late_last_day: int = 0
    past_loads: tuple[float, ...] = ()
    past_step_s: float = 300.0
    slot_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """The promise, the bounds in workers, and the times that the fleet was measured to need."""

    wait_s: float
    share: float
    min_workers: int
    max_workers: int
    start_up_s: float
    stabilisation_s: float = 300.0
    drain_s: float = 300.0
    stale_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastNeed:
    """What an earlier turn found the load to need, `age_s` ago."""

    age_s: float
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Workers to have, booting ones included; `load_workers` is what later turns remember.

    `missing` is how many workers the promise needs beyond the bound.
    """

    workers: int
    reason: str
    load_workers: int
    missing: int = 0


def size_to_objective(
    load: LoadSummary, live: int, booting: int, past: Sequence[PastNeed], policy: SizingPolicy
) -> Need:
    """Return the fewest workers that keep the policy's promise, and why."""
    have = live + booting
    if load.newest_log_age_s > policy.stale_s or load.service_mean_s <= 0:
        return _without_logs(load, have, past, policy)
    level = load_level(load)
    rise = cycle_rise(load.past_loads, load.past_step_s, policy.start_up_s)
    errors = forecast_errors(load.past_loads)
    found = _fewest(level * rise, errors, load, policy)
    recent = [need.workers for need in past if need.age_s <= policy.stabilisation_s]
    young = not any(need.age_s > policy.stabilisation_s * 0.75 for need in past)
    kept = max([found, *recent, *([have] if young else [])])
    drain = _drain(level * rise, load, live, booting, policy)
    wanted = max(kept, drain)
    reason = _load_reason(level, rise, errors, found, policy)
    if drain > kept:
        reason += f"; {drain} while requests wait, to drain them in {policy.drain_s:g} s"
    elif kept > found:
        reason += f"; {kept} kept, the need of the last {policy.stabilisation_s:g} s"
    return _bounded(wanted, found, level * rise, errors, load, policy, reason)


def load_level(load: LoadSummary) -> float:
    """Return the offered load in erlangs, requests still running counted.

    The work that arrived in a window misses the requests not finished yet: on average the mean
    of a running request's whole service time, E[S^2]/E[S], and the log's delay. While requests
    wait, the windows end where the newest start arrived, since nothing later was served.
    """
    waiting = load.newest_wait_s >= QUEUE_WAIT_S
    end_s = load.newest_start_age_s + load.newest_wait_s if waiting else 0.0
    windows = WINDOWS_S + QUICK_WINDOWS_S if waiting else WINDOWS_S
    return max(_window_level(load, window_s, end_s) for window_s in windows)


def _window_level(load: LoadSummary, window_s: float, end_s: float) -> float:
    """Return one window's load, lowered by its standard errors unless it is the longest."""
    known_s = len(load.arrivals) * load.slot_s
    first = max(0, len(load.arrivals) - math.ceil((end_s + window_s) / load.slot_s))
    length_s = max(known_s - first * load.slot_s - end_s, 0.2 * load.slot_s)
    arrivals, work_s = sum(load.arrivals[first:]), sum(load.work_s[first:])
    if arrivals == 0:
        return 0.0
    running_s = load.service_second_moment_s2 / load.service_mean_s
    level = work_s / max(length_s - running_s - LOG_DELAY_S, length_s / 2)
    if window_s == WINDOWS_S[0] and length_s >= TRUSTED_WINDOW_S:
        return level
    error = math.sqrt(COUNT_DISPERSION * running_s / load.service_mean_s / arrivals)
    return level * max(0.0, 1.0 - SIGNIFICANCE * error)


def forecast_errors(past_loads: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return (ratio, weight) of the load one step ahead to the level known then, largest first.

    Weighted by the ratio, since a step of more load has more requests. The prior counts as
    PRIOR_STEPS steps.
    """
    ratios = [(ratio, 1.0) for ratio in _ratios(past_loads[-MEMORY_STEPS:])]
    ratios += [(ratio, 1.0) for ratio in _prior_ratios()]
    ratios.sort(reverse=True)
    total = sum(ratio * weight for ratio, weight in ratios)
    size = math.ceil(len(ratios) / NODES)
    groups = (ratios[at : at + size] for at in range(0, len(ratios), size))
    return tuple(
        (sum(ratio for ratio, _ in group) / len(group), sum(ratio for ratio, _ in group) / total)
        for group in groups
    )


@cache
def _prior_ratios() -> tuple[float, ...]:
    steps = ((step + 0.5) / PRIOR_STEPS for step in range(PRIOR_STEPS))
    return tuple(1.0 + PRIOR_SPREAD * NORMAL.inv_cdf(step) for step in steps)


def _ratios(loads: Sequence[float]) -> Iterator[float]:
    """Yield the load two steps on over the level at each step; quiet steps are left out."""
    loud = LOUD_SHARE * sum(loads) / max(1, len(loads))
    for at in range(3, len(loads) - 1):
        level = max(sum(loads[at - 3 : at]) / 3, loads[at - 1])
        if level > loud and loads[at + 1] > loud:
            yield min(LARGEST_ERROR, loads[at + 1] / level)


def cycle_rise(past_loads: Sequence[float], step_s: float, ahead_s: float) -> float:
    """Return by how much the load usually rises over the next `ahead_s` at this time of day.

    The median over yesterday, the day before and the same weekday of the last two weeks; 1 with
    fewer than two of them, and for rises too small to tell from noise.
    """
    steps = round(DAY_S / step_s)
    lead = math.ceil(ahead_s / step_s)
    rises = []
    for day in CYCLE_DAYS:
        now = len(past_loads) - day * steps
        if now < 3:  # noqa: PLR2004  the three steps before are the level
            break
        before = sum(past_loads[now - 3 : now]) / 3
        after = sum(past_loads[now + lead - 1 : now + lead + 2]) / 3
        if before > 0:
            rises.append(after / before)
    usual = median_low(rises) if rises[1:] else 1.0
    return min(usual, LARGEST_CYCLE_RISE) if usual >= CYCLE_RISE else 1.0


def late_chance(workers: int, load: float, summary: LoadSummary, wait_s: float) -> float:
    """Return the chance that a request waits longer than `wait_s` with `workers` for `load`."""
    if load <= 0:
        return 0.0
    if workers <= load:
        return 1.0
    cv2 = _service_cv2(summary)
    beta = (workers - load) / math.sqrt(load * summary.peakedness)
    delayed = 1.0 / (1.0 + beta * NORMAL.cdf(beta) / max(NORMAL.pdf(beta), 1e-300))
    variability = summary.service_mean_s * summary.peakedness * (1.0 + cv2)
    return delayed * math.exp(-2.0 * (workers - load) * wait_s / variability)


def _service_cv2(load: LoadSummary) -> float:
    cv2 = load.service_second_moment_s2 / load.service_mean_s**2 - 1.0
    return min(max(cv2, 0.0), LARGEST_SERVICE_CV2)


def _mean_late(
    workers: int,
    level: float,
    errors: Sequence[tuple[float, float]],
    load: LoadSummary,
    wait_s: float,
) -> float:
    return sum(
        weight * late_chance(workers, level * ratio, load, wait_s) for ratio, weight in errors
    )


def _fewest(
    level: float, errors: Sequence[tuple[float, float]], load: LoadSummary, policy: SizingPolicy
) -> int:
    """Return the fewest workers whose mean chance of a late start is within the allowance."""
    allowed = allowance(load.requests_last_day, load.late_last_day, policy.share)
    low, high = 0, 1
    while _mean_late(high, level, errors, load, policy.wait_s) > allowed:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _mean_late(middle, level, errors, load, policy.wait_s) > allowed:
            low = middle
        else:
            high = middle
    return high


def allowance(requests: int, late: int, share: float) -> float:
    """Return the share of late starts to plan for, given how many were late in the last day."""
    aim = (1.0 - share) * BUDGET_AIM
    spent = (late + aim * BUDGET_PRIOR_REQUESTS) / (requests + BUDGET_PRIOR_REQUESTS)
    allowed = (1.0 - share) * BUDGET_GAIN ** (1.0 - spent / max(aim, 1e-9))
    return min(LARGEST_ALLOWANCE, max(SMALLEST_ALLOWANCE * (1.0 - share) / 0.05, allowed))


def _drain(level: float, load: LoadSummary, live: int, booting: int, policy: SizingPolicy) -> int:
    """Return the workers that clear what waits within `drain_s` of serving; 0 when nothing does.

    Booting workers are taken to come half-way through the start-up. While requests wait, nothing
    is given back.
    """
    waiting_s = level * load.newest_wait_s + (level - live) * load.newest_start_age_s
    if load.queued is not None:
        waiting_s = max(waiting_s, load.queued * load.service_mean_s)
    late = load.newest_wait_s > policy.wait_s / 2 or waiting_s > level * policy.wait_s
    if not late:
        return 0
    gathered_s = max(0.0, waiting_s + (level - live - booting / 2) * policy.start_up_s)
    surplus = max(0.0, gathered_s - level * policy.wait_s) / policy.drain_s
    return max(math.ceil(level + surplus), live + booting)


def _without_logs(
    load: LoadSummary, have: int, past: Sequence[PastNeed], policy: SizingPolicy
) -> Need:
    """Hold while logs are missing: silence is not zero load. Zero only when the queue is empty."""
    floor, quiet = policy.min_workers, not any(load.arrivals)
    if quiet and load.queued == 0 and policy.min_workers == 0 and past:
        return Need(workers=0, load_workers=0, reason="no request waits and none came: to zero")
    woken = 1 if load.queued else 0
    workers = min(max(have, floor, woken), max(policy.max_workers, 0))
    remembered = max([0, *(need.workers for need in past if need.age_s <= policy.stabilisation_s)])
    reason = f"no search log for {load.newest_log_age_s:.0f} s: hold {workers}"
    return Need(workers=workers, load_workers=remembered or workers, reason=reason)


def _load_reason(
    level: float,
    rise: float,
    errors: Sequence[tuple[float, float]],
    found: int,
    policy: SizingPolicy,
) -> str:
    reason = f"load {level:.1f} erlangs"
    if rise > 1.0:
        reason += f", usually {rise - 1.0:.0%} more by the time a new worker serves"
    reason += f", forecast errors up to {errors[0][0] - 1.0:+.0%}"
    return f"{reason}: {found} workers start {policy.share:.0%} within {policy.wait_s:g} s"


def _bounded(
    wanted: int,
    found: int,
    level: float,
    errors: Sequence[tuple[float, float]],
    load: LoadSummary,
    policy: SizingPolicy,
    reason: str,
) -> Need:
    """Apply the bounds; when the promise does not fit, say by how much it is missed."""
    workers = min(max(wanted, policy.min_workers), policy.max_workers)
    if wanted > policy.max_workers:
        kept = 1.0 - _mean_late(policy.max_workers, level, errors, load, policy.wait_s)
        reason += (
            f"; the bound of {policy.max_workers} is {wanted - policy.max_workers} short: "
            f"about {kept:.0%} instead of {policy.share:.0%} will start in time"
        )
    elif wanted < policy.min_workers:
        reason += f"; at least {policy.min_workers} are asked for"
    return Need(
        workers=workers, reason=reason, load_workers=found, missing=max(0, wanted - workers)
    )
