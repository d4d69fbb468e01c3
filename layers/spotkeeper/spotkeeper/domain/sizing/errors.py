"""How far the load goes from its level until a new worker serves: the errors made before.

One per five minutes of the last day, and the rise that this hour had on the days before.
"""

from __future__ import annotations

import math
from statistics import NormalDist, median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotkeeper.domain.load.summary import LoadSummary

NORMAL = NormalDist()

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
    running_s = load.service_second_moment_s2 / load.service_mean_s
    chance = running_s / mean_load / load.past_step_s
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
