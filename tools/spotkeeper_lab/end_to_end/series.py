"""Series over time from what a demo wrote down: per second, per minute, per change.

Times are float seconds from the start of the day; the lead is left out.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from spotkeeper_lab.end_to_end.record import Look
from spotkeeper_lab.end_to_end.scene import LEAD_S
from spotkeeper_lab.traces.market import Market
from spotkeeper_lab.workers import ServiceLedger

type Floats = NDArray[np.float64]
type Ints = NDArray[np.int64]


def per_second(looks: Sequence[Look], value: Callable[[Look], int], end_s: float) -> Ints:
    """A value of the fleet at every second from the start of the lead to its end."""
    times = np.array([look.at_s for look in looks])
    values = np.array([value(look) for look in looks], dtype=np.int64)
    seconds = np.arange(0.0, end_s)
    return values[np.maximum(np.searchsorted(times, seconds, side="right") - 1, 0)]


def due(target: Ints, start_s: float) -> Ints:
    """What should serve at every second: the least target since a start-up time ago.

    An instance that is asked for now cannot serve before it has started; one that was lost is
    owed at once.
    """
    window = int(start_s) + 1
    padded = np.concatenate([np.full(window - 1, target[0]), target])
    least: Ints = sliding_window_view(padded, window).min(axis=1)
    return least


def fleet_columns(looks: Sequence[Look]) -> dict[str, list[float]]:
    """The fleet at every change, from the start of the day on."""
    before = [look for look in looks if look.at_s <= LEAD_S][-1:]
    shown = [*before, *(look for look in looks if look.at_s > LEAD_S)]
    return {
        "t": [max(0.0, round(look.at_s - LEAD_S, 1)) for look in shown],
        "target": [look.target for look in shown],
        "spot": [look.spot for look in shown],
        "on_demand": [look.on_demand for look in shown],
    }


def market_total(market: Market) -> tuple[list[float], list[float]]:
    """The capacity of all pools together: when it changes, and to what."""
    times = sorted({0.0, *(change.at_s for change in market.changes())})
    totals = [float(sum(market.capacity(pool, at_s) for pool in market.pools)) for at_s in times]
    return [max(0.0, time - LEAD_S) for time in times], totals


def load_columns(ledger: ServiceLedger, workers: Ints, end_s: float) -> dict[str, list[float]]:
    """Busy workers on average of every minute, and the workers that took requests."""
    edges = np.arange(LEAD_S, end_s + 60.0, 60.0)
    busy = np.diff(_busy_time(ledger, edges)) / 60.0
    minutes = [workers[int(edge) : int(edge) + 60] for edge in edges[:-1]]
    return {
        "t": (edges[:-1] - LEAD_S).tolist(),
        "busy": [round(float(value), 2) for value in busy],
        "workers": [round(float(some.mean()), 2) if some.size else 0.0 for some in minutes],
    }


def needed_column(times: Sequence[float], needed: Sequence[float], end_s: float) -> list[float]:
    """The workers that the last health turn before each minute's end found to be needed."""
    edges = np.arange(LEAD_S, end_s, 60.0) + 60.0
    before = np.searchsorted(np.array(times), edges, side="right") - 1
    return [float(needed[turn]) if turn >= 0 else 0.0 for turn in before]


def _busy_time(ledger: ServiceLedger, at_s: Floats) -> Floats:
    """Seconds served by all workers together up to each moment."""
    done = ~np.isnan(ledger.finished_s)
    starts, ends = np.sort(ledger.started_s[done]), np.sort(ledger.finished_s[done])
    started, ended = np.searchsorted(starts, at_s), np.searchsorted(ends, at_s)
    sum_starts = np.concatenate([[0.0], np.cumsum(starts)])[started]
    sum_ends = np.concatenate([[0.0], np.cumsum(ends)])[ended]
    busy: Floats = sum_ends - sum_starts + at_s * (started - ended)
    return busy


def wait_columns(
    ledger: ServiceLedger, end_s: float
) -> tuple[list[float], dict[str, list[float | None]]]:
    """The waits of the requests of every minute of arrival, None in one without any."""
    waits = ledger.waits(end_s)
    edges = np.arange(LEAD_S, end_s + 60.0, 60.0)
    bounds = np.searchsorted(ledger.arrival_s, edges)
    minutes = [waits[first:stop] for first, stop in pairwise(bounds)]
    return (edges[:-1] - LEAD_S).tolist(), {
        "p95": [
            round(float(np.quantile(some, 0.95)), 2) if some.size else None for some in minutes
        ],
        "worst": [round(float(some.max()), 2) if some.size else None for some in minutes],
    }
