"""Both checkers on requests and a market: the cost in two factors, and the size of instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from spotkeeper_lab.replay.rules import fixed_peak
from spotkeeper_lab.replay.values import MarketRow, ReplayError, ReplaySettings
from spotkeeper_lab.run.on_market import market_table, on_market
from spotkeeper_lab.traces.market import Market, market_of
from spotkeeper_lab.traces.requests import generate_requests

if TYPE_CHECKING:
    from spotkeeper_lab.traces.requests import RequestTrace

LENGTH_S = 600.0
SETTINGS = ReplaySettings()


def spot_market(capacity: int = 8) -> Market:
    """One zone that loses half of its capacity for some minutes."""
    steps = [(0.0, capacity), (200.0, capacity // 2), (400.0, capacity)]
    return market_of("m", LENGTH_S, {"a/x": steps})


@pytest.fixture(scope="module")
def requests() -> RequestTrace:
    return generate_requests(1, hours=LENGTH_S / 3600.0, mean_load=3.0)


@pytest.fixture(scope="module")
def row(requests: RequestTrace) -> MarketRow:
    return on_market(requests, spot_market(), SETTINGS)


def test_the_cost_is_sizing_times_spot_against_the_fixed_peak(
    row: MarketRow, requests: RequestTrace
) -> None:
    fixed = fixed_peak(requests, SETTINGS).count
    assert row.workers_per_instance == 1
    bought = 0.30 * row.spot_hours + row.on_demand_hours
    assert row.cost >= bought / (fixed * row.hours) - 0.01
    assert row.cost == pytest.approx(row.sizing_factor * row.spot_factor, abs=1e-4)


def test_a_small_market_gets_larger_instances_and_progress_counts_minutes(
    requests: RequestTrace,
) -> None:
    minutes: list[tuple[int, int]] = []
    row = on_market(
        requests, spot_market(capacity=2), SETTINGS, lambda at, of, _: minutes.append((at, of))
    )
    assert minutes == sorted(minutes)
    assert (minutes[0][0], minutes[-1][1]) == (0, 25)
    assert row.workers_per_instance > 1
    hours = (row.spot_hours + row.on_demand_hours) * row.workers_per_instance
    assert row.worker_hours == pytest.approx(hours, abs=1e-2)


def test_the_table_shows_both_factors(row: MarketRow) -> None:
    console = Console(width=90)
    with console.capture() as capture:
        console.print(market_table([row]))
    for value in (row.cost, row.sizing_factor, row.spot_factor):
        assert f"{value:.1%}" in capture.get()


def test_a_trace_without_requests_is_refused(requests: RequestTrace) -> None:
    nothing = requests.window(0.0, 1e-9)
    with pytest.raises(ReplayError, match="no request"):
        on_market(nothing, spot_market(), SETTINGS)
