"""What search logs cost, and how old they are when they are sent."""

import pytest

from bench.cost import GOAL_USD, sent
from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.logs.pace import PaceSettings

DAY = generate_requests(0, hours=4.0, mean_load=10.0)
AS_BEFORE = PaceSettings(10, 10)


def test_the_default_pace_is_as_fresh_as_every_ten_seconds_and_keeps_the_bill() -> None:
    by_default, before = sent(DAY, PaceSettings()), sent(DAY, AS_BEFORE)
    assert by_default.mean_age_s <= before.mean_age_s
    assert by_default.usd() < GOAL_USD


@pytest.mark.parametrize(("latest_s", "kept"), [(10, True), (30, False)])
def test_what_waits_for_longer_is_older(latest_s: float, kept: bool) -> None:
    found, before = sent(DAY, PaceSettings(5, latest_s)), sent(DAY, AS_BEFORE)
    assert (found.mean_age_s <= before.mean_age_s) is kept


def test_the_agent_s_settings_are_the_pace_s() -> None:
    assert PaceSettings(Settings.send_after_s, Settings.send_at_most_s) == PaceSettings()
