"""Nights without requests, for a fleet whose request queue Spotkeeper cannot see."""

import pytest

from tests.unit.turns.nights import Hours

EITHER_RULE = pytest.mark.parametrize("objective", [False, True], ids=["load rate", "objective"])


@EITHER_RULE
@pytest.mark.parametrize("size", [1, 6])
def test_a_night_without_requests_costs_no_on_demand_and_replaces_nobody(
    size: int, objective: bool
) -> None:
    night = Hours(size, objective=objective)
    night.pass_minutes(90, rate=0.11 * size)
    night.records.clear()
    night.on_demand_hours = 0.0
    night.pass_minutes(60)
    night.lose()
    night.pass_minutes(120)
    night.lose()
    night.pass_minutes(120)
    assert night.replaced == 0
    assert "bootstrap" not in night.alarms
    assert night.on_demand_hours <= 0.2 * size


@EITHER_RULE
@pytest.mark.parametrize("every_s", [240, 420])
def test_a_request_every_few_minutes_lets_the_fleet_shrink(objective: bool, every_s: float) -> None:
    """Each pause between two requests renewed the need of the day."""
    day = Hours(12, objective=objective)
    day.pass_minutes(10, rate=1.6)
    assert len(day.in_service("spot")) > 8
    day.spot_hours = 0.0
    day.pass_minutes(150, every_s=every_s)
    assert day.spot_hours < 20
    assert len(day.in_service("spot")) <= 2
