"""Turns on a load that is known in part: late logs, gaps, outages, broken shippers, adoption."""

from dataclasses import replace
from typing import Any

import pytest

from spotkeeper.domain.decision import Controller
from spotkeeper.domain.load.request_queue import MISPLACED, QueueLength
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from spotkeeper.turns.check_availability import check_availability
from spotkeeper_lab.fakes import FakeRequestQueues, instant
from tests.unit.turns.stage import Stage, Workday

UNSIZED = SizingPolicy(enabled=False)
# Requests a second that are ten erlangs, and two.
TEN, TWO = 5.0, 1.0
QUEUE = "rabbitmq://%2F/requests"


def served_before(
    spot: int = 15, rate: float = TEN, *, objective: bool = True, late_s: float = 0.0
) -> Workday:
    """A fleet that served for 20 minutes before its first turn."""
    day = Workday(
        spot, service_s=2.0, objective=objective, sizing=SizingPolicy(scale_in_after_s=60)
    )
    day.late_s, day.turned = late_s, False
    day.pass_minutes(20, rate)
    day.turned = True
    return day


def reading(url: str | None, day: Workday) -> dict[str, QueueLength]:
    """Name a request queue in the document; its length is what a test sets."""
    queues = FakeRequestQueues()
    day.fleet = replace(day.fleet, request_queue_url=url)
    day.ports = replace(day.ports, queues=queues)
    return queues.lengths


BOTH = pytest.mark.parametrize("objective", [False, True], ids=["load rate", "objective"])


@BOTH
def test_late_logs_are_no_less_load(objective: bool) -> None:
    day = served_before(late_s=155.0, objective=objective)
    day.pass_minutes(30, TEN)
    assert min(day.desired) >= 11


@pytest.mark.parametrize(("minutes", "turned"), [(3, True), (25, False)])
def test_a_gap_in_the_logs_and_in_the_turns_gives_nothing_back(minutes: int, turned: bool) -> None:
    day = served_before()
    day.pass_minutes(15, TEN)
    before = len(day.desired)
    day.logged, day.turned = False, turned
    day.pass_minutes(minutes, TEN)
    day.logged = day.turned = True
    day.pass_minutes(22, TEN)
    assert set(day.desired[before : before + 2]) == {day.desired[before - 1]}
    assert min(day.desired) >= 10


def test_an_adopted_fleet_is_not_cut_to_a_minute_of_logs() -> None:
    day = Workday(12, service_s=2.0, objective=True, sizing=SizingPolicy(scale_in_after_s=60))
    day.pass_minutes(4, 4.0)
    assert set(day.desired) == {12}


@BOTH
def test_a_load_that_falls_is_followed_once_a_whole_window_is_known(objective: bool) -> None:
    day = served_before(objective=objective)
    day.pass_minutes(15, TEN)
    day.pass_minutes(45, TWO)
    assert day.desired[-1] <= 6


def test_half_of_the_shippers_broken_does_not_shrink_and_tries_whether_a_successor_reports() -> (
    None
):
    day = served_before(12, 3.0)
    day.pass_minutes(10, 3.0)
    before = day.desired[-1]
    day.dark = set(day.spot[::2])
    replaced = []
    for _ in range(50):
        there = set(day.spot)
        day.pass_minutes(1, 3.0)
        # Their network is broken: the successors' logs are lost, too.
        day.dark |= set(day.spot) - there
        replaced.append(day.replaced)
    assert min(day.desired[10:]) >= before - 1
    assert (replaced[29], replaced[-1]) == (0, 2)
    assert "search-logs-missing" in day.sized.alarms
    assert day.sized.rule == "partly known load"
    day.dark = set()
    day.pass_minutes(30, 3.0)
    assert min(day.desired[60:]) >= 6


@pytest.mark.parametrize(("minutes", "requests"), [(12 * 60, 4), (60, 20)])
def test_at_little_load_the_healthy_are_left_alone_and_the_hung_is_found_in_the_end(
    minutes: int, requests: int
) -> None:
    """Each of `requests` in five minutes may reach any of four workers."""
    day = served_before(4, requests / 300)
    day.fleet = replace(day.fleet, sizing=UNSIZED)
    day.pass_minutes(minutes, requests / 300)
    assert day.replaced == 0
    if requests == 20:
        hung = day.spot[0]
        day.hung = {hung}
        day.pass_minutes(60, requests / 300)
        assert hung not in day.spot
        assert day.replaced == 1


@pytest.mark.parametrize(("spot", "least", "desired"), [(0, 2, 2), (12, 0, 10)])
def test_the_bounds_rule_in_silence_too(spot: int, least: int, desired: int) -> None:
    stage = Stage(spot)
    bounds = Bounds(spot_min=least, spot_max=10, on_demand_max=10)
    stage.fleet = replace(stage.fleet, bounds=bounds)
    stage.turn(0)
    assert stage.cloud.group("spot").desired == desired


def beside_a_rack(**more: Any) -> Workday:
    """A fleet without any spot instance, whose machines on premises carry the load."""
    day = Workday(0, service_s=2.0, **more)
    day.fleet, day.onprem = replace(day.fleet, onprem_workers=2), ["rack-0", "rack-1"]
    return day


@BOTH
def test_pauses_between_rare_requests_start_nothing_beside_a_rack_but_its_end_does(
    objective: bool,
) -> None:
    day = beside_a_rack(objective=objective)
    for request in range(60):
        day.onprem = day.onprem if request < 40 else ()
        day.line.append(day.now_s + 40)
        day.pass_minutes(4)
    assert {*day.desired[:200]} == {0}
    assert day.desired[-1] == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_rack_that_takes_nothing_rings_where_the_cloud_has_nobody(known: bool) -> None:
    """No instance may be launched, so none is missing."""
    day = beside_a_rack(spot_max=0)
    lengths = reading(QUEUE if known else None, day)
    for minute in range(30):
        day.onprem = ["rack-0", "rack-1"] if minute < 15 else ()
        lengths[QUEUE] = QueueLength(waiting=len(day.line), in_flight=int(bool(day.onprem)))
        day.pass_minutes(1, 0.2)
        assert minute >= 15 or "nobody-serves" not in day.alarms
    assert "nobody-serves" in day.sized.alarms


def test_another_request_queue_is_judged_anew() -> None:
    """The wrong one was empty beside busy workers; the document was corrected in an idle hour."""
    day = served_before(2, 1.0, objective=False)
    reading("wrong", day)["wrong"] = QueueLength(waiting=0, in_flight=0)
    day.pass_minutes(40, 1.0)
    assert MISPLACED in day.sized.reason
    day.pass_minutes(20)
    reading(QUEUE, day)[QUEUE] = QueueLength(waiting=0, in_flight=0)
    day.pass_minutes(9)
    assert day.desired[-1] > 0
    day.pass_minutes(4)
    assert day.desired[-1] == 0


def test_on_premises_workers_that_die_while_spot_is_zero_wake_a_worker() -> None:
    day = beside_a_rack()
    day.pass_minutes(3, 0.2)
    assert day.desired[-1] == 0
    day.onprem = ()
    day.pass_minutes(4, 0.2)
    assert day.desired[-1] == 1


def test_on_demand_goes_where_machines_on_premises_carry_the_load() -> None:
    """Spot already has the size that the load needs, so nothing is ever requested of it."""
    day = beside_a_rack()
    day.cloud.set_desired("on-demand", 3)
    day.pass_minutes(15, 0.3)
    assert {*day.desired} == {0}
    assert day.cloud.group("on-demand").desired == 0


def test_no_on_demand_goes_while_the_turns_of_the_health_controller_have_stopped() -> None:
    """Whether the instances in service since then work is not known."""
    day = Workday(4, service_s=2.0, sizing=SizingPolicy(scale_in_after_s=60))
    day.cloud.set_desired("on-demand", 2)
    on_demand = []
    for minute in range(60):
        day.turned = False
        day.pass_minutes(1, TWO)
        if minute < 10 or minute >= 40:
            day.turn(day.minute)
        if minute >= 18:
            check_availability([day.fleet], day.ports, instant(day.now_s))
        on_demand.append(day.cloud.group("on-demand").desired)
    assert set(on_demand[:40]) == {2}
    assert on_demand[-1] == 0


def test_a_turn_that_was_missed_makes_no_pace_slower() -> None:
    """The last request arrived before the worker hung; the pace is no slower two turns later."""
    rates = []
    for missed in range(3):
        day = served_before(1, 0.05, objective=False)
        day.pass_minutes(30, 0.05)
        day.turned = not missed
        day.pass_minutes(1, 0.05)
        day.turned, day.logged = False, False
        day.pass_minutes(missed, 0.05)
        day.turn(day.minute)
        minute = instant(day.now_s + 60)
        lease = day.states.acquire("ocr", Controller.HEALTH, minute, None)
        assert lease is not None
        rates.append(lease.health.flow.rate)
    assert min(rates) > max(rates) / 2


def test_a_turn_between_two_health_turns_misses_no_logs() -> None:
    """Logs that arrived since the last health turn counted as missing, half a minute after it."""
    day = Workday(4, objective=True)
    day.cloud.set_desired("on-demand", 2)
    day.pass_minutes(3, rate=0.8)
    report = check_availability([day.fleet], day.ports, instant(day.now_s + 50))
    (record,) = report.records
    assert record.rule == "adopting"
    assert "minutes of logs without a gap" in record.reason
    day.logged = False
    day.pass_minutes(3, rate=0.8)
    assert "send their search logs again" in day.records[-1].reason
