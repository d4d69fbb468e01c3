"""The load that a new worker will meet: its level, and how far it goes from it until then.

The errors are those made before, one per five minutes of the last day; and the rise that this hour
had on the days before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotkeeper.domain.load.summary import LoadSummary

NORMAL = NormalDist()

LONG_STEPS = (1440, 240, 60)  # of the day's minutes: windows of the level
SHORT_WINDOWS_S = (900.0, 300.0, 120.0, 60.0)
LONGEST_WINDOW_S = SHORT_WINDOWS_S[0]  # of what is known by arrival
QUICK_WINDOWS_S = (30.0, 10.0)  # only while requests wait for long
TRUSTED_WINDOW_S = 300.0
TRUSTED_STEPS = 30
UNHEARD = 14.0  # so many requests pass unheard once in a million times

SIGNIFICANCE = 2.0  # standard errors: what is less may be chance
COUNT_DISPERSION = 2.0  # least variance to mean of counts, for the errors of a window
LONGEST_LOG_DELAY_S = 10.0  # beyond it a newest log is old because no request ended
QUEUE_WAIT_S = 1.0  # a newest wait above this is a queue, not a hand-over
LONG_WAIT_S = 60.0  # above this the fleet is overloaded for certain, and little evidence does
OVERLOAD_SIGNIFICANCE = 1.0

PRIOR_SPREAD = 0.05  # relative standard deviation of the load a step ahead, before any history
PRIOR_STEPS = 12
PRIOR_ERRORS = tuple(
    PRIOR_SPREAD * NORMAL.inv_cdf((step + 0.5) / PRIOR_STEPS) for step in range(PRIOR_STEPS)
)
MEMORY_STEPS = 288
LARGEST_ERROR = 2.0
LOUD_SHARE = 0.25  # steps below this share of the mean load say nothing about errors
NODES = 40

DAY_S = 86_400.0
CYCLE_DAYS = (1, 2, 7, 14)
CYCLE_RISE = 1.1
LARGEST_CYCLE_RISE = 3.0


@dataclass(frozen=True, slots=True)
class _Window:
    """The mean load of a window in erlangs, of how many requests it is, and its length."""

    load: float
    requests: float
    length_s: float


def load_level(load: LoadSummary) -> float:
    """Return the offered load in erlangs, requests still running counted.

    The mean of the last day, pulled by one shorter window after the other to within what chance
    makes of that window (Lepski's choice of a window): noise moves nothing, a step does at once.
    The shortest windows only raise it. More load in any window never gives less.
    """
    certain = load.newest_wait_s >= LONG_WAIT_S
    errors = OVERLOAD_SIGNIFICANCE if certain else SIGNIFICANCE
    first, *others = (*_of_the_day(load), _newest(load, LONGEST_WINDOW_S))
    level = first.load if first.length_s >= TRUSTED_WINDOW_S else 0.0
    for window in (first, *others):
        low, high = _between(window, load, errors)
        level = max(low, min(level, high))
    raising = SHORT_WINDOWS_S[1:] + (QUICK_WINDOWS_S if certain else ())
    return max(level, *(_between(_newest(load, window_s), load, errors)[0] for window_s in raising))


def _between(window: _Window, load: LoadSummary, errors: float) -> tuple[float, float]:
    """Return the least and the most load of which chance makes the window's.

    Both grow with the window's requests; a window without one still allows for some.
    """
    dispersion = max(COUNT_DISPERSION, load.peakedness)
    variance = errors**2 * dispersion * _running_s(load) / load.service_mean_s
    spread = math.sqrt(variance / window.requests) if window.requests else 0.0
    some = variance * load.service_mean_s / window.length_s
    return window.load * max(0.0, 1.0 - spread), max(window.load * (1.0 + spread), some)


def unserved_s(load: LoadSummary) -> float:
    """Return for how long nothing that arrived has been served; 0 unless requests wait."""
    if load.newest_wait_s < QUEUE_WAIT_S:
        return 0.0
    return load.newest_start_age_s + load.newest_wait_s


def _of_the_day(load: LoadSummary) -> Iterator[_Window]:
    """Yield the long windows that are whole, and the longest as far as it is known."""
    minutes = _heard(load)
    longest = min(len(minutes), LONG_STEPS[0])
    for steps in (longest, *(steps for steps in LONG_STEPS if steps < longest)):
        if steps > TRUSTED_STEPS:
            mean = sum(minutes[-steps:]) / steps
            length_s = steps * load.recent_step_s
            yield _Window(mean, mean * length_s / load.service_mean_s, length_s)


def _heard(load: LoadSummary) -> list[float]:
    """Return the day's minutes without stretches in which no request is no chance: idle, or a gap.

    Of so many expected requests none comes with the chance exp(-expected), as in `load.flow`.
    """
    total, known = sum(load.recent_loads), len(load.recent_loads)
    expected = total / max(1, known) * load.recent_step_s / load.service_mean_s
    heard: list[float] = []
    for some, stretch in groupby(load.recent_loads, key=bool):
        minutes = list(stretch)
        heard += minutes if some or len(minutes) * expected < UNHEARD else []
    return heard


def _newest(load: LoadSummary, window_s: float) -> _Window:
    """Return the window that ends now, or where the newest started request arrived.

    The work that arrived in it misses the requests not finished yet: on average the mean of a
    running request's whole service time, E[S^2]/E[S], and the log's delay. While requests wait,
    nothing later was served.
    """
    end_s, known_s = unserved_s(load), len(load.arrivals) * load.slot_s
    first = max(0, len(load.arrivals) - math.ceil((end_s + window_s) / load.slot_s))
    last = max(0, len(load.arrivals) - math.floor(end_s / load.slot_s))
    length_s = max(known_s - first * load.slot_s - end_s, 0.2 * load.slot_s)
    missing_s = _running_s(load) + min(load.newest_log_age_s, LONGEST_LOG_DELAY_S)
    mean = sum(load.work_s[first:last]) / max(length_s - missing_s, length_s / 2)
    return _Window(mean, sum(load.arrivals[first:last]), length_s)


def _running_s(load: LoadSummary) -> float:
    """Return for how long the requests take that run at an instant, on average."""
    return load.service_second_moment_s2 / load.service_mean_s


def forecast_errors(load: LoadSummary, ahead_s: float) -> tuple[tuple[float, float], ...]:
    """Return (ratio, weight) of the load `ahead_s` on to the level known then, largest first.

    Weighted by the ratio, since a step of more load has more requests. The prior counts as
    PRIOR_STEPS steps, wider for longer. What chance alone does to the load of one step is taken
    out, since the waiting model has it already.
    """
    loads, steps = load.past_loads[-MEMORY_STEPS:], max(1, round(ahead_s / load.past_step_s))
    ratios = list(_ratios(loads, steps))
    calm = _calm(ratios, sum(loads) / max(1, len(loads)), load)
    prior = [max(0.0, 1.0 + error * math.sqrt(steps)) for error in PRIOR_ERRORS]
    ratios = sorted([*(1.0 + (ratio - 1.0) * calm for ratio in ratios), *prior], reverse=True)
    size = math.ceil(len(ratios) / NODES)
    groups = [ratios[at : at + size] for at in range(0, len(ratios), size)]
    return tuple((sum(group) / len(group), sum(group) / sum(ratios)) for group in groups)


def _calm(ratios: Sequence[float], mean_load: float, load: LoadSummary) -> float:
    """Return the part of the errors' standard deviation that is not chance within a step."""
    if not ratios[1:] or mean_load <= 0:
        return 1.0
    chance = _running_s(load) / mean_load / load.past_step_s
    chance *= 1.0 + SIGNIFICANCE * math.sqrt(2.0 / len(ratios))
    variance = sum((ratio - 1.0) ** 2 for ratio in ratios) / len(ratios)
    return math.sqrt(max(0.0, 1.0 - chance / variance)) if variance > 0 else 1.0


def _ratios(loads: Sequence[float], steps: int) -> Iterator[float]:
    """Yield the load after `steps` more over the level at each step; quiet steps are left out."""
    loud = LOUD_SHARE * sum(loads) / max(1, len(loads))
    for at in range(3, len(loads) - steps):
        known, later = loads[at - 3 : at], loads[at + steps]
        if min(*known, later) > loud:
            yield min(LARGEST_ERROR, later / max(sum(known) / 3, known[-1]))


def cycle_rise(past_loads: Sequence[float], step_s: float, ahead_s: float) -> float:
    """Return by how much the load usually rises over the next `ahead_s` at this time of day.

    The median over yesterday, the day before and the same weekday of the last two weeks; 1 with
    fewer than two of them, and for rises too small to tell from noise.
    """
    steps, lead = round(DAY_S / step_s), math.ceil(ahead_s / step_s)
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
