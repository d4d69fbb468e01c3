"""Markets made to judge on, and the table that pools what was measured on them."""

from collections.abc import Callable

import pytest

from bench._made import END_S, by_steps, in_spells, made_markets, on_and_off
from bench.pooled import Figures, pooled
from spotkeeper_lab.traces.market import Market


@pytest.mark.parametrize("kind", [in_spells, by_steps, on_and_off])
def test_a_made_market_is_the_same_again_and_another_for_another_seed(
    kind: Callable[[int], Market],
) -> None:
    assert kind(3) == kind(3)
    assert kind(3).steps != kind(4).steps


def test_made_markets_are_whole_and_none_twice() -> None:
    markets = made_markets(range(4))
    assert len({market.name for market in markets}) == len(markets) == 12
    for market in markets:
        assert market.end_s == END_S
        assert all(steps.times[0] == 0 and min(steps.capacities) >= 0 for steps in market.steps)
        assert any(max(steps.capacities) > 0 for steps in market.steps)


def test_variants_are_compared_market_by_market() -> None:
    """Markets differ by far more than the variants do: only the differences count."""
    default = [Figures(1.0, 0.5, 40.0), Figures(3.0, 1.5, 80.0)]
    dearer = [Figures(0.5, 0.25, 42.0), Figures(2.5, 1.25, 82.0)]
    (_, base, nothing), (name, means, sure) = pooled({"default": default, "dearer": dearer})
    assert (base, nothing) == ([2.0, 1.0, 60.0], [0.0, 0.0, 0.0])
    assert (name, means, sure) == ("dearer", [1.5, 0.75, 62.0], [0.0, 0.0, 0.0])


def test_a_difference_that_varies_is_less_sure() -> None:
    default = [Figures(1.0, 1.0, 40.0), Figures(1.0, 1.0, 40.0)]
    other = [Figures(1.0, 1.0, 41.0), Figures(1.0, 1.0, 43.0)]
    _, (_, means, sure) = pooled({"default": default, "other": other})
    assert (means[2], sure) == (42.0, [0.0, 0.0, 1.0])
