"""Bursts that come again and again: the minutes of the last day tell of the next ones.

A forecast of five-minute means cannot see traffic that comes in bursts of a minute, and a new
worker comes after the burst is over. So the minutes themselves are taken for what may come, each
scaled by the square root of how the load of hours has changed since: bursts follow neither the
hour's load nor none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

TREND_STEPS = 180
SHORTEST_TREND_STEPS = 5
TREND_POWER = 0.5
# A minute is a burst above so many times the minutes around it, and beyond what chance makes of one
# in a thousand: what stays is a step, which the forecast sees.
AROUND_STEPS = 30
BURST = 1.5
CHANCES = 3.0
# Traffic is bursty when more of its work than this comes in bursts.
BURSTY_SHARE = 0.15
# Minutes after steps with less than this share of the mean load say nothing.
LOUD_SHARE = 0.1
LARGEST_RATIO = 30.0
NODES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Loads that may come: `level` in erlangs times each ratio, by weight, the largest first."""

    level: float
    ratios: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Minutes:
    level: float
    with_around: tuple[tuple[float, float], ...]
    ratios: tuple[float, ...]


def recurring(loads: tuple[float, ...], step_s: float, running_s: float) -> Bursts | None:
    """Return what bursts like those of the last day bring; None where traffic is not bursty.

    `loads` are mean offered loads in erlangs per step, oldest first. A request runs for `running_s`
    when it is looked at, which is what chance adds to the load of a step.
    """
    minutes = _minutes(loads)
    if minutes is None:
        return None
    chance = CHANCES * math.sqrt(running_s / step_s)
    bursts = sum(
        load
        for load, around in minutes.with_around
        if load > BURST * around + chance * math.sqrt(around) + chance**2  # Bernstein: few requests
    )
    if bursts <= BURSTY_SHARE * sum(load for load, _ in minutes.with_around):
        return None
    groups, total = _grouped(minutes.ratios), sum(minutes.ratios)
    ratios = tuple((sum(group) / len(group), sum(group) / total) for group in groups)
    return Bursts(level=minutes.level, ratios=ratios)


@lru_cache(maxsize=16)
def _minutes(loads: tuple[float, ...]) -> _Minutes | None:
    """Hold each step against the steps before it; None while there are too few."""
    if len(loads) <= SHORTEST_TREND_STEPS or not any(loads):
        return None
    sums = [0.0]
    for load in loads:
        sums.append(sums[-1] + load)
    mean = sums[-1] / len(loads)
    pairs = [(loads[at], _trend(sums, at)) for at in range(SHORTEST_TREND_STEPS, len(loads))]
    loud = [pair for pair in pairs if pair[1] > LOUD_SHARE * mean]
    if not any(load for load, _ in loud):
        return None
    with_around = tuple((load, _around(sums, at)) for at, load in enumerate(loads))
    ratios = (load / mean * math.pow(mean / trend, TREND_POWER) for load, trend in loud)
    level = mean * math.pow(_trend(sums, len(loads)) / mean, TREND_POWER)
    capped = sorted((min(LARGEST_RATIO, ratio) for ratio in ratios), reverse=True)
    if sum(capped) <= 0:
        return None
    return _Minutes(level=level, with_around=with_around, ratios=tuple(capped))


def _trend(sums: Sequence[float], at: int) -> float:
    """Return the mean load of the hours before a step."""
    first = max(0, at - TREND_STEPS)
    return max(0.0, sums[at] - sums[first]) / (at - first)


def _around(sums: Sequence[float], at: int) -> float:
    """Return the mean load of the half-hours before and after a step."""
    first, last = max(0, at - AROUND_STEPS), min(len(sums) - 1, at + AROUND_STEPS + 1)
    return max(0.0, sums[last] - sums[first]) / (last - first)


def _grouped(ratios: Sequence[float]) -> list[Sequence[float]]:
    """Put like ratios together, the fewest at the top, where a worker makes a difference."""
    largest = math.ceil(len(ratios) / NODES)
    groups: list[Sequence[float]] = []
    at = 0
    while at < len(ratios):
        size = max(1, min(largest, (at + 2) // 2))
        groups.append(ratios[at : at + size])
        at += size
    return groups
