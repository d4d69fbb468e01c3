"""Nights and hours without a request queue: what a fleet costs, and who is found."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from spotkeeper.domain.health.reports import nobody_serves, with_silence
from spotkeeper.domain.health_memory import HealthMemory, Silence
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import Load, histogram
from spotkeeper.domain.settings.sizing import Bounds
from tests.builders import at
from tests.unit.turns.stage import Workday

# --- Nights without requests, for a fleet whose request queue Spotkeeper cannot see ---


@pytest.mark.parametrize(("size", "objective"), [(1, True), (6, False)])
def test_a_night_without_requests_costs_no_on_demand_and_replaces_no_instance(
    size: int, objective: bool
) -> None:
    night = Workday(size, objective=objective)
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


def test_on_demand_adopted_in_a_known_quiet_night_is_released() -> None:
    """Turns stopped for longer than a fleet is remembered; no log arrives until the morning."""
    night = Workday(4, objective=True)
    night.pass_minutes(90, rate=0.44)
    night.pass_minutes(30)
    night.turned = False
    night.cloud.set_desired("on-demand", 2)
    night.pass_minutes(30)
    night.turned = True
    night.pass_minutes(1)
    night.pass_minutes(30)
    assert night.cloud.group("on-demand").desired == 0


@pytest.mark.parametrize(("every_s", "objective"), [(240, False), (420, True)])
def test_a_request_every_few_minutes_lets_the_fleet_shrink(objective: bool, every_s: float) -> None:
    """Each pause between two requests renewed the need of the day."""
    day = Workday(12, objective=objective)
    day.pass_minutes(10, rate=1.6)
    assert len(day.in_service("spot")) > 8
    day.spot_hours = 0.0
    day.pass_minutes(150, every_s=every_s)
    assert day.spot_hours < 20
    assert len(day.in_service("spot")) <= 2


@pytest.mark.parametrize(("slow", "behind_s", "objective"), [(2, 600, False), (5, 240, True)])
def test_slow_clocks_of_some_workers_hide_no_load(
    slow: int, behind_s: float, objective: bool
) -> None:
    """What half of the workers served lay before the window, and the fleet was scaled in."""
    day = Workday(10, objective=objective)
    day.slow_clocks = dict.fromkeys(day.in_service("spot")[:slow], behind_s)
    day.records.clear()
    day.pass_minutes(60, rate=1.2)
    assert len(day.in_service("spot")) >= 10 - (1 if objective else 0)
    assert any("are their clocks right?" in record.reason for record in day.records)
    assert day.replaced == 0


@pytest.mark.parametrize(("service_s", "objective"), [(20.0, True), (60.0, False)])
def test_three_of_four_that_hang_are_suspected_within_ten_minutes(
    service_s: float, objective: bool
) -> None:
    """They are few and slow: what tells is that requests wait for the one that works."""
    day = Workday(4, service_s=service_s, objective=objective)
    day.fleet = replace(day.fleet, bounds=Bounds(spot_min=4, spot_max=4, on_demand_max=0))
    day.pass_minutes(60, rate=2.8 / service_s)
    day.hung = set(day.in_service("spot")[:3])
    day.records.clear()
    day.pass_minutes(10, rate=2.8 / service_s)
    told = " ".join(record.reason for record in day.records)
    assert {i for i in day.hung if i in told} == day.hung
    assert not {i for i in day.in_service("spot") if i in told} - day.hung


def test_nobody_serves_is_reported_within_ten_minutes_until_a_worker_serves() -> None:
    day = Workday(4, service_s=20.0, objective=True)
    day.fleet = replace(day.fleet, bounds=Bounds(spot_min=4, spot_max=4, on_demand_max=0))
    day.pass_minutes(60, rate=0.1)
    assert "nobody-serves" not in day.alarms
    day.hung = set(day.in_service("spot"))
    day.pass_minutes(10, rate=0.1)
    assert "nobody-serves" in day.alarms
    day.records.clear()
    day.pass_minutes(60, rate=0.1)
    health = [r for r in day.records if r.controller == "health"]
    assert all("nobody-serves" in record.alarms for record in health)
    assert all(record.nobody_serves for record in health)
    assert day.replaced == 0
    day.hung.clear()
    day.busy_until.clear()
    day.pass_minutes(3, rate=0.1)
    assert "nobody-serves" not in day.records[-2].alarms


def test_a_silence_at_a_time_that_was_quiet_before_is_no_news() -> None:
    def silent_at(hours: float, *silences: Silence) -> str:
        flow = LogFlow(known_since=at(0), newest=at(3600 * hours - 900), rate=1.0)
        known = HealthMemory(flow=flow, in_service_since={"i-a": at(0)}, silences=silences)
        return nobody_serves(known, at(3600 * hours))

    night = Silence(since=at(8 * 3600), until=at(18 * 3600))
    assert silent_at(24 + 12, night) == ""
    assert silent_at(3 * 24 + 7.5, night) == ""
    assert "nobody serves, requests have stopped" in silent_at(24 + 12)
    assert "nobody serves, requests have stopped" in silent_at(24 + 5, night)


@pytest.mark.parametrize("weekend", [((7, 7),), ((5, 8), (5, 20), (6, 12), (7, 7))])
def test_quiet_weekends_do_not_excuse_a_silence_on_a_working_day(
    weekend: Sequence[tuple[int, int]],
) -> None:
    """Hours count from midnight of a Monday; a few requests may divide the weekend."""

    def hour(day: int, of_day: float) -> float:
        return 24 * day + of_day

    def silent_at(hours: float) -> str:
        nights = [(hour(day, 20), hour(day + 1, 7)) for day in (0, 1, 2, 3, 7)]
        ends = [hour(4, 20), *(hour(day, of_day) for day, of_day in weekend)]
        silences = [
            Silence(since=at(3600 * since), until=at(3600 * until))
            for since, until in sorted([*nights, *pairwise(ends)])
        ]
        newest = at(3600 * hours - 900)
        flow = LogFlow(known_since=at(0), newest=newest, rate=1.0, lately=1.0, watched_since=at(0))
        known = HealthMemory(flow=flow, in_service_since={"i-a": at(0)}, silences=tuple(silences))
        return nobody_serves(known, at(3600 * hours))

    assert "nobody serves, requests have stopped" in silent_at(hour(8, 12))
    assert "nobody serves, requests have stopped" in silent_at(hour(11, 16))
    assert silent_at(hour(8, 3)) == silent_at(hour(12, 12)) == silent_at(hour(13, 16)) == ""


def test_days_whose_silences_are_forgotten_do_not_count_as_busy() -> None:
    """Requests pause twice an hour by day: what is remembered reaches back for two days."""
    hour, began = 3600.0, at(0)
    begins = [24 * day + 8 + n / 2 for day in range(10) for n in range(20)]
    pauses = [(since, since + 0.1) for since in begins]
    nights = [(24 * day + 18, 24 * day + 32) for day in range(9)]
    memory = HealthMemory(in_service_since={"i-a": began})
    seen = Load(at=began, window_s=300, waits=histogram([100] * 9))
    for since, until in sorted([*pauses, *nights]):
        before = LogFlow(newest=at(hour * since), rate=1.0, watched_since=began)
        ended = replace(before, known_since=at(hour * until))
        memory = with_silence(replace(memory, flow=ended), before, seen, at(hour * until))
    now = 24 * 9 + 22
    flow = LogFlow(newest=at(hour * (now - 3)), rate=1.0, lately=1.0, watched_since=began)
    assert nobody_serves(replace(memory, flow=flow), at(hour * now)) == ""


@pytest.mark.parametrize(("waited_s", "quiet"), [(0.5, 1), (900.0, 0)])
def test_a_silence_after_which_requests_had_waited_was_none(waited_s: float, quiet: int) -> None:
    before = LogFlow(known_since=at(0), newest=at(3600), rate=1.0)
    after = HealthMemory(flow=LogFlow(known_since=at(7200), newest=at(7260), rate=1.0))
    waits = histogram([round(1000 * waited_s)] * 9)
    seen = Load(at=at(7260), window_s=300, waits=waits)
    assert len(with_silence(after, before, seen, at(7260)).silences) == quiet


def test_a_group_whose_own_minimum_binds_is_named() -> None:
    """Adopted groups have one that no document shows: the size read as wanted."""
    day = Workday(3, objective=True)
    day.pass_minutes(30, rate=0.02)
    day.cloud.set_bounds("spot", 3, 40)
    day.pass_minutes(3, rate=0.02)
    record = [r for r in day.records if r.controller == "health" and "The load needs" in r.reason][
        -1
    ]
    assert record.rule == "spot minimum"
    assert " The group's MinSize is 3." in record.reason
