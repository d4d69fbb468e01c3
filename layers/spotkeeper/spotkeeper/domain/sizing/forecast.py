"""How far the load goes from its level until a new worker serves: as it did on the last day.

Every five minutes of the last day the level that was known then is worked out, and held against the
minutes a start-up later. What is not chance is an error, in erlangs. Bursts that come again, steps
and trends are errors alike. The rise that this hour had on the days before is added to the level.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING

from spotkeeper.domain.sizing.level import (
    SIGNIFICANCE,
    WINDOWS_S,
    Window,
    chance_of,
    heard,
    running_s,
    settled,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotkeeper.domain.load.summary import LoadSummary

# Relative standard deviation of the load five minutes on, before any history; counts an hour.
PRIOR_SPREAD = 0.04
PRIOR_MINUTES = 60
PRIOR = tuple(
    PRIOR_SPREAD * NormalDist().inv_cdf((minute + 0.5) / PRIOR_MINUTES)
    for minute in range(PRIOR_MINUTES)
)
NODES = 40  # of the distribution of errors: as exact as a count of workers needs

DAY_S = 86_400.0
CYCLE_DAYS = (1, 2, 7, 14)

type Error = tuple[float, float]
"""Erlangs that the load was above its level, and what its minute weighs."""


def forecast_errors(load: LoadSummary, level: float, ahead_s: float) -> list[Error]:
    """Return what the load `ahead_s` on may be above `level`, in erlangs, by weight, largest first.

    The errors of the last day, and a prior that counts PRIOR_MINUTES, wider for longer. A minute
    weighs as its load over the level, what chance makes of it left out; where its level was less
    than now's, as the same error would weigh now. The weights add up to 1.
    """
    minutes = heard(load)
    steps = math.sqrt(max(1.0, ahead_s / load.past_step_s))
    prior = [(level * max(-1.0, error * steps), 1.0) for error in PRIOR]
    errors = sorted([*_made(minutes, load, level, ahead_s), *prior], reverse=True)
    total = sum(weight for _, weight in errors)
    return [_mean(group, total) for group in _grouped(errors)]


def _made(
    minutes: Sequence[float], load: LoadSummary, now: float, ahead_s: float
) -> Iterator[Error]:
    """Yield the errors of the day's levels, by minute, as they would weigh at the level of now.

    Where chance may have made each minute of a step, their mean's error stands for each of them: a
    load that grows slowly is above its level by less than chance makes of a minute.
    """
    unit = SIGNIFICANCE**2 * running_s(load) / load.recent_step_s
    for level, later in _levels(minutes, load, ahead_s):
        errors = [_beyond_chance(minute, level, unit) for minute in later]
        if not any(errors):
            of_step = _beyond_chance(sum(later) / len(later), level, unit / len(later))
            errors = [of_step] * len(later)
        yield from ((error, 1.0 + error / max(level, now)) for error in errors)


def _beyond_chance(load: float, level: float, unit: float) -> float:
    """Return how far a load is from its level; of the square, as a variance, chance is taken out.

    Chance is Bernstein's bound: few requests come more unevenly than their mean tells. `unit` is
    the variance that it gives a load of one erlang in that time, significance squared.
    """
    error, chance = load - level, math.sqrt(unit * level) + unit
    return math.copysign(math.sqrt(max(0.0, error**2 - chance**2)), error)


def _levels(
    minutes: Sequence[float], load: LoadSummary, ahead_s: float
) -> Iterator[tuple[float, Sequence[float]]]:
    """Yield, every few minutes, the level known then and the minutes that new workers met.

    As `load_level` has it, of what is kept: whole minutes. The first minutes, for which no level
    was known, are held against their own mean: a young fleet's first burst is one to plan for.
    """
    step_s, sums, chance = load.recent_step_s, [0.0, *accumulate(minutes)], chance_of(load)
    shortest, every = round(WINDOWS_S[-1] / step_s), round(load.past_step_s / step_s)
    ahead = max(1, math.ceil(ahead_s / step_s)) - 1
    young = min(shortest, len(minutes))
    level = sums[young] / max(1, young)
    if level > 0:
        yield level, minutes[: shortest + ahead]
    for known in range(shortest, len(minutes), every):
        lengths = [round(s / step_s) for s in whole(known * step_s)]
        windows = (
            Window((sums[known] - sums[known - steps]) / steps, steps * step_s)
            for steps in (*lengths, shortest)
        )
        level = settled(sums[known] / known, windows, chance)
        later = minutes[known + ahead : known + ahead + every]
        if level > 0 and later:
            yield level, later


def _grouped(errors: Sequence[Error]) -> Iterator[Sequence[Error]]:
    """Put like errors together, the fewest at the top, where a worker makes a difference."""
    largest, at = math.ceil(len(errors) / NODES), 0
    while at < len(errors):
        size = max(1, min(largest, (at + 2) // 2))
        yield errors[at : at + size]
        at += size


def _mean(group: Sequence[Error], total: float) -> Error:
    weight = sum(weight for _, weight in group)
    if not weight:
        return group[0][0], 0.0
    return sum(error * weight for error, weight in group) / weight, weight / total


def cycle_rise(past_loads: Sequence[float], step_s: float, ahead_s: float) -> float:
    """Return by how many erlangs the load usually rises in `ahead_s` at this time of day.

    What yesterday, the day before and the same weekday of the last two weeks all had; 0 with fewer
    than two of them.
    """
    steps, lead = round(DAY_S / step_s), math.ceil(ahead_s / step_s)
    rises = []
    for day in CYCLE_DAYS:
        now = len(past_loads) - day * steps
        if now < 3:  # noqa: PLR2004  the three steps before are the level
            break
        before = sum(past_loads[now - 3 : now]) / 3
        rises.append(sum(past_loads[now + lead - 1 : now + lead + 2]) / 3 - before)
    return max(0.0, min(rises)) if rises[1:] else 0.0
