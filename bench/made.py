"""Request logs that are made by a seed: what recorded ones seldom show."""

from collections.abc import Callable

import numpy as np

from spotkeeper_lab.traces.requests import Floats, RequestTrace

DAY_S = 86_400.0
MINUTES = np.arange(3 * 1_440)
CLOCK_H = MINUTES / 60 % 24
OFFICE = np.isin(CLOCK_H // 1, range(8, 20))

type Made = tuple[Floats, Callable[[int], Floats]]
"""Erlangs by minute, and service times of 2 s on average (or more) for some requests."""


def made(name: str, seed: int) -> RequestTrace:
    """Return the made log of a name: of three days, or of a week with Monday mornings."""
    rng = np.random.default_rng([seed, *name.encode()])
    load, service = LOGS[name](rng)
    mean_s = float(service(10_000).mean())
    counts = rng.poisson(load * 60 / mean_s)
    begins = np.repeat(60.0 * np.arange(len(load)), counts)
    arrival_s = np.sort(begins + rng.uniform(0, 60, len(begins)))
    service_s = service(len(arrival_s))
    if name == "doubled":
        service_s[arrival_s > 1.5 * DAY_S] *= 2
    return RequestTrace(
        name=name, arrival_s=arrival_s, service_s=service_s, end_s=60.0 * len(load), drawn=True
    )


def _lognormal(rng: np.random.Generator, mean_s: float) -> Callable[[int], Floats]:
    return lambda count: mean_s * rng.lognormal(-0.245, 0.7, count)


def _steps(rng: np.random.Generator) -> Made:
    """Another load each six hours, from 0.75 to 7.5 erlangs."""
    return np.repeat(0.75 * 10 ** rng.uniform(0, 1, 12), 360), _lognormal(rng, 8)


def _ramps(rng: np.random.Generator) -> Made:
    """Up to ten times the load within an hour or five, and down again."""
    at = np.cumsum(rng.uniform(60, 300, 40))
    return np.interp(MINUTES, at, rng.uniform(1, 10, 40)), _lognormal(rng, 15)


def _sessions(rng: np.random.Generator) -> Made:
    """A dozen sessions a day, of half an hour or so."""
    load = np.full(len(MINUTES), 0.02)
    for begin in rng.integers(0, len(MINUTES), 36):
        load[begin : begin + int(rng.exponential(30)) + 5] += rng.uniform(0.5, 3)
    return load, _lognormal(rng, 25)


def _nights(rng: np.random.Generator) -> Made:
    """Fifteen erlangs from eight to twenty, and nothing at night."""
    return 15.0 * OFFICE * rng.uniform(0.9, 1.1, len(MINUTES)), _lognormal(rng, 20)


def _mondays(rng: np.random.Generator) -> Made:
    """A week that begins on a Friday: quiet nights and weekends."""
    minutes = np.arange(7 * 1_440)
    day, hour = minutes // 1_440, minutes / 60 % 24
    week_end = np.isin(day, (1, 2))
    wave = np.clip(np.sin((hour - 7) / 12 * np.pi), 0, 1)
    load = np.array(0.3 + 6 * rng.uniform(0.8, 1.2) * wave * np.where(week_end, 0.1, 1.0), float)
    return load, _lognormal(rng, 15)


def _cron(rng: np.random.Generator) -> Made:
    """A batch each three hours, beside half an erlang."""
    load = np.array(0.5 + 12.0 * (rng.integers(4, 9) > MINUTES % 180), float)
    return load, _lognormal(rng, 5)


def _bursts(rng: np.random.Generator) -> Made:
    """Two erlangs, and for a few minutes five times as many, at any time."""
    load = np.full(len(MINUTES), 2.0)
    for begin in rng.integers(0, len(MINUTES), 60):
        load[begin : begin + rng.integers(1, 10)] *= 5
    return load, _lognormal(rng, 8)


def _waves(rng: np.random.Generator) -> Made:
    """A wave a day, each of another height."""
    height = np.repeat(rng.uniform(3, 8, 3), 1_440)
    return 1 + height * (1 - np.cos(CLOCK_H / 12 * np.pi)) / 2, _lognormal(rng, 10)


def _doubled(rng: np.random.Generator) -> Made:
    """Service takes twice as long from the middle on."""
    load, service = _waves(rng)
    return load / 2, service


def _pareto(rng: np.random.Generator) -> Made:
    """A few requests of a thousand times the shortest."""
    return _waves(rng)[0] / 2, lambda count: 3 * np.minimum(1_000, rng.pareto(1.6, count) + 1)


def _minutes(rng: np.random.Generator) -> Made:
    """Requests of ten minutes, on the same waves."""
    return _waves(rng)[0] * 2, _lognormal(rng, 600)


_MAKERS: tuple[Callable[[np.random.Generator], Made], ...] = (
    _steps, _ramps, _sessions, _nights, _mondays, _cron, _bursts, _waves, _doubled, _pareto,
    _minutes,
)  # fmt: skip
LOGS = {make.__name__.removeprefix("_"): make for make in _MAKERS}
