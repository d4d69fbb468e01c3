"""Generated markets: the same seed gives the same market, with the statistics of real ones."""

from itertools import pairwise
from statistics import mean

import pytest

from spotkeeper_lab.traces.market import Market, MarketError, generate

FORTNIGHT_H = 14 * 24.0
STEP_S = 300


def obtainable(market: Market) -> list[list[bool]]:
    """Per pool, whether it has capacity, every STEP_S seconds."""
    times = range(0, int(market.end_s), STEP_S)
    return [[market.capacity(pool, at) > 0 for at in times] for pool in market.pools]


def losses(market: Market) -> list[float]:
    """The time of every unit of capacity that went away, in order."""
    return sorted(
        at
        for steps in market.steps
        for (before, after), at in zip(pairwise(steps.capacities), steps.times[1:], strict=True)
        for _ in range(before - after)
    )


@pytest.fixture(scope="module")
def markets() -> list[Market]:
    return [generate(seed, hours=FORTNIGHT_H) for seed in range(8)]


def test_single_zones_come_and_go_but_some_zone_is_nearly_always_there(
    markets: list[Market],
) -> None:
    zones = [mean(zone) for market in markets for zone in obtainable(market)]
    anywhere = [mean(map(any, zip(*obtainable(market), strict=True))) for market in markets]
    assert 0.17 <= min(zones) <= 0.6
    assert 0.85 <= max(zones) <= 0.97
    assert 0.97 <= mean(anywhere) <= 0.999


def test_losses_come_in_spells_and_together(markets: list[Market]) -> None:
    for market in markets:
        times = losses(market)
        hours = [0] * int(market.end_s // 3600)
        for at in times:
            hours[int(at // 3600)] += 1
        worst = sorted(hours, reverse=True)[: len(hours) // 2]
        assert sum(worst) > 0.9 * len(times)
        near = sum(
            1
            for before, at, after in zip([-1e9, *times], times, [*times[1:], 1e9], strict=False)
            if at - before <= 180 or after - at <= 180
        )
        assert near > 0.85 * len(times)


@pytest.mark.parametrize(("pools", "hours", "level"), [((), 1, 1), (("a",), 0, 1), (("a",), 1, 0)])
def test_a_market_without_extent_is_refused(
    pools: tuple[str, ...], hours: float, level: int
) -> None:
    with pytest.raises(MarketError, match="a market needs"):
        generate(0, pools, hours, level)
