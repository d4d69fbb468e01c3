"""What the functions can know nothing of is excused, and no more than that."""

import math

import pytest

from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper_lab.promises import WHOLE_AFTER_S, is_budget_spent, to_be_missed_s
from spotkeeper_lab.scenario import Scenario

# 4 erlangs of 6 s; later as much as three, or one, of four workers would serve alone.
STEADY = Scenario(seed=1, loads=((0.0, 4.0),), queue_known=False)
FELL = Scenario(seed=1, loads=((0.0, 3.6), (3000.0, 0.6)), queue_known=False)


@pytest.mark.parametrize(
    ("scenario", "now_s", "there", "idle", "hang", "expected"),
    [
        pytest.param(STEADY, 2000.0, 4, 0, True, 0.0, id="everybody works"),
        pytest.param(STEADY, 2000.0, 8, 1, True, CERTAIN * 6.0 * 8 / 4.0, id="one in eight"),
        pytest.param(STEADY, 2000.0, 8, 4, False, CERTAIN * 6.0 * 8 / 4.0, id="half never began"),
        pytest.param(STEADY, 2000.0, 4, 4, True, math.inf, id="all hang: their logs, perhaps"),
        pytest.param(STEADY, 2000.0, 4, 4, False, CERTAIN * 6.0, id="none of them ever served"),
        pytest.param(FELL, 2000.0, 4, 2, True, CERTAIN * 6.0 * 4 / 3.6, id="half, busy"),
        pytest.param(FELL, 3600.0, 4, 2, True, math.inf, id="half, at ease as the load fell"),
        pytest.param(
            FELL, 8000.0, 4, 2, True, CERTAIN * 6.0 * 4 / 0.6, id="half, it fell long ago"
        ),
        pytest.param(FELL, 3600.0, 4, 1, True, CERTAIN * 6.0 * 4 / 0.6, id="a quarter, at ease"),
    ],
)
def test_so_long_a_worker_may_do_nothing(
    scenario: Scenario, now_s: float, there: int, idle: int, *, hang: bool, expected: float
) -> None:
    assert to_be_missed_s(scenario, now_s, there, idle, hang=hang) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ages_s", "short", "spent"),
    [
        ([100.0, 200.0], 2, True),
        ([100.0, 200.0], 3, False),
        ([100.0], 1, False),
        ([100.0, 3600.0], 1, True),
        ([100.0, 3600.0 + WHOLE_AFTER_S], 1, False),
    ],
)
def test_a_spent_budget_excuses_as_many_as_were_just_replaced(
    ages_s: list[float], short: int, *, spent: bool
) -> None:
    assert is_budget_spent(ages_s, short, 2) is spent
