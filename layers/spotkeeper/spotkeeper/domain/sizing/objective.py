"""Workers for a promise about waiting: "`share` of requests start within `wait_s`".

The fewest workers that will keep the promise when a worker that is asked for now can serve:

1. *Level*: offered load from the service times of the requests that arrived, corrected for the
   requests that still run. A newer, shorter window counts as far as it is significant (level).
2. *Error*: the load at the time a new worker serves is the level and an error that the fleet has
   made before: its own, one per minute of the last day, and a prior while there are few
   (forecast; staffing under an uncertain arrival rate: Whitt 2006; Hong et al., arXiv 2311.11279).
3. *Waiting*: the chance of a late start for each of these loads from Erlang's delay
   probability with peakedness (Hayward) and the heavy-traffic law of the wait (Kingman 1962); the
   workers are the fewest whose mean chance is within the allowance.
4. *Allowance*: 1 - share, more while the last day's error budget is unspent, less once it is
   overspent (adaptive conformal inference: Gibbs and Candes 2021).
5. *Backlog*: what waits now, and what gathers until a new worker serves, is drained in time.

Every step is monotone: more load never gives fewer workers, a looser promise never more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from spotkeeper.domain.sizing.forecast import cycle_rise, forecast_errors
from spotkeeper.domain.sizing.level import (
    SIGNIFICANCE,
    WINDOWS_S,
    load_level,
    quick_level,
    running_s,
    unserved_s,
)
from spotkeeper.domain.sizing.values import KEPT_S, Need
from spotkeeper.domain.sizing.without_logs import is_quiet, size_in_silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spotkeeper.domain.load.summary import LoadSummary
    from spotkeeper.domain.sizing.values import ObjectivePolicy, PastNeed

NORMAL = NormalDist()
SHORTEST_SERVICE_S = 0.001  # logs tell milliseconds

# The error budget of the last day: how hard it steers, and, until a day is known, what of it is
# aimed at and of how many requests it is taken to have been kept before.
BUDGET_AIM = 0.7
BUDGET_GAIN = 50.0
BUDGET_PRIOR_REQUESTS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """The load in erlangs that a new worker will meet: a level and each error by its weight.

    It is never less than the newest minutes prove it to be already.
    """

    load: LoadSummary
    wait_s: float
    rise: float
    level: float
    quick: float
    errors: Sequence[tuple[float, float]]

    @property
    def least(self) -> float:
        """The load that is certain by now."""
        return max(self.level, self.quick)

    def late(self, workers: int) -> float:
        """Return the mean chance of a late start with `workers`."""
        return sum(
            weight
            * late_chance(workers, max(self.quick, self.level + error), self.load, self.wait_s)
            for error, weight in self.errors
        )


def size_to_objective(
    load: LoadSummary, live: int, booting: int, past: Sequence[PastNeed], policy: ObjectivePolicy
) -> Need:
    """Return the fewest workers that keep the policy's promise, and why."""
    have = live + booting
    if is_quiet(load.quiet_s, policy.quiet_after_s):
        least = policy.min_workers
        return Need(workers=least, load_workers=0, reason=f"no request for {load.quiet_s:.0f} s")
    if load.newest_log_age_s > policy.stale_s or not (load.service_mean_s or any(load.arrivals)):
        return size_in_silence(load, have, past, policy)
    load = _taking_time(load)
    forecast = _look_ahead(load, policy)
    allowed = allowance(load, policy.share)
    found = _fewest(forecast, allowed)
    recent = _recent_needs(past, have, booting, policy)
    young = not past or len(load.arrivals) * load.slot_s < load.past_step_s
    kept = max(found, have if young else 0, *recent)
    drain = _drain(forecast.least, load, live, booting, policy)
    reason = _reason(forecast, found, policy)
    if drain > kept:
        reason += f"; {drain} while requests wait, to drain them in {policy.drain_s:g} s"
    elif kept > found:
        reason += f"; {kept} kept, the need of the recent past"
    return _bounded(max(kept, drain), found, forecast, policy, reason)


def _taking_time(load: LoadSummary) -> LoadSummary:
    """Give requests that are logged to take no time the shortest that a log can tell."""
    if load.service_mean_s >= SHORTEST_SERVICE_S:
        return load
    second = max(load.service_second_moment_s2, SHORTEST_SERVICE_S**2)
    return replace(load, service_mean_s=SHORTEST_SERVICE_S, service_second_moment_s2=second)


def _significant(load: LoadSummary) -> LoadSummary:
    """Lower the peakedness to what is more than the chance of so few requests."""
    chance = SIGNIFICANCE * math.sqrt(2.0 / max(1, sum(load.arrivals)))
    return replace(load, peakedness=max(1.0, load.peakedness * (1.0 - chance)))


def _recent_needs(
    past: Sequence[PastNeed], have: int, booting: int, policy: ObjectivePolicy
) -> list[int]:
    """Return the past needs that still count; after a silence until the long window is whole.

    While workers boot, those of a whole start-up count, too: ended before it serves, a worker has
    been paid for nothing. One that never comes is given up after that.
    """
    recent = [
        need.workers for need in past if need.age_s <= (WINDOWS_S[-1] if need.held else KEPT_S)
    ]
    launched = (need.workers for need in past if booting and need.age_s <= policy.start_up_s)
    return [*recent, *(min(have, workers) for workers in launched)]


def _look_ahead(load: LoadSummary, policy: ObjectivePolicy) -> _Forecast:
    rise = cycle_rise(load.past_loads, load.past_step_s, policy.start_up_s)
    level = load_level(load) + rise
    return _Forecast(
        load=_significant(load),
        wait_s=policy.wait_s,
        rise=rise,
        level=level,
        quick=quick_level(load),
        errors=forecast_errors(load, level, policy.start_up_s),
    )


def late_chance(workers: int, load: float, summary: LoadSummary, wait_s: float) -> float:
    """Return the chance that a request waits longer than `wait_s` with `workers` for `load`.

    Erlang's chance of a delay with peakedness (Hayward), and the heavy-traffic law of the wait
    (Kingman 1962): variability E[S] (1 + cv^2), which is E[S^2]/E[S], as peaked as requests come.
    """
    if load <= 0:
        return 0.0
    if workers <= load:
        return 1.0
    delayed = delay_chance(workers / summary.peakedness, load / workers)
    variability_s = running_s(summary) * summary.peakedness
    return delayed * math.exp(-2.0 * (workers - load) * wait_s / variability_s)


def delay_chance(servers: float, utilization: float) -> float:
    """Return Erlang C for any count of servers, to about a hundredth.

    The upper bound of Janssen, van Leeuwaarden and Zwart, "Corrected asymptotics for a multi-server
    queue in the Halfin-Whitt regime", Queueing Systems 58 (2008), theorem 2.
    """
    idle = 1.0 - utilization
    alpha = math.sqrt(max(0.0, -2.0 * servers * (idle + math.log(utilization))))
    mills = NORMAL.cdf(alpha) / max(NORMAL.pdf(alpha), 1e-300)
    return 1.0 / (utilization + idle * (math.sqrt(servers) * mills + 2.0 / 3.0))


def _fewest(forecast: _Forecast, allowed: float) -> int:
    """Return the fewest workers whose mean chance of a late start is within `allowed`."""
    low, high = 0, 1
    while forecast.late(high) > allowed:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if forecast.late(middle) > allowed else (low, middle)
    return high


def allowance(load: LoadSummary, share: float) -> float:
    """Return the share of late starts to plan for, given how many were late in the last day.

    What is aimed at is the budget of the day less one standard error of its late requests: a day as
    much worse than expected still keeps the promise. As far as the day is not known it is
    BUDGET_AIM, and spent as aimed. The odds of the promise, BUDGET_GAIN times more where nothing is
    spent and as many times less where twice the aim is.
    """
    requests, unknown = load.requests_last_day, _unknown_requests(load)
    known_aim = max(0.0, (1.0 - share) * requests - load.late_error)
    aim = (known_aim + (1.0 - share) * BUDGET_AIM * unknown) / (requests + unknown)
    spent = (load.late_last_day + aim * unknown) / (requests + unknown)
    unspent = max(-1.0, 1.0 - spent / max(aim, 1e-9))
    odds = (1.0 - share) / share * math.pow(BUDGET_GAIN, unspent)
    return odds / (1.0 + odds)


def _unknown_requests(load: LoadSummary) -> float:
    """Return the requests that a whole day has beyond those known, BUDGET_PRIOR_REQUESTS at most.

    Where requests are rare the day's own soon count for more.
    """
    known = len(load.recent_loads) * load.recent_step_s / WINDOWS_S[0]
    if not known or not load.requests_last_day:
        return BUDGET_PRIOR_REQUESTS
    return min(BUDGET_PRIOR_REQUESTS, load.requests_last_day * (1.0 / known - 1.0))


def _drain(
    level: float, load: LoadSummary, live: int, booting: int, policy: ObjectivePolicy
) -> int:
    """Return the workers that clear what waits within `drain_s` of serving; 0 when nothing does.

    Requests wait once the live workers do not clear them within the promise; then nothing is given
    back. Booting workers are taken to come half-way through the start-up. As far as requests wait
    for as long as is known of them, the load is at least what the workers serve.
    Where the queue's length is not known, it is read off the newest wait.
    """
    if load.queued == 0:
        return 0
    unknown = unserved_s(load) / (max(1, len(load.arrivals)) * load.slot_s)
    level = max(level, live * min(1.0, unknown))
    clearing = level if load.queued is None else live
    if load.queued is None:
        waiting_s = level * load.newest_wait_s + (level - live) * load.newest_start_age_s
    else:
        waiting_s = load.queued * load.service_mean_s
    late = load.newest_wait_s > policy.wait_s / 2 or waiting_s > clearing * policy.wait_s
    if not late:
        return 0
    gathered_s = max(0.0, waiting_s + (level - live - booting / 2) * policy.start_up_s)
    # What may wait that long anyway; a promise longer than that forgives no more workers.
    in_time_s = level * min(policy.wait_s, policy.start_up_s + policy.drain_s)
    surplus = max(0.0, gathered_s - in_time_s) / policy.drain_s
    return max(math.ceil(level + surplus), live + booting)


def _reason(forecast: _Forecast, found: int, policy: ObjectivePolicy) -> str:
    reason = f"load {forecast.least:.1f} erlangs"
    if round(forecast.rise, 1):
        reason += f", with the {forecast.rise:.1f} that it usually rises at this time"
    worst = max(forecast.quick, forecast.level + forecast.errors[0][0])
    reason += f", at worst {worst:.1f} when a new worker serves"
    return f"{reason}: {found} workers start {policy.share:.0%} within {policy.wait_s:g} s"


def _bounded(
    wanted: int, found: int, forecast: _Forecast, policy: ObjectivePolicy, reason: str
) -> Need:
    """Apply the bounds; when the promise does not fit, say by how much it is missed."""
    workers = min(max(wanted, policy.min_workers), policy.max_workers)
    if wanted > policy.max_workers:
        reason += (
            f"; the bound of {policy.max_workers} is {wanted - policy.max_workers} short: about "
            f"{1.0 - forecast.late(policy.max_workers):.0%} instead of {policy.share:.0%} in time"
        )
    return Need(
        workers=workers, reason=reason, load_workers=found, missing=max(0, wanted - workers)
    )
