"""What the minutes of the last day say of the next ones."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.forecast import cycle_rise, forecast_errors
from spotkeeper.domain.sizing.level import load_level, quick_level

if TYPE_CHECKING:
    from collections.abc import Iterable

START_UP_S = 240.0
DAY_STEPS = 288
EVERY = (20.0, *[1.0] * 9)
"""A minute of twenty erlangs in every ten, one in the others."""


def known(minutes: Iterable[float], service_s: float = 2.0, peakedness: float = 1.0) -> LoadSummary:
    return LoadSummary(
        arrivals=(),
        work_s=(),
        service_mean_s=service_s,
        service_second_moment_s2=service_s**2,
        newest_start_age_s=1.0,
        newest_wait_s=0.0,
        newest_log_age_s=1.0,
        peakedness=peakedness,
        recent_loads=tuple(minutes),
    )


def worst(load: LoadSummary, level: float) -> float:
    return forecast_errors(load, level, START_UP_S)[0][0]


def test_bursts_that_come_again_are_expected_as_they_were() -> None:
    load = known(EVERY * 100, peakedness=100.0)
    errors = forecast_errors(load, 2.9, START_UP_S)
    assert 2.9 + errors[0][0] == pytest.approx(20.0, rel=0.15)
    in_bursts = sum(weight for error, weight in errors if error > 10)
    assert 0.45 < in_bursts < 20 / 29  # what chance may have made of a minute is not counted


def test_a_burst_is_no_larger_for_a_larger_load() -> None:
    load = known(EVERY * 100, peakedness=100.0)
    assert worst(load, 8.0) == pytest.approx(worst(load, 2.9), rel=0.01)


@pytest.mark.parametrize("before", range(15))
def test_the_first_burst_of_a_young_fleet_is_one_to_plan_for(before: int) -> None:
    """No level was known before it: it is held against the mean of the minutes that are known."""
    minutes = (*[4.0] * before, 20.0, *[4.0] * max(1, 9 - before))
    mean = sum(minutes) / len(minutes)
    assert 4.0 + worst(known(minutes), 4.0) > 0.95 * (4.0 + 20.0 - mean)


def test_a_first_minute_says_nothing_of_how_the_load_varies() -> None:
    assert worst(known((20.0,)), 20.0) == pytest.approx(0.04 * 2.4 * 20.0, rel=0.05)


def test_what_chance_explains_is_taken_out_of_the_square_of_an_error() -> None:
    """Errors of two causes add up as variances do: of one far beyond chance nearly all is left."""
    load = known((10.0,) * 600 + (16.0,) + (10.0,) * 5, service_s=12.0)
    unit = 2.5**2 * 12.0 / 60.0
    chance = math.sqrt(unit * 10.0) + unit
    assert worst(load, 10.0) == pytest.approx(math.sqrt(6.0**2 - chance**2), rel=0.02)


def test_a_slow_growth_is_more_than_chance_makes_of_five_minutes() -> None:
    """At half an erlang a minute new workers meet some 6 more than the level; chance makes 8."""
    load = known((20.0 + 0.5 * minute for minute in range(60)), service_s=20.0)
    unit = 2.5**2 * 20.0 / 60.0
    assert math.sqrt(unit * 20.0) + unit > 8.0
    assert 4.0 < worst(load, 20.0) < 8.0


@pytest.mark.parametrize(
    "minutes",
    [
        pytest.param((), id="nothing known"),
        pytest.param((5.0,) * 10, id="too little known"),
        pytest.param((0.0,) * 600, id="no load"),
        pytest.param((5.0,) * 600, id="steady"),
        pytest.param(((0.0,) * 480 + (5.0,) * 600 + (0.0,) * 360), id="office hours"),
    ],
)
def test_what_is_as_it_was_leaves_the_prior_alone(minutes: tuple[float, ...]) -> None:
    assert worst(known(minutes), 5.0) == pytest.approx(0.04 * 2.4 * 5.0, rel=0.05)


def test_what_chance_does_to_a_small_load_is_no_error() -> None:
    random = Random(0)
    minutes = [sum(random.random() < 0.1 for _ in range(60)) / 12 for _ in range(1440)]
    assert max(minutes) > 2 * sum(minutes) / len(minutes)
    assert worst(known(minutes, service_s=5.0), 0.5) < 0.3


def test_a_step_is_an_error_until_the_level_has_it() -> None:
    load = known((20.0,) * 700 + (32.0,) * 700)
    errors = forecast_errors(load, 32.0, START_UP_S)
    assert 8.0 < errors[0][0] < 12.0
    assert sum(weight for error, weight in errors if error > 4.0) < 0.05


def test_a_step_out_of_next_to_nothing_weighs_as_one_of_that_size_would_now() -> None:
    """Not as a thousand minutes, as over its own level: that held twice the workers for a day."""
    errors = forecast_errors(known((0.02,) * 60 + (20.0,) * 640), 20.0, START_UP_S)
    assert sum(weight for error, weight in errors if error > 5.0) < 0.06


@given(
    st.lists(st.just(0.0) | st.floats(1e-9, 1e4), max_size=120),
    st.floats(0.001, 1e3),
    st.floats(0, 1e4),
    st.floats(0, 900.0),
)
@example([0.0, 5e-324], 1.0, 0.0, 0.0)
def test_weights_add_up_and_the_largest_comes_first(
    minutes: list[float], service_s: float, level: float, ahead_s: float
) -> None:
    errors = forecast_errors(known(minutes, service_s), level, ahead_s)
    assert sum(weight for _, weight in errors) == pytest.approx(1.0)
    assert all(weight >= 0 for _, weight in errors)
    sizes = [error for error, _ in errors]
    assert all(a >= b or math.isclose(a, b) for a, b in pairwise(sizes))
    assert len(errors) <= 80


def test_the_daily_cycle_is_learned() -> None:
    day = (10.0,) * 143 + (20.0,) * 145
    loads = (day * 3)[: 2 * DAY_STEPS + 142]
    assert cycle_rise(loads, 300.0, START_UP_S) == pytest.approx(20 / 3, rel=0.3)
    assert cycle_rise(loads[: DAY_STEPS + 142], 300.0, START_UP_S) == 0.0


def test_what_came_back_after_an_outage_comes_back_once() -> None:
    day, outage = (10.0,) * DAY_STEPS, (10.0,) * 80 + (0.0,) * 63 + (10.0,) * 145
    loads = (*day, *outage, *outage[:142])
    assert cycle_rise(loads, 300.0, START_UP_S) == 0.0
    twice = (*outage, *outage, *day[:142])
    assert cycle_rise(twice, 300.0, START_UP_S) <= 10.0


def test_nothing_is_proved_by_no_request() -> None:
    assert quick_level(known((5.0,) * 1440)) == 0.0
    assert load_level(known(())) == 0.0
