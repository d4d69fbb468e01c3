"""Generated markets have the statistics of recorded ones."""

from itertools import pairwise
from statistics import mean

import numpy as np
import pytest

from spotkeeper_lab.traces.market import Market, generate

FORTNIGHT_H = 14 * 24.0
STEP_S = 300


@pytest.fixture(scope="module")
def markets() -> list[Market]:
    return [generate(seed, hours=FORTNIGHT_H) for seed in range(8)]


def test_single_zones_fail_but_some_zone_nearly_always_has_capacity(markets: list[Market]) -> None:
    obtainable = [
        [[market.capacity(pool, at) > 0 for at in range(0, int(market.end_s), STEP_S)]
         for pool in market.pools]
        for market in markets
    ]  # fmt: skip
    zones = [mean(zone) for market in obtainable for zone in market]
    assert 0.17 <= min(zones) <= 0.6
    assert 0.85 <= max(zones) <= 0.97
    assert 0.97 <= mean(mean(map(any, zip(*market, strict=True))) for market in obtainable) <= 0.999


def test_losses_cluster_in_time(markets: list[Market]) -> None:
    for market in markets:
        # The time of every unit of capacity that went away.
        times = np.sort(
            [
                at
                for of in market.steps
                for (before, after), at in zip(pairwise(of.capacities), of.times[1:], strict=True)
                for _ in range(before - after)
            ]
        )
        hours = np.sort(np.bincount(times.astype(int) // 3600, minlength=int(FORTNIGHT_H)))
        assert hours[len(hours) // 2 :].sum() > 0.9 * len(times)
        gaps = np.diff(times, prepend=-1e9, append=1e9)
        assert (np.minimum(gaps[:-1], gaps[1:]) <= 180).mean() > 0.85
