"""What the minutes of the last day say of the next ones."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.sizing.bursts import Bursts, recurring

MINUTE_S = 60.0
EVERY = (20.0, *[1.0] * 9)
"""A minute of twenty erlangs in every ten, one in the others."""


def largest(bursts: Bursts | None) -> float:
    """The highest load that may come."""
    assert bursts is not None
    return bursts.level * bursts.ratios[0][0]


def test_bursts_that_come_again_are_expected_as_they_were() -> None:
    bursts = recurring(EVERY * 36, MINUTE_S, 2.0)
    assert largest(bursts) == pytest.approx(20.0, rel=0.05)
    assert bursts is not None
    assert sum(w for ratio, w in bursts.ratios if bursts.level * ratio > 10) == pytest.approx(
        20 / 29, rel=0.05
    )


@pytest.mark.parametrize(
    "loads",
    [
        pytest.param((), id="nothing known"),
        pytest.param((5.0,) * 5, id="too little known"),
        pytest.param((0.0,) * 600, id="no load"),
        pytest.param((5.0,) * 600, id="steady"),
        pytest.param(tuple(5 + 4 * math.sin(at / 229) for at in range(1440)), id="a day"),
        pytest.param(((0.0,) * 480 + (3.0,) * 600 + (0.0,) * 360) * 2, id="office hours"),
        pytest.param((20.0, *[1.0] * 999), id="a burst in a thousand minutes"),
    ],
)
def test_other_traffic_is_left_to_the_forecast(loads: tuple[float, ...]) -> None:
    assert recurring(loads, MINUTE_S, 2.0) is None


def test_what_chance_does_to_a_small_load_is_no_burst() -> None:
    random = Random(0)
    minutes = tuple(sum(random.random() < 0.1 for _ in range(60)) / 12 for _ in range(1440))
    assert max(minutes) > 2 * sum(minutes) / len(minutes)
    assert recurring(minutes, MINUTE_S, 5.0) is None


def test_bursts_grow_with_the_square_root_of_the_load() -> None:
    quiet, busy = EVERY * 36, tuple(4 * load for load in EVERY * 18)
    assert largest(recurring(quiet + busy, MINUTE_S, 2.0)) > 70
    assert largest(recurring(busy + quiet, MINUTE_S, 2.0)) == pytest.approx(40.0, rel=0.05)


@given(st.lists(st.floats(0, 1e4), max_size=300), st.floats(0, 1e3))
def test_weights_add_up_and_the_largest_comes_first(loads: list[float], running_s: float) -> None:
    bursts = recurring(tuple(loads), MINUTE_S, running_s)
    if bursts:
        ratios = [ratio for ratio, _ in bursts.ratios]
        assert sum(weight for _, weight in bursts.ratios) == pytest.approx(1.0)
        assert ratios == sorted(ratios, reverse=True)
        assert bursts.level >= 0
