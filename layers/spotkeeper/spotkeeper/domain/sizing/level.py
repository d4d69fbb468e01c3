"""The load in erlangs: how much work is offered, as far as it is more than chance.

One question is asked of every window: within which load is what came in it no more than chance?
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from spotkeeper.domain.load.flow import CERTAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spotkeeper.domain.load.summary import LoadSummary

# Standard errors: what is less may be chance.
SIGNIFICANCE = 2.5
# A newest wait above this is a queue, not a hand-over.
QUEUE_WAIT_S = 1.0

# Each four times shorter; what came in the last of them is known by arrival, to ten seconds.
WINDOWS_S = (86_400.0, 21_600.0, 5_400.0, 900.0)
# So much shorter that the next turn may see the opposite: these only raise the load.
QUICK_WINDOWS_S = (300.0, 60.0)


@dataclass(frozen=True, slots=True)
class Window:
    """The mean load of a window in erlangs, and its length."""

    load: float
    length_s: float


def load_level(load: LoadSummary) -> float:
    """Return the offered load in erlangs, requests still running counted.

    The mean of the last day, pulled by one shorter window after the other to within what chance
    makes of that window (Lepski's choice of a window): noise moves nothing, a step does within
    minutes. More load in any window never gives less.
    """
    chance = chance_of(load)
    windows = (*_of_the_day(load), newest(load, WINDOWS_S[-1]))
    young = len(load.arrivals) * load.slot_s < load.past_step_s
    level = 0.0 if young else windows[0].load
    return settled(level, windows, chance)


def settled(level: float, windows: Iterable[Window], chance: float) -> float:
    """Pull a level to within what chance makes of one window after the other."""
    for window in windows:
        low, high = between(window.load, window.length_s, chance)
        level = max(low, min(level, high))
    return level


def quick_level(load: LoadSummary) -> float:
    """Return the least load that the newest minutes prove, in erlangs: a step is seen at once.

    Once requests wait for longer than the shortest of them, the fleet is overloaded for certain:
    what a slot of ten seconds had counts, and a single standard error is chance enough. A window
    shorter than the requests run tells of too few of them, 0 where all are.
    """
    chance, lengths_s = chance_of(load), list(QUICK_WINDOWS_S)
    if load.newest_wait_s >= max(QUICK_WINDOWS_S[-1], SIGNIFICANCE * running_s(load)):
        chance /= SIGNIFICANCE**2
        lengths_s += [load.slot_s]
    windows = (newest(load, length_s) for length_s in lengths_s if length_s >= running_s(load))
    return max((between(window.load, window.length_s, chance)[0] for window in windows), default=0)


def chance_of(load: LoadSummary) -> float:
    """Return the variance that chance gives a mean load of 1 erlang over a second, in seconds.

    Work comes in requests that run for E[S^2]/E[S] when they are looked at, and as peaked as they
    came on the last day; SIGNIFICANCE is in it.
    """
    return SIGNIFICANCE**2 * max(1.0, load.peakedness) * running_s(load)


def between(mean: float, length_s: float, chance: float) -> tuple[float, float]:
    """Return the least and the most load of which chance makes a window's mean.

    Both grow with the mean; a window without a request still allows for some load.
    """
    spread = math.sqrt(chance * mean / length_s)
    return max(0.0, mean - spread), max(mean + spread, chance / length_s)


def running_s(load: LoadSummary) -> float:
    """Return for how long the requests take that run at an instant, E[S^2]/E[S], on average.

    That of the last day, to within what chance makes of the newest requests: so many exponential
    service times tell it with a relative standard error of sqrt(2/n).
    """
    newest_s = load.service_second_moment_s2 / load.service_mean_s
    error = SIGNIFICANCE * math.sqrt(2.0 / max(1, sum(load.arrivals)))
    most_s = newest_s / (1.0 - error) if error < 1.0 else math.inf
    return max(newest_s / (1.0 + error), min(load.running_last_day_s or newest_s, most_s))


def unserved_s(load: LoadSummary) -> float:
    """Return for how long nothing that arrived has been served; 0 unless requests wait."""
    if load.newest_wait_s < QUEUE_WAIT_S:
        return 0.0
    return load.newest_start_age_s + load.newest_wait_s


def whole(length_s: float) -> Iterator[float]:
    """Yield what of WINDOWS_S is known by minute: the longest as far as it is, others whole.

    Nothing while that is hardly more than the shortest, which knows it better.
    """
    *by_minute, by_arrival = WINDOWS_S
    if length_s > 2 * by_arrival:
        longest = min(length_s, by_minute[0])
        yield from (longest, *(window_s for window_s in by_minute if window_s < longest))


def _of_the_day(load: LoadSummary) -> Iterator[Window]:
    minutes = heard(load)
    for length_s in whole(len(minutes) * load.recent_step_s):
        steps = round(length_s / load.recent_step_s)
        yield Window(sum(minutes[-steps:]) / steps, length_s)


def heard(load: LoadSummary) -> list[float]:
    """Return the day's minutes without stretches in which no request is no chance: idle, or a gap.

    Of so many expected requests none comes with the chance exp(-expected), as in `load.flow`.
    """
    total, known = sum(load.recent_loads), len(load.recent_loads)
    expected = total / max(1, known) * load.recent_step_s / load.service_mean_s
    minutes: list[float] = []
    for some, stretch in groupby(load.recent_loads, key=bool):
        silent = list(stretch)
        minutes += silent if some or len(silent) * expected < CERTAIN else []
    return minutes


def newest(load: LoadSummary, window_s: float) -> Window:
    """Return the window that ends now, or where the newest started request arrived.

    The work that arrived in it misses the requests not finished yet: on average the mean of a
    running request's whole service time, E[S^2]/E[S], and the log's delay, of at most a slot. While
    requests wait, nothing later was served.
    """
    end_s, known_s = unserved_s(load), len(load.arrivals) * load.slot_s
    first = max(0, len(load.arrivals) - math.ceil((end_s + window_s) / load.slot_s))
    last = max(0, len(load.arrivals) - math.floor(end_s / load.slot_s))
    length_s = max(known_s - first * load.slot_s - end_s, 0.2 * load.slot_s)
    missing_s = running_s(load) + min(load.newest_log_age_s, load.slot_s)
    seen_s = max(length_s - missing_s, length_s / 2)
    return Window(sum(load.work_s[first:last]) / seen_s, seen_s)
